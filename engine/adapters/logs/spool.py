"""What the first reading of a log decoded and checked, kept for the second one in an unnamed temporary file.

The file lies in the folder of the runs, holds about a byte an id, and the operating system deletes it when the import
ends. Without space for it a log is read from its own file once more.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces import Piece, lowest
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_free

HELD_BYTES = 4 << 20
"""bytes of ids that are written at once"""
_NAMES = tuple(field.name for field in fields(Piece) if field.name not in ("locate", "ordered"))


class PieceSpool:
    """Checked pieces in the order in which they came; ``pieces`` reads them as often as it is called.

    Of a piece whose layers have lines of their own, only the line of its first token is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the file; None: the system's temporary folder."""
        self._folder = folder if folder is not None and folder.is_dir() else Path(tempfile.gettempdir())
        self._file: IO[bytes] | None = None
        self._chunks: list[tuple[int, int]] = []
        self._held: list[dict[str, Any]] = []
        self._held_bytes = 0
        self._end = 0
        self.whole = True
        """False once there was no space: what was kept is given up"""

    def add(self, piece: Piece) -> None:
        """Keep one checked piece."""
        if not self.whole:
            return
        row = {name: value for name in _NAMES if (value := getattr(piece, name)) is not None}
        ids = piece.ids
        low, high = lowest(ids), int(ids.max())
        kind = np.int32 if low < 0 or high >= 2**16 else np.uint8 if high < 256 else np.uint16
        row["ids"] = np.ascontiguousarray(ids, dtype=kind)
        self._held.append(row)
        self._held_bytes += sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
        if self._held_bytes >= HELD_BYTES:
            self._write()

    def _write(self) -> None:
        try:
            check_free(self._folder)
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - as long as the object
            data = pickle.dumps(self._held, protocol=5)
            self._file.write(data)
            self._file.flush()
        except (OSError, UserError):  # no space: a log can be read twice
            self.whole, self._file, self._chunks = False, None, []
        else:
            self._chunks.append((self._end, len(data)))
            self._end += len(data)
        self._held, self._held_bytes = [], 0

    def pieces(self) -> Iterator[Piece]:
        """The pieces from the beginning; only for a spool that is ``whole``."""
        for offset, size in self._chunks:
            assert self._file is not None, "chunks were written"
            yield from map(_piece, pickle.loads(os.pread(self._file.fileno(), size, offset)))
        yield from map(_piece, self._held)


def _piece(row: dict[str, Any]) -> Piece:
    return Piece(**row)
