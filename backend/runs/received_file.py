"""The SQLite file of one log of received responses: its tables, and its errors in words for people."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.backend.jobs.connection import DAMAGED, FULL, LOCKED
from tokenpaths.backend.problems import Problem, busy, disk_full
from tokenpaths.engine.base.files import is_name

BUSY_SECONDS = 20.0
SUFFIX = ".sqlite"
ENDS = ("", "-journal", "-wal", "-shm")
"""of the names of a log's files"""
FILE = f"The file received/{{}}{SUFFIX} of the data folder"
SCHEMA_VERSION = 2
TABLES = {
    "response": "number INTEGER PRIMARY KEY, id TEXT UNIQUE, line BLOB, digest BLOB",
    "about": "one INTEGER PRIMARY KEY CHECK (one = 1), began REAL, last REAL, responses INTEGER, tokens INTEGER, "
    "bytes INTEGER, model TEXT, layers INTEGER, top_k INTEGER, routed BLOB, sizes TEXT, counts BLOB, file TEXT, "
    "target TEXT, job TEXT, not_before REAL",
}
"""``routed``: the layers with choices in the first response, a byte each; ``digest``: of the decisions of a response.
While a log is sealed, ``file`` of the inbox holds it, ``target`` is the run to be, and ``job`` makes it, once it is
submitted. ``not_before``: when it may be sealed by itself, in seconds since 1970."""
COLUMNS = {table: {one.split()[0] for one in columns.split(", ")} for table, columns in TABLES.items()}
COLUMNS_OF_2 = {"response": ("digest BLOB",), "about": ("routed BLOB", "file TEXT", "target TEXT", "not_before REAL")}
"""what files of version 1 lack"""
IN_INBOX = re.compile(r"received-([A-Za-z0-9._-]+?)(?:-[0-9a-f]{8})?\.jsonl")
"""a log in the inbox: its name, and what no other sealing has"""
Row = dict[str, Any]
log = logging.getLogger(__name__)


@contextlib.contextmanager
def opened(file: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection to a log's file.

    Only one process opens a log at a time, but for reading (``ReceivedLogs``), so that a rollback journal will do.

    Raises:
        Problem: 404 where there is no file, unless it is to be made; 409 if it is damaged, no log or of a newer
            version, 503 if it stays locked, 507 if the disk is full, 500 if it cannot be used otherwise.
    """
    try:
        address = f"{file.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        con = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            con.execute("PRAGMA journal_mode = DELETE")
            con.execute("PRAGMA synchronous = EXTRA")  # what was answered for is on the disk, and so is its folder
            _bring_up_to_date(con, file)
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
    """What is known of the log; None before its first response.

    Raises:
        Problem: 409 where it holds what no log says.
    """
    names = sorted(COLUMNS["about"] - {"one"})
    row = con.execute(f"SELECT {', '.join(names)} FROM about").fetchone()
    if row is None:
        return None
    about = dict(zip(names, row, strict=True))
    if not _is_sound(about):
        raise _damaged(Path(con.execute("PRAGMA database_list").fetchone()[2]))
    return about


def _is_sound(about: Row) -> bool:
    """Whether values are such as ``write_about`` stores: the file may be somebody else's, or changed by hand."""
    numbers = [about[name] for name in ("began", "last")]
    wholes = [about[name] for name in ("responses", "tokens", "bytes")]
    sizes = [about[name] for name in ("layers", "top_k")]
    texts = [about[name] for name in ("model", "file", "target", "job")]
    try:
        counts, said = unpacked(about["counts"]), json.loads(about["sizes"])
        sizes += [said[name] for name in ("layers", "top_k", "experts")]
        datetime.fromtimestamp(max(numbers), UTC), datetime.fromtimestamp(min(numbers), UTC)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, OSError):
        return False
    responses, layers, routed, file = (about[name] for name in ("responses", "layers", "routed", "file"))
    return (
        all(type(number) is int and number >= 0 for number in wholes)
        and all(number is None or type(number) is int and number > 0 for number in sizes)
        and all(text is None or isinstance(text, str) for text in texts)
        and isinstance(about["not_before"], int | float | None)
        and (not responses or None not in (layers, about["top_k"]) and counts.shape[0] == layers and counts.size > 0)
        and (routed is None or isinstance(routed, bytes) and len(routed) == layers)
        and (file is None) == (about["target"] is None)
        and (file is None or IN_INBOX.fullmatch(file) is not None and is_name(about["target"]))
    )


def log_of(file: str) -> str | None:
    """The log that was written out into this file of the inbox; None for other files."""
    match = IN_INBOX.fullmatch(file)
    return match[1] if match is not None else None


def packed(counts: np.ndarray) -> bytes:
    """Counts (S, M) with their shape, as they are stored."""
    return np.array(counts.shape, dtype="<i8").tobytes() + counts.astype("<i8").tobytes()


def unpacked(data: bytes | None) -> np.ndarray:
    """Counts (S, M) as ``packed`` stores them; (0, 0) of None. ValueError or TypeError for anything else."""
    if data is None:
        return np.zeros((0, 0), dtype=np.int64)
    numbers = np.frombuffer(data, dtype="<i8")
    layers, experts = map(int, numbers[:2])
    if layers < 0 or experts < 0 or (numbers < 0).any():
        raise ValueError("counts below 0")
    return numbers[2:].reshape(layers, experts).astype(np.int64)


def write_about(con: sqlite3.Connection, about: Row) -> None:
    """Replace what is known of the log."""
    names, marks = ", ".join(about), ", ".join("?" * len(about))
    con.execute(f"INSERT OR REPLACE INTO about (one, {names}) VALUES (1, {marks})", list(about.values()))


def remove(file: Path) -> None:
    """Delete a log's file, and what SQLite keeps beside it."""
    for end in ENDS:
        file.with_name(file.name + end).unlink(missing_ok=True)


def _bring_up_to_date(con: sqlite3.Connection, file: Path) -> None:
    """Make the tables of a new log, and the columns that files of an older version lack.

    Raises:
        Problem: 409 for a file of a newer version, and for one that is no log: nothing of it is changed.
    """
    version = con.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise Problem(
            409,
            "newer-log",
            f"{FILE.format(file.stem)} has version {version} and was written by a newer Tokenpaths, this one reads up "
            f"to {SCHEMA_VERSION}; start the newer one, move the file away, or forget the log.",
            field="run",
        )
    known = _columns(con)
    if version == SCHEMA_VERSION and all(COLUMNS[table] <= known[table] for table in TABLES):
        return
    is_new = not con.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    lacking = {table: {one.split()[0] for one in more} for table, more in COLUMNS_OF_2.items()}
    is_old = all(COLUMNS[table] - lacking[table] <= known[table] for table in TABLES)
    if version == SCHEMA_VERSION or not is_new and not is_old:
        raise _damaged(file)
    with writing(con):
        for table, columns in TABLES.items():
            con.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        known = _columns(con)
        for table, more in COLUMNS_OF_2.items():
            for column in more:
                if column.split()[0] not in known[table]:
                    con.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        run = file.stem
        con.execute("UPDATE about SET file = ?, target = ? WHERE job IS NOT NULL", (f"received-{run}.jsonl", run))
        con.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _columns(con: sqlite3.Connection) -> dict[str, set[str]]:
    return {table: {row[1] for row in con.execute(f"PRAGMA table_info({table})")} for table in TABLES}


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
        return _damaged(file)
    log.error("the log %s cannot be used", file, exc_info=error)
    return Problem(500, "log-file", f"{FILE.format(file.stem)} cannot be read or written ({error}).")


def _damaged(file: Path) -> Problem:
    return Problem(
        409,
        "damaged-log",
        f"{FILE.format(file.stem)} is damaged, or no log of responses; put a copy in its place, move it away, or "
        "forget the log.",
        field="run",
    )


def no_such_log(run: str) -> Problem:
    """404 for a log of which nothing is there."""
    return Problem(404, "no-such-log", f"Nothing is being received as {run[:80]!r}.", field="run")
