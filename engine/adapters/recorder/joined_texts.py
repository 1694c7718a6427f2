"""Texts whose tokens come in several forward passes, joined into samples.

The decisions of a pass wait here until no later pass can continue its texts; then they are written, in the order in
which the texts began. Most passes are texts of their own and wait for the next one only.

Shapes: B samples, T tokens each (padding included), n tokens kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from tokenpaths.engine.adapters.recorder.pass_caches import Continued
from tokenpaths.engine.adapters.recorder.pass_tokens import Say
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord, TraceBatch

_MOST_TEXTS = 8
"""sets of texts that wait at once"""
_MOST_TOKENS = 1 << 17
"""tokens that wait, beyond those of the pass at hand"""
_UNKNOWN_ID = -1


@dataclass(frozen=True)
class Piece:
    """The tokens of one forward pass."""

    number: int
    """of the forward pass"""
    trace: TraceBatch
    """a sample of no token included where a mask leaves all out"""
    keep: np.ndarray
    """(B, T) tokens that are no padding"""


@dataclass(frozen=True)
class Ends:
    """How a model marks that a text has ended while others of its batch go on."""

    end_ids: frozenset[int] = frozenset()
    padding_id: int | None = None

    @classmethod
    def of(cls, model: Any) -> Ends:
        """What stands in the generation settings of ``model``, or in its configuration."""
        for name in ("generation_config", "config"):
            settings = getattr(model, name, None)
            end, padding = getattr(settings, "eos_token_id", None), getattr(settings, "pad_token_id", None)
            ends = frozenset(i for i in (end if isinstance(end, (list, tuple)) else [end]) if isinstance(i, int))
            if ends:
                return cls(ends, padding if isinstance(padding, int) else min(ends))
        return cls()

    def behind(self, ids: np.ndarray, prompt: int) -> np.ndarray:
        """Tokens that follow an end directly and are padding, from place ``prompt`` on, where ``ids`` (T,) go on."""
        behind = np.zeros(len(ids), dtype=bool)
        ended = False
        for place in range(prompt, len(ids)):
            behind[place] = ended and ids[place] == self.padding_id
            ended = behind[place] or int(ids[place]) in self.end_ids
        return behind


class _Texts:
    """The texts of one batch, as far as they have come."""

    def __init__(self, piece: Piece, past: int) -> None:
        """``past``: tokens before, which are not recorded."""
        self.pieces = [piece]
        self.num_tokens = piece.trace.num_tokens
        # For each sample the samples of the pieces that it is made of: another one after beam search.
        self.rows = [[row] for row in range(len(piece.keep))]
        self.columns = past + piece.keep.shape[1]
        self.taken_back = 0

    @property
    def number(self) -> int:
        """The last forward pass."""
        return self.pieces[-1].number

    @property
    def last_begin(self) -> int:
        return self.columns - self.pieces[-1].keep.shape[1]

    def add(self, piece: Piece, order: Sequence[int] | None) -> None:
        before = self.rows if order is None else [self.rows[row] for row in order]
        self.rows = [[*rows, row] for row, rows in enumerate(before)]
        self.pieces.append(piece)
        self.num_tokens += piece.trace.num_tokens
        self.columns += piece.keep.shape[1]

    def shorten(self, columns: int) -> None:
        """Take the end of the last pass back, as where a draft was rejected."""
        last, length = self.pieces[-1], columns - self.last_begin
        keep = last.keep[:, :length]
        stays = np.broadcast_to(np.arange(last.keep.shape[1]) < length, last.keep.shape)[last.keep]
        samples = [replace(s, num_tokens=int(n)) for s, n in zip(last.trace.samples, keep.sum(axis=1), strict=True)]
        self.pieces[-1] = Piece(last.number, _taken(last.trace, samples, stays), keep)
        self.columns = columns
        self.num_tokens -= int((~stays).sum())
        self.taken_back += int((~stays).sum())


class JoinedTexts:
    """Passes in, whole texts out."""

    def __init__(self, may_go_on: Callable[[int], bool], ends: Callable[[], Ends], say: Say) -> None:
        """``may_go_on``: whether what a pass left can be given to a later one; ``say`` receives notes."""
        self._may_go_on, self._ends, self._say = may_go_on, ends, say
        self._waiting: deque[_Texts] = deque()
        self._newest: _Texts | None = None
        self._num_written = 0
        self._beams = self._after_end = self._back = 0

    @property
    def num_tokens(self) -> int:
        """Tokens written and waiting."""
        return self._num_written + self._num_waiting

    @property
    def _num_waiting(self) -> int:
        return sum(texts.num_tokens for texts in self._waiting)

    def add(self, piece: Piece, continued: Continued | None, wanted: bool | None) -> Iterator[TraceBatch]:
        """Take a pass in; gives the texts that can no longer be continued.

        Args:
            continued: what its inputs say of earlier passes.
            wanted: what the caller says: it continues the pass before, or none; None: nothing.

        Raises:
            UserError: the caller says that it continues another pass, and there is none of so many samples.
        """
        past = None if continued is None or wanted is not None else continued.past
        past = int(past) if isinstance(past, Tensor) else past
        texts = self._of(piece, continued, past, wanted)
        if texts is None:
            texts = _Texts(piece, past or 0)
            self._waiting.append(texts)
        else:
            texts.add(piece, None if wanted or continued is None else continued.order)
        self._newest = texts
        while self._waiting and self._is_over(self._waiting[0]):
            yield from self._first()

    def rest(self) -> Iterator[TraceBatch]:
        """What still waits."""
        while self._waiting:
            yield from self._first()

    def notes(self) -> list[str]:
        """What was left out of the texts."""
        notes = []
        if self._back:
            notes.append(f"{self._back:,} tokens that were taken back out of a cache (rejected drafts) are left out")
        if self._beams:
            notes.append(
                f"{self._beams:,} times a sample went on from another one's tokens (beam search): each sample has the "
                "tokens that its last one goes back to, and those of beams that were given up are left out"
            )
        if self._after_end:
            notes.append(
                f"{self._after_end:,} tokens of padding behind the end of a text, while others of its batch went on, "
                "are left out"
            )
        return notes

    def _of(self, piece: Piece, continued: Continued | None, past: int | None, wanted: bool | None) -> _Texts | None:
        """The waiting texts that a pass continues; None: it begins texts of its own."""
        samples = len(piece.keep)
        if wanted is not None:
            if wanted and (self._newest is None or len(self._newest.rows) != samples):
                there = "there is none" if self._newest is None else f"that had {len(self._newest.rows)}"
                raise UserError(
                    f"continues is True for a pass of {samples} samples, but of the pass before {there}: a pass can "
                    "continue one of as many samples",
                    field="continues",
                )
            return self._newest if wanted else None
        if continued is None or past == 0:
            return None
        texts = self._newest
        if continued.of is not None:
            texts = next((waiting for waiting in self._waiting if waiting.number == continued.of), None)
        why = continued.unread
        if why is None and texts is None:
            why = "was left by a pass whose texts are written already"
        if texts is not None and why is None:
            if len(texts.rows) != samples:
                why = f"is of {len(texts.rows)} samples, the pass of {samples}"
            elif past is None or past == texts.columns:
                return texts
            elif texts.last_begin <= past < texts.columns:
                texts.shorten(past)
                return texts
            elif past > texts.columns:
                why = "holds tokens of passes that were not recorded"
            else:
                why = "was shortened to an earlier place of its text"
        self._say(
            "begins in the middle",
            f"forward pass {piece.number} was given a cache that {why}: its tokens are samples of their own"
            + (
                ""
                if past is not None
                else "; rec.batch(continues=True) says that they go on where the pass before ended"
            ),
        )
        return None

    def _is_over(self, first: _Texts) -> bool:
        if first is self._newest:
            return False  # the next pass may be said to continue it
        full = len(self._waiting) > _MOST_TEXTS or self._num_waiting > _MOST_TOKENS
        return full or not self._may_go_on(first.number)

    def _first(self) -> Iterator[TraceBatch]:
        """The texts that began first; nothing where masks left all of them out."""
        trace = self._joined(self._waiting.popleft())
        self._num_written += trace.num_tokens
        if trace.samples:
            yield trace

    def _joined(self, texts: _Texts) -> TraceBatch:
        pieces = texts.pieces
        if len(pieces) == 1:
            return replace(pieces[0].trace, samples=[s for s in pieces[0].trace.samples if s.num_tokens])
        self._back += texts.taken_back
        starts = [np.cumsum([0, *(s.num_tokens for s in piece.trace.samples)]) for piece in pieces]
        offsets = np.cumsum([0, *(piece.trace.num_tokens for piece in pieces)])
        whole = _concatenated([piece.trace for piece in pieces])
        samples, chosen, ends = [], [np.empty(0, dtype=np.int64)], self._ends()
        for rows in texts.rows:
            self._beams += sum(a != b for a, b in pairwise(rows))
            spans = [np.arange(*s[row : row + 2]) + o for row, s, o in zip(rows, starts, offsets, strict=False)]
            taken = np.concatenate(spans)
            if whole.token_id is not None:
                behind = ends.behind(whole.token_id[taken], len(spans[0]))
                self._after_end += int(behind.sum())
                taken = taken[~behind]
            if len(taken):
                chosen.append(taken)
                parts = [piece.trace.samples[row] for piece, row in zip(pieces, rows, strict=True)]
                samples.append(_sample(parts, (pieces[0].number, pieces[-1].number), len(taken)))
        return _taken(whole, samples, np.concatenate(chosen))


def _sample(parts: Sequence[SampleRecord], numbers: tuple[int, int], num_tokens: int) -> SampleRecord:
    """One sample of the parts that it was recorded in, in the passes from the first to the last of ``numbers``."""
    first, last = numbers
    source = (parts[0].source or "").replace(f"forward pass {first},", f"forward passes {first} to {last},")
    texts = [part.text for part in parts if part.text is not None]
    return replace(
        parts[0],
        num_tokens=num_tokens,
        source=source or None,
        label=next((part.label for part in parts if part.label is not None), None),
        text="".join(texts) if texts else None,
    )


def _concatenated(traces: Sequence[TraceBatch]) -> TraceBatch:
    if len(traces) == 1:
        return traces[0]
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        values = [getattr(trace, name) for trace in traces]
        if name == "token_id" and any(value is not None for value in values):
            values = [
                np.full(trace.num_tokens, _UNKNOWN_ID) if value is None else value
                for trace, value in zip(traces, values, strict=True)
            ]
        columns[name] = None if any(value is None for value in values) else np.concatenate(values)
    return replace(traces[0], samples=[sample for trace in traces for sample in trace.samples], **columns)


def _taken(trace: TraceBatch, samples: list[SampleRecord], rows: np.ndarray) -> TraceBatch:
    columns: dict[str, Any] = {name: getattr(trace, name) for name in _COLUMNS}
    columns = {name: None if value is None else value[rows] for name, value in columns.items()}
    return replace(trace, samples=samples, **columns)


_COLUMNS = tuple(f.name for f in fields(TraceBatch) if f.name not in ("samples", "edges", "gates", "blocks"))
