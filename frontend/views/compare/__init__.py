"""Compare view: any number of runs in numbers, two of them sample by sample, their routes, and a training."""
