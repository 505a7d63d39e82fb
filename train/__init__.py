"""The trainers, one command each. They may import everything and nothing imports them."""
