"""Runs on disk: ``file`` is the format, ``write`` makes one, ``ask`` answers questions about one."""
