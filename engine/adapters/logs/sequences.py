"""Sequences out of forward passes: the decode steps of a request follow its prompt, in one sample.

A reader of passes says of each part which sequence it belongs to and whether a new one begins; ``Sequences`` joins the
parts. A sequence is handed out in blocks of ``CUT_TOKENS``, so none is ever held whole.

Shapes: t tokens of a part, S layers, K slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS, Piece, cut_remark

GAPS = (
    "{n} position{s} between tokens of a sequence {are} not in the log: the tokens on either side count as neighbours"
)
MOST_OPEN = 4096
"""sequences that may be open at a time; then the one that was continued longest ago ends"""


@dataclass
class _Open:
    """A sequence that may go on."""

    parts: list[Piece] = field(default_factory=list)
    held: int = 0
    taken: int = 0
    """tokens that were handed out"""
    next_position: int = 0
    source: str | None = None
    number: int = 0
    """of all sequences, in the order in which they began"""


class Sequences:
    """Joins parts of sequences into samples."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Open] = {}
        self.samples = 0
        """sequences that began"""

    def find(self, position: int, keys: list[Hashable]) -> Hashable | None:
        """The first of the open ``keys`` whose next token is at ``position``."""
        return next((key for key in keys if key in self._open and self._open[key].next_position == position), None)

    def position(self, key: Hashable) -> int:
        """Of the next token of an open sequence."""
        return self._open[key].next_position

    @property
    def keys(self) -> list[Hashable]:
        """Open sequences; the one that was last continued is the last."""
        return list(self._open)

    def add(self, key: Hashable, part: Piece, *, new: bool, position: int | None = None) -> Iterator[Piece]:
        """Add tokens to the sequence ``key``, or begin it anew; yields what is complete.

        Args:
            position: of the first token in its sequence; by default behind the last one.
        """
        if new and key in self._open:
            yield from self._close(key)
        held = self._open.pop(key, None)
        if held is None:
            held = _Open(source=part.source, number=self.samples)
            self.samples += 1
        self._open[key] = held
        held.parts += _at_blocks(part, CUT_TOKENS - held.held)
        held.held += part.num_tokens
        held.next_position = (held.next_position if position is None else position) + part.num_tokens
        while held.held >= CUT_TOKENS + 1:
            yield self._block(held, CUT_TOKENS)
        if len(self._open) > MOST_OPEN:
            yield from self._close(next(iter(self._open)))

    def finish(self) -> Iterator[Piece]:
        """The sequences that are still open, in the order in which they began."""
        for key, _ in sorted(self._open.items(), key=lambda item: item[1].number):
            yield from self._close(key)

    def _close(self, key: Hashable) -> Iterator[Piece]:
        held = self._open.pop(key)
        if held.held:
            yield self._block(held, held.held)

    def _block(self, held: _Open, count: int) -> Piece:
        """The next ``count`` tokens of a sequence as a sample."""
        parts, missing = [], count
        while missing:
            parts.append(held.parts.pop(0))
            missing -= parts[-1].num_tokens
        whole = joined(parts)
        if held.taken or held.held > count:
            span = f"tokens {held.taken} to {held.taken + count - 1}"
            cut = cut_remark(whole.text)
            whole = replace(whole, source=f"{held.source}, {span}", text=None, remarks=(*whole.remarks, cut))
        held.held -= count
        held.taken += count
        return whole


def _at_blocks(part: Piece, room: int) -> list[Piece]:
    """A part cut where blocks end, of which the first has ``room`` for so many tokens.

    All are cut from the part itself: of rests of rests, naming a place would go through each of them.
    """
    starts = [start for start in range(room, part.num_tokens, CUT_TOKENS) if start]
    if not starts:
        return [part]
    first, *rest = (part.part(slice(*ends)) for ends in pairwise([0, *starts, part.num_tokens]))
    return [first, *(replace(one, remarks=(), counted=()) for one in rest)]


def joined(parts: list[Piece]) -> Piece:
    """One piece of consecutive tokens of a sequence; its name, label and text are those of the first part."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    ids = [part.token_id for part in parts if part.token_id is not None]
    return replace(
        first,
        ids=np.concatenate([part.ids for part in parts]),
        weights=None
        if first.weights is None
        else np.concatenate([part.weights for part in parts if part.weights is not None]),
        scored=None
        if first.scored is None
        else np.concatenate([part.scored for part in parts if part.scored is not None]),
        token_id=np.concatenate(ids) if len(ids) == len(parts) else None,
        locate=_locator(parts),
        rows_from=None,
        remarks=tuple(remark for part in parts for remark in part.remarks),
        counted=tuple(count for part in parts for count in part.counted),
    )


def _locator(parts: list[Piece]) -> Callable[[int, int, int], str]:
    ends = np.cumsum([part.num_tokens for part in parts])

    def place(token: int, step: int, slot: int) -> str:
        at = int(np.searchsorted(ends, token, side="right"))
        part = parts[min(at, len(parts) - 1)]
        return part.place(token - int(ends[at - 1] if at else 0), step, slot)

    return place
