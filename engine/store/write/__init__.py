"""Writing a run file: batches in, one sealed file out."""
