"""Drafters that guess again what the target said of their last guesses."""
