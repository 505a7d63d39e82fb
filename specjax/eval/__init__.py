"""What is measured, on which prompts, and how it is shown."""
