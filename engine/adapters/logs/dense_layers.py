"""Dense layers in what an engine returns: they have no gate, so their places are filled with zeros.

With K > 1 no token can choose expert 0 K times, so a layer of zeros is no decision. With K = 1 it could be one, and is
kept (``seen.py`` says so).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tokenpaths.engine.adapters.logs.log import Log, Piece
from tokenpaths.engine.base.errors import UserError

NOTHING_CAPTURED = (
    "every id is 0, so no decision was captured; start the engine with --enable-return-routed-experts, and for SGLang "
    "ask with return_routed_experts"
)


def without_dense_layers(log: Log) -> Log:
    """The log without the layers that have zeros only in its first piece.

    Raises:
        UserError: no layer is left; while reading, a layer that was left out has decisions after all.
    """
    first = next(log._read(), None)
    if first is None or log.shape.top_k == 1:
        return log
    found = first.ids.any(axis=(0, 2))
    if found.all():
        return log
    if not found.any():
        raise UserError(f"{first.where}: {NOTHING_CAPTURED}", field="file")
    routed, dense = np.flatnonzero(found), np.flatnonzero(~found)

    def read() -> Iterator[Piece]:
        for piece in log._read():
            late = piece.ids[:, dense].any(axis=(0, 2))
            if late.any():
                raise UserError(
                    f"{piece.where}: {log.shape.layers[dense[late][0]]} has decisions here, but zeros only in "
                    f"{first.where}; a layer is dense throughout or nowhere, so one of them was not captured whole",
                    field="file",
                )
            weights = None if piece.weights is None else piece.weights[:, routed]
            yield replace(piece, ids=piece.ids[:, routed], weights=weights)

    names = tuple(log.shape.layers[layer] for layer in routed.tolist())
    note = f"{len(dense)} dense layers, filled with zeros by the engine, are left out"
    return replace(log, shape=replace(log.shape, layers=names), note=note, _read=read)
