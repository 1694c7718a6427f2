"""Tables in pages: paths by number and by rank, and visits of samples."""
