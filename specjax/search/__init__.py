"""Searches, samples and pairs of models: ways to write a text beside the one loop."""
