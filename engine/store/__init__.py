"""Runs on disk: ``file`` is the format, ``write`` makes a run file, ``ask`` answers questions about one."""

import warnings

# DuckDB 2 proposes relations at every query that is read as Arrow; a cursor costs a copy, and works with 1.5 too.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning, r"tokenpaths\.engine\.store\.")
