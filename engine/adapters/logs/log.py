"""What all importers share: the shape of a log, its samples one by one, and the checks that name file and row.

Plain numpy, no torch. A log is read piece by piece; at most one sample and one batch are in memory.

Shapes: t tokens of a sample, S routed layers, K slots.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.expert_runs import by_weight, even_weights
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord, TraceBatch
from tokenpaths.engine.store.file.checks import check_text
from tokenpaths.engine.store.write.path_dictionary import sorted_slots

CUT_TOKENS = 2048
"""a log that names no samples, and a sample that is longer, is cut into samples of so many tokens"""
BATCH_BYTES = 8 * 2**20
"""expert ids that are given to the writer at once"""
MOST_EXPERTS = 65_536
MOST_MODULES = 2**20
"""experts of all layers together"""
MOST_TOKEN_ID = 2**31 - 1
ROUNDING = 1e-4
"""weights may leave [0, 1] by this much: rounding of half-precision softmaxes"""


@dataclass(frozen=True)
class Asked:
    """What the user says of a log that may not say it itself; None: as the log says."""

    layers: int | None = None
    top_k: int | None = None
    experts: int | None = None


def announced_experts(found: object, asked: Asked, where: str) -> int | None:
    """How many experts a layer has by what the log announces (``found``) and what the user says; None: neither does.

    Raises:
        UserError: ``found`` is no number of experts, or the user says another one.
    """
    if found is None:
        return asked.experts
    if type(found) is not int or not 1 <= found <= MOST_EXPERTS:
        said = repr(found)[:40]
        raise UserError(
            f"{where}: num_experts is {said}, it should be a whole number from 1 to {MOST_EXPERTS}", field="file"
        )
    if asked.experts not in (None, found):
        raise UserError(f"{where}: has {found} experts a layer, not {asked.experts} as announced", field="experts")
    return found


@dataclass(frozen=True)
class Shape:
    """What every token of a log has."""

    layers: tuple[str, ...]
    """name of each routed layer; their number is S"""
    top_k: int
    weights: bool
    """whether the log says how much each expert counts"""


@dataclass(frozen=True)
class Piece:
    """Some tokens of one sample, in their order."""

    ids: np.ndarray
    """(t, S, K) whole numbers, slots in the order of the log"""
    where: str
    """file and line or row of the first token, for people"""
    weights: np.ndarray | None = None
    """(t, S, K)"""
    token_id: np.ndarray | None = None
    """(t,)"""
    label: str | None = None
    text: str | None = None
    source: str | None = None
    rows_from: int | None = None
    """row of the first token in the file, where a row is a token"""
    place: Callable[[int, int, int], str] | None = None
    """file and line of (token, layer, slot), where a token's layers stand on lines of their own"""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)


@dataclass
class Log:
    """A recognised log: what it holds, and a way through it. Made by ``open_log``.

    ``pieces()`` reads from the beginning each time it is called.
    """

    file: Path
    format: str
    shape: Shape
    experts: int | None
    """announced number of experts a layer; None: the log does not say, the largest id does"""
    model: str | None = None
    note: str = ""
    _read: Any = field(default=None, repr=False)

    def pieces(self) -> Iterator[Piece]:
        """Checked samples, one after the other.

        Raises:
            UserError: something is wrong with the log; the message names file and line or row.
        """
        for piece in self._read():
            for part in _cut(piece):
                check_piece(part, self)
                yield part

    def counted(self) -> Log:
        """The log with a number of experts: where none is announced the whole log is read for its largest id.

        Raises:
            UserError: as ``pieces``.
        """
        parts = self.counting()
        while True:
            try:
                next(parts)
            except StopIteration as end:
                log: Log = end.value
                return log

    def counting(self) -> Generator[int, None, Log]:
        """``counted`` in pieces, for callers that do other things in between: yields the tokens looked at so far."""
        if self.experts is not None:
            return self
        experts = tokens = 0
        for piece in self.pieces():
            experts = max(experts, int(piece.ids.max()) + 1)
            tokens += len(piece.ids)
            yield tokens
        if not experts:
            raise UserError(f"{self.file}: holds no token", field="file")
        guessed = f"{experts} experts a layer: the largest id in the log, there may be more"
        return replace(self, experts=experts, note="; ".join(filter(None, [self.note, guessed])))


def _cut(piece: Piece) -> Iterator[Piece]:
    if piece.num_tokens <= CUT_TOKENS:
        yield piece
        return
    for start in range(0, piece.num_tokens, CUT_TOKENS):
        stop = min(start + CUT_TOKENS, piece.num_tokens)
        yield replace(
            piece,
            ids=piece.ids[start:stop],
            weights=None if piece.weights is None else piece.weights[start:stop],
            token_id=None if piece.token_id is None else piece.token_id[start:stop],
            text=None,
            source=f"{piece.source or piece.where}, tokens {start} to {stop - 1}",
            rows_from=None if piece.rows_from is None else piece.rows_from + start,
            where=piece.where if piece.rows_from is not None else f"{piece.where}, from token {start} on",
            place=None if piece.place is None else _moved(piece.place, start),
        )


def _moved(place: Callable[[int, int, int], str], by: int) -> Callable[[int, int, int], str]:
    return lambda token, step, slot: place(token + by, step, slot)


def _place(piece: Piece, token: int, step: int = 0, slot: int = 0) -> str:
    if piece.place is not None:
        return piece.place(token, step, slot)
    if piece.rows_from is not None:
        return f"{piece.where.rsplit(', row ', 1)[0]}, row {piece.rows_from + token}"
    return f"{piece.where}, token {token}"


def check_piece(piece: Piece, log: Log) -> None:
    """UserError unless the ids and weights of a piece are decisions of this log."""
    ids, shape = piece.ids, log.shape
    wanted = (len(shape.layers), shape.top_k)
    if ids.ndim != 3 or ids.shape[1:] != wanted:
        raise UserError(
            f"{piece.where}: the ids have shape {tuple(ids.shape)}, "
            f"they should be (tokens, {wanted[0]} layers, {wanted[1]} slots)",
            field="file",
        )
    if not len(ids):
        raise UserError(f"{piece.where}: holds no token", field="file")
    most = log.experts or MOST_EXPERTS
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= most:
        token, step, slot = np.argwhere((ids < 0) | (ids >= most))[0].tolist()
        wrong = int(ids[token, step, slot])
        if wrong < 0:
            raise UserError(
                f"{_place(piece, token, step, slot)}: expert {wrong} at {shape.layers[step]} is negative; "
                "experts count from 0",
                field="file",
            )
        raise UserError(
            f"{_place(piece, token, step, slot)}: expert {wrong} at {shape.layers[step]}, but the experts are "
            f"0 … {most - 1}{' (announced)' if log.experts else ''}",
            field="experts",
        )
    if shape.top_k > 1:
        narrow = ids.astype(np.uint8 if high < 256 else np.uint16, copy=False)
        ordered = sorted_slots(narrow).reshape(ids.shape)
        twice = (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2)
        if twice.any():
            token, step = np.argwhere(twice)[0].tolist()
            raise UserError(
                f"{_place(piece, token, step)}: the same expert twice at {shape.layers[step]} "
                f"({', '.join(map(str, ids[token, step].tolist()))}); a token chooses {shape.top_k} different ones",
                field="file",
            )
    if (piece.weights is not None) != shape.weights:
        raise UserError(
            f"{piece.where}: {'has weights' if piece.weights is not None else 'has no weights'}, unlike the "
            "beginning of the log",
            field="file",
        )
    if piece.weights is not None:
        _check_weights(piece, log)
    if piece.token_id is not None:
        _check_token_ids(piece)
    for what in ("label", "text", "source"):
        check_text(getattr(piece, what), f"{piece.where}: the {what}", field="file")


def _check_token_ids(piece: Piece) -> None:
    found = piece.token_id
    assert found is not None
    if found.shape != (piece.num_tokens,):
        raise UserError(f"{piece.where}: has {found.size} token ids, but {piece.num_tokens} tokens", field="file")
    wrong = np.flatnonzero((found < 0) | (found > MOST_TOKEN_ID))
    if len(wrong):
        raise UserError(
            f"{_place(piece, int(wrong[0]))}: token id {int(found[wrong[0]])}; token ids should be whole numbers "
            f"from 0 to {MOST_TOKEN_ID}",
            field="file",
        )


def _check_weights(piece: Piece, log: Log) -> None:
    weights = piece.weights
    assert weights is not None
    if weights.shape != piece.ids.shape:
        raise UserError(
            f"{piece.where}: the weights have shape {tuple(weights.shape)}, the ids {tuple(piece.ids.shape)}",
            field="file",
        )
    wrong = ~((weights >= -ROUNDING) & (weights <= 1 + ROUNDING))
    if wrong.any():
        token, step, slot = np.argwhere(wrong)[0].tolist()
        raise UserError(
            f"{_place(piece, token, step, slot)}: weight {float(weights[token, step, slot]):g} at "
            f"{log.shape.layers[step]}, slot {slot}; weights are numbers from 0 to 1 (give them as the model "
            "multiplies by them, after its softmax or sigmoid)",
            field="file",
        )


def batches(pieces: Iterable[Piece], token_texts: dict[int, str] | None = None) -> Iterator[TraceBatch]:
    """Checked pieces as batches for the writer; each piece is a sample."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.ids.shape[0] * piece.ids.shape[1] * piece.ids.shape[2]
        if size >= BATCH_BYTES:
            yield _batch(held, token_texts or {})
            held, size = [], 0
    if held:
        yield _batch(held, token_texts or {})


def _batch(pieces: list[Piece], token_texts: dict[int, str]) -> TraceBatch:
    ids = _joined([piece.ids for piece in pieces])
    if pieces[0].weights is None:
        weights = even_weights(ids)
    else:
        weights = np.clip(_joined([piece.weights for piece in pieces]), 0, 1).astype(np.float32, copy=False)
        if not (weights[:, :, 1:] <= weights[:, :, :-1]).all():
            ids, weights = by_weight(ids, weights)
    records, spans, token_ids = [], [], []
    for piece in pieces:
        text, span = _text(piece, token_texts)
        spans.append(span)
        token_ids.append(np.full(piece.num_tokens, -1, np.int32) if piece.token_id is None else piece.token_id)
        records.append(
            SampleRecord(num_tokens=piece.num_tokens, label=piece.label, text=text, source=piece.source or piece.where)
        )
    known = any(piece.token_id is not None for piece in pieces)
    span_n = np.concatenate(spans)
    n = len(ids)
    return TraceBatch(
        samples=records,
        module_ids=ids,
        weights=weights,
        gate_entropy=np.full((n, ids.shape[1]), np.nan, dtype=np.float32),
        flops=np.zeros(n, dtype=np.float32),
        token_id=np.concatenate(token_ids).astype(np.int32) if known else None,
        char_start=span_n[:, 0] if (span_n >= 0).any() else None,
        char_end=span_n[:, 1] if (span_n >= 0).any() else None,
    )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _text(piece: Piece, token_texts: dict[int, str]) -> tuple[str | None, np.ndarray]:
    """The text of a sample and where each token stands in it (t, 2), −1 where that is unknown."""
    unknown = np.full((piece.num_tokens, 2), -1, dtype=np.int32)
    if piece.token_id is None or not token_texts:
        return piece.text, unknown
    parts = []
    for position, token_id in enumerate(piece.token_id.tolist()):
        if token_id not in token_texts:
            raise UserError(
                f"{piece.where}: token {position} has id {token_id}, which the tokenizer does not know; "
                "give the tokenizer of the model that wrote the log",
                field="tokenizer",
            )
        parts.append(token_texts[token_id])
    # The text of a response is its answer only, and a tokenizer may put a space before a text: the tokens are what
    # was routed, so their text is shown, and each stands in it.
    joined = "".join(parts)
    ends = np.cumsum([len(part) for part in parts])
    return joined, np.stack([ends - [len(part) for part in parts], ends], axis=1).astype(np.int32)
