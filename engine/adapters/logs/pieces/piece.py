"""Pieces of a routing log: the decisions of consecutive tokens of one sample.

Every reader of a format yields ``Piece`` after ``Piece``; nothing above it knows the format. Plain numpy, no torch.

Shapes: t tokens of a piece, S routed layers, K slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenpaths.engine.data.labels import read_label, read_source
from tokenpaths.engine.store.file.checks import check_text

CUT_TOKENS = 2048
"""tokens per sample when a log names no samples, or a sample is longer"""
_CUT = f"{{n}} piece{{s}} of samples longer than {CUT_TOKENS:,} tokens {{are}} a sample each"
_CUT_TEXT = f"{_CUT}, without the text"
"""where the whole sample has a text"""
UNRECORDED = -1
"""id in every slot of a step that the log lacks for a token"""
UNUSED = -(2**31)
"""id in a slot that a token did not use: it was dropped, over capacity, or its router chose fewer"""


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one sample."""

    ids: np.ndarray
    """(t, S, K) integers, slots in the order of the log; ``UNRECORDED`` in every slot of a step that the log lacks,
    ``UNUSED`` in a slot that holds no expert"""
    where: str
    """file and line or row of the first token, for messages"""
    weights: np.ndarray | None = None
    """(t, S, K)"""
    token_id: np.ndarray | None = None
    """(t,); −1 where unknown, if ``some_token_ids``"""
    label: Any = None
    """as in the log; ``named`` reads it"""
    text: str | None = None
    source: str | None = None
    remarks: tuple[str, ...] = ()
    """what was changed or left out: kinds of ``Remarks``"""
    rows_from: int | None = None
    """row of the first token in the file, if a row is a token"""
    locate: Callable[[int, int, int], str] | None = None
    """file and line of (token, layer, slot), if each layer of a token has a line of its own"""
    some_token_ids: bool = False
    """whether vocabulary ids may be missing for some of the tokens"""
    counted: tuple[tuple[str, int], ...] = ()
    """remarks with a number each"""
    request: str | None = None
    """what choices of one request have in common"""
    prompt: int | None = None
    """tokens of the prompt, if known"""
    shared_with: tuple[str, int] | None = None
    """(sample, tokens): the beginning that this sample shares with an earlier one, and that is not repeated here"""
    scored: np.ndarray | None = None
    """(t, S, 3) of the scores of all experts: entropy in nats, margin, and runner-up (``TraceBatch``); NaN = unknown"""
    ordered: np.ndarray | None = None
    """(t, S·K) the ids with sorted slots, of a piece that was checked, where that took sorting and all are experts"""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def place(self, token: int, step: int = 0, slot: int = 0) -> str:
        """File and line or row of one decision, for messages."""
        if self.locate is not None:
            return self.locate(token, step, slot)
        if self.rows_from is not None:
            return f"{self.where.rsplit(', row ', 1)[0]}, row {self.rows_from + token}"
        return f"{self.where}, token {token}"

    def named(self) -> Piece:
        """The piece with its label as text and its source at a length that can be shown."""
        check_text(self.label if isinstance(self.label, str) else None, f"{self.where}: the label", field="file")
        label, kinds = read_label(self.label)
        source, cut = (None, ()) if self.source is None else read_source(self.source)
        if (label, source) == (self.label, self.source) and type(self.label) is type(label):
            return self
        return replace(self, label=label, source=source, remarks=(*self.remarks, *kinds, *cut))

    def cut(self) -> Iterator[Piece]:
        """Split the piece into parts of at most ``CUT_TOKENS``."""
        if self.num_tokens <= CUT_TOKENS:
            yield self
            return
        for start in range(0, self.num_tokens, CUT_TOKENS):
            stop = min(start + CUT_TOKENS, self.num_tokens)
            yield replace(
                self.part(slice(start, stop)),
                text=None,
                remarks=(*self.remarks, cut_remark(self.text)),
                source=f"{self.source or self.where}, tokens {start} to {stop - 1}",
                where=self.where if self.rows_from is not None else f"{self.where}, from token {start} on",
                counted=self.counted if not start else (),
                shared_with=self.shared_with if not start else None,
            )

    def part(self, keep: slice | np.ndarray) -> Piece:
        """The tokens of a slice, or those at these places; messages name them as they do those of the whole piece."""
        places: range | np.ndarray = range(self.num_tokens)[keep] if isinstance(keep, slice) else keep
        return replace(
            self,
            ids=self.ids[keep],
            weights=None if self.weights is None else self.weights[keep],
            scored=None if self.scored is None else self.scored[keep],
            token_id=None if self.token_id is None else self.token_id[keep],
            rows_from=None if self.rows_from is None else self.rows_from + int(places[0]),
            locate=lambda token, step, slot: self.place(int(places[token]), step, slot),
            ordered=None,
        )


def cut_remark(text: str | None) -> str:
    """What is said of each part of a sample that is cut; ``text`` is that of the whole sample."""
    return _CUT if text is None else _CUT_TEXT


def with_counts(stream: Iterable[Piece | tuple[str, int]]) -> Iterator[Piece]:
    """The pieces of ``stream``; remarks with a number between them go to the next piece, or to the last one."""
    held: Piece | None = None
    waiting: Counter[str] = Counter()
    for item in stream:
        if not isinstance(item, Piece):
            waiting[item[0]] += item[1]
            continue
        if held is not None:
            yield held
        held = replace(item, counted=(*item.counted, *waiting.items())) if waiting else item
        waiting.clear()
    if held is not None:
        yield replace(held, counted=(*held.counted, *waiting.items())) if waiting else held


def widened(rows: np.ndarray, top_k: int, fill: int = UNUSED) -> np.ndarray:
    """Rows (…, k) with slots up to ``top_k``, of which those behind k hold ``fill``."""
    missing = top_k - rows.shape[-1]
    if missing <= 0:
        return rows
    wide = rows if rows.dtype.kind == "f" else rows.astype(np.int64)
    return np.concatenate([wide, np.full((*rows.shape[:-1], missing), fill, dtype=wide.dtype)], axis=-1)


def lowest(ids: np.ndarray) -> int:
    """The smallest id; 0 of a type that holds none below."""
    return 0 if ids.dtype.kind == "u" else int(ids.min())


def unrecorded(ids: np.ndarray) -> np.ndarray:
    """(t, S) bool: steps without a decision in ids (t, S, K)."""
    missing: np.ndarray = (ids == UNRECORDED).all(axis=2)
    return missing
