"""Pictures of what was measured; each takes a summary and gives a figure to save."""
