"""Tables of a run as CSV, Parquet or Arrow, streamed a range of rows at a time.

Weights are exported as numbers in [0, 1], labels as names, paths as ranks. In CSV, texts that a spreadsheet would take
for a formula start with an apostrophe; Parquet and Arrow have every text as it is. A range is read, encoded and
dropped, so memory does not grow with the table; only the export of ``token`` holds arrays by path (``PathColumns``). No
query is open between two ranges, so a client that stalls or disconnects holds nothing in DuckDB.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from tokenpaths.engine.analysis.ribbon_costs import flops_of
from tokenpaths.engine.base.errors import NoSuchThing
from tokenpaths.engine.base.spreadsheet import FORMULA, NUMBER
from tokenpaths.engine.store.ask.question import question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.path_ribbons import path_ribbons
from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.filters import Query, check_choice
from tokenpaths.engine.store.file.packed_ids import unpack
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.file.text_pieces import WITHOUT_PIECES
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS

FORMATS = ("csv", "parquet", "arrow")
STREAM = "arrow stream"
"""of ``encode`` alone: the IPC stream that the shards of a Hugging Face data set are"""
TABLES = {
    "run": "the run itself, one row",
    "module": "what a router can pick: step, name, kind, parameters, FLOPs",
    "label": "labels with their samples and tokens",
    "region": "names of the regions of patches",
    "token_text": "readable text of the vocabulary ids",
    "sample": "samples with label, prediction, loss, compute, reuse and text",
    "image": "pictures of the samples as PNG (CSV: in base 64)",
    "token": "every token: place, loss, compute, reuse, rank of its path, modules and weights of each step; numbers "
    "that are of the kind `unused` or `unrecorded` in `module` stand for slots without a module",
    "path": "every path: rank, modules of each step (numbers as of `token`), count, CDF, compute, reuse",
    "path_member": "who takes which path, in the order of ranks",
    "flow": "tokens from module to module between steps, of all and of each label; where none go there is no row",
    "usage": "tokens of each module at each step, of all and of each label (numbers as of `token`); of a "
    "module without tokens there is no row",
    "load": "tokens of each module at each time, of each label: of runs that were made of counts; where there are none "
    "there is no row",
    "step_summary": "mean gate entropy of each step, of all and of each label",
    "null_path": "paths of the untrained twin and of independent steps",
    "null_usage": "usage of the untrained twin and of independent steps",
    "path_fit": "slopes of rank and frequency, of the run and of its nulls",
    "path_point": "points of the rank–frequency curves",
    "association": "what paths know: NMI beside its shuffles, of the run and of its untrained twin",
    "known_token": "the tokens on which that was worked out, and the untrained twin’s path of each",
    "histogram": "sealed distributions of loss and gate entropy, as JSON",
    "finding": "what is known of the model and of its soft decisions, as JSON",
    "edge": "soft connections of each sample (H-Model)",
    "gate": "gates of each sample (Directional Routing)",
    "block": "firing rates of each sample (RayTracing); of a block that is silent there is no row: its rate is 0",
    "axis": "names along the axes of soft decisions",
    "soft_shape": "sizes of the axes of soft decisions",
    "soft_summary": "mean and deviation of soft decisions, of all and of each label",
}
BATCH_ROWS = 65_536
BATCH_BYTES = 2**24
"""approximate size of a range where rows are wide"""
_SAMPLE_BYTES, _IMAGE_BYTES = 4096, 65_536
"""estimated bytes of a text sample and of a picture"""
_BEHIND = {"token": coded.TABLE, "path": coded.PATH_TABLE, "path_member": coded.MEMBERS}
_BY_LABEL = ("flow", "usage", "load", "step_summary", "soft_summary")
OF_COUNTS = ("run", "module", "label", "usage", "load", "finding")
"""tables of a run that was made of counts"""


@question(
    "export",
    "run_schema.TableList",
    tag="runs",
    route="list_tables",
    description="The tables of the run that can be exported, with their number of rows; empty ones are left out.",
    rows="tables",
    of_counts=True,
)
def tables(run: RunFile) -> dict[str, Any]:
    """The tables that ``export`` can give, with their number of rows and what they hold; empty ones are left out."""
    there = [table for table in TABLES if _source(table) in run.tables_there]
    there = [table for table in there if run.load_only is None or table in OF_COUNTS]
    counts = dict(run.rows(Query(" UNION ALL ".join(f"SELECT '{table}', ({_size(run, table)})" for table in there))))
    rows = [{"table": table, "num_rows": counts[table], "what": TABLES[table]} for table in there if counts[table]]
    return {"run": run.run_id, "tables": rows}


def check_export(run: RunFile, table: str, file_format: str) -> None:
    """NoSuchThing for an unknown table, UserError for an unknown format."""
    if table not in TABLES:
        there = ", ".join(row["table"] for row in tables(run)["tables"])
        raise NoSuchThing(f"there is no table {table[:40]!r}, run {run.run_id!r} has {there}", field="table")
    check_choice(file_format, FORMATS, "format")
    if table not in OF_COUNTS:
        run.need_tokens(table)
    if table == "load" and run.load_only is None:
        raise NoSuchThing(f"run {run.run_id!r} has no counts over time: only runs of counts have them", field="table")
    if _source(table) not in run.tables_there:
        raise NoSuchThing(f"run {run.run_id!r} was made before there was a table {table!r}", field="table")


def export(run: RunFile, table: str, file_format: str) -> Iterator[bytes]:
    """A table as a csv, parquet or arrow file, in chunks of bytes; the time limit does not apply.

    Raises:
        NoSuchThing: there is no such table.
        UserError: the format is none of the three.
    """
    check_export(run, table, file_format)
    batches = table_batches(run, table, flat=file_format == "csv")
    return encode(_without_formulas(batches) if file_format == "csv" else batches, file_format)


def _without_formulas(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """``base.spreadsheet.spreadsheet_text`` of all texts."""
    with closing(batches):  # type: ignore[type-var]  # a generator
        for batch in batches:
            for index, column in enumerate(batch.columns):
                if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                    continue
                if pc.any(pc.match_substring_regex(pc.unique(column), FORMULA)).as_py():  # labels repeat
                    is_formula = pc.match_substring_regex(column, FORMULA)
                    is_formula = pc.and_not(is_formula, pc.match_substring_regex(column, NUMBER))
                    marked = pc.binary_join_element_wise("'", column, "")
                    batch = batch.set_column(index, batch.field(index), pc.if_else(is_formula, marked, column))
            yield batch


def table_batches(run: RunFile, table: str, *, flat: bool = False) -> Generator[pa.Table, None, None]:
    """The rows of a table by ranges, at least one batch (maybe empty); ``flat`` makes lists and bytes text."""
    query = export_query(table, run.layout, run.token_columns, flat=flat)
    paths = PathColumns(run) if table == "token" else None
    with closing(ranges(run, query, _source(table), range_rows(table, run.layout))) as batches:
        for batch in batches:
            yield batch if paths is None else paths.beside(_plain_ids(batch, run.layout, flat))


def _plain_ids(rows: pa.Table, layout: Layout, flat: bool) -> pa.Table:
    """Rows of ``token`` with packed ids as bytes, or as hexadecimal digits if ``flat``."""
    if not layout.packed:
        return rows
    ids_nV = np.ascontiguousarray(unpack(rows["ids"], layout))
    width = layout.visits * layout.id_dtype.itemsize
    blobs = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(ids_nV)])
    ids = pa.array([blob.hex().upper() for blob in blobs.to_pylist()], pa.string()) if flat else blobs.cast(pa.binary())
    return rows.set_column(rows.column_names.index("ids"), "ids", ids)


def ranges(run: RunFile, query: Query, table: str, rows: int) -> Generator[pa.Table, None, None]:
    """What ``query`` gives for ``rows`` rows of ``table`` after the other, without ``export_row``; at least one batch.

    Args:
        query: takes the first and the last row number, and orders by ``export_row``, a name that no table has.
    """
    with run.cursor(limited=False) as cursor:
        for start in range(0, max(num_rows(run, table), 1), rows):
            cursor.execute(query.sql, [start, start + rows - 1])
            yield cursor.to_arrow_reader(rows).read_all().drop_columns(["export_row"])


def num_rows(run: RunFile, table: str) -> int:
    """Number of rows of a table."""
    with run.cursor(limited=False) as cursor:
        return int(cursor.execute(_size(run, table)).fetchall()[0][0])


def export_query(table: str, layout: Layout, token_columns: Collection[str], *, flat: bool) -> Query:
    """The rows of ``table`` from a first to a last row number (two parameters), in the order of the file.

    Columns: ``export_row``, then those of the export. The path of a token is still its ``path_id``.
    """
    source, labels = _source(table), ""
    if table == "sample":
        columns = "t.* EXCLUDE (label_id, first_row, search, image, export_row)"
    elif table == "image":
        columns = "t.sample, " + ("base64(t.image) AS image" if flat else "t.image")
    elif table in _BY_LABEL:
        columns, labels = "t.* EXCLUDE (label_id, export_row), label.label", " LEFT JOIN label USING (label_id)"
    elif table == "path":
        ribbon = "array_to_string(t.ribbon, ' ') AS ribbon" if flat else "t.ribbon"
        # In one order for both layouts of paths.
        columns = f"t.rank, {ribbon}, t.* EXCLUDE (rank, ribbon, path_id, first_member, export_row)"
    elif table == "token":
        columns, labels = _token_columns(layout, token_columns, flat), " LEFT JOIN label USING (label_id)"
    else:
        columns = "t.* EXCLUDE (export_row)"
    ranged = f"(SELECT rowid AS export_row, {WITHOUT_PIECES} FROM {source} WHERE rowid BETWEEN ? AND ?) AS t"
    where = " WHERE t.image IS NOT NULL" if table == "image" else ""
    return Query(f"SELECT t.export_row, {columns} FROM {ranged}{labels}{where} ORDER BY t.export_row")


def _token_columns(layout: Layout, token_columns: Collection[str], flat: bool) -> str:
    if layout.packed:
        ribbons = ["t.ids", "hex(t.weights) AS weights" if flat else "t.weights"]
    else:
        ribbons = [] if layout.by_path else [f"t.{name}" for name in layout.module_columns()]
        ribbons += [f"{layout.weights.sql('t.' + name)}::FLOAT AS {name}" for name in layout.weight_columns()]
    hidden = {"label_id", "path_id", "ids", "weights", *layout.module_columns(), *layout.weight_columns()}
    plain = [
        f"hex(t.{name}) AS {name}" if flat and name in MARGIN_COLUMNS else f"t.{name}"
        for name in token_columns
        if name not in hidden
    ]
    return ", ".join([*plain, "label.label", "t.path_id AS rank", *ribbons])


class PathColumns:
    """Columns of tokens that depend only on the path, looked up by ``path_id``: a join would sort or hash all paths
    for every range of rows.

    Rank, compute, reuse and FLOPs take 16 bytes per path; without token ids, the ribbon a byte per step.
    """

    def __init__(self, run: RunFile) -> None:
        num_paths, layout = run.row["num_paths"], run.layout
        self._layout = layout
        self._rank = np.zeros(num_paths, dtype=np.int32)
        self._measures = {name: np.zeros(num_paths, np.float32) for name in ("compute", "reuse", "flops")}
        self._ribbons = np.zeros((num_paths if layout.by_path else 0, layout.num_steps), dtype=layout.id_dtype)
        for columns, ribbons_PV in path_ribbons(run, "path_id, rank, compute, reuse", limited=False):
            place = columns["path_id"]
            self._rank[place] = columns["rank"]
            for name in ("compute", "reuse"):
                self._measures[name][place] = columns[name]
            ribbons = ribbons_PV.reshape(len(place), layout.num_steps, layout.top_k)
            self._measures["flops"][place] = flops_of(run.flops, ribbons)
            if layout.by_path:
                self._ribbons[place] = ribbons_PV

    def beside(self, rows: pa.Table) -> pa.Table:
        """Add path columns to exported rows of ``token``, whose ``rank`` is still a ``path_id``."""
        place = rows["rank"].to_numpy()
        columns = {name: rows[name] for name in rows.column_names}
        columns["rank"] = pa.array(self._rank[place], pa.int32())
        own = columns.pop("flops")
        columns["flops"] = pc.coalesce(own, pa.array(self._measures["flops"][place]))
        of_path = {name: pa.array(self._measures[name][place]) for name in ("compute", "reuse")}
        if self._layout.by_path:
            names = self._layout.module_columns()
            of_path |= {name: pa.array(np.ascontiguousarray(self._ribbons[place, i])) for i, name in enumerate(names)}
        return pa.table({name: (columns | of_path)[name] for name in _order(list(columns), list(of_path))})


def _order(columns: list[str], of_path: list[str]) -> list[str]:
    """Column order of the export: as if tokens stored all columns themselves."""
    measures, modules = of_path[:2], of_path[2:]
    columns = [name for name in columns if name != "flops"]
    at = columns.index("gate_entropy")
    columns[at : at + 1] = [*measures, "gate_entropy", "flops"]
    at = columns.index("rank") + 1
    return [*columns[:at], *modules, *columns[at:]]


def _source(table: str) -> str:
    return "sample" if table == "image" else table


def _size(run: RunFile, table: str) -> str:
    """SQL for the number of rows; counts the table behind a view, because the view would be joined in full."""
    if table == "image":
        return "SELECT count(image) FROM sample"
    behind = _BEHIND.get(table)
    return f"SELECT count(*) FROM {behind if behind in run.tables_there else table}"


def range_rows(table: str, layout: Layout) -> int:
    """Number of rows of one range: about ``BATCH_BYTES``, at most ``BATCH_ROWS``."""
    ribbon = layout.visits * (2 * layout.id_dtype.itemsize + 4)
    width = {"sample": _SAMPLE_BYTES, "image": _IMAGE_BYTES, "token": ribbon, "path": ribbon}.get(table, 1)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // width))


def encode(tables: Iterator[pa.Table], file_format: str) -> Generator[bytes, None, None]:
    """Bytes of a file in ``file_format``, one chunk for each of ``tables``, which share a schema."""
    sink = io.BytesIO()
    try:
        first = next(tables)
        with _writer(file_format, sink, first.schema) as write:
            write.write_table(first)
            del first
            yield drain(sink)
            for rows in tables:
                write.write_table(rows)
                yield drain(sink)
        yield drain(sink)
    finally:
        tables.close()  # type: ignore[attr-defined]  # a reader that left: its cursor closes now, not some time later


def _writer(file_format: str, sink: io.BytesIO, schema: pa.Schema) -> Any:
    kinds: dict[str, Callable[..., Any]] = {
        "csv": csv.CSVWriter,
        "parquet": parquet.ParquetWriter,
        # What is called .arrow is the IPC file format: it is what pyarrow.ipc.open_file, Feather and polars read.
        "arrow": pa.ipc.new_file,
        STREAM: pa.ipc.new_stream,
    }
    # The writers must not seek or close: what they wrote is taken away while they go on.
    return kinds[file_format](AppendOnly(sink), schema)


class AppendOnly(io.RawIOBase):
    """An append-only file object that counts its bytes."""

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


def drain(sink: io.BytesIO) -> bytes:
    """What was written since the last call."""
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
