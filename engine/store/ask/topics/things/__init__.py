"""Questions about single things: their names, and one of them in full."""
