"""Runs on disk: ``file`` is the format, ``write`` makes a run file, ``ask`` answers questions about one."""
