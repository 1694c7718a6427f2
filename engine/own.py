"""Which run files are known here: sealed by this program in this data folder, or read to their end without harm.

A run that came from elsewhere is data of a stranger. Its blocks carry sums, but whoever wrote it wrote those too, and a
file that was made for it, or spoiled before its sums were taken, ends the process that reads it (DuckDB 1.5: a fault
of memory in one of twenty such files). So a mark is kept in ``<data_dir>/.known/`` for each file whose origin is
known; what has none is first read by a process that may die of it (``backend.strangers``).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = ".known"


def _mark_of(file: Path) -> Path:
    return file.parent.parent / FOLDER / file.name


def _identity(info: os.stat_result) -> str:
    return f"{info.st_ino} {info.st_size} {info.st_mtime_ns}"


def know(file: Path, info: os.stat_result) -> None:
    """Note that the run ``file``, which ``info`` tells apart from any other, is known.

    Only in a folder named ``runs``, as every data folder has one. Without a mark a file is read once more, so that a
    mark that cannot be written is no failure.
    """
    mark = _mark_of(file)
    if file.parent.name != "runs":
        return
    with contextlib.suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(_identity(info), encoding="ascii")


def is_known(file: Path) -> bool:
    """Whether the run ``file`` is the one that was noted (raises OSError where there is no such file)."""
    info = os.stat(file)
    try:
        return _mark_of(file).read_text(encoding="ascii") == _identity(info)
    except (OSError, UnicodeError):
        return False
