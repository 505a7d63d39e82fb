"""Parts of methods from names, from pairs of a part and its weights, or as they are."""
