"""Tables of a run as CSV, Parquet or Arrow, streamed batch by batch.

Weights leave as numbers in [0, 1], labels as names; pictures and search keys stay behind.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from engine.store.filters import Query
from engine.store.schema import Layout

FORMATS = ("csv", "parquet", "arrow")
TABLES = (
    "run", "module", "label", "region", "token_text", "sample", "token", "path", "path_member", "flow",
    "usage", "step_summary", "null_path", "null_usage", "path_fit", "association",
    "edge", "gate", "block",
)  # fmt: skip
BATCH_ROWS = 65_536


def export_query(table: str, layout: Layout, token_columns: Collection[str], *, flat: bool) -> Query:
    """The rows of ``table``; ``flat`` turns lists and BLOBs into text, for CSV."""
    if table == "sample":
        return Query("SELECT * EXCLUDE (label_id, first_row, search, image) FROM sample ORDER BY sample")
    if table in ("flow", "usage", "step_summary"):
        return Query(
            f"SELECT t.* EXCLUDE (label_id), label.label FROM {table} AS t LEFT JOIN label USING (label_id) "
            "ORDER BY t.label_id, t.*"
        )
    if table == "path":
        flattened = " REPLACE (array_to_string(ribbon, ' ') AS ribbon)" if flat else ""
        return Query(f"SELECT * EXCLUDE (path_id, first_member){flattened} FROM path ORDER BY rank")
    if table == "token":
        return _token_query(layout, token_columns, flat)
    return Query(f"SELECT * FROM {table}")


def _token_query(layout: Layout, token_columns: Collection[str], flat: bool) -> Query:
    if layout.packed:
        ribbons = ["hex(t.ids) AS ids", "hex(t.weights) AS weights"] if flat else ["t.ids", "t.weights"]
    else:
        ribbons = [f"t.{name}" for name in layout.module_columns()]
        ribbons += [f"{layout.weights.sql('t.' + name)}::FLOAT AS {name}" for name in layout.weight_columns()]
    hidden = {"label_id", "path_id", "ids", "weights", *layout.module_columns(), *layout.weight_columns()}
    plain = [f"t.{name}" for name in token_columns if name not in hidden]
    names = ", ".join([*plain, "label.label", "path.rank", *ribbons])
    return Query(
        f"SELECT {names} FROM token AS t JOIN path USING (path_id) LEFT JOIN label USING (label_id) "
        "ORDER BY t.sample, t.token"
    )


def encode(reader: pa.RecordBatchReader, file_format: str) -> Iterator[bytes]:
    """The bytes of a file in ``file_format``, a piece per batch."""
    sink = io.BytesIO()
    with _writer(file_format, sink, reader.schema) as write:
        for batch in reader:
            write.write_batch(batch)
            yield _drain(sink)
    yield _drain(sink)


def _writer(file_format: str, sink: io.BytesIO, schema: pa.Schema) -> Any:
    kinds: dict[str, Callable[..., Any]] = {
        "csv": csv.CSVWriter,
        "parquet": parquet.ParquetWriter,
        "arrow": pa.ipc.new_stream,
    }
    # The writers must not seek or close: what they wrote is taken away while they go on.
    return kinds[file_format](_Pipe(sink), schema)


class _Pipe(io.RawIOBase):
    """A file that can only be appended to, and knows how much was."""

    def __init__(self, sink: io.BytesIO) -> None:
        self._sink = sink
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = self._sink.write(bytes(data))
        self._written += size
        return size

    def tell(self) -> int:
        return self._written


def _drain(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
