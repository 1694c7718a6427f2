"""Rows into a table of the file that is being written, through Arrow."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import numpy as np
import pyarrow as pa


def insert_rows(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Append rows through Arrow; does nothing for no rows.

    A transaction keeps what was registered in it until it ends. It is a reader that is registered, which holds
    nothing any more once it was read: registered tables would stay in memory, a whole run of them.
    """
    if rows.num_rows:
        waiting = rows.to_batches()
        schema = rows.schema
        reader = pa.RecordBatchReader.from_batches(schema, (waiting.pop(0) for _ in range(len(waiting))))
        con.register("incoming", reader)
        con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        con.unregister("incoming")


def insert_columns(con: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, object]) -> None:
    """``insert_rows`` of columns by name."""
    insert_rows(con, table, pa.table(dict(columns)))


def range_array(length: int) -> pa.Array:
    return pa.array(np.arange(length, dtype=np.int32))
