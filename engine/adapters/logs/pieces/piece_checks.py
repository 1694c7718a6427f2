"""Checks of the pieces of a routing log, whose messages name file and line or row.

Shapes: t tokens of a piece, S routed layers, K slots.
"""

from __future__ import annotations

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED, Piece, lowest, unrecorded
from tokenpaths.engine.adapters.logs.pieces.wording import number_of
from tokenpaths.engine.analysis.path_statistics import sorted_and_repeats
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.file.checks import check_text

MOST_TOKEN_ID = 2**31 - 1
ROUNDING = 1e-4
"""tolerance of weights outside [0, 1]: rounding of half-precision softmaxes"""


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
