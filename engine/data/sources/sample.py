"""`Sample`, the unit that every data set yields, and the interface of its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.labels import Remarks, read_label


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
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """what was left out of it when it was read: kinds of ``Remarks``"""


@dataclass(frozen=True)
class LabelIndex:
    """The label of every row, small enough for millions of rows."""

    names: tuple[str, ...]
    """sorted"""
    codes: Int32[np.ndarray, " n"]
    """index into ``names``; −1 = no label"""

    @classmethod
    def of(cls, labels: Sequence[Any], remarks: Remarks | None = None, where: Callable[[int], str] = str) -> LabelIndex:
        """From one value a row, read by ``read_label``; None and empty ones are no label.

        Args:
            labels: what the data set holds.
            remarks: counts what is changed or left out.
            where: a row's place, for people.
        """
        read: list[str | None] = []
        for row, value in enumerate(labels):
            label, kinds = read_label(value)
            if kinds and remarks is not None:
                remarks.add(kinds, where(row))
            read.append(label)
        names = tuple(sorted({label for label in read if label is not None}))
        code = {name: i for i, name in enumerate(names)}
        return cls(names, np.array([-1 if label is None else code[label] for label in read], dtype=np.int32))

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
