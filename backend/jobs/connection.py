"""The SQLite connection to the job file, shared by the threads of a process."""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenpaths.backend.jobs.rows import CREATE, SCHEMA_VERSION, DamagedRow, keep_sums
from tokenpaths.backend.problems import Problem

log = logging.getLogger(__name__)
BUSY_SECONDS = 10.0
RESERVE_BYTES = 1 << 20
CHECKPOINT_PAGES = 64
"""WAL checkpoint interval in pages, small enough that the log never outgrows its reserve"""
FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Connection:
    """SQLite connection in WAL mode, so that readers never wait for a writer; opened and created at its first use.

    Raises (from ``reading`` and ``writing``):
        OSError: ENOSPC, the disk is full.
        Problem: 500 if the file is damaged or of a newer version, 503 if it stays locked.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time."""
        with self._lock, self._explained():
            yield self._open()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """An exclusive write transaction, committed or rolled back as a whole."""
        with self._lock, self._explained():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # after some errors SQLite has already rolled back
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        self.file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            _use_write_ahead_log(connection)
            # An accepted job must survive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise Problem(500, "jobs-file", f"{self.file} was written by a newer Tokenpaths; update this one.")
            if version < SCHEMA_VERSION:
                connection.executescript(f"BEGIN IMMEDIATE; {CREATE} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                raise DamagedRow("the integrity check failed")
            keep_sums(connection)
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            _reserve(connection, self.file)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in FULL:
                raise OSError(errno.ENOSPC, f"No space left for {self.file.name}") from error
            if _is_damage(error, code):
                log.error("the job file %s is damaged", self.file, exc_info=error)
                self.close()
                raise Problem(
                    500,
                    "jobs-file",
                    f"The list of jobs, {self.file}, is damaged; move it away, and an empty one is made. "
                    "Runs and the files of jobs are not affected.",
                ) from error
            if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Problem(
                    503, "busy", "The list of jobs is busy; try again in a moment.", headers={"retry-after": "1"}
                ) from error
            if code is not None and code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise Problem(500, "jobs-file", f"The list of jobs, {self.file}, cannot be opened for writing.") from (
                    error
                )
            raise


def _is_damage(error: sqlite3.Error, code: int | None) -> bool:
    """Whether an error means that the file is damaged: a corrupt page, invalid text, or a row with a wrong checksum."""
    words = ("Could not decode", "damaged row", "malformed")
    return isinstance(error, DamagedRow) or (code or 0) & 0xFF in DAMAGED or any(w in str(error) for w in words)


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch a new file to WAL mode; retries because SQLite does not wait for another process that does the same."""
    ends = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(0.02)


def _reserve(connection: sqlite3.Connection, file: Path) -> None:
    """Preallocate log and file, so that "paused, the disk is full" can still be written when the disk is full.

    The log keeps its size while any process has the file open, and freed pages are reused.
    """
    log_file = file.with_name(file.name + "-wal")
    with suppress(OSError):
        if log_file.stat().st_size >= RESERVE_BYTES:
            return
    with suppress(sqlite3.Error):  # the disk is already full, or another process holds the lock
        connection.execute("CREATE TABLE IF NOT EXISTS reserve (bytes BLOB)")
        connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_BYTES,))
        connection.execute("DELETE FROM reserve")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
