"""Statistics that only one family of models has, over plain numpy arrays."""
