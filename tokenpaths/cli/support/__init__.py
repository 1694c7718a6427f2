"""What several commands share: progress bar, options, child processes, shard workers."""
