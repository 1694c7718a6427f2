"""Tables and rows of the job file."""

from __future__ import annotations

import json
import sqlite3
import zlib
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["waiting", "running", "paused", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("waiting", "running", "paused", "succeeded", "failed", "cancelled")
ENDED: tuple[State, ...] = ("succeeded", "failed", "cancelled")
SCHEMA_VERSION = 2

CREATE = """
CREATE TABLE IF NOT EXISTS job (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  job TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  request TEXT NOT NULL,
  state TEXT NOT NULL,
  queued INTEGER NOT NULL,
  created_at REAL NOT NULL,
  started_at REAL,
  finished_at REAL,
  done INTEGER NOT NULL DEFAULT 0,
  most_done INTEGER NOT NULL DEFAULT 0,
  total INTEGER,
  unit TEXT NOT NULL DEFAULT '',
  rate REAL,
  message TEXT NOT NULL DEFAULT '',
  result TEXT,
  problem TEXT,
  attempts INTEGER NOT NULL DEFAULT 0,
  deaths INTEGER NOT NULL DEFAULT 0,
  cancelling INTEGER NOT NULL DEFAULT 0,
  worker TEXT,
  lease_until REAL,
  not_before REAL
);
CREATE INDEX IF NOT EXISTS job_state ON job (state, queued);
CREATE TABLE IF NOT EXISTS event (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job TEXT NOT NULL,
  kind TEXT NOT NULL,
  about TEXT NOT NULL,
  data TEXT NOT NULL,
  at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS event_job ON event (job, id);
CREATE TABLE IF NOT EXISTS worker (worker TEXT PRIMARY KEY, started_at REAL NOT NULL, seen_at REAL NOT NULL);
"""


CHECKED = ("job", "event")
"""tables whose rows carry a checksum, since SQLite does not detect a flipped bit inside a value"""


DAMAGE: dict[str, Any] = {
    "type": "urn:tokenpaths:damaged-job",
    "title": "Damaged job",
    "status": 500,
    "detail": "The row of this job in the job file was changed by something else than Tokenpaths, so that it cannot be "
    "told what it was. Its folder of artifacts stays; remove the job, and submit it again.",
}


class DamagedRow(sqlite3.DatabaseError):
    """A row whose checksum does not match its values."""


def row_sum(*values: object) -> int:
    """Checksum of a row with these values, stored in its column ``sum``."""
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


def keep_sums(connection: sqlite3.Connection) -> None:
    """Install triggers that set the checksum of every row written and refuse to change a damaged one.

    The columns are added to files of version 1, whose rows have no checksum until they are written again.
    """
    connection.create_function("row_sum", -1, row_sum, deterministic=True)
    for table in CHECKED:
        columns = _columns(connection, table)
        if "sum" not in columns:
            connection.execute("BEGIN IMMEDIATE")  # another process may be adding them too
            if "sum" not in _columns(connection, table):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN sum INTEGER")
            connection.execute("COMMIT")
        names = [name for name in columns if name != "sum"]
        new, old = (", ".join(f"{which}.{name}" for name in names) for which in ("NEW", "OLD"))
        written = f"BEGIN UPDATE {table} SET sum = row_sum({new}) WHERE rowid = NEW.rowid; END"
        connection.execute(f"CREATE TEMP TRIGGER {table}_new AFTER INSERT ON main.{table} {written}")
        connection.execute(
            f"CREATE TEMP TRIGGER {table}_changed AFTER UPDATE OF {', '.join(names)} ON main.{table} {written}"
        )
        connection.execute(
            f"CREATE TEMP TRIGGER {table}_checked BEFORE UPDATE OF {', '.join(names)} ON main.{table} "
            f"WHEN OLD.sum IS NOT NULL AND OLD.sum != row_sum({old}) BEGIN SELECT RAISE(ABORT, 'damaged row'); END"
        )


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def checked_row(row: sqlite3.Row) -> dict[str, Any]:
    """The values of a row by name, without its checksum; raises DamagedRow on a mismatch."""
    values = dict(row)
    expected = values.pop("sum")
    if expected is not None and expected != row_sum(*values.values()):
        raise DamagedRow("damaged row")
    return values


@dataclass(frozen=True)
class JobRow:
    """One job as stored in the file; times in seconds since 1970."""

    number: int
    job: str
    kind: str
    request: dict[str, Any]
    state: State
    queued: int
    """position in the queue: smaller runs earlier"""
    created_at: float
    started_at: float | None
    finished_at: float | None
    done: int
    most_done: int
    """maximum ``done`` over all attempts"""
    total: int | None
    unit: str
    rate: float | None
    """units per second"""
    message: str
    result: dict[str, Any] | None
    problem: dict[str, Any] | None
    attempts: int
    """number of times a worker leased the job; also identifies a worker's lease"""
    deaths: int
    """workers lost while running this job since it last made progress"""
    cancelling: bool
    worker: str | None
    lease_until: float | None
    not_before: float | None
    damaged: bool = False
    """the row in the file is damaged, so its original values are unknown"""

    @property
    def ended(self) -> bool:
        """Whether the job is in a final state."""
        return self.state in ENDED


@dataclass(frozen=True)
class EventRow:
    """An event of a job; ids increase over all jobs."""

    id: int
    kind: str
    data: dict[str, Any]


def job_row(row: sqlite3.Row) -> JobRow:
    """A row of ``job`` with its JSON parsed; raises DamagedRow if the checksum does not match."""
    values = checked_row(row)
    for name in ("request", "result", "problem"):
        values[name] = None if values[name] is None else json.loads(values[name])
    values["cancelling"] = bool(values["cancelling"])
    return JobRow(**values)


def shown_row(row: sqlite3.Row) -> JobRow:
    """``job_row``, but a damaged row becomes a failed job: one corrupt byte must not hide all other jobs."""
    try:
        return job_row(row)
    except (DamagedRow, ValueError, TypeError):
        number = lambda name: row[name] if isinstance(row[name], (int, float)) else 0  # noqa: E731
        return JobRow(
            number=int(number("number")),
            job=str(row["job"]),
            kind=str(row["kind"]),
            request={},
            state="failed",
            queued=0,
            created_at=number("created_at"),
            started_at=None,
            finished_at=None,
            done=0,
            most_done=0,
            total=None,
            unit="",
            rate=None,
            message="",
            result=None,
            problem=dict(DAMAGE),
            attempts=0,
            deaths=0,
            cancelling=False,
            worker=None,
            lease_until=None,
            not_before=None,
            damaged=True,
        )


def as_text(value: dict[str, Any]) -> str:
    """ASCII-only JSON, so that a lone surrogate in a request can be stored."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
