"""FLAME-MoE's traces of trainings: a folder an iteration, a Parquet file a layer with ``scores`` and ``indices``.

``actives/iter_N/layer_LL.parquet`` holds lists of K a token, ``samples/*.parquet`` the vocabulary ids in their order,
file after file by the numbers in their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS, Piece
from tokenpaths.engine.adapters.logs.pieces.piece_checks import ROUNDING
from tokenpaths.engine.adapters.logs.pieces.wording import first_of
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.tables.neutral_parquet import list_numbers, parquet_batches
from tokenpaths.engine.base.errors import UserError

LAYER = re.compile(r"layer_(\d+)\.parquet")
ITERATION = re.compile(r"iter_(\d+)")
MOST_NAMED = 8
OTHER_IDS = (
    "the samples hold {ids:,} vocabulary ids, the layers {rows:,} tokens: which is whose is not known, so none is kept"
)
NO_WEIGHTS = "the scores of the log are no numbers from 0 to 1, so they are not read as weights"


def is_trace_folder(folder: Path, files: list[Path]) -> bool:
    """Whether a folder is an iteration, holds iterations, or is the root of a trace."""
    return any(LAYER.fullmatch(file.name) for file in files) or bool(_iterations(folder))


def checkpoints(folder: Path) -> dict[int, Path]:
    """Iteration → its folder, of a trace of several; empty for anything else, which is one log."""
    if not folder.is_dir() or any(LAYER.fullmatch(file.name) for file in folder.iterdir()):
        return {}
    found = {int(one.name.removeprefix("iter_")): one for one in _iterations(folder)}
    return found if len(found) > 1 else {}


def _iterations(folder: Path) -> list[Path]:
    inner = folder / "actives" if (folder / "actives").is_dir() else folder
    return sorted(
        (one for one in inner.iterdir() if one.is_dir() and ITERATION.fullmatch(one.name)),
        key=lambda one: int(one.name.removeprefix("iter_")),
    )


def open_trace_folder(folder: Path, files: list[Path], announced: Announced) -> Log:
    """Open the trace of one iteration.

    Raises:
        UserError: the folder holds several iterations, which are runs of their own; or its files do not fit together.
    """
    iteration = folder
    if not any(LAYER.fullmatch(file.name) for file in files):
        iterations = _iterations(folder)
        if len(iterations) > 1:
            raise UserError(
                f"{folder}: holds {len(iterations)} iterations of a training ({iterations[0].name} … "
                f"{iterations[-1].name}); each is a run of its own, so import each folder, {iterations[0]} first",
                field="file",
            )
        iteration = iterations[0]
    layers = {int(match[1]): f for f in sorted(iteration.iterdir()) if (match := LAYER.fullmatch(f.name))}
    if not layers:
        raise UserError(f"{iteration}: holds no layer_LL.parquet", field="file")
    order = sorted(layers)
    first = next(_columns(layers[order[0]], 1), None)
    if first is None:
        raise UserError(f"{layers[order[0]]}: holds no token", field="file")
    top_k = first[0].shape[1]
    announced.check(str(folder), layers=len(order), top_k=top_k)
    scores = first[1]
    weights = scores is not None and bool(scores.min() >= -ROUNDING and scores.max() <= 1 + ROUNDING)
    samples = next((f / "samples" for f in (iteration, *iteration.parents[:2]) if (f / "samples").is_dir()), None)
    words = [] if samples is None else sorted(samples.glob("*.parquet"), key=_by_number)
    ids, rows = sum(map(len, _vocabulary_ids(words))), pq.read_metadata(layers[order[0]]).num_rows

    def read() -> Iterator[Piece]:
        streams = [_columns(layers[layer], CUT_TOKENS) for layer in order]
        vocabulary = _vocabulary_ids(words)
        start, held = 0, np.zeros(0, dtype=np.int64)
        for parts in zip_longest(*streams):
            count = {0 if part is None else len(part[0]) for part in parts}
            if len(count) > 1 or any(part[0].shape[1] != top_k for part in parts):
                raise UserError(f"{iteration}, row {start}: its layers have different numbers of tokens or experts")
            n = count.pop()
            values = [part[1] for part in parts if part[1] is not None]
            while ids == rows and len(held) < n:
                held = np.concatenate([held, next(vocabulary)])
            tokens, held = (held[:n], held[n:]) if ids == rows else (None, held)
            yield Piece(
                np.stack([part[0] for part in parts], axis=1),
                f"{iteration}, row {start}",
                np.stack(values, axis=1).astype(np.float32) if weights and len(values) == len(parts) else None,
                tokens,
                source=f"{iteration.name}, tokens {start} to {start + n - 1}",
                rows_from=start,
            )
            start += n

    shape = LogShape(tuple(f"layer {layer}" for layer in order), top_k, weights)
    notes = [NO_WEIGHTS] if scores is not None and not weights else []
    if ids and ids != rows:
        notes.append(OTHER_IDS.format(ids=ids, rows=rows))
    if missing := sorted({*range(order[0], order[-1])} - {*order}):
        notes.append(
            f"there is no file of layer {first_of(missing, MOST_NAMED)}, though of those around: dense ones, perhaps"
        )
    return Log(folder, "flame-moe", shape, announced.experts, read, note="; ".join(notes))


def _columns(file: Path, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Indices (n, K) and scores (n, K) in blocks of ``rows``."""
    try:
        names = pq.read_schema(file).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{file}: is no whole Parquet file ({str(error)[:80]})", field="file") from None
    if "indices" not in names:
        raise UserError(f"{file}: has the columns {', '.join(names)}, but no 'indices'", field="file")
    wanted = [name for name in ("indices", "scores") if name in names]
    start = 0
    for batch in parquet_batches(file, wanted, rows):
        ids = list_numbers(batch.column("indices"), file, "indices", start)
        if ids.ndim != 2 or ids.dtype.kind not in "iu":
            raise UserError(f"{file}: 'indices' should be lists of experts, one a token", field="file")
        scores = list_numbers(batch.column("scores"), file, "scores", start) if "scores" in wanted else None
        if scores is not None and scores.shape != ids.shape:
            raise UserError(f"{file}, row {start}: has other numbers of scores than of indices", field="file")
        start += len(ids)
        yield ids, None if scores is None else scores.astype(np.float32)


def _by_number(file: Path) -> tuple[list[str | int], str]:
    """What orders files by the numbers in their names: 2 before 10."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]+)", file.name))], file.name


def _vocabulary_ids(files: list[Path]) -> Iterator[np.ndarray]:
    """Vocabulary ids of all files, in parts."""
    for file in files:
        for batch in parquet_batches(file, ["token_id"], CUT_TOKENS):
            yield list_numbers(batch.column("token_id"), file, "token_id", 0).reshape(-1).astype(np.int64)
