"""`Sample`, the unit that every data set yields, and the interface of its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image

from tokenpaths.engine.base.errors import UserError


@dataclass(frozen=True)
class Sample:
    """One image or one text; exactly one of ``image`` and ``text`` is there."""

    image: Image.Image | None
    """RGB, upright, at its own size"""
    text: str | None
    label: str | None
    """class, domain or language"""
    source: str
    """file name or row that it came from, for people"""
    mask: UInt8[np.ndarray, "H W"] | None = None
    """0 background, 1 object; same height and width as ``image``"""
    place: int | None = field(default=None, compare=False)
    """which of the data set's rows it came from, counted before any was left out; batches are cut by it"""


@dataclass(frozen=True)
class LabelIndex:
    """The label of every row, small enough for millions of rows."""

    names: tuple[str, ...]
    """sorted"""
    codes: Int32[np.ndarray, " n"]
    """index into ``names``; −1 = no label"""

    @classmethod
    def of(cls, labels: Sequence[str | None]) -> LabelIndex:
        """From one label a row; None and empty ones are no label."""
        names = tuple(sorted({readable(label) for label in labels if label}))
        code = {name: i for i, name in enumerate(names)}
        codes = [code[readable(label)] if label else -1 for label in labels]
        return cls(names, np.array(codes, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.codes)

    def label(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]


def readable(name: str) -> str:
    """``name`` with what is no Unicode (bytes of odd file names, lone surrogates) as question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")


@runtime_checkable
class Source(Protocol):
    """Rows with labels known in advance and contents read when asked for."""

    index: LabelIndex
    has_masks: bool

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        """The given rows (ascending), one at a time; a row that cannot be used comes as its error.

        Raises ``UserError`` where the rest of the source cannot be read either.
        """
        ...
