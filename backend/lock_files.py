"""Lock files that keep processes apart for a moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenpaths.backend.problems import Problem

LOOK_SECONDS = 0.01


@contextmanager
def held_lock_file(file: Path, wait_s: float, busy: Problem) -> Iterator[None]:
    """Hold ``file``, which is made and stays; raises ``busy`` where another process holds it for ``wait_s`` seconds.

    Nothing is held on systems without ``fcntl``, and where the file cannot be made.
    """
    try:
        import fcntl

        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except (ImportError, OSError):  # Windows; a folder that cannot be written
        yield
        return
    ends = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > ends:
                    raise busy from None
                time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)
