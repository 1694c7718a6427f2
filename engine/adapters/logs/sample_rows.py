"""Samples from rows of tokens that are read a block at a time, as in the neutral formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS, Piece, cut_remark
from tokenpaths.engine.adapters.logs.pieces.wording import shortened
from tokenpaths.engine.base.errors import UserError


def sample_bounds(sample: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first row, stop row) of each run of equal numbers or names in ``sample``."""
    bounds = [0, *(np.flatnonzero(sample[1:] != sample[:-1]) + 1).tolist(), len(sample)]
    return zip(bounds[:-1], bounds[1:], strict=True)


class SampleNames:
    """Numbers samples that have names, 0, 1, … as they come; their tokens stand together."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._known: set[str] = set()
        self.names: list[str] = []

    def numbers(self, names: np.ndarray, start: int) -> np.ndarray:
        """(n,) numbers of the samples of rows that are called so, from row ``start`` of the file; UserError for an
        empty name, or one that comes again after another."""
        number = np.empty(len(names), dtype=np.int64)
        for low, high in sample_bounds(names):
            name = self._text(names[low], start + low)
            if not self.names or name != self.names[-1]:
                if not name.strip():
                    raise UserError(f"{self.where}, row {start + low}: the name in 'sample' is empty", field="file")
                if name in self._known:
                    raise UserError(
                        f"{self.where}, row {start + low}: sample {shortened(repr(name))} comes again after others; "
                        "the tokens of a sample stand together",
                        field="file",
                    )
                self._known.add(name)
                self.names.append(name)
            number[low:high] = len(self.names) - 1
        return number

    def _text(self, name: object, row: int) -> str:
        try:
            return name.decode() if isinstance(name, bytes) else str(name)
        except UnicodeDecodeError:
            raise UserError(f"{self.where}, row {row}: 'sample' holds bytes that are not UTF-8", field="file") from None


class SampleRows:
    """Collects rows into pieces: tokens with the same number in ``sample`` are one sample; numbers ascend.

    A sample of more than ``CUT_TOKENS`` is returned in pieces of that size, so that it is never held whole. A column of
    names is numbered first (``numbered``).
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._names = SampleNames(where)
        self._parts: list[tuple[np.ndarray | None, ...]] = []
        self._held = 0
        self._number: int | None = None
        self._position = -1
        self._start = 0
        self._taken = 0
        self._done: list[tuple[int, bool, Piece]] = []

    @property
    def num_samples(self) -> int:
        """Number of samples begun so far."""
        return self._position + 1

    def numbered(self, sample: np.ndarray | None, start: int) -> np.ndarray | None:
        """``sample`` as whole numbers, names by ``SampleNames``."""
        return sample if sample is None or sample.dtype.kind in "iu" else self._names.numbers(sample, start)

    def add(
        self,
        ids: np.ndarray,
        weights: np.ndarray | None,
        token_id: np.ndarray | None,
        sample: np.ndarray | None,
        start: int,
    ) -> Iterator[Piece]:
        """Add rows from ``start`` of the file; without sample numbers, yields samples at once."""
        if sample is None:
            rows = f"rows {start} to {start + len(ids) - 1}"
            yield Piece(ids, f"{self.where}, row {start}", weights, token_id, source=rows, rows_from=start)
            return
        for low, high in sample_bounds(sample):
            number = int(sample[low])
            if number != self._number:
                if self._number is not None and number < self._number:
                    raise UserError(
                        f"{self.where}, row {start + low}: sample {number} comes after sample {self._number}; "
                        "the tokens of a sample stand together, samples in rising order",
                        field="file",
                    )
                self._finish()
                self._number, self._start, self._position = number, start + low, self._position + 1
                self._taken = 0
            for place in range(low, high, CUT_TOKENS):
                part = slice(place, min(place + CUT_TOKENS, high))
                columns = (ids, weights, token_id)
                self._parts.append(tuple(None if values is None else values[part] for values in columns))
                self._held += part.stop - part.start
                if self._held > CUT_TOKENS:
                    self._hand_out(CUT_TOKENS)

    def _joined(self) -> list[np.ndarray | None]:
        return [None if column[0] is None else np.concatenate(column) for column in zip(*self._parts, strict=True)]

    def _hand_out(self, count: int, cut: bool = True) -> None:
        columns = self._joined()
        ids, weights, token_id = (None if column is None else column[:count] for column in columns)
        assert ids is not None, "every token has ids"
        row = self._start + self._taken
        assert self._number is not None, "there are rows"
        source = self._names.names[self._number] if self._names.names else f"sample {self._number}"
        if cut:
            source = f"{source}, tokens {self._taken} to {self._taken + count - 1}"
        piece = Piece(ids, f"{self.where}, row {row}", weights, token_id, source=source, rows_from=row)
        self._done.append((self._position, cut, piece))
        self._taken += count
        self._held -= count
        left = tuple(None if column is None else column[count:] for column in columns)
        self._parts = [left] if self._held else []

    def _finish(self) -> None:
        if self._parts:
            self._hand_out(self._held, cut=self._taken > 0)

    def ready(self, words: Callable[[int], dict[str, Any]], end: bool = False) -> Iterator[Piece]:
        """Complete pieces with ``words`` (label and text) of their sample; a cut one has no text."""
        if end:
            self._finish()
        for position, cut, piece in self._done:
            names = words(position)
            if cut:
                names = {**names, "text": None, "remarks": (cut_remark(names.get("text")),)}
            yield replace(piece, **names)
        self._done = []
