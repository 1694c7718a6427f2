"""Ribbons of many paths as arrays: decoded here, ten times as fast as by the view ``path``.

Shapes: P paths of a part, V = S·K visits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.path_statistics import sorted_slots
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.file.columns import PATHS, TABLE
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.packed_ids import unpack
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
    listed = f"(SELECT * FROM {PATHS} WHERE {condition.sql}) AS listed"
    sql = f"SELECT {columns}, ribbon FROM {listed}"
    if run.layout.unique:
        firsts = f"(SELECT rowid AS place, ids FROM {TABLE}) AS firsts"
        sql = f"SELECT {columns}, firsts.ids AS ribbon FROM {listed} JOIN {firsts} ON place = first_token"
    names = [name.strip() for name in columns.split(",")]
    with run.cursor(limited=limited) as cursor:
        for batch in cursor.execute(sql, list(condition.parameters)).to_arrow_reader(CHUNK_PATHS):
            if batch.num_rows:
                values = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}
                yield values, _ribbons(batch.column("ribbon"), run.layout)


def ribbons_of_ranks(run: RunFile, ranks: Sequence[int]) -> list[tuple[int, list[int]]]:
    """rank and ribbon (V,) of these paths; a query for a few hundred of them at a time."""
    rows: list[tuple[int, list[int]]] = []
    for start in range(0, len(ranks), RANKS_AT_ONCE):
        part = tuple(ranks[start : start + RANKS_AT_ONCE])
        marks = ", ".join("?" * len(part))
        rows += run.rows(Query(f"SELECT rank, ribbon FROM path WHERE rank IN ({marks})", part))
    return rows


def _ribbons(column: pa.Array, layout: Layout) -> np.ndarray:
    if not layout.unique:
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), layout.visits)
    return sorted_slots(unpack(column, layout).reshape(len(column), layout.num_steps, layout.top_k))
