"""Rows of the job file, and what its tables look like."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["waiting", "running", "paused", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("waiting", "running", "paused", "succeeded", "failed", "cancelled")
ENDED: tuple[State, ...] = ("succeeded", "failed", "cancelled")
SCHEMA_VERSION = 1

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


@dataclass(frozen=True)
class JobRow:
    """One job as the file has it; times in seconds since 1970."""

    number: int
    job: str
    kind: str
    request: dict[str, Any]
    state: State
    queued: int
    """its turn: smaller is earlier"""
    created_at: float
    started_at: float | None
    finished_at: float | None
    done: int
    most_done: int
    """the furthest that any attempt came"""
    total: int | None
    unit: str
    rate: float | None
    """units per second"""
    message: str
    result: dict[str, Any] | None
    problem: dict[str, Any] | None
    attempts: int
    """how often a worker took it up; also the number that a worker's lease is known by"""
    deaths: int
    """workers that were lost with it since it last came further than before"""
    cancelling: bool
    worker: str | None
    lease_until: float | None
    not_before: float | None

    @property
    def ended(self) -> bool:
        """Whether it is over, one way or another."""
        return self.state in ENDED


@dataclass(frozen=True)
class EventRow:
    """Something that happened to a job; ids grow over all jobs."""

    id: int
    kind: str
    data: dict[str, Any]


def job_row(row: sqlite3.Row) -> JobRow:
    """A row of ``job`` with its JSON read."""
    values = dict(row)
    for name in ("request", "result", "problem"):
        values[name] = None if values[name] is None else json.loads(values[name])
    values["cancelling"] = bool(values["cancelling"])
    return JobRow(**values)


def as_text(value: dict[str, Any]) -> str:
    """JSON of ASCII alone, so that a lone surrogate that someone sent can be stored."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
