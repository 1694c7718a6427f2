"""Verification of a run file: reads every block, whose checksum DuckDB compares, and checks the row counts."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tokenpaths.engine.base.errors import NotEnoughMemory, RunFileError
from tokenpaths.engine.store.file.columns import MEMBERS, TABLE
from tokenpaths.engine.store.file.open_file import first_line, open_read_only


def verify_run(file: Path) -> dict[str, int]:
    """Verify a run; returns the number of rows by table.

    Reads every value of every table, hence every block; then compares the counts stored in the run with its rows. Takes
    about a second per million tokens.

    Raises:
        RunNotFound, RunFileError: what is wrong with the file.
        NotEnoughMemory: the check was not completed; the run may be intact.
    """
    con = open_read_only(file)
    try:
        tables = con.execute(
            "SELECT database_name, table_name FROM system.main.duckdb_tables() "
            "WHERE database_name = 'r' OR database_name LIKE 'part_%' ORDER BY 2, 1"
        ).fetchall()
        rows: dict[str, int] = {}
        for database, table in tables:
            name = table.replace('"', '""')
            # The hash is of all columns, so none can be left out of the reading.
            key = {TABLE: "token", MEMBERS: "path_member"}.get(table, table)  # what people call them
            sql = f'SELECT count(*), bit_xor(hash(t)) FROM {database}.main."{name}" t'
            rows[key] = rows.get(key, 0) + con.execute(sql).fetchall()[0][0]
        counts = con.execute("SELECT num_samples, num_tokens FROM run").fetchall()[0]
    except duckdb.OutOfMemoryException as error:
        raise NotEnoughMemory(f"{file.name} needs more memory to be read to its end than there is") from error
    except (duckdb.Error, OSError) as error:
        raise RunFileError(
            f"{file.name} is damaged ({first_line(error, file)}): copy it again or trace the run again"
        ) from error
    finally:
        con.close()
    if "load" not in rows and counts != (rows.get("sample"), rows.get("token")):
        raise RunFileError(
            f"{file.name} says {counts[0]:,} samples and {counts[1]:,} tokens, and holds {rows.get('sample', 0):,} and "
            f"{rows.get('token', 0):,}: copy it again or trace the run again"
        )
    return rows
