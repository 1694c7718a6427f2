"""Pieces of a routing log: what every reader of a format yields, and the checks that name file and row."""
