"""Charts of dreams and of long jobs."""
