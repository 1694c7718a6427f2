"""The log files of ``tokenpaths up``: bounded while they are written, whatever their process prints.

A process writes into a pipe, and a thread of ``up`` from there into the file. The file is rotated by size, opened again
where it was moved or deleted, and of lines that repeat only the first of a minute and their count are kept. Where the
file cannot be written (a full disk, a folder that is gone), lines are dropped and counted: the process never waits.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from tokenpaths.backend.data_folder import identity_of
from tokenpaths.backend.logs import Repeats, kind_of_line
from tokenpaths.backend.loops import keep_running

MOST_BYTES = 10_000_000
LINE_BYTES = 65_536
"""longer lines are cut into several"""


class LogFile:
    """A log and its predecessor (``….log.1``), each of at most ``most_bytes``."""

    def __init__(self, file: Path, most_bytes: int = MOST_BYTES, repeats: Repeats | None = None) -> None:
        self.file, self.most_bytes = file, most_bytes
        self.repeats = repeats if repeats is not None else Repeats(most=100)
        self.last_line = ""
        """the newest line that says something, also where it could not be written"""
        self._stream: IO[bytes] | None = None
        self._size = 0
        self._lost = 0
        self._admitted = True
        self._lock = threading.Lock()

    def write(self, line: bytes) -> None:
        """Add one line, unless it is one of many like it; never raises OSError."""
        text = line.decode("utf-8", "replace")
        with self._lock:
            if text.strip():
                self.last_line = text.strip()[:300]
            if not text[:1].isspace():  # what is indented goes with the line before it, as in a traceback
                self._admitted = self.repeats.admits(kind_of_line(text))
            self._say_counts()
            if self._admitted:
                self._put(line)

    def close(self) -> None:
        """Write the counts of what was left out, and close the file; a later line opens it again."""
        with self._lock:
            self._say_counts(every=True)
            self._shut()

    def _say_counts(self, *, every: bool = False) -> None:
        for kind, count in self.repeats.counts(every=every):
            self._put(f"{count} more like: {kind.strip()}\n".encode())

    def _put(self, line: bytes) -> None:
        try:
            stream = self._open()
            if self._lost:
                stream.write(f"{self._lost} lines could not be written here\n".encode())
                self._lost = 0
            self._size += stream.write(line)
        except OSError:
            self._lost += 1
            self._shut()

    def _open(self) -> IO[bytes]:
        """The file to write to: rotated where it is full, another one where it is no longer the one at its path."""
        if self._stream is not None:
            status = os.fstat(self._stream.fileno())
            if identity_of(self.file) != (status.st_dev, status.st_ino):
                self._shut()
        if self._stream is not None and self._size >= self.most_bytes:
            self._shut()
            self.file.replace(self.file.with_suffix(".log.1"))
        if self._stream is None:
            self.file.parent.mkdir(exist_ok=True)  # not its parents: a data folder that is gone is not made again
            self._stream = open(self.file, "ab", buffering=0)  # noqa: SIM115
            self._size = self._stream.tell()
        return self._stream

    def _shut(self) -> None:
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
            self._stream = None


def follow(pipe: IO[bytes], log: LogFile) -> None:
    """Copy the lines of ``pipe`` into ``log`` until it ends, in a thread that no error stops."""

    def copy() -> None:
        while not pipe.closed:
            if line := pipe.readline(LINE_BYTES):
                log.write(line)
            else:
                pipe.close()

    keep_running(f"log {log.file.name}", copy)
