"""Writing of run files: batches in, one sealed file out; shards of many workers and their merge."""
