"""Counts flows and usage of a run that is written, of all tokens and of every label.

Four ways, each the fastest for its layout; sums do not depend on how tokens were cut into batches. The naive twin of
all is ``flow_counter.FlowCounter``.

- one slot: while batches arrive (``Visits``); SQL at sealing would take a quarter longer;
- several slots of equal weights, as of a log without any: while batches arrive, by matrix products (``EvenFlows``), or
  by compiled loops where there are many tokens;
- columns: in SQL (``flow_counter.flow_parts_sql``);
- packed ribbons: the choices of a step as a 0/1 matrix (tokens × modules), so that the links between two steps are a
  matrix product (``PackedFlows``).

Shapes: n tokens, S steps, K slots, M modules, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np

from tokenpaths.engine.store.file.flow_counter import (
    FlowCounter,
    columns_sql,
    countable_in_sql,
    flow_parts_sql,
    flow_values_sql,
    read_chunks,
    ribbons_of,
    usage_parts_sql,
    usage_values_sql,
    with_modules,
)
from tokenpaths.engine.store.file.schema import ALL_LABELS, Layout
from tokenpaths.engine.store.write.arrow_tables import insert_columns
from tokenpaths.engine.store.write.flows.packed_flows import count_packed, fits
from tokenpaths.engine.store.write.flows.while_writing import Visits


def write_flows(con: duckdb.DuckDBPyConnection, layout: Layout, labels: dict[str, int], visits: Visits | None) -> None:
    """Fill ``flow`` and ``usage``; ``visits`` holds the counts if they were made while tokens arrived."""
    if visits is not None:
        visits.write(con)
        return
    steps = range(layout.num_steps - 1)
    if countable_in_sql(layout):
        con.execute(f"CREATE TEMP VIEW chosen AS SELECT * FROM {with_modules(layout)}")
        for table, sql, keys, values in (
            (
                "flow",
                flow_parts_sql(layout, steps, "label_id"),
                "step, source, target",
                (flow_values_sql, ("pairs", "parts")),
            ),
            ("usage", usage_parts_sql(layout, "label_id"), "step, module", (usage_values_sql, ("tokens", "parts"))),
        ):
            read, columns = values
            con.execute(f"CREATE TEMP TABLE by_label AS {sql}")
            con.execute(
                f"INSERT INTO {table} BY NAME SELECT {keys}, {read(layout, *(f'sum({name})' for name in columns))}, "
                f"{ALL_LABELS} AS label_id FROM by_label GROUP BY {keys} ORDER BY {keys}"
            )
            con.execute(
                f"INSERT INTO {table} BY NAME SELECT {keys}, {read(layout, *columns)}, label_id "
                f"FROM by_label WHERE label_id IS NOT NULL ORDER BY label_id, {keys}"
            )
            con.execute("DROP TABLE by_label")
        con.execute("DROP VIEW chosen")
        return
    packed = layout.packed and fits(layout)
    counters = count_packed(con, layout, list(labels.values())) if packed else _count_one_by_one(con, layout, labels)
    for label_id, counter in counters:
        links = counter.flow_arrays()
        insert_columns(con, "flow", {**links, "label_id": np.full(len(links["step"]), label_id, dtype=np.int32)})
        if rows := counter.usage_rows():
            names = ("step", "module", "count", "weight")
            by_name = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
            insert_columns(con, "usage", {**by_name, "label_id": [label_id] * len(rows)})


def _count_one_by_one(
    con: duckdb.DuckDBPyConnection, layout: Layout, labels: dict[str, int]
) -> Iterator[tuple[int, FlowCounter]]:
    """Count all tokens, then those of each label: one pass over ``token`` each."""
    for label_id in (ALL_LABELS, *labels.values()):
        where = "" if label_id == ALL_LABELS else f" WHERE label_id = {label_id}"
        counter = FlowCounter(layout, range(layout.num_steps - 1))
        for columns in read_chunks(con, f"SELECT {columns_sql(layout)} FROM token{where}", layout):
            counter.add(*ribbons_of(layout, columns))
        yield label_id, counter
