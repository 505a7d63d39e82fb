"""Masked diffusion; `base` is the contract, and says what the letters in all shapes mean."""
