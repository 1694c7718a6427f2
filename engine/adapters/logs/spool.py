"""What the first reading of a log decoded and checked, kept for the second one in unnamed temporary files.

They lie in the folder of the runs, hold about a byte an id, and are given back one by one as they are read: memory that
the system had for them serves the run that is written meanwhile. Without space for them, and when it is read once more,
a log is read from its own file.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.piece import Piece, lowest
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_free

HELD_BYTES = 4 << 20
"""bytes of ids that are written at once"""
FILE_BYTES, FILES_OF_A_SIZE = 64 << 20, 16
"""of one file, from which on there is another; doubled after so many, for each takes a descriptor"""
_NAMES = tuple(field.name for field in fields(Piece) if field.name not in ("locate", "ordered"))


@dataclass
class _Part:
    """One of the files."""

    file: IO[bytes]
    chunks: list[list[int]] = field(default_factory=list)
    """one behind the other: the bytes of all ids, of the pieces, then of each of their other arrays"""
    num_bytes: int = 0

    def write(self, held: list[dict[str, Any]]) -> None:
        """Append a chunk."""
        # Arrays go to the file as they lie: a copy of a log in memory costs as much as the file does.
        arrays: list[pickle.PickleBuffer] = []
        ids = [row["ids"] for row in held]
        alike = len({(of.dtype, of.shape[1:]) for of in ids}) == 1
        rows = [{**row, "ids": None} for row in held] if alike else held
        shapes = [of.shape for of in ids]
        head = pickle.dumps((rows, ids[0].dtype if alike else None, shapes), protocol=5, buffer_callback=arrays.append)
        # Ids come first, where words of eight bytes are aligned, and those of several pieces are read as one array.
        first = [memoryview(of).cast("B") for of in ids] if alike else []
        rest = [memoryview(head), *(array.raw() for array in arrays)]
        parts = [*first, *rest]
        for part in parts:
            self.file.write(part)
        self.file.flush()
        self.chunks.append([sum(part.nbytes for part in first), *(part.nbytes for part in rest)])
        self.num_bytes += sum(self.chunks[-1])

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """The chunks, whose arrays cannot be written to."""
        offset = 0
        for sizes in self.chunks:
            chunk = memoryview(os.pread(self.file.fileno(), sum(sizes), offset))
            starts = accumulate(sizes, initial=0)
            of_ids, head, *arrays = (chunk[start : start + size] for start, size in zip(starts, sizes, strict=False))
            rows, dtype, shapes = pickle.loads(head, buffers=arrays)
            if dtype is not None:
                whole = np.frombuffer(of_ids, dtype=dtype)
                stops = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
                for row, shape, start, stop in zip(rows, shapes, [0, *stops], stops, strict=False):
                    row["ids"] = whole[start:stop].reshape(shape)
            yield rows
            offset += len(chunk)


class PieceSpool:
    """Checked pieces in the order in which they came; whoever takes them first reads them, once.

    Of a piece whose layers have lines of their own, only the line of its first token is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the files; None: the system's temporary folder."""
        self._folder = folder if folder is not None and folder.is_dir() else Path(tempfile.gettempdir())
        self._parts: list[_Part] = []
        self._held: list[dict[str, Any]] = []
        self._held_bytes = 0
        self._whole = True
        self._lock = threading.Lock()

    def add(self, piece: Piece) -> None:
        """Keep one checked piece."""
        if not self._whole:
            return
        row = {name: value for name in _NAMES if (value := getattr(piece, name)) is not None}
        ids = piece.ids
        row["ids"] = np.ascontiguousarray(ids, dtype=_narrow(ids))
        self._held.append(row)
        self._held_bytes += sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
        if self._held_bytes >= HELD_BYTES:
            self._write()

    def _write(self) -> None:
        try:
            check_free(self._folder)
            most = FILE_BYTES << (len(self._parts) // FILES_OF_A_SIZE)
            if not self._parts or self._parts[-1].num_bytes >= most:
                self._parts.append(_Part(tempfile.TemporaryFile(dir=self._folder)))  # noqa: SIM115
            self._parts[-1].write(self._held)
        except (OSError, UserError):  # no space: a log can be read twice
            self._whole, self._parts = False, []
        self._held, self._held_bytes = [], 0

    def take(self) -> Iterator[Piece] | None:
        """The pieces from the beginning, whose arrays cannot be written to; None if there was no space for them, or
        they were taken before."""
        with self._lock:
            if not self._whole:
                return None
            self._whole = False
        parts, self._parts = self._parts[::-1], []
        held, self._held = self._held, []
        return _read(parts, held)


def _narrow(ids: np.ndarray) -> type[np.integer]:
    """The type of the fewest bytes that holds all ``ids``."""
    if ids.dtype == np.uint8:  # as of most logs: they need not be looked at
        return np.uint8
    low, high = lowest(ids), int(ids.max())
    return np.int32 if low < 0 or high >= 2**16 else np.uint8 if high < 256 else np.uint16


def _read(parts: list[_Part], held: list[dict[str, Any]]) -> Iterator[Piece]:
    """The pieces of ``parts``, the last one first, each of which is closed when it is read; then those ``held``."""
    while parts:
        part = parts.pop()
        with part.file:
            for rows in part.rows():
                yield from map(_piece, rows)
    yield from map(_piece, held)


def _piece(row: dict[str, Any]) -> Piece:
    return Piece(**row)
