"""Loops over the tokens of large runs, compiled where numba is installed."""
