"""Jobs that trace: a model over data, and its untrained twin over the same."""
