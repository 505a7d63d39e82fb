"""Names of models and parts: their grammar, their catalogue, and what is built from them."""
