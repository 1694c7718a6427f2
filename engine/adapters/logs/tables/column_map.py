"""A column map: which column or JSON path of a table is token, layer, slot, expert, weight, sequence and phase (TOML).

    [columns]
    sequence = "request"
    token = "position"
    layer = "blk"
    expert = "route.ids"
    weight = "route.weights"

    [log]
    experts = 64

Where the table numbers slots, or has the experts of a token and layer in one list, each slot must come once.

A row is one decision (``expert`` holds a number), the decisions of a token at a layer (a list), or those of a token
(lists of layers; then there is no ``layer``). A layer at which no token has an expert is dense, and left out. Rows may
come in any order: the table is held whole.

Shapes: r decisions, t tokens of a sequence, S layers, K slots.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.fill_values import FILL_VALUES
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, Announced, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import UNRECORDED, UNUSED, Piece
from tokenpaths.engine.adapters.logs.pieces.wording import number_of, shortened
from tokenpaths.engine.adapters.logs.routing_log import Log, dense_note
from tokenpaths.engine.adapters.logs.sequences import GAPS
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
        if name not in COLUMNS:
            raise UserError(
                f"{file}: [columns] has {name[:60]}; it may name {', '.join(COLUMNS)}, each as a column or path",
                field="map",
            )
        if not isinstance(path, str) or not path:
            raise UserError(
                f"{file}: [columns] {name} is {shortened(repr(path))}, it should be the name of a column or a path in "
                'quotes, for example "position"',
                field="map",
            )
    for name, found in about.items():
        if name not in ABOUT:
            raise UserError(f"{file}: [log] has {name[:60]}; it may hold {', '.join(ABOUT)}", field="map")
        right = f"a whole number from 1 to {MOST_EXPERTS}" if ABOUT[name] is int else "a name in quotes"
        if type(found) is not ABOUT[name] or (isinstance(found, int) and not 1 <= found <= MOST_EXPERTS):
            raise UserError(f"{file}: [log] {name} is {shortened(repr(found))}, it should be {right}", field="map")
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
    rows = read_decisions(file, column_map.columns, announced.skip_bad)
    rows = _sound(rows, _slots_twice(rows), announced.skip_bad)
    if not rows.lists:  # a list says what it holds
        rows = _sound(rows, _experts_twice(rows), announced.skip_bad)
    layers, counts = np.unique(rows.layer), rows.counts()
    # Of a table with rows that are wrong, most tokens have as many experts as they should.
    most = int(np.bincount(counts).argmax() if announced.skip_bad and not rows.lists else counts.max())
    varies = most <= (announced.top_k or 0) or rows.lists
    top_k = max(most, announced.top_k or 0) if varies else most
    announced.check(str(file), layers=len(layers), top_k=top_k)
    if not rows.lists:
        rows = _sound(rows, _other_counts(rows, top_k, varies), announced.skip_bad)
    routed = _routed(rows, layers)
    decided = int(np.isin(rows.layer[rows.starts()], layers[routed]).sum())
    partial = len(np.unique(rows.token_key)) * len(routed) != decided

    def read() -> Iterator[Piece | tuple[str, int]]:
        yield from rows.left_out.items()
        if rows.gaps:
            yield GAPS, rows.gaps
        bounds = np.flatnonzero(np.diff(rows.sequence, prepend=-1, append=-1))
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield _sequence(rows, slice(low, high), layers, routed, top_k)

    notes = [dense_note(len(layers) - len(routed), "where no token of the table has an expert")]
    notes += ["the slots of a token are in the order of the table"] if rows.weight is None and top_k > 1 else []
    names = tuple(f"layer {layer}" for layer in layers[routed].tolist())
    shape = LogShape(names, top_k, rows.weight is not None, partial)
    note = "; ".join(filter(None, notes))
    return Log(file, "map", shape, announced.experts, read, column_map.about.get("model"), note)


def _routed(rows: Decisions, layers: np.ndarray) -> np.ndarray:
    """Places of the layers that are not dense: at which some token has an expert; all, where there is none.

    A step of several zeros, as engines fill dense layers, has none.
    """
    starts, counts = rows.starts(), rows.counts()
    first = rows.expert[starts]
    alike = np.logical_and.reduceat(rows.expert == np.repeat(first, counts), starts)
    without = alike & ((first == UNUSED) | ((first == 0) & (counts > 1)))
    found = np.flatnonzero(np.isin(layers, rows.layer[starts][~without]))
    return found if len(found) else np.arange(len(layers))


def _sound(rows: Decisions, fault: tuple[np.ndarray, Callable[[int], str]], skip_bad: bool) -> Decisions:
    """The decisions without the tokens of those that are wrong.

    Args:
        fault: decisions that are wrong, and what to say of one.

    Raises:
        UserError: some are, and bad ones are not to be left out.
    """
    wrong, reason = fault
    if not len(wrong):
        return rows
    if not skip_bad:
        raise UserError(reason(int(wrong[0])), field="file")
    return rows.without(wrong, reason)


def _slots_twice(rows: Decisions) -> tuple[np.ndarray, Callable[[int], str]]:
    """Decisions in a slot that their token has at that layer already, as where two sequences have one name."""

    def reason(decision: int) -> str:
        what = "a list" if rows.lists or rows.slot is None else f"slot {int(rows.slot[decision])}"
        return (
            f"{rows.place(decision)}: {rows.token_name(decision)} has {what} at layer "
            f"{int(rows.layer[decision])} a second time; is a row there twice, or are several sequences under one name "
            "(name 'sequence' in the map)?"
        )

    if rows.slot is None:
        return np.zeros(0, dtype=np.int64), reason
    same = np.ones(len(rows) - 1, dtype=bool)
    for values in (rows.token_key, rows.layer, rows.slot):
        same &= np.diff(values) == 0
    return np.flatnonzero(same) + 1, reason


def _experts_twice(rows: Decisions) -> tuple[np.ndarray, Callable[[int], str]]:
    """Decisions for an expert that their token has at that layer already, as where a row stands in the table twice."""
    order = np.lexsort([rows.row, rows.expert, rows.layer, rows.token_key])
    same = ~np.isin(rows.expert[order][1:], (UNUSED, *FILL_VALUES))
    for values in (rows.token_key, rows.layer, rows.expert):
        same &= np.diff(values[order]) == 0

    def reason(decision: int) -> str:
        return (
            f"{rows.place(decision)}: {rows.token_name(decision)} has expert {int(rows.expert[decision])} at "
            f"layer {int(rows.layer[decision])} a second time; is a row there twice, or a sequence under one name?"
        )

    return order[1:][same], reason


def _other_counts(rows: Decisions, top_k: int, varies: bool) -> tuple[np.ndarray, Callable[[int], str]]:
    """First decisions of tokens that have another number of experts at a layer; ``varies``: more than K."""
    starts, counts = rows.starts(), rows.counts()

    def reason(decision: int) -> str:
        count = int(counts[np.searchsorted(starts, decision)])
        return (
            f"{rows.place(decision)}: {rows.token_name(decision)} has {number_of(count, 'expert')} at layer "
            f"{int(rows.layer[decision])}, others {top_k}; rows are missing, or a sequence comes twice under one name; "
            "if k varies, say --top-k"
        )

    return starts[counts > top_k if varies else counts != top_k], reason


def _sequence(rows: Decisions, part: slice, layers: np.ndarray, routed: np.ndarray, top_k: int) -> Piece:
    """One sequence, at the ``routed`` of the layers: rows are sorted by token, layer and slot."""
    _, token = np.unique(rows.token_key[part], return_inverse=True)
    layer = np.searchsorted(layers, rows.layer[part])
    cell = token * len(layers) + layer
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    counts = np.diff(starts, append=len(cell))
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
    cells = cell[starts]

    def locate(token: int, step: int, slot: int) -> str:
        wanted = token * len(layers) + int(routed[step])
        at = int(np.searchsorted(cells, wanted))
        if at == len(cells) or cells[at] != wanted:
            return rows.place(low)
        return rows.place(low + int(starts[at]) + min(slot, int(counts[at]) - 1))

    return Piece(
        ids[:, routed],
        rows.place(low),
        None if weights is None else weights[:, routed],
        source=rows.names[number],
        locate=locate,
    )
