"""A column map: which column or JSON path of a table is token, layer, slot, expert, weight, sequence and phase (TOML).

    [columns]
    sequence = "request"
    token = "position"
    layer = "blk"
    expert = "route.ids"
    weight = "route.weights"

    [log]
    experts = 64

A row is one decision (``expert`` holds a number), the decisions of a token at a layer (a list), or those of a token
(lists of layers; then there is no ``layer``). Rows may come in any order: the table is held whole.

Shapes: r decisions, t tokens of a sequence, S layers, K slots.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.fill_values import FILL_VALUES
from tokenpaths.engine.adapters.logs.pieces import MOST_EXPERTS, UNRECORDED, UNUSED, Announced, LogShape, Piece
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.tables.mapped_rows import COLUMNS, Decisions, read_decisions
from tokenpaths.engine.base.errors import UserError

ABOUT = {"experts": int, "layers": int, "top_k": int, "model": str}
EXAMPLE = '[columns] token = "position", layer = "layer", expert = "expert"'


@dataclass(frozen=True)
class ColumnMap:
    """What a map file says."""

    columns: dict[str, str]
    """name of ours -> column or path of the table"""
    about: dict[str, Any]


def read_map(file: Path) -> ColumnMap:
    """Read a map file.

    Raises:
        UserError: it is no such TOML; the message says what it may hold.
    """
    try:
        value = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", field="map") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{file}: is no TOML ({str(error)[:120]})", field="map") from None
    columns, about = value.pop("columns", None), value.pop("log", {})
    if not isinstance(columns, dict) or not isinstance(about, dict) or value:
        raise UserError(f"{file}: should hold [columns], and [log] if it must; for example {EXAMPLE}", field="map")
    for name, path in columns.items():
        if name not in COLUMNS or not isinstance(path, str) or not path:
            raise UserError(
                f"{file}: [columns] has {name[:60]}; it may name {', '.join(COLUMNS)}, each as a column or path",
                field="map",
            )
    for name, found in about.items():
        if name not in ABOUT or type(found) is not ABOUT[name]:
            raise UserError(f"{file}: [log] has {name[:60]}; it may hold {', '.join(ABOUT)}", field="map")
        if type(found) is int and not 1 <= found <= MOST_EXPERTS:
            raise UserError(f"{file}: [log] {name} is {found}, it should be from 1 to {MOST_EXPERTS}", field="map")
    if "expert" not in columns:
        raise UserError(f"{file}: [columns] does not say which column is the expert", field="map")
    return ColumnMap(columns, about)


def open_mapped(file: Path, map_file: Path, announced: Announced) -> Log:
    """Open a table (CSV, JSON lines or Parquet) by a map.

    Raises:
        UserError: the map or the table is invalid.
    """
    column_map = read_map(map_file)
    sizes = {name: column_map.about[name] for name in ("layers", "top_k", "experts") if name in column_map.about}
    announced = replace(announced, **{k: v for k, v in sizes.items() if getattr(announced, k) is None})
    rows = read_decisions(file, column_map.columns)
    layers = np.unique(rows.layer)
    top_k = int(rows.counts().max())
    varies = top_k <= (announced.top_k or 0) or rows.lists
    top_k = max(top_k, announced.top_k or 0) if varies else top_k
    announced.check(str(file), layers=len(layers), top_k=top_k)
    if not (rows.lists or announced.skip_bad):  # a row that is wrong then is one of many, and a list says what it holds
        _refuse_repeated(rows)
    partial = len(np.unique(rows.token_key)) * len(layers) != len(rows.counts())

    def read() -> Iterator[Piece]:
        bounds = np.flatnonzero(np.diff(rows.sequence, prepend=-1, append=-1))
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield _sequence(rows, slice(low, high), layers, top_k, varies)

    note = "the slots of a token are in the order of the table" if rows.weight is None and top_k > 1 else ""
    shape = LogShape(tuple(f"layer {layer}" for layer in layers.tolist()), top_k, rows.weight is not None, partial)
    return Log(file, "map", shape, announced.experts, read, column_map.about.get("model"), note)


def _refuse_repeated(rows: Decisions) -> None:
    """UserError if a token has one expert twice at a layer, as where a row stands in the table twice."""
    order = np.lexsort([rows.row, rows.expert, rows.layer, rows.token_key])
    same = ~np.isin(rows.expert[order][1:], (UNUSED, *FILL_VALUES))
    for values in (rows.token_key, rows.layer, rows.expert):
        same &= np.diff(values[order]) == 0
    if same.any():
        again = int(order[1:][same][0])
        raise UserError(
            f"{rows.place(again)}: token {int(rows.token[again])} has expert {int(rows.expert[again])} at layer "
            f"{int(rows.layer[again])} a second time; is a row there twice, or a sequence under one name?",
            field="file",
        )


def _sequence(rows: Decisions, part: slice, layers: np.ndarray, top_k: int, varies: bool) -> Piece:
    """One sequence: rows are sorted by token, layer and slot; ``varies``: a token may have fewer experts than K."""
    _, token = np.unique(rows.token_key[part], return_inverse=True)
    layer = np.searchsorted(layers, rows.layer[part])
    cell = token * len(layers) + layer
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    counts = np.diff(starts, append=len(cell))
    if (counts != top_k).any() and not varies:
        odd = int(np.flatnonzero(counts != top_k)[0])
        row = part.start + int(starts[odd])
        raise UserError(
            f"{rows.place(row)}: token {int(rows.token[row])} has {int(counts[odd])} experts at layer "
            f"{int(rows.layer[row])}, others {top_k}; rows are missing, or a sequence comes twice under one name; if k "
            "varies, say --top-k",
            field="file",
        )
    slot = np.arange(len(cell)) - np.repeat(starts, counts)
    shape = (int(token.max()) + 1, len(layers), top_k)
    ids = np.full(shape, UNRECORDED, dtype=np.int64)
    ids[token, layer] = UNUSED
    ids[token, layer, slot] = rows.expert[part]
    weights = None
    if rows.weight is not None:
        weights = np.zeros(shape, dtype=np.float32)
        weights[token, layer, slot] = rows.weight[part]
    number = int(rows.sequence[part.start])
    low = part.start
    firsts = {int(c): low + int(s) for c, s in zip(cell[starts], starts, strict=True)}
    return Piece(
        ids,
        rows.place(low),
        weights,
        source=rows.names[number],
        locate=lambda t, s, k: rows.place(firsts.get(t * len(layers) + s, low)),
    )
