"""Training scripts. `train/` may import everything; nothing imports it."""
