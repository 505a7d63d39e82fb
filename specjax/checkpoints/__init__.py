"""Weights that others trained, in and out."""
