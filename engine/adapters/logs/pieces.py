"""Pieces of a routing log: the decisions of consecutive tokens of one sample, and the checks that name file and row.

Every reader of a format yields ``Piece`` after ``Piece``; nothing above it knows the format. Plain numpy, no torch.

Shapes: t tokens of a piece, S routed layers, K slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.path_statistics import sorted_and_repeats
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.labels import read_label, read_source
from tokenpaths.engine.store.file.checks import check_text

CUT_TOKENS = 2048
"""tokens per sample when a log names no samples, or a sample is longer"""
CUT = f"{{n}} piece{{s}} of samples longer than {CUT_TOKENS:,} tokens {{are}} a sample each"
CUT_TEXT = f"{CUT}, without the text"
"""where the whole sample has a text"""
MOST_EXPERTS = 65_536
"""of a layer"""
MOST_MODULES = 2**20
"""experts of all layers together"""
UNRECORDED = -1
"""id in every slot of a step that the log lacks for a token"""
UNUSED = -(2**31)
"""id in a slot that a token did not use: it was dropped, over capacity, or its router chose fewer"""
MOST_TOP_K = 32
"""largest top-k that is proposed"""
MOST_TOKEN_ID = 2**31 - 1
ROUNDING = 1e-4
"""tolerance of weights outside [0, 1]: rounding of half-precision softmaxes"""


@dataclass(frozen=True)
class Announced:
    """Sizes that the user gives for a log that may not state them; None: taken from the log."""

    layers: int | None = None
    top_k: int | None = None
    experts: int | None = None
    sequences: int | None = None
    """sequences that lie interleaved in a forward pass (Megatron's micro-batch size)"""
    skip_bad: bool = False
    """leave out what cannot be read, and count it"""
    may_be_cut: bool = False
    """the first tokens of a response may have no rows, as its client did not ask for them; their sizes are known from
    an earlier response that has all"""

    def check(self, where: str, *, layers: int | None = None, top_k: int | None = None) -> None:
        """Compare the sizes of the log with the given ones.

        Raises:
            UserError: they differ.
        """
        for name, held in (("layers", layers), ("top_k", top_k)):
            announced = getattr(self, name)
            if held is not None and announced not in (None, held):
                has = number_of(held, "layer") if name == "layers" else f"{held} top-k"
                raise UserError(f"{where}: has {has}, not {announced} as announced", field=name)

    def num_experts(self, held: object, where: str) -> int | None:
        """Experts per layer from the log (``held``) and the user; None: unknown.

        Raises:
            UserError: ``held`` is no valid number of experts, or differs from the given one.
        """
        if held is None:
            return self.experts
        if type(held) is not int or not 1 <= held <= MOST_EXPERTS:
            raise UserError(
                f"{where}: num_experts is {repr(held)[:40]}, it should be a whole number from 1 to {MOST_EXPERTS}",
                field="file",
            )
        if self.experts not in (None, held):
            has = number_of(held, "expert")
            raise UserError(f"{where}: has {has} a layer, not {self.experts} as announced", field="experts")
        return held

    def ids_shape(self, shape: tuple[int, ...], dtype: np.dtype, where: str) -> tuple[int, int]:
        """(S, K) of ids of this shape: (tokens, S, K), or (tokens, S·K) if layers or top-k are given.

        Raises:
            UserError: the ids are not integers, or have another shape.
        """
        if dtype.kind not in "iu":
            raise UserError(f"{where}: the ids are {dtype}, they should be whole numbers", field="file")
        if len(shape) == 3 and shape[1] and shape[2]:
            steps, top_k = shape[1], shape[2]
        elif len(shape) == 2 and shape[1] and (self.layers or self.top_k):
            return self._folded(shape[1], where)
        else:
            raise UserError(
                f"{where}: the ids have shape {shape}, they should be (tokens, layers, top-k); "
                "of flat ids say --layers or --top-k",
                field="file",
            )
        self.check(where, layers=steps, top_k=top_k)
        return steps, top_k

    def _folded(self, wide: int, where: str) -> tuple[int, int]:
        """(S, K) of ``wide`` flat ids a token."""
        steps, top_k = self.layers or wide // (self.top_k or 1), self.top_k or wide // (self.layers or 1)
        if steps * top_k == wide:
            return steps, top_k
        given = f"{self.layers or 'whole'} layers of {self.top_k or 'as many'} experts"
        fits = [f"{wide // k} × {k}" for k in range(1, MOST_TOP_K + 1) if wide % k == 0]
        raise UserError(
            f"{where}: {number_of(wide, 'id')} a token are not {given}; layers × top-k could be {first_of(fits, 8)}",
            field="layers" if self.layers else "top_k",
        )


@dataclass(frozen=True)
class LogShape:
    """Properties common to all tokens of a log."""

    layers: tuple[str, ...]
    """name of each routed layer, S in all"""
    top_k: int
    weights: bool
    """whether the log holds weights"""
    partial: bool = False
    """whether tokens may lack layers (``UNRECORDED``)"""
    scores: bool = False
    """whether pieces are ``scored``"""


def layer_names(count: int) -> tuple[str, ...]:
    """Names of layers that a log only numbers."""
    return tuple(f"layer {layer}" for layer in range(count))


def unread_note(what: str, names: Sequence[str]) -> str:
    """A note that names what of a log is not read; empty if it is read whole."""
    return few_names(f"{what} that are not read", names)


def few_names(what: str, names: Sequence[str]) -> str:
    """A note that names the first of these; empty if there are none."""
    return f"{what}: {first_of([name[:60].replace(';', ',') for name in names], 8)}" if names else ""


def first_of(names: Sequence[object], most: int) -> str:
    """The first of these, and a mark where there are more."""
    return ", ".join(map(str, names[:most])) + (" …" if len(names) > most else "")


def number_of(count: int, noun: str) -> str:
    """A number with its noun: 1 layer, 3 layers."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(value: object) -> str:
    """A name of any length, for messages."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


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
                remarks=(*self.remarks, CUT if self.text is None else CUT_TEXT),
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


def check_piece(piece: Piece, shape: LogShape, experts: int | None) -> np.ndarray | None:
    """Validate the decisions of a piece; returns its ``ordered``.

    Args:
        experts: number of experts per layer, if given.

    Raises:
        UserError: invalid ids, weights, token ids or texts; the message names file and line or row.
    """
    size = (len(shape.layers), shape.top_k)
    if piece.ids.ndim != 3 or piece.ids.shape[1:] != size:
        raise UserError(
            f"{piece.where}: the ids have shape {tuple(piece.ids.shape)}, "
            f"they should be (tokens, {number_of(size[0], 'layer')}, {number_of(size[1], 'slot')})",
            field="file",
        )
    if not piece.num_tokens:
        raise UserError(f"{piece.where}: holds no token", field="file")
    ordered = _check_ids(piece, shape, experts)
    if (piece.weights is not None) != shape.weights:
        raise UserError(
            f"{piece.where}: {'has weights' if piece.weights is not None else 'has no weights'}, unlike the "
            "beginning of the log",
            field="file",
        )
    _check_weights(piece, shape)
    _check_token_ids(piece)
    for what in ("label", "text", "source"):
        check_text(getattr(piece, what), f"{piece.where}: the {what}", field="file")
    return ordered


def faulty_tokens(piece: Piece, shape: LogShape, experts: int | None) -> np.ndarray:
    """(t,) bool: tokens for which ``check_piece`` refuses a piece; none where something else is wrong with it."""
    ids, weights, faulty = piece.ids, piece.weights, np.zeros(len(piece.ids), dtype=bool)
    if ids.ndim != 3 or ids.shape[1:] != (len(shape.layers), shape.top_k):
        return faulty
    missing, wrong = _wrong_ids(ids, shape, experts or MOST_EXPERTS)
    if wrong is not None:
        faulty |= wrong.any(axis=(1, 2))
    if shape.top_k > 1 and (twice := _ordered(ids, missing)[1]) is not None:
        faulty |= twice.any(axis=1)
    if weights is not None and weights.shape == ids.shape:
        faulty |= _are_outside(weights).any(axis=(1, 2))
    if piece.token_id is not None and len(piece.token_id) == len(ids):
        faulty |= _are_no_token_ids(piece)
    return faulty


def _wrong_ids(ids: np.ndarray, shape: LogShape, most: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """((t, S) steps without a decision, (t, S, K) ids that are no experts); None where there are none of these."""
    low = lowest(ids)
    missing = unrecorded(ids) if low < 0 and (shape.partial or shape.top_k > 1) else None
    if low >= 0 and int(ids.max()) < most:
        return missing, None
    wrong = ((ids < 0) & (ids != UNUSED)) | (ids >= most)
    if missing is not None:
        wrong &= ~missing[:, :, None]
    return missing, wrong


def _ordered(ids: np.ndarray, missing: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(``Piece.ordered``, (t, S) steps with an expert twice), None where there are none of these."""
    low, high, top_k = lowest(ids), int(ids.max()), ids.shape[2]
    if low < 0:  # what is no expert is a number of its own in each slot
        ids, high = np.where(ids < 0, high + 1 + np.arange(top_k), ids), high + top_k
    narrow = ids.astype(np.uint8 if high < 256 else np.uint16 if high < 65_536 else np.uint32, copy=False)
    ordered, twice = sorted_and_repeats(narrow)
    if twice is not None and missing is not None:
        twice &= ~missing
    return ordered if low >= 0 else None, twice


def _check_ids(piece: Piece, shape: LogShape, experts: int | None) -> np.ndarray | None:
    """As ``check_piece``."""
    ids, most = piece.ids, experts or MOST_EXPERTS
    missing, wrong = _wrong_ids(ids, shape, most)
    if wrong is not None and wrong.any():
        token, step, slot = np.argwhere(wrong)[0].tolist()
        expert = int(ids[token, step, slot])
        where = f"{piece.place(token, step, slot)}: expert {expert} at {shape.layers[step]}"
        if expert < 0:
            raise UserError(f"{where} is negative; experts count from 0", field="file")
        raise UserError(
            f"{where}, but the experts are 0 … {most - 1}{' (announced)' if experts else ''}", field="experts"
        )
    if shape.top_k == 1:
        return None
    ordered, twice = _ordered(ids, missing)
    if twice is not None and twice.any():
        token, step = np.argwhere(twice)[0].tolist()
        chosen = piece.ids[token, step].tolist()
        marks = experts is None and chosen.count(int(ids.max())) > 1
        raise UserError(
            f"{piece.place(token, step)}: the same expert twice at {shape.layers[step]} "
            f"({', '.join(map(str, chosen))}); a token chooses {shape.top_k} different ones "
            + (
                "(a number that marks unused slots needs --experts, so that it is no expert)"
                if marks
                else "(is a row there twice, or was a view of the scores read flat, strides ignored?)"
            ),
            field="file",
        )
    return ordered


def _are_outside(weights: np.ndarray) -> np.ndarray:
    """(t, S, K) bool: weights that are no number from 0 to 1."""
    outside: np.ndarray = ~((weights >= -ROUNDING) & (weights <= 1 + ROUNDING))  # NaN is neither
    return outside


def _check_weights(piece: Piece, shape: LogShape) -> None:
    weights = piece.weights
    if weights is None:
        return
    if weights.shape != piece.ids.shape:
        raise UserError(
            f"{piece.where}: the weights have shape {tuple(weights.shape)}, the ids {tuple(piece.ids.shape)}",
            field="file",
        )
    if not (weights.min() >= -ROUNDING and weights.max() <= 1 + ROUNDING):
        token, step, slot = np.argwhere(_are_outside(weights))[0].tolist()
        raise UserError(
            f"{piece.place(token, step, slot)}: weight {float(weights[token, step, slot]):g} at "
            f"{shape.layers[step]}, slot {slot}; weights are numbers from 0 to 1, and none is missing "
            "(give them as the model multiplies by them, after its softmax or sigmoid)",
            field="file",
        )


def _are_no_token_ids(piece: Piece) -> np.ndarray:
    """(t,) bool of a piece with token ids."""
    token_id = piece.token_id
    assert token_id is not None
    wrong: np.ndarray = (token_id < (-1 if piece.some_token_ids else 0)) | (token_id > MOST_TOKEN_ID)
    return wrong


def _check_token_ids(piece: Piece) -> None:
    token_id = piece.token_id
    if token_id is None:
        return
    if token_id.shape != (piece.num_tokens,):
        raise UserError(
            f"{piece.where}: has {number_of(token_id.size, 'token id')}, but {number_of(piece.num_tokens, 'token')}",
            field="file",
        )
    outside = np.flatnonzero(_are_no_token_ids(piece))
    if len(outside):
        raise UserError(
            f"{piece.place(int(outside[0]))}: token id {int(token_id[outside[0]])}; token ids should be whole numbers "
            f"from 0 to {MOST_TOKEN_ID}",
            field="file",
        )
