"""Charts of a single model family each."""
