"""Marks of run files of known origin: sealed by this program in this data folder, or read completely without harm.

A run from elsewhere is untrusted. Its blocks carry checksums, but whoever wrote it wrote those too, and a file crafted
to, or corrupted before its checksums were taken, crashes the process that reads it (DuckDB 1.5: a memory fault in one
of twenty such files). So ``<data_dir>/.known/`` keeps a mark for each file of known origin; a file without one is first
read by a process that may die of it (``tokenpaths.backend.runs.foreign_files``).

The mark says which of the two it is. In a run sealed here, odd numbers are a fault of this program; in one that was
only read, they may be its author's.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

FOLDER = ".known"
SEALED, READ = "sealed", "read"
FRESH_SECONDS = 60.0
"""marks younger than this may precede their run, which appears a moment later"""


def _mark_of(file: Path) -> Path:
    return file.parent.parent / FOLDER / file.name


def _identity(info: os.stat_result) -> str:
    return f"{info.st_ino} {info.st_size} {info.st_mtime_ns}"


def mark_known(file: Path, info: os.stat_result, how: str) -> None:
    """Note that the run ``file``, which ``info`` tells apart from any other, is known: SEALED here, or READ.

    Only in a folder named ``runs``, as every data folder has one. Without a mark a file is read once more, so that a
    mark that cannot be written is no failure.
    """
    mark = _mark_of(file)
    if file.parent.name != "runs":
        return
    with contextlib.suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(f"{_identity(info)} {how}", encoding="ascii")


def _how(file: Path) -> str | None:
    """What the mark says of ``file`` as it is now; None without one (raises OSError where there is no such file).

    Marks of older versions do not say how: those runs may be from elsewhere.
    """
    info = os.stat(file)
    try:
        inode, size, changed, *how = _mark_of(file).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    if f"{inode} {size} {changed}" != _identity(info):
        return None
    return SEALED if how == [SEALED] else READ


def is_known(file: Path) -> bool:
    """Whether the run ``file`` is the one that was noted (raises OSError where there is no such file)."""
    return _how(file) is not None


def is_sealed_here(file: Path) -> bool:
    """Whether the run ``file`` was sealed in this data folder (raises OSError where there is no such file)."""
    return _how(file) == SEALED


def read_at(file: Path) -> float:
    """When (seconds since 1970) the run ``file`` from elsewhere was read to its end, whichever process did it.

    Zero where that is not known, and for what was sealed here.
    """
    try:
        return _mark_of(file).stat().st_mtime if _how(file) == READ else 0.0
    except OSError:
        return 0.0


def forget(file: Path) -> None:
    """Remove the mark of a run that was deleted."""
    with contextlib.suppress(OSError):
        _mark_of(file).unlink()


def forget_deleted(runs_dir: Path) -> int:
    """Remove the marks of runs that are no longer in ``runs_dir``, however they were deleted; returns how many."""
    num_removed = 0
    try:
        marks = list((runs_dir.parent / FOLDER).iterdir())
    except OSError:
        return 0
    for mark in marks:
        with contextlib.suppress(OSError):
            young = time.time() - mark.stat().st_mtime < FRESH_SECONDS
            if not young and not os.path.lexists(runs_dir / mark.name):
                mark.unlink()
                num_removed += 1
    return num_removed
