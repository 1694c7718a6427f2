"""Importer of .routelog files, a made-up format: a line a token and layer, ``request;experts;weights``.

    #routelog model=toy layers=2 top_k=2 experts=8
    first;3,5;0.75,0.25
    first;0,1;0.5,0.5

The first line gives the sizes. The lines of a request stand together, token by token, in each layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from tokenpaths.engine.adapters.logs.formats import Format
from tokenpaths.engine.adapters.logs.json_lines import text_lines
from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape, layer_names
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError

MAGIC = b"#routelog "


def open_routelog(file: Path, announced: Announced) -> Log:
    """Open a file; ``announced`` holds what --layers, --top-k and --experts say."""
    lines = text_lines(file)
    where, header = next(lines)
    about = dict(pair.split("=", 1) for pair in header.decode("utf-8", "replace").split()[1:] if "=" in pair)
    try:
        layers, top_k, experts = (int(about[name]) for name in ("layers", "top_k", "experts"))
    except (KeyError, ValueError):
        raise UserError(f"{where}: should give layers, top_k and experts as whole numbers", field="file") from None
    announced.check(str(file), layers=layers, top_k=top_k)

    def read() -> Iterator[Piece]:
        rows = (_row(where, line, top_k) for where, line in text_lines(file) if not line.startswith(MAGIC))
        for request, group in groupby(rows, key=lambda row: row[1]):
            places, _, ids, weights = zip(*group, strict=True)
            if len(ids) % layers:
                raise UserError(f"{places[-1]}: request {request} ends within a token", field="file")
            shape = (-1, layers, top_k)
            yield Piece(np.reshape(ids, shape), places[0], np.reshape(weights, shape), source=request)

    shape = LogShape(layer_names(layers), top_k, weights=True)
    return Log(file, "routelog", shape, announced.num_experts(experts, where), read, about.get("model"))


def _row(where: str, line: bytes, top_k: int) -> tuple[str, str, list[int], list[float]]:
    """Where it stands, request, ids and weights of a line."""
    try:
        request, ids, weights = line.decode("utf-8").strip().split(";")
        row = (where, request, [int(cell) for cell in ids.split(",")], [float(cell) for cell in weights.split(",")])
    except ValueError:
        raise UserError(f"{where}: should be request;experts;weights", field="file") from None
    if not len(row[2]) == len(row[3]) == top_k:
        raise UserError(f"{where}: has {len(row[2])} experts and {len(row[3])} weights, not {top_k}", field="file")
    return row


FORMAT = Format(open_routelog, "a .routelog file", magic=MAGIC)
