"""Routers of a recorded model: which modules they are, how outputs are read, whether the model chose the same."""
