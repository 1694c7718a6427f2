"""Every number of a page, defined once, over plain numpy arrays."""
