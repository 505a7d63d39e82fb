"""What the trainers share: texts and states to learn from, losses, and the loop that trains."""
