"""The SQLite connections to the job file: one that writes, a few that read, shared by the threads of a process.

Readers never wait for a writer: they have connections of their own, and the file is in WAL mode. A writer waits
``BUSY_SECONDS`` for another process, and those behind it then give up too.

SQLite goes on writing to a file that was deleted, replaced or moved away. So before each use the inodes of the file and
its log are compared with those that were opened; where they differ, all is opened again.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tokenpaths.backend.data_folder import DataFolder, Identity, identity_of
from tokenpaths.backend.jobs.rows import CREATE, SCHEMA_VERSION, DamagedRow, keep_sums
from tokenpaths.backend.lock_files import held_lock_file
from tokenpaths.backend.problems import Problem, busy

log = logging.getLogger(__name__)
BUSY_SECONDS = 2.0
QUEUE_SECONDS = 10.0
"""longest wait for writers of this process that came earlier"""
READ_BUSY_SECONDS = 0.5
READERS = 4
ENDS = ("", "-wal", "-shm")
RESERVE_BYTES = 1 << 20
CHECKPOINT_PAGES = 64
"""WAL checkpoint interval in pages, small enough that the log never outgrows its reserve"""
FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)


class Connection:
    """SQLite connections in WAL mode; opened and created at their first use.

    Args:
        file: The job file.
        folder: The data folder that it lies in, by default the folder of ``file``.

    Raises (from ``reading`` and ``writing``):
        OSError: ENOSPC, the disk is full.
        Problem: 500 if the file is damaged, of a newer version or cannot be written; 503 if it stays locked, or while
            the data folder is gone.
    """

    def __init__(self, file: Path, folder: DataFolder | None = None) -> None:
        self.file = file
        self.folder = folder if folder is not None else DataFolder(file.parent)
        self._lock = threading.RLock()
        """held by whoever opens, closes or writes"""
        self._writer: sqlite3.Connection | None = None
        self._refused_at = -QUEUE_SECONDS
        """when a lock of another process was last waited for in vain"""
        self._readers: list[sqlite3.Connection] = []
        """idle connections of the present generation"""
        self._reading = threading.BoundedSemaphore(READERS)
        self.generation = 0
        """counts how often the file was opened, so that no connection to an older one is used again"""
        self._opened: tuple[Identity | None, ...] | None = None
        """identities of the file, its log and its shared memory when they were opened"""

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that only reads, for one thread at a time."""
        with self._explained():
            self._check_file()
            if not self._reading.acquire(timeout=QUEUE_SECONDS):
                raise _is_busy()
            try:
                connection, generation = self._reader()
                try:
                    yield connection
                finally:
                    self._put_back(connection, generation)
            finally:
                self._reading.release()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """An exclusive write transaction, committed or rolled back as a whole."""
        with self._alone():
            with self._explained():
                self._check_file()
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):  # after some errors SQLite has already rolled back
                        connection.execute("ROLLBACK")
                    raise
            if self._has_moved():
                raise Problem(
                    503,
                    "jobs-file",
                    f"The list of jobs, {self.file}, was replaced at this moment; look whether it was done.",
                    headers={"retry-after": "1"},
                )

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            self.generation += 1
            connections = [*self._readers, *([self._writer] if self._writer is not None else [])]
            self._readers, self._writer, self._opened = [], None, None
            for connection in connections:  # the writer last: the last one to close empties the log
                with suppress(sqlite3.Error):
                    connection.close()

    def _between_processes(self) -> AbstractContextManager[None]:
        """Hold a lock file: two processes must not open, or open again, at the same moment. 503 if it stays held."""
        return held_lock_file(self.file.with_name(f".{self.file.name}.lock"), BUSY_SECONDS, _is_busy())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock; Problem 503 where one that came earlier has meanwhile waited for another process in vain."""
        came = time.monotonic()
        if not self._lock.acquire(timeout=QUEUE_SECONDS):
            raise _is_busy()
        try:
            if self._refused_at > came:
                raise _is_busy()
            yield
        finally:
            self._lock.release()

    def _identities(self) -> tuple[Identity | None, ...]:
        return tuple(identity_of(self.file.with_name(self.file.name + end)) for end in ENDS)

    def _has_moved(self) -> bool:
        """Whether another file, or none, stands where one was opened."""
        opened = self._opened
        return opened is not None and any(
            known is not None and known != found for known, found in zip(opened, self._identities(), strict=True)
        )

    def _check_file(self) -> None:
        """Problem 503 while the data folder is gone; closes connections to a file that is no longer the one there."""
        try:
            self.folder.require()
        except Problem:
            if self._opened is not None:
                self.close()
            raise
        if not self._has_moved():
            return
        with self._alone(), self._between_processes():
            if not self._has_moved():  # another thread was faster
                return
            log.warning("%s was removed or replaced; what stands there now is used, or a new one", self.file)
            opened, found = self._opened or (None, None, None), self._identities()
            # Bring what only the log holds into the file, wherever that is now. Where there is a new log, it counts.
            if self._writer is not None and found[1] in (None, opened[1]):
                with suppress(sqlite3.Error):
                    self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self.close()
            if all(there in (None, known) for known, there in zip(opened[1:], found[1:], strict=True)):
                # Nobody has a new log yet. SQLite would read the old one, or half of it, into what is opened now.
                for end in ENDS[1:]:
                    self.file.with_name(self.file.name + end).unlink(missing_ok=True)

    def _reader(self) -> tuple[sqlite3.Connection, int]:
        """A connection for reading, and its generation."""
        if self._opened is None:
            with self._alone():
                self._open()
        generation = self.generation  # first: one taken from the list may be of an older file by now, never of a newer
        with suppress(IndexError):
            return self._readers.pop(), generation
        connection = self._connect(READ_BUSY_SECONDS)
        try:
            connection.execute("PRAGMA query_only = 1")
        except BaseException:
            connection.close()
            raise
        return connection, generation

    def _put_back(self, connection: sqlite3.Connection, generation: int) -> None:
        if generation == self.generation and not connection.in_transaction:
            self._readers.append(connection)
            if generation == self.generation:
                return
            with suppress(ValueError):  # closed in between: by ``close``, or here
                self._readers.remove(connection)
        with suppress(sqlite3.Error):
            connection.close()

    def _connect(self, busy_s: float) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=busy_s, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        return connection

    def _open(self) -> sqlite3.Connection:
        """The connection that writes; call it only with the lock."""
        if self._writer is not None:
            return self._writer
        with self._between_processes():
            return self._open_first()

    def _open_first(self) -> sqlite3.Connection:
        connection = self._connect(BUSY_SECONDS)
        try:
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
        self._writer, self._opened = connection, self._identities()
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
            if code is not None and code & 0xFF in LOCKED:
                self._refused_at = time.monotonic()
                raise _is_busy() from error
            if code is not None and code & 0xFF in CLOSED:
                raise Problem(500, "jobs-file", f"The list of jobs, {self.file}, cannot be opened for writing.") from (
                    error
                )
            log.error("the job file %s cannot be used", self.file, exc_info=error)
            self.close()
            raise Problem(
                500, "jobs-file", f"The list of jobs, {self.file}, cannot be read or written ({error})."
            ) from error


def _is_busy() -> Problem:
    return busy("The list of jobs is busy; try again in a moment.", retry_after_s=2)


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
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("CREATE TABLE IF NOT EXISTS reserve (bytes BLOB)")
        connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_BYTES,))
        connection.execute("DELETE FROM reserve")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
