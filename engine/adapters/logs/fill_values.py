"""Rows that an engine fills with one value where it recorded no decision: zeros for prompts and drafts, 255, −1.

With K > 1 no token can choose one expert K times, so a step whose slots all hold a fill value is no decision. It is
kept as ``UNRECORDED``; a token without any decision is left out. A fill value that is no expert beside experts, or
alone where K = 1, marks a slot that the token did not use (``UNUSED``): dropped tokens, capacity, adaptive k.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.piece import UNRECORDED, UNUSED, Piece, lowest, unrecorded

FILL_VALUES = (0, 255, 65_535, 2**32 - 1)
EMPTY = "{n} token{s} without any decision {are} left out: every slot of every layer holds a fill value"


def without_fills(piece: Piece, partial: bool, experts: int | None = None) -> Piece | None:
    """The piece with fill values as ``UNRECORDED`` or ``UNUSED``, without tokens that have no decision; None if none is
    left.

    ``partial``: of the log's shape; without it −1 is an unused slot where K = 1. ``experts`` of a layer, if known:
    larger fill values are no experts then.
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
    if experts is not None and int(ids.max()) >= experts:
        no_expert = np.isin(ids, [value for value in FILL_VALUES if value >= experts])
        ids = np.where(no_expert, UNUSED, ids.astype(np.int64)) if no_expert.any() else ids
    if lowest(ids) >= 0:
        return piece
    alone = ids == UNRECORDED
    if partial or ids.shape[2] > 1:
        alone &= ~unrecorded(ids)[:, :, None]
    if alone.any():
        ids = np.where(alone, UNUSED, ids.astype(np.int64))
    empty = np.asarray(unrecorded(ids).all(axis=1))
    weights = piece.weights
    if weights is not None and weights.shape == ids.shape:
        weights = np.where((ids == UNUSED) | unrecorded(ids)[:, :, None], 0, weights)
    piece = replace(piece, ids=ids, weights=weights)
    return _kept(piece, ~empty) if empty.any() else piece


def _kept(piece: Piece, keep: np.ndarray) -> Piece | None:
    if not keep.any():
        return None
    if piece.token_id is not None and len(piece.token_id) != len(keep):
        piece = replace(piece, token_id=None)
    kept = piece.part(np.flatnonzero(keep))
    return replace(kept, counted=(*piece.counted, (EMPTY, int((~keep).sum()))))
