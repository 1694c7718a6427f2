"""Questions about the work that tokens and samples get."""
