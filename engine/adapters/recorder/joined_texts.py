"""Texts whose tokens come in several forward passes, joined into samples.

The decisions of a pass wait here until no later pass can continue its texts; then they are written, in the order in
which the texts began. Most passes are texts of their own and wait for the next one only.

Shapes: B samples, T tokens each (padding included), n tokens kept; P pieces, N texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from torch import Tensor

from tokenpaths.engine.adapters.recorder.pass_caches import Continued
from tokenpaths.engine.adapters.recorder.pass_tokens import Say
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord, TraceBatch

_MOST_TOKENS = 1 << 17
"""tokens that wait, beyond those of the texts at hand"""
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
    packed: list[np.ndarray] | None = None
    """kept tokens of each text of each row, where rows hold several texts behind each other; no other pass continues
    them, as it cannot be told which is which"""


@dataclass(frozen=True)
class Ends:
    """How a model marks that a text has ended while others of its batch go on."""

    end_ids: frozenset[int] = frozenset()
    padding_id: int | None = None

    @classmethod
    def of(cls, model: Any) -> Ends:
        """What stands in the generation settings of ``model``, or in its configuration."""
        only_padding = cls()
        for name in ("generation_config", "config"):
            settings = getattr(model, name, None)
            end, padding = getattr(settings, "eos_token_id", None), getattr(settings, "pad_token_id", None)
            if only_padding.padding_id is None and isinstance(padding, int):
                only_padding = cls(padding_id=padding)
            ends = [i for i in (end if isinstance(end, (list, tuple)) else [end]) if isinstance(i, int)]
            if ends:
                # Without a padding of its own, transformers pads with the first end.
                return cls(frozenset(ends), padding if isinstance(padding, int) else ends[0])
        return only_padding

    def tail(self, ids: np.ndarray, only_behind_end: bool) -> int:
        """How many of the last ``ids`` (T,), which a loop wrote, are padding behind an end.

        Or, unless ``only_behind_end``, where something else ended the text: a stop criterion, an end that only
        ``generate`` knows.
        """
        if self.padding_id is None or not len(ids):
            return 0
        text = len(ids) - int((ids[::-1] != self.padding_id).argmax()) if (ids != self.padding_id).any() else 0
        if text and int(ids[text - 1]) in self.end_ids:
            return len(ids) - text
        if self.padding_id not in self.end_ids:
            return 0 if only_behind_end else len(ids) - text
        # Where padding is an end as well, the first of them is the end.
        return max(0, len(ids) - text - 1)


class _Texts:
    """The texts of one batch, as far as they have come."""

    def __init__(self, piece: Piece, past: int) -> None:
        """``past``: tokens before, which are not recorded."""
        self.pieces = [piece]
        # For each piece but the first, the sample of the piece before that each of its samples continues.
        self.orders: list[np.ndarray] = []
        self.num_tokens = piece.trace.num_tokens
        self.columns = past + piece.keep.shape[1]
        self.prompt_BT: np.ndarray | None = None
        """``keep`` of the first pass, where a loop without a cache passed its tokens again with those behind"""
        self.rows_moved = False
        """whether samples changed their places or were selected, as beams are"""
        self.taken_back = self.given_up = 0
        self.ended: list[tuple[int, int]] = []
        """(piece, sample) of texts that went no further, others of the batch did"""

    @property
    def number(self) -> int:
        """The last forward pass."""
        return self.pieces[-1].number

    @property
    def num_samples(self) -> int:
        return len(self.pieces[-1].keep)

    @property
    def is_packed(self) -> bool:
        return self.pieces[-1].packed is not None

    @property
    def last_begin(self) -> int:
        return self.columns - self.pieces[-1].keep.shape[1]

    def add(self, piece: Piece, order: np.ndarray | None, selected: bool) -> None:
        self.rows_moved = self.rows_moved or order is not None
        order = np.arange(len(piece.keep)) if order is None else order
        left_out = sorted(set(range(self.num_samples)) - set(order.tolist()))
        if selected:
            self.ended += [(len(self.pieces) - 1, sample) for sample in left_out]
        self.given_up += 0 if selected else len(left_out)
        self.orders.append(order)
        self.pieces.append(piece)
        self.num_tokens += piece.trace.num_tokens
        self.columns += piece.keep.shape[1]

    def is_begin_of(self, piece: Piece) -> bool:
        """Whether a pass of these texts, which has no cache, is passed again with one token more of each."""
        last, length = self.pieces[-1], self.pieces[-1].keep.shape[1]
        if len(self.pieces) > 1 or self.is_packed or piece.keep.shape != (len(last.keep), length + 1):
            return False
        if last.trace.token_id is None or piece.trace.token_id is None or (last.keep != piece.keep[:, :-1]).any():
            return False
        for own, known in zip(piece.trace.samples, last.trace.samples, strict=True):
            # Who says something else of the tokens means other texts, which only begin alike.
            if (own.label is not None and own.label != known.label) or (
                own.text is not None and own.text != known.text
            ):
                return False
        before = np.broadcast_to(np.arange(length + 1) < length, piece.keep.shape)[piece.keep]
        return np.array_equal(last.trace.token_id, piece.trace.token_id[before])

    def pass_again(self, piece: Piece) -> None:
        """Put a pass in place of the one that its texts begin with."""
        first = self.pieces[-1]
        samples = [
            replace(sample, label=known.label if sample.label is None else sample.label, text=sample.text or known.text)
            for sample, known in zip(piece.trace.samples, first.trace.samples, strict=True)
        ]
        self.prompt_BT = first.keep if self.prompt_BT is None else self.prompt_BT
        self.pieces = [replace(piece, trace=replace(piece.trace, samples=samples))]
        self.num_tokens, self.columns = piece.trace.num_tokens, piece.keep.shape[1]

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

    def rows(self) -> np.ndarray:
        """(P, N) sample of each piece that each text has, −1 from the piece on that a text did not get to."""
        last = len(self.pieces) - 1
        ends = np.array([*((last, sample) for sample in range(self.num_samples)), *self.ended], dtype=np.int64)
        rows = np.full((last + 1, len(ends)), -1)
        rows[ends[:, 0], np.arange(len(ends))] = ends[:, 1]
        for place, order in reversed(list(enumerate(self.orders))):
            goes_on = rows[place + 1] >= 0
            rows[place, goes_on] = order[rows[place + 1, goes_on]]
        return rows


class JoinedTexts:
    """Passes in, whole texts out."""

    def __init__(self, may_go_on: Callable[[int], bool], ends: Callable[[], Ends], say: Say) -> None:
        """``may_go_on``: whether what a pass left can be given to a later one; ``say`` receives notes."""
        self._may_go_on, self._ends, self._say = may_go_on, ends, say
        self._waiting: deque[_Texts] = deque()
        self._newest: _Texts | None = None
        self._num_written = self._num_waiting = 0
        self._given_up = self._after_end = self._back = self._again = 0

    @property
    def num_tokens(self) -> int:
        """Tokens written and waiting."""
        return self._num_written + self._num_waiting

    def add(self, piece: Piece, continued: Continued | None, wanted: bool | None) -> Iterator[TraceBatch]:
        """Take a pass in; gives the texts that can no longer be continued.

        Args:
            continued: what its inputs say of earlier passes.
            wanted: what the caller says: it continues the pass before, or none; None: nothing.

        Raises:
            UserError: the caller says that it continues another pass, and there is none of so many samples.
        """
        past = None if continued is None else continued.past
        past = int(past) if isinstance(past, Tensor) else past
        self._num_waiting += piece.trace.num_tokens
        texts = self._of(piece, continued, past, wanted)
        newest = self._newest
        alone = continued is None and wanted is None and piece.packed is None
        if alone and newest is not None and newest in self._waiting and newest.is_begin_of(piece):
            self._again += newest.num_tokens
            self._num_waiting -= newest.num_tokens
            newest.pass_again(piece)
            texts = newest
        elif texts is None:
            texts = _Texts(piece, past or 0)
            self._waiting.append(texts)
        else:
            order = None if continued is None else continued.order
            texts.add(piece, None if order is None else order.numpy(), continued is not None and continued.selected)
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
        if self._again:
            notes.append(
                "tokens that were passed again in front of one more, as generate(use_cache=False) does, are those of "
                f"the last pass: what earlier ones decided for them is left out ({_times(self._again, 'token')}); "
                "rec.batch(continues=False) before a pass says that its texts are others"
            )
        if self._back:
            notes.append(f"rejected drafts, taken back out of a cache, are left out ({_times(self._back, 'token')})")
        if self._given_up:
            notes.append(
                "beams that ended or were given up are left out "
                f"({_times(self._given_up, 'time')}): each sample has the "
                "tokens that a beam of the end goes back to"
            )
        if self._after_end:
            notes.append(
                "padding behind the end of a text, while others of its batch went on, is left out "
                f"({_times(self._after_end, 'token')})"
            )
        return notes

    def _of(self, piece: Piece, continued: Continued | None, past: int | None, wanted: bool | None) -> _Texts | None:
        """The waiting texts that a pass continues; None: it begins texts of its own."""
        samples = len(piece.keep)
        texts = self._newest
        if piece.packed is not None:
            if wanted or (continued is not None and past != 0):
                self._say(
                    "packed behind a cache",
                    f"forward pass {piece.number} holds tokens of several texts behind each other, and goes on from a "
                    "cache: which text each continues is not known, so they are samples of their own",
                )
            return None
        if wanted and texts is not None and texts.is_packed:
            raise UserError(
                "continues is True, but the pass before held several texts behind each other, which end with it",
                field="continues",
            )
        if wanted is not None:
            if wanted and (texts is None or texts.num_samples != samples):
                there = "there is none" if texts is None else f"that had {texts.num_samples}"
                raise UserError(
                    f"continues is True for a pass of {samples} samples, but of the pass before {there}: a pass can "
                    "continue one of as many samples",
                    field="continues",
                )
            if wanted and texts is not None and past is not None and texts.last_begin < past < texts.columns:
                self._shorten(texts, past)
            return texts if wanted else None
        if continued is None or past == 0:
            return None
        why = continued.unread and f"was given a cache that {continued.unread}"
        if continued.of is not None:
            texts = next((waiting for waiting in self._waiting if waiting.number == continued.of), None)
            if texts is None:
                why = "was given a cache that another pass has gone on from, or whose texts are written already"
            elif texts.is_packed:
                why = "was given the cache of a pass with several texts behind each other, which end with it"
            elif samples != (texts.num_samples if continued.order is None else len(continued.order)):
                why = f"is of {samples} samples, the pass that left its cache of {texts.num_samples}"
            elif past is not None and texts.last_begin < past < texts.columns:
                self._shorten(texts, past)
            elif past is not None and past != texts.columns:
                less = (
                    "was shortened to an earlier place of its text"
                    if past < texts.columns
                    else "holds tokens that no text has"
                )
                why = f"was given a cache that {less}"
        elif why is None and (texts is None or texts.num_samples != samples or past != texts.columns):
            why = f"begins at place {past} of its texts, where no recorded pass ended"
        if why is None:
            return texts
        self._say(
            "begins in the middle",
            f"forward pass {piece.number} {why}: its tokens are samples of their own"
            + (
                ""
                if past is not None or (texts is not None and texts.is_packed)
                else "; rec.batch(continues=True) says that they go on where the pass before ended"
            ),
        )
        return None

    def _shorten(self, texts: _Texts, columns: int) -> None:
        before = texts.num_tokens
        texts.shorten(columns)
        self._num_waiting -= before - texts.num_tokens

    def _is_over(self, first: _Texts) -> bool:
        if first is self._newest:
            return False  # the next pass may be said to continue it
        return self._num_waiting > _MOST_TOKENS or not self._may_go_on(first.number)

    def _first(self) -> Iterator[TraceBatch]:
        """The texts that began first; nothing where masks left all of them out."""
        texts = self._waiting.popleft()
        self._num_waiting -= texts.num_tokens
        trace = self._joined(texts)
        self._num_written += trace.num_tokens
        if trace.samples:
            yield trace

    def _joined(self, texts: _Texts) -> TraceBatch:
        pieces = texts.pieces
        self._back += texts.taken_back
        self._given_up += texts.given_up
        if len(pieces) == 1 and texts.prompt_BT is None:
            samples = pieces[0].trace.samples if pieces[0].packed is None else _unpacked(pieces[0])
            return replace(pieces[0].trace, samples=[s for s in samples if s.num_tokens])
        whole, rows_PN = _concatenated([piece.trace for piece in pieces]), texts.rows()
        taken, lengths_PN = _tokens_of(pieces, rows_PN)
        given_N = lengths_PN[0] if texts.prompt_BT is None else texts.prompt_BT.sum(axis=1)
        ends_N = np.cumsum(lengths_PN.sum(axis=0))
        own = np.split(taken, ends_N[:-1])
        if whole.token_id is not None and texts.num_samples > 1:
            ends, running = self._ends(), range(texts.num_samples)
            # A beam that ends leaves its place to another, so what looks like padding is text that a beam wrote.
            tails = [ends.tail(whole.token_id[own[row]][given_N[row] :], texts.rows_moved) for row in running]
            # As long as one of them goes on; what all have behind their ends is what all of them said.
            for row in running:
                behind = tails[row] - min(tails)
                self._after_end += behind
                own[row] = own[row][: len(own[row]) - behind]
        samples = []
        for rows_P, tokens in zip(rows_PN.T.tolist(), own, strict=True):
            if len(tokens):
                parts = [piece.trace.samples[row] for piece, row in zip(pieces, rows_P, strict=True) if row >= 0]
                samples.append(_sample(parts, (pieces[0].number, pieces[len(parts) - 1].number), len(tokens)))
        return _taken(whole, samples, np.concatenate([np.empty(0, dtype=np.int64), *own]))


def _times(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _tokens_of(pieces: Sequence[Piece], rows_PN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the pieces one after the other, text by text, and how many of each piece (P, N) each text has."""
    starts_PN, lengths_PN = np.zeros_like(rows_PN), np.zeros_like(rows_PN)
    before = 0
    for place, (piece, rows_N) in enumerate(zip(pieces, rows_PN, strict=True)):
        sizes = np.array([sample.num_tokens for sample in piece.trace.samples])
        starts_PN[place] = before + (np.cumsum(sizes) - sizes)[rows_N]
        lengths_PN[place] = np.where(rows_N >= 0, sizes[rows_N], 0)
        before += piece.trace.num_tokens
    starts, lengths = starts_PN.T.ravel(), lengths_PN.T.ravel()
    skipped = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(skipped, lengths) + np.arange(int(lengths.sum())), lengths_PN


def _unpacked(piece: Piece) -> list[SampleRecord]:
    """A sample for each of the texts that lie behind each other in the rows of a pass."""
    assert piece.packed is not None
    return [
        # What the caller said of the text of a row is that of all.
        replace(
            row, num_tokens=int(n), source=f"{row.source}, text {place}", text=None if len(lengths) > 1 else row.text
        )
        for row, lengths in zip(piece.trace.samples, piece.packed, strict=True)
        for place, n in enumerate(lengths)
    ]


def _sample(parts: Sequence[SampleRecord], numbers: tuple[int, int], num_tokens: int) -> SampleRecord:
    """One sample of the parts that it was recorded in, in the passes from the first to the last of ``numbers``."""
    first, last = numbers
    source = parts[0].source or ""
    if first != last:
        source = source.replace(f"forward pass {first},", f"forward passes {first} to {last},")
    texts = [part.text for part in parts if part.text is not None]
    return replace(
        parts[0],
        num_tokens=num_tokens,
        source=source or None,
        label=next((part.label for part in parts if part.label is not None), None),
        text="".join(texts) if texts else None,
    )


def _concatenated(traces: Sequence[TraceBatch]) -> TraceBatch:
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
