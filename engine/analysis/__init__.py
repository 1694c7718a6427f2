"""Every statistic shown by the page, defined once, over plain numpy arrays."""
