"""The SQLite file of one log of received responses: its tables, and its errors in words for people."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenpaths.backend.jobs.connection import DAMAGED, FULL, LOCKED
from tokenpaths.backend.problems import Problem, busy, disk_full

BUSY_SECONDS = 20.0
SUFFIX = ".sqlite"
ENDS = ("", "-journal", "-wal", "-shm")
"""of the names of a log's files"""
FILE = f"The file received/{{}}{SUFFIX} of the data folder"
SCHEMA_VERSION = 2
TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS response (number INTEGER PRIMARY KEY, id TEXT UNIQUE, line BLOB, digest BLOB);
CREATE TABLE IF NOT EXISTS about (one INTEGER PRIMARY KEY CHECK (one = 1), began REAL, last REAL, responses INTEGER,
    tokens INTEGER, bytes INTEGER, model TEXT, layers INTEGER, top_k INTEGER, routed BLOB, sizes TEXT, counts BLOB,
    file TEXT, target TEXT, job TEXT, not_before REAL);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
"""``routed``: the layers with choices in the first response, a byte each; ``digest``: of the decisions of a response.
While a log is sealed, ``file`` of the inbox holds it, ``target`` is the run to be, and ``job`` makes it, once it is
submitted. ``not_before``: when it may be sealed by itself, in seconds since 1970."""
COLUMNS_OF_2 = {"response": ("digest BLOB",), "about": ("routed BLOB", "file TEXT", "target TEXT", "not_before REAL")}
"""what files of version 1 lack"""
Row = dict[str, Any]
log = logging.getLogger(__name__)


@contextlib.contextmanager
def opened(file: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection to a log's file.

    Only one process opens a log at a time, but for reading (``ReceivedLogs``), so that a rollback journal will do.

    Raises:
        Problem: 404 where there is no file, unless it is to be made; 409 if it is damaged, 503 if it stays locked, 507
            if the disk is full, 500 if it cannot be used otherwise.
    """
    try:
        address = f"{file.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        con = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            con.execute("PRAGMA journal_mode = DELETE")
            con.execute("PRAGMA synchronous = EXTRA")  # what was answered for is on the disk, and so is its folder
            _bring_up_to_date(con, file.stem)
            yield con
        finally:
            con.close()
    except sqlite3.Error as error:
        raise _explained(file, error, create) from error


@contextlib.contextmanager
def writing(con: sqlite3.Connection) -> Iterator[None]:
    """A transaction, committed or rolled back as a whole."""
    con.execute("BEGIN IMMEDIATE")
    try:
        yield
        con.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # after some errors SQLite has already rolled back
            con.execute("ROLLBACK")
        raise


def read_about(con: sqlite3.Connection) -> Row | None:
    """What is known of the log; None before its first response."""
    cursor = con.execute("SELECT * FROM about")
    row = cursor.fetchone()
    names = [column[0] for column in cursor.description]
    return None if row is None else dict(zip(names[1:], row[1:], strict=True))


def write_about(con: sqlite3.Connection, about: Row) -> None:
    """Replace what is known of the log."""
    names, marks = ", ".join(about), ", ".join("?" * len(about))
    con.execute(f"INSERT OR REPLACE INTO about (one, {names}) VALUES (1, {marks})", list(about.values()))


def remove(file: Path) -> None:
    """Delete a log's file, and what SQLite keeps beside it."""
    for end in ENDS:
        file.with_name(file.name + end).unlink(missing_ok=True)


def _bring_up_to_date(con: sqlite3.Connection, run: str) -> None:
    if con.execute("PRAGMA user_version").fetchone()[0] >= SCHEMA_VERSION:
        return
    for table, columns in COLUMNS_OF_2.items():
        known = {row[1] for row in con.execute(f"PRAGMA table_info({table})")}
        for column in columns:
            if known and column.split()[0] not in known:
                con.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    con.executescript(TABLES)
    con.execute("UPDATE about SET file = ?, target = ? WHERE job IS NOT NULL", (f"received-{run}.jsonl", run))


def _explained(file: Path, error: sqlite3.Error, create: bool) -> Problem:
    code = getattr(error, "sqlite_errorcode", None)
    kind = None if code is None else code & 0xFF
    if code in FULL:
        return disk_full()
    if kind in LOCKED:
        return busy(f"The log {file.stem} is busy; try again in a moment.")
    if kind == sqlite3.SQLITE_CANTOPEN and not create and not file.exists():
        return no_such_log(file.stem)
    if kind in DAMAGED:
        return Problem(
            409,
            "damaged-log",
            f"{FILE.format(file.stem)} is damaged; put a copy in its place, move it away, or forget the log.",
            field="run",
        )
    log.error("the log %s cannot be used", file, exc_info=error)
    return Problem(500, "log-file", f"{FILE.format(file.stem)} cannot be read or written ({error}).")


def no_such_log(run: str) -> Problem:
    """404 for a log of which nothing is there."""
    return Problem(404, "no-such-log", f"Nothing is being received as {run[:80]!r}.", field="run")
