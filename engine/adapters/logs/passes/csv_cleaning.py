"""A routing CSV with rows that cannot be read, for imports that leave them out (``--skip-bad``).

Each such row becomes one that can be read and says what it is: it stands at the layer of the row before it and its
expert is ``BAD``, so that the forward pass that it belongs to is left out, and no other.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

BAD = -(2**30)
"""expert of a row that cannot be read"""
NULLS = ("", "null", "None")
_WHOLE = r'[ \t]*"?-?[0-9]{1,18}"?[ \t]*'
_DECIMAL = r'[ \t]*"?[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"?[ \t]*'
_NO_NUMBER = r"nan|NaN|-nan|inf|-inf|Inf"
_TEXT = r'"(?:[^"]|"")*"|[^",]*'


class CleanedRows(io.RawIOBase):
    """The file's bytes, row by row, bad rows replaced."""

    def __init__(self, file: Path, columns: dict[str, int], skip: int) -> None:
        self._stream = file.open("rb")
        self._skip, self._columns = skip, columns
        kinds = {place: key for key, place in columns.items() if key != "width"}
        every = [kinds.get(place) for place in range(columns["width"])]
        self._right = re.compile(",".join(f"({_cell(kind)})" for kind in every).encode())
        self._last = [b"nan" if kind == "weight" else b"0" if kind else b"" for kind in every]
        self._held, self._line = b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held and (line := self._stream.readline()):
            self._held = self._cleaned(line)
        given = self._held[: len(buffer)]
        buffer[: len(given)] = given
        self._held = self._held[len(given) :]
        return len(given)

    def _cleaned(self, line: bytes) -> bytes:
        self._line += 1
        if self._line <= self._skip:
            return line
        text = line.rstrip(b"\r\n")
        if not text.strip():
            return line
        match = self._right.fullmatch(text)
        if match is not None:
            self._last = list(match.groups())
            return text + b"\n"
        bad = self._last.copy()
        bad[self._columns["expert"]] = str(BAD).encode()
        return b",".join(bad) + b"\n"

    def close(self) -> None:
        self._stream.close()
        super().close()


def _cell(kind: str | None) -> str:
    """What the cell of a column may hold."""
    if kind is None or kind == "seq" or kind.startswith(("pass", "sample")):
        return _TEXT
    if kind == "weight":
        return "|".join([_DECIMAL, _NO_NUMBER, *NULLS])
    if kind == "layer":
        return _WHOLE.replace("-?", "")
    return "|".join([_WHOLE, *NULLS]) if kind == "expert" else _WHOLE
