"""A model over a data set, batch by batch, into a run."""
