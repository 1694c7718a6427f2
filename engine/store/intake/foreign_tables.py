"""Reads the base tables of a run from elsewhere; runs in a confined process, since the file may end it.

DuckDB opens the file by a descriptor; one that is replaced or changes meanwhile is refused, as is one with a log of
changes beside it, which DuckDB would apply. Nothing that the file defines is followed: the connection's own schema is
that of an empty database in memory, each table is named with database and schema, has to be a table (not a view) whose
definition is that of this program to the letter, and is read column by column without any function of the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tokenpaths.engine.base.errors import NotEnoughMemory, RunFileError
from tokenpaths.engine.base.seal_marks import identity_of
from tokenpaths.engine.store.ask.tables.excerpts import clean_picture
from tokenpaths.engine.store.file.columns import PATH_TABLE, TABLE
from tokenpaths.engine.store.file.open_file import check_bytes, check_length, connect
from tokenpaths.engine.store.file.schema import CALCULATED
from tokenpaths.engine.store.intake.base_tables import (
    LONGEST,
    LONGEST_TEXT,
    TABLE_SQL,
    Plan,
    expected_sql,
    plan_of,
    run_sql,
)

BATCH_ROWS = 65_536
BATCH_BYTES = 32 << 20
VECTOR_ROWS = 2048
"""rows that DuckDB reads at a time"""
VECTOR_BYTES = 1 << 30
"""most bytes of the texts and pictures in so many rows"""
DESCRIPTORS = ("/proc/self/fd", "/dev/fd")


def read_tables(file: str, identity: str, megabytes: int) -> Iterator[dict[str, Any]]:
    """Yields the plan of the run ``file``, the rows of each table to come, and then those rows.

    Args:
        file: the run.
        identity: of the file that is meant (``seal_marks.identity_of``).
        megabytes: DuckDB's memory limit.

    Yields:
        ``{"run": row, "token_columns": names}``, ``{"rows": {table: number}}``, and for each batch
        ``{"table": name, "rows": Arrow table}``.

    Raises:
        RunFileError: the file is no run that this program wrote, or changes; the message begins with "it".
        NotEnoughMemory: it needs more than there is.
    """
    with _opened(Path(file), identity, megabytes) as con:
        row, columns = _run_row(con)
        plan = plan_of(row, columns)
        yield {"run": row, "token_columns": sorted(columns)}
        _check_catalogue(con, plan)
        numbers = {table: _value(con, f"SELECT count(*) FROM {_named(table)}") for table in plan.copied}
        declared = {"run": 1}
        if not plan.load_only:
            declared |= {"sample": plan.num_samples, TABLE: plan.num_tokens, PATH_TABLE: plan.num_paths}
        if wrong := [table for table, number in declared.items() if numbers[table] != number]:
            raise RunFileError(
                f"it declares {declared[wrong[0]]:,} rows of {_called(wrong[0])} and holds {numbers[wrong[0]]:,}"
            )
        yield {"rows": numbers}
        for table in plan.copied:
            for batch in _batches(con, plan, table):
                yield {"table": table, "rows": _with_own_pictures(batch) if table == "sample" else batch}


@contextmanager
def _opened(file: Path, identity: str, megabytes: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that has the file attached as ``r`` and can do nothing else."""
    check_bytes(file)
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise RunFileError("it is no file")
        folder = next((folder for folder in DESCRIPTORS if os.path.isdir(folder)), None)
        if os.path.lexists(f"{file}.wal"):
            raise RunFileError(f"it has unfinished changes beside it ({file.name}.wal)")
        config: dict[str, Any] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",
            "memory_limit": f"{megabytes}MB",
            "threads": 2,
        }
        with connect(config) as con:
            try:
                address = f"{folder}/{descriptor}" if folder is not None else str(file).replace("'", "''")
                con.execute(f"ATTACH '{address}' AS r (READ_ONLY)")
                con.execute("SET enable_external_access = false")
                con.execute("SET lock_configuration = true")
                check_length(con, file)
                yield con
                if {identity_of(info), identity_of(os.fstat(descriptor)), identity_of(os.stat(file))} != {identity}:
                    raise RunFileError("it changed while it was read")
            except duckdb.OutOfMemoryException as error:
                raise NotEnoughMemory("it needs more memory to be read than there is") from error
            except duckdb.Error as error:
                raise RunFileError("it is damaged or cut off: copy it again, or trace the run again") from error
    finally:
        os.close(descriptor)


def _named(table: str) -> str:
    return f'r.main."{table}"'


def _called(table: str) -> str:
    """What people call a table."""
    return {TABLE: "tokens", PATH_TABLE: "paths"}.get(table, f"table {table}")


def _value(con: duckdb.DuckDBPyConnection, sql: str) -> Any:
    return con.execute(sql).fetchall()[0][0]


def _run_row(con: duckdb.DuckDBPyConnection) -> tuple[dict[str, Any], frozenset[str]]:
    """The row of ``run`` and the columns of ``token_coded``."""
    definitions = _definitions(con)
    if _value(con, f"SELECT count(*) FROM duckdb_views() WHERE database_name = 'r' AND view_name = '{TABLE}'"):
        raise RunFileError("it is a run in parts: bring the one file that `tokenpaths pack` makes of it where it is")
    if "run" not in definitions or not {TABLE, "token"} & set(definitions):
        raise RunFileError("it is a DuckDB file, but no run: it has no tables 'run' and 'token'")
    if definitions["run"] != run_sql():
        raise RunFileError("its table run is not as this program makes it: trace the run again with this version")
    if (number := _value(con, f"SELECT count(*) FROM {_named('run')}")) != 1:
        raise RunFileError(f"it holds {number:,} runs in its table 'run', it should be one")
    _check_lengths(con, None, "run")
    cursor = con.execute(f"SELECT * FROM {_named('run')}")
    names = [column[0] for column in cursor.description]
    row = dict(zip(names, cursor.fetchall()[0], strict=True))
    return row, frozenset(name for name, _ in _columns(con, TABLE))


def _definitions(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """SQL of each table of schema ``main`` of the file; names are compared to the letter."""
    return dict(con.execute(TABLE_SQL, ["r"]).fetchall())


def _columns(con: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    """Name and type of the columns of a table that the file holds."""
    rows = con.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = 'r' AND schema_name = 'main' "
        "AND table_name = ? ORDER BY column_index",
        [table],
    )
    return [(name, kind) for name, kind in rows.fetchall() if (table, name) not in CALCULATED]


def _check_catalogue(con: duckdb.DuckDBPyConnection, plan: Plan) -> None:
    """RunFileError unless all copied tables are defined as this program defines them."""
    definitions, expected = _definitions(con), expected_sql(plan.tables_sql)
    for table in plan.copied:
        if table not in definitions:
            raise RunFileError(f"it has no {_called(table)}: it was not made by this program, or is incomplete")
        if definitions[table] != expected[table]:
            raise RunFileError(
                f"its {_called(table)} differ from what this program makes, in columns or types: trace the run again"
            )


def _check_lengths(con: duckdb.DuckDBPyConnection, plan: Plan | None, table: str) -> int:
    """Most bytes of a row of ``table``; RunFileError if its texts, blobs or lists are longer than they may be."""
    row_bytes, lengths = 0, []
    for name, kind in _columns(con, table):
        row_bytes += 8
        if kind in ("VARCHAR", "BLOB"):
            lengths.append((name, f'{"strlen" if kind == "VARCHAR" else "octet_length"}("{name}")'))
        elif kind.endswith("[]"):
            lengths.append((name, f'len("{name}")'))
        elif array := re.search(r"\[([0-9]+)\]$", kind):
            row_bytes += 8 * int(array[1])
    if not lengths:
        return row_bytes
    longest = con.execute(f"SELECT {', '.join(f'max({sql})' for _, sql in lengths)} FROM {_named(table)}")
    for (name, _), length in zip(lengths, longest.fetchall()[0], strict=True):
        limit = LONGEST.get((table, name), LONGEST_TEXT) if plan is None else plan.longest(table, name)
        if (length or 0) > limit:
            raise RunFileError(
                f"a value in column {name} of its {_called(table)} has {length:,} bytes, at most {limit:,} are read"
            )
        row_bytes += length or 0
    total = " + ".join(f"coalesce({sql}, 0)" for _, sql in lengths)
    at_once = _value(
        con, f"SELECT max(n) FROM (SELECT sum({total}) AS n FROM {_named(table)} GROUP BY rowid // {VECTOR_ROWS})"
    )
    if (at_once or 0) > VECTOR_BYTES:
        raise RunFileError(
            f"{VECTOR_ROWS:,} rows of its {_called(table)} hold {at_once / 1e6:,.0f} MB of texts and pictures, they "
            f"should hold at most {VECTOR_BYTES / 1e6:,.0f}"
        )
    return row_bytes


def _batches(con: duckdb.DuckDBPyConnection, plan: Plan, table: str) -> Iterator[pa.Table]:
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // _check_lengths(con, plan, table)))
    names = ", ".join(f'"{name}"' for name, _ in _columns(con, table))
    for batch in con.execute(f"SELECT {names} FROM {_named(table)}").to_arrow_reader(rows):
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def _with_own_pictures(batch: pa.Table) -> pa.Table:
    """Rows of ``sample`` with pictures that are decoded and encoded anew.

    Raises:
        RunFileError: one is damaged or too large.
    """
    pictures = [None if png is None else clean_picture(png) for png in batch.column("image").to_pylist()]
    place = batch.schema.get_field_index("image")
    return batch.set_column(place, "image", pa.array(pictures, pa.binary()))
