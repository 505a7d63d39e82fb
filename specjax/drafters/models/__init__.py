"""Drafters that are models of their own."""
