"""Prefixes that several choices or turns share, counted once.

An engine returns the decisions of the whole prompt with every choice and every turn of a conversation. A sample keeps
what is new; the beginning that it shares with an earlier one (equal vocabulary ids, equal decisions) is left out and
counted.

A prefix is known by a sum of its rows modulo 2⁶⁴, kept for every ``BLOCK`` tokens (as engines cache prefixes), the end
of each prompt and the end of each sample. Choices of one request are compared token by token.

Shapes: t tokens of a piece, S layers, K slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from tokenpaths.engine.adapters.logs.pieces import Piece, with_counts
from tokenpaths.engine.analysis.path_statistics import word_hashes

BLOCK = 16
SHARED = "{n} token{s} of prefixes that choices or turns share {are} counted once"
REPEATED = "{n} choice{s} with the decisions of an earlier choice of the same request {are} left out"
_MULTIPLIER = 0xD6E8FEB86659FD93
_ODD = 0x9E3779B97F4A7C15


def once(pieces: Iterable[Piece | tuple[str, int]]) -> Iterator[Piece]:
    """The pieces without what they share with the beginning of earlier ones."""
    return with_counts(_once(pieces))


def _once(pieces: Iterable[Piece | tuple[str, int]]) -> Iterator[Piece | tuple[str, int]]:
    seen: dict[int, str] = {}
    request: str | None = None
    first: list[tuple[np.ndarray, str]] = []
    for piece in pieces:
        if not isinstance(piece, Piece) or not piece.num_tokens:  # the latter is refused by whoever checks it
            yield piece
            continue
        rows = _row_sums(piece)
        sums = _prefix_sums(rows)
        name = piece.source or piece.where
        shared, holder = _longest(sums, rows, seen)
        if piece.request is not None and piece.request == request:
            for other, other_name in first:
                alike = _alike(rows, other)
                if alike > shared and alike >= min(BLOCK, piece.prompt or BLOCK):
                    shared, holder = alike, other_name
        else:
            request, first = piece.request, []
        known = any(len(other) == len(rows) and (other == rows).all() for other, _ in first)
        first.append((rows, name))
        marks = {*range(BLOCK - 1, len(sums), BLOCK), len(sums) - 1}
        if piece.prompt and piece.token_id is not None and piece.prompt <= len(sums):
            marks.add(piece.prompt - 1)
        for mark in marks:
            seen.setdefault(int(sums[mark]), name)
        if known:
            yield REPEATED, 1
            yield SHARED, len(rows)
        elif 0 < shared < piece.num_tokens:
            counted = (*piece.counted, (SHARED, shared))
            yield _from(replace(piece, counted=counted, shared_with=(holder, shared)), shared, name)
        else:  # a request that was sent again made its decisions again
            yield piece


def _row_sums(piece: Piece) -> np.ndarray:
    """(t,) uint64: a sum of the decisions and the vocabulary id of each token."""
    # One width whatever the dtype of a piece: equal decisions have equal sums.
    rows = word_hashes(piece.ids.reshape(len(piece.ids), -1).astype(np.uint16))
    if piece.token_id is not None:
        rows = rows + piece.token_id.astype(np.int64).astype(np.uint64) * np.uint64(_ODD)
    rows ^= rows >> np.uint64(31)
    return rows * np.uint64(_MULTIPLIER)


def _prefix_sums(rows: np.ndarray) -> np.ndarray:
    """(t,) uint64: a sum of the rows up to each token, in their order."""
    powers = np.full(len(rows), _MULTIPLIER, dtype=np.uint64)
    powers = np.multiply.accumulate(powers)
    return np.cumsum(rows * powers, dtype=np.uint64)


def _longest(sums: np.ndarray, rows: np.ndarray, seen: dict[int, str]) -> tuple[int, str]:
    """Tokens of the longest known prefix, and the sample that holds it; rows that are all equal are no prefix."""
    values = sums.tolist()
    for place in range(len(values) - 1, 0, -1):
        if values[place] in seen:
            return (place + 1, seen[values[place]]) if (rows[: place + 1] != rows[0]).any() else (0, "")
    return 0, ""


def _alike(rows: np.ndarray, other: np.ndarray) -> int:
    """Number of equal rows at the beginning."""
    n = min(len(rows), len(other))
    different = np.flatnonzero(rows[:n] != other[:n])
    return int(different[0]) if len(different) else n


def _from(piece: Piece, start: int, name: str) -> Piece:
    locate = piece.locate
    return replace(
        piece,
        ids=piece.ids[start:],
        weights=None if piece.weights is None else piece.weights[start:],
        scored=None if piece.scored is None else piece.scored[start:],
        token_id=None if piece.token_id is None else piece.token_id[start:],
        source=f"{name}, from token {start} on",
        rows_from=None if piece.rows_from is None else piece.rows_from + start,
        locate=None if locate is None else lambda token, step, slot: locate(token + start, step, slot),
    )
