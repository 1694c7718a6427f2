"""Ribbons of many paths as arrays: decoded here, ten times as fast as by the view ``path``.

Shapes: P paths of a part, V = S·K visits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.path_statistics import sorted_slots
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.lookups import looked_up, tokens_at, tokens_at_once
from tokenpaths.engine.store.file.columns import PATH_TABLE, PATHS, TABLE
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.packed_ids import unpack
from tokenpaths.engine.store.file.pages.path_pages import own_column
from tokenpaths.engine.store.file.schema import Layout

CHUNK_PATHS = 65_536
RANKS_AT_ONCE = 256
EVERY = Query("true")


def path_ribbons(
    run: RunFile, columns: str, condition: Query = EVERY, *, limited: bool = True
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Columns of paths and their canonical ribbons (P, V), part by part, in any order.

    Args:
        run: any.
        columns: of ``path_row``, separated by commas; without NULLs.
        condition: on its rows, by columns of ``path_row`` alone.
        limited: False: the time limit of questions does not apply.
    """
    names = [name.strip() for name in columns.split(",")]
    if run.layout.unique and condition == EVERY and {*names} <= {"path_id", "rank"} and not run.in_parts:
        yield from _of_first_tokens(run, names, limited)
        return
    listed = f"(SELECT * FROM {PATHS} WHERE {condition.sql}) AS listed"
    sql = f"SELECT {columns}, ribbon FROM {listed}"
    if run.layout.unique:
        firsts = f"(SELECT rowid AS place, ids FROM {TABLE}) AS firsts"
        sql = f"SELECT {columns}, firsts.ids AS ribbon FROM {listed} JOIN {firsts} ON place = first_token"
    with run.cursor(limited=limited) as cursor:
        for batch in cursor.execute(sql, list(condition.parameters)).to_arrow_reader(CHUNK_PATHS):
            if batch.num_rows:
                values = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}
                yield values, _ribbons(batch.column("ribbon"), run.layout)


def _of_first_tokens(
    run: RunFile, names: list[str], limited: bool
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """All paths without a join: they are numbered in the order of their first tokens.

    Raises:
        RunFileError: they are not.
    """
    done = 0
    with run.cursor(limited=limited) as cursor:
        for batch in cursor.execute(f"SELECT path_id, ids FROM {TABLE}").to_arrow_reader(CHUNK_PATHS):
            path_ids = batch.column("path_id").to_numpy().astype(np.int64)
            before = np.maximum.accumulate(np.concatenate([[done - 1], path_ids[:-1]]))
            first = np.flatnonzero(path_ids > before)
            numbers = np.arange(done, done + len(first))
            if not np.array_equal(path_ids[first], numbers):
                raise run.damaged(TABLE)
            if not len(first):
                continue
            done += len(first)
            values = {"path_id": numbers} | ({"rank": run.look_up(numbers)[0]} if "rank" in names else {})
            ids = batch.column("ids") if len(first) == batch.num_rows else batch.column("ids").take(pa.array(first))
            yield {name: values[name] for name in names}, _ribbons(ids, run.layout)
    if done != run.row["num_paths"]:
        raise run.damaged(TABLE)


def ribbons_of_ranks(run: RunFile, ranks: Iterable[int]) -> dict[int, list[int]]:
    """Ribbons (V,) of these paths by rank."""
    every = sorted(set(ranks))
    ribbons: dict[int, list[int]] = {}
    columns = f"rank, {own_column(run.layout)}"
    for start in range(0, len(every), RANKS_AT_ONCE):
        some = every[start : start + RANKS_AT_ONCE]
        ribbons |= dict(rows_with_ribbons(run, looked_up(columns, PATHS, "rank", some)))
    return ribbons


def rows_with_ribbons(run: RunFile, query: Query) -> list[tuple[Any, ...]]:
    """Rows of a query of paths whose second column is ``own_column``, with the ribbon (V,) in its place.

    Samples tell DuckDB where in the file the first tokens are; a join with them looks at all of it.

    Raises:
        RunFileError: there are no such tokens.
    """
    rows = run.rows(query)
    if not run.layout.unique or not rows:
        return rows
    if any(row[1] is None for row in rows):
        raise run.damaged(PATH_TABLE)
    firsts = np.array(sorted({row[1] for row in rows}))
    samples = np.searchsorted(run.first_rows, firsts, side="right") - 1
    places = list(zip(samples.tolist(), firsts.tolist(), strict=True))
    at_once = tokens_at_once(run.in_parts)
    ids = [
        row[0]
        for start in range(0, len(places), at_once)
        for row in run.rows(tokens_at(["ids"], places[start : start + at_once], in_parts=run.in_parts))
    ]
    if len(ids) != len(firsts):
        raise run.damaged(PATH_TABLE)
    of_first = dict(zip(firsts.tolist(), _ribbons(ids, run.layout).tolist(), strict=True))
    return [(rank, of_first[first], *more) for rank, first, *more in rows]


def _ribbons(column: Any, layout: Layout) -> np.ndarray:
    if not layout.unique:
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), layout.visits)
    return sorted_slots(unpack(column, layout).reshape(len(column), layout.num_steps, layout.top_k))
