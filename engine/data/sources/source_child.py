"""What runs in the confined child of a data set: opens a source, reads rows of it in batches."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.confined_pictures import pixels_of
from tokenpaths.engine.data.labels import Remarks
from tokenpaths.engine.data.sources.opening import open_source
from tokenpaths.engine.data.sources.sample import Sample, Source

BATCH_ROWS: Final = 64
BATCH_BYTES: Final = 16 << 20
BATCH_SECONDS: Final = 2.0
MOST_OPEN: Final = 4
"""sources that are kept open; one that was closed is opened again when it is read"""
_opened: dict[str, Source] = {}


def answer(name: str, about: str, rows: np.ndarray | None = None, seen: list[int] | None = None) -> Any:
    """Open a source, or read ``rows`` of it.

    Args:
        name: of this source, by which it is kept open.
        about: arguments of ``open_source`` as JSON, and ``folder``, the working directory.
        rows: row numbers; None: the source is opened, and described in the answer.
        seen: number of rows and sum of their labels when it was first opened.

    Returns:
        The description, or a generator of batches of rows.
    """
    arguments = json.loads(about)
    os.chdir(arguments.pop("folder"))
    source = _opened.get(name)
    if source is None:
        while len(_opened) >= MOST_OPEN:
            del _opened[next(iter(_opened))]
        source = _opened[name] = open_source(Path(arguments.pop("path")), **arguments)
    if rows is not None:
        if sum_of(source) != seen:
            raise UserError("The data set was changed while it was read; start again.", field="data")
        return _batches(source, rows)
    return {
        "names": json.dumps(source.index.names),
        "codes": source.index.codes,
        "has_masks": bool(source.has_masks),
        "paths": json.dumps([os.fspath(path) for path in getattr(source, "paths", ())]),
        "columns": [getattr(source, column, None) for column in ("_text_column", "_content")],
        "split": getattr(source, "split", None),
        "seen": sum_of(source),
        "remarks": getattr(source, "remarks", Remarks()).to_rows(),
    }


def sum_of(source: Source) -> list[int]:
    """Number of rows and sum of their labels."""
    return [len(source.index), zlib.crc32(np.ascontiguousarray(source.index.codes).tobytes())]


def _batches(source: Source, rows: np.ndarray) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size, began = 0, time.monotonic()
    for sample in source.read(rows.tolist()):
        batch.append(_error(sample) if isinstance(sample, UserError) else _item(sample))
        size += sum(value.nbytes if isinstance(value, np.ndarray) else len(str(value)) for value in batch[-1].values())
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES or time.monotonic() - began >= BATCH_SECONDS:
            yield batch
            batch, size, began = [], 0, time.monotonic()
    if batch:
        yield batch


def _item(sample: Sample) -> dict[str, Any]:
    item: dict[str, Any] = {"source": sample.source, "text": sample.text, "remarks": sample.remarks}
    if sample.image is not None:
        item["pixels"] = pixels_of(sample.image)
    if sample.mask is not None:
        item["mask"] = sample.mask
    return item


def _error(error: UserError) -> dict[str, Any]:
    return {"error": str(error), "field": error.field, "status": getattr(error, "status", None)}
