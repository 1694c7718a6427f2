"""Rows that an engine fills with one value where it recorded no decision: zeros for prompts and drafts, 255, −1.

With K > 1 no token can choose one expert K times, so a step whose slots all hold a fill value is no decision. It is
kept as ``UNRECORDED``; a token without any decision is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenpaths.engine.adapters.logs.pieces import UNRECORDED, Piece, unrecorded

FILL_VALUES = (0, 255, 65_535, 2**32 - 1)
EMPTY = "{n} token{s} without any decision {are} left out: every slot of every layer holds a fill value"


def without_fills(piece: Piece, partial: bool) -> Piece | None:
    """The piece with fill values as ``UNRECORDED``, without tokens that have no decision; None if none is left.

    ``partial``: of the log's shape; without it −1 is no fill value where K = 1.
    """
    ids = piece.ids
    if ids.ndim != 3 or not ids.size or ids.dtype.kind not in "iu":
        return piece  # ``check_piece`` says what is wrong
    if ids.shape[2] > 1:
        # A fill value is in every slot, so two slots tell of nearly all steps that they hold decisions.
        filled = ids[:, :, 0] == ids[:, :, 1]
        if filled.any():
            filled &= (ids[:, :, 1:] == ids[:, :, :1]).all(axis=2) & np.isin(ids[:, :, 0], FILL_VALUES)
        if filled.any():
            ids = np.where(filled[:, :, None], UNRECORDED, ids.astype(np.int64))
    if int(ids.min()) >= 0 or not (partial or ids.shape[2] > 1):
        return piece
    empty = np.asarray(unrecorded(ids).all(axis=1))
    weights = piece.weights
    if weights is not None and weights.shape == ids.shape:
        weights = np.where(unrecorded(ids)[:, :, None], 0, weights)
    piece = replace(piece, ids=ids, weights=weights)
    return _kept(piece, ~empty) if empty.any() else piece


def _kept(piece: Piece, keep: np.ndarray) -> Piece | None:
    if not keep.any():
        return None
    places = np.flatnonzero(keep)
    locate = piece.locate
    return replace(
        piece,
        ids=piece.ids[keep],
        weights=None if piece.weights is None else piece.weights[keep],
        token_id=None if piece.token_id is None or len(piece.token_id) != len(keep) else piece.token_id[keep],
        counted=(*piece.counted, (EMPTY, int((~keep).sum()))),
        rows_from=None if piece.rows_from is None else piece.rows_from + int(places[0]),
        locate=None if locate is None else lambda token, step, slot: locate(int(places[token]), step, slot),
    )
