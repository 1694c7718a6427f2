"""What runs in the confined child of an import: opens a log, sends its checked pieces in batches."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts
from tokenpaths.engine.adapters.logs.formats import IMPORTERS, open_log
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.routing_log import Log

BATCH_BYTES = 4 << 20
BATCH_PIECES = 256
_opened: dict[str, Log] = {}


def answer(name: str, about: str, pieces: bool = False, *, plugins: bool = False) -> Any:
    """Open a log, or read its pieces.

    Args:
        name: of this log, by which it is kept open; only the last one is.
        about: arguments of ``open_log`` as JSON, and ``folder``, the working directory.
        pieces: send the pieces instead of a description.
        plugins: of ``open_log``.
    """
    arguments = json.loads(about)
    os.chdir(arguments.pop("folder"))
    if name not in _opened:
        _opened.clear()
        try:
            column_map = arguments.pop("column_map", None)
            _opened[name] = open_log(
                Path(arguments.pop("path")),
                **arguments,
                column_map=None if column_map is None else Path(column_map),
                plugins=plugins,
            )
        except OnlyCounts as error:
            counts = error.counts.bounded()
            names = ("layers", "format", "times", "axis", "domains", "top_k", "notes")
            return {"parts": counts.parts, "about": json.dumps({name: getattr(counts, name) for name in names})}
    log = _opened[name]
    if pieces:
        return _batches(log)
    return {
        "format": log.format,
        "layers": json.dumps(log.shape.layers),
        "top_k": log.shape.top_k,
        "weights": log.shape.weights,
        "partial": log.shape.partial,
        "scores": log.shape.scores,
        "by_axes": log.shape.by_axes,
        "experts": log.experts,
        "model": log.model,
        "note": log.note,
    }


def answer_with_plugins(name: str, about: str, pieces: bool = False) -> Any:
    """``answer``, in a child that has imported the importers of plugins."""
    return answer(name, about, pieces, plugins=True)


answer_with_plugins.before_confinement = IMPORTERS.usable  # type: ignore[attr-defined]


def _batches(log: Log) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for piece in log.pieces():
        batch.append(_row(piece))
        size += sum(value.nbytes for value in batch[-1].values() if isinstance(value, np.ndarray))
        if size >= BATCH_BYTES or len(batch) >= BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _row(piece: Piece) -> dict[str, Any]:
    names = ("where", "label", "text", "source", "rows_from", "remarks", "weights", "token_id", "scored")
    row = {name: value for name in names if (value := getattr(piece, name)) is not None}
    if piece.counted:
        row["counted"] = json.dumps(piece.counted)
    if piece.shared_with is not None:
        row["shared_with"] = list(piece.shared_with)
    if piece.some_token_ids:
        row["some_token_ids"] = True
    kind = np.int32 if int(piece.ids.min()) < 0 else np.uint8 if int(piece.ids.max()) < 256 else np.uint16
    return row | {"ids": piece.ids.astype(kind, copy=False)}
