"""llama.cpp's routing CSV: one row a token and selected expert, a pass after the other.

With a header: ``layer`` and ``expert``, optionally ``token`` (or ``pos``, ``step``, ``row``), ``weight``, columns that
tell passes (``call``, ``phase``) or samples (``turn``, ``request``) apart, and ``seq``, which tells parallel sequences
apart. Without a header: ``layer,expert``, as written by ``llama-moe-trace``; K must then be given. Rows are ordered by
layer within a pass: a new pass begins where the layer decreases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenpaths.engine.adapters.logs.passes.csv_columns import Header, read_header
from tokenpaths.engine.adapters.logs.passes.csv_rows import csv_blocks, csv_passes
from tokenpaths.engine.adapters.logs.passes.layer_passes import Pass, outline, stitched
from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.pieces.piece_checks import ROUNDING
from tokenpaths.engine.adapters.logs.pieces.wording import unread_note
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError

MOST_RUNS = 4096
MOST_TOP_K = 32
"""rows that are looked at, and the largest number that is proposed, where top-k is not known"""


def open_csv(file: Path, announced: Announced) -> Log:
    """Open a trace; scans the whole file once for its layers."""
    header = read_header(file)
    columns, preamble = header.columns, header.preamble
    if preamble.top_k and announced.top_k is None:
        announced = replace(announced, top_k=preamble.top_k)
    if "token" not in columns and announced.top_k is None:
        raise UserError(
            f"{file}: has no column 'token', so where a token ends cannot be seen; say --top-k of the model"
            f"{_fitting(file, header, announced)}",
            field="top_k",
        )
    if "weight" in columns:
        largest = _largest_weight(file, header, announced.skip_bad)
        if largest is None:
            columns = {name: place for name, place in columns.items() if name != "weight"}
            header = replace(header, columns=columns)
        elif preamble.scaled and 1 + ROUNDING < largest < math.inf:
            header = replace(header, divisor=largest)
    about = outline(csv_passes(file, header, announced), f"{file}: is empty", announced.skip_bad)
    # One number of experts throughout is K; where it varies, none of the tokens need to have as many as there can be.
    announced.check(str(file), layers=len(about.layers), top_k=min(about.used) if len(about.used) == 1 else None)

    def name(found: Pass) -> str:
        return ", ".join([*found.sample, found.where.removeprefix(f"{file}, ")])

    def read() -> Iterator[Piece | tuple[str, int]]:
        return stitched(csv_passes(file, header, announced), about, name, announced.skip_bad)

    notes = [note] if (note := unread_note("columns", header.unread)) else []
    if header.position is not None and "seq" not in columns and announced.top_k is None:
        notes.append(
            f"top-k {about.top_k} is the number of rows with one {header.position}: say --top-k if sequences ran in "
            "parallel"
        )
    if header.divisor != 1:
        notes.append(
            f"weights are divided by the largest, {header.divisor:g}: the model multiplies by a factor above 1"
        )
    names = tuple(f"layer {layer}" for layer in about.layers)
    shape = LogShape(names, about.top_k, "weight" in columns, about.partial)
    experts = announced.num_experts(preamble.experts, str(file))
    return Log(file, "llama.cpp", shape, experts, read, preamble.model, "; ".join(notes))


def _fitting(file: Path, header: Header, announced: Announced) -> str:
    """The top-k that rows could have, as an ending of a sentence."""
    runs: list[np.ndarray] = []
    for _, rows in csv_blocks(file, header, announced.skip_bad):
        starts = np.flatnonzero(np.diff(rows["layer"], prepend=-1))
        runs += np.split(rows["expert"], starts[1:])
        if len(runs) > MOST_RUNS:
            break
    runs = runs[: max(1, len(runs) - 1)]
    every = math.gcd(*(len(run) for run in runs)) if runs else 0
    fits = []
    for top_k in range(min(every, MOST_TOP_K), 0, -1):
        if every % top_k == 0:
            ids = [np.sort(run.reshape(-1, top_k), axis=1) for run in runs]
            if not any((part[:, 1:] == part[:, :-1]).any() for part in ids):
                fits.append(str(top_k))
    return f": {' or '.join(fits)} would fit" if fits else ""


def _largest_weight(file: Path, header: Header, skip_bad: bool) -> float | None:
    """None if no row has a weight: a graph without a node for them writes NaN."""
    largest = None
    for _, rows in csv_blocks(file, header, skip_bad):
        known = rows["weight"][~np.isnan(rows["weight"])]
        if len(known):
            largest = max(float(known.max()), largest or 0.0)
    return largest
