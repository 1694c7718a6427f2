"""Charts, tables and sentences about any number of runs: their numbers, their routes, the checkpoints of a training."""
