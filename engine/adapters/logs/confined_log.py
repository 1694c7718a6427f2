"""A routing log that is read in a confined child, as a ``Log``."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts, OnlyCounts
from tokenpaths.engine.adapters.logs.formats import FORMATS, IMPORTERS, UnknownLog
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED, Piece, unrecorded
from tokenpaths.engine.adapters.logs.pieces.piece_checks import ROUNDING
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_rereadable
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import ReaderEnded, ReaderPool, RemoteError

LIMITS = Limits(memory_megabytes=3072, seconds=300, descriptors=4096, threads=True)
"""the time is that until the next 4 MB of decisions"""
READERS = ReaderPool("tokenpaths.engine.adapters.logs.log_child:answer", LIMITS, "the log", "file")
PLUGIN_READERS = ReaderPool("tokenpaths.engine.adapters.logs.log_child:answer_with_plugins", LIMITS, "the log", "file")
"""children that have imported the importers of plugins: for logs that no format of this program reads"""


def open_confined_log(
    path: Path,
    format: str | None = None,
    *,
    layers: int | None = None,
    top_k: int | None = None,
    experts: int | None = None,
    sequences: int | None = None,
    skip_bad: bool = False,
    column_map: Path | None = None,
    model: str | None = None,
) -> Log:
    """``formats.open_log`` in a confined child, which also reads and checks the pieces.

    Raises:
        OnlyCounts, UserError: as ``open_log``; also where reading needs too much time or memory, or ends the child.
    """
    check_rereadable(path, "a log")
    options = {
        "format": format,
        "layers": layers,
        "top_k": top_k,
        "experts": experts,
        "sequences": sequences,
        "skip_bad": skip_bad,
        "model": model,
        "column_map": None if column_map is None else os.fspath(column_map),
    }
    request = {
        "name": uuid.uuid4().hex,
        "about": json.dumps({"path": os.fspath(path), "folder": os.getcwd(), **options}),
    }
    about, readers = _description(path, format, request)
    if "parts" in about:
        raise OnlyCounts(path, _counts(path, about["parts"], json.loads(about["about"])))
    names = tuple(json.loads(about["layers"]))
    sizes = {key: about[key] for key in ("top_k", "weights", "partial", "scores", "by_axes")}
    shape = LogShape(names, **sizes)
    stated = about["experts"]

    def read() -> Iterator[Piece]:
        try:
            with readers.one() as reader:
                for batch in reader.stream(**request, pieces=True):
                    for row in batch:
                        yield _piece(row, shape, stated)
        except ReaderEnded as error:
            raise UserError(f"{path}: {error}", field="file") from None

    return Log(Path(path), about["format"], shape, stated, read, about["model"], about["note"], checked=True)


def _description(path: Path, format: str | None, request: dict[str, str]) -> tuple[dict[str, Any], ReaderPool]:
    """What a child says of a log, and the pool that reads it: plugins are imported only where they are needed."""
    readers = READERS if format is None or format in FORMATS else PLUGIN_READERS
    try:
        try:
            with readers.one() as reader:
                return reader.call(**request), readers
        except RemoteError as error:
            if error.kind != UnknownLog.__name__ or readers is PLUGIN_READERS or not IMPORTERS.plugin_names():
                raise
        with PLUGIN_READERS.one() as reader:
            return reader.call(**request), PLUGIN_READERS
    except ReaderEnded as error:
        raise UserError(f"{path}: {error}", field="file") from None


def _counts(path: Path, parts: np.ndarray, about: dict[str, Any]) -> ExpertCounts:
    """The counts that a child sent, checked again: the child may have been taken over.

    Raises:
        UserError: they do not fit together.
    """
    layers, times, domains = (
        None if about[key] is None else tuple(about[key]) for key in ("layers", "times", "domains")
    )
    fits = isinstance(parts, np.ndarray) and parts.dtype == np.int64 and parts.ndim == 3 and parts.size > 0
    fits = fits and layers is not None and parts.shape[1] == len(layers) and int(parts.min()) >= 0
    fits = fits and int(parts.max()) < 2**53 and parts.shape[2] <= MOST_EXPERTS
    fits = fits and all(given is None or len(given) == len(parts) for given in (times, domains))
    fits = fits and all(isinstance(name, str) for name in (*(layers or ()), *(domains or ()), *about["notes"]))
    fits = fits and all(type(time) is int and 0 <= time < 2**53 for time in times or ())
    if not fits or layers is None:
        raise UserError(f"{path}: the process that reads the log sent counts that do not fit", field="file")
    kind, axis, notes = str(about["format"]), str(about["axis"]), tuple(about["notes"])
    return ExpertCounts(layers, parts, kind, times, axis, domains, about["top_k"], notes)


def _piece(row: dict[str, Any], shape: LogShape, experts: int | None) -> Piece:
    """The piece that a child has checked, compared with the log's shape once more: the child may have been taken over.

    Raises:
        UserError: it does not fit.
    """
    shared = row.get("shared_with")
    piece = Piece(
        **{
            **row,
            "remarks": tuple(row["remarks"]),
            "counted": tuple((str(kind), int(count)) for kind, count in json.loads(row.get("counted", "[]"))),
            "shared_with": (str(shared[0]), int(shared[1])) if shared else None,
        }
    )
    ids, weights, token_id = piece.ids, piece.weights, piece.token_id
    kinds = (np.uint8, np.uint16, np.int32)
    known = ids if ids.dtype != np.int32 else ids[~unrecorded(ids)]
    known = known[known != UNUSED]
    fits = ids.dtype in kinds and (not known.size or int(known.min()) >= 0)
    fits = fits and ids.shape == (len(ids), len(shape.layers), shape.top_k)
    fits = fits and len(ids) > 0 and int(ids.max()) < (experts or MOST_EXPERTS)
    fits = fits and (weights is not None) == shape.weights and (piece.scored is not None) == shape.scores
    if piece.scored is not None:
        fits = fits and piece.scored.shape == (*ids.shape[:2], 3) and piece.scored.dtype == np.float32
        entropy, margin, runner_up = np.moveaxis(np.nan_to_num(piece.scored), 2, 0)
        fits = fits and bool(entropy.min() >= 0 and margin.min() >= 0 and margin.max() <= 1 and runner_up.min() >= 0)
        fits = fits and bool(runner_up.max() < (experts or MOST_EXPERTS))
    if weights is not None:
        fits = fits and weights.shape == ids.shape and weights.dtype.kind == "f"
        fits = fits and bool(weights.min() >= -ROUNDING and weights.max() <= 1 + ROUNDING)
    if token_id is not None:
        fits = fits and token_id.shape == (len(ids),) and token_id.dtype.kind in "iu"
        fits = fits and int(token_id.min()) >= (-1 if piece.some_token_ids else 0)
    if not fits:
        raise UserError(f"{piece.where}: the process that reads the log sent decisions that do not fit", field="file")
    return piece
