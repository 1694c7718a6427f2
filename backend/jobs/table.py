"""Job queue: one SQLite file shared by the API and any number of workers.

A worker *leases* a job until ``lease_until`` and renews the lease while it lives. An expired lease means that the
worker is gone, and the next worker takes over. Writes of a lease holder are checked against its name and attempt, so a
worker that was suspended too long learns that it lost the job.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tokenpaths.backend.data_folder import DataFolder
from tokenpaths.backend.jobs.connection import Connection
from tokenpaths.backend.jobs.rows import DAMAGE, ENDED, EventRow, JobRow, State, as_text, checked_row, shown_row
from tokenpaths.backend.problems import Problem, busy
from tokenpaths.engine.jobs.registry import BACKGROUND_KINDS, Progress

MOST_DEATHS = 3
"""workers that may be lost to one job without progress before it is set aside as failed"""
LONGEST_PAUSE_SECONDS = 600.0
POSITIONS = 1 << 40
"""positions of the queue for each of: jobs that a person asked for, those that nobody waits for, background kinds"""
Order = Literal["go", "cancel", "lost"]
"""instruction to a lease holder: continue, stop because the job was cancelled, or let go because the lease was lost"""


@dataclass(frozen=True)
class Lease:
    """A job leased by a worker."""

    row: JobRow
    worker: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.row.job, self.worker, self.row.attempts


class JobTable:
    """The queue in ``file``; safe to share between threads and, opened by each, between processes."""

    def __init__(
        self,
        file: Path,
        *,
        folder: DataFolder | None = None,
        lease_s: float = 15.0,
        most_waiting: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lease_s, self.most_waiting, self.clock = lease_s, most_waiting, clock
        self.connection = Connection(file, folder)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    # -- for those who submit -----------------------------------------------------------------
    def submit(self, kind: str, request: dict[str, Any], *, later: bool = False) -> JobRow:
        """Queue a new job, ``later`` behind all that a person asked for; Problem 503 when too many wait, 500 for a
        damaged file; OSError when the disk is full."""
        with self.connection.writing() as con:
            self._check_queue(con)
            row = _get(con, job := self._queue(con, kind, request, later=later))
        self.get(job)  # by another connection: a file that was cut or written over still takes what nobody finds there
        return row

    def get(self, job: str) -> JobRow:
        """One job; Problem 404 if there is none."""
        with self.connection.reading() as con:
            return _get(con, job)

    def page(
        self, *, states: Sequence[State] = (), kinds: Sequence[str] = (), before: int | None = None, limit: int = 100
    ) -> list[JobRow]:
        """Jobs, newest first, that were submitted before number ``before``."""
        where = ["number < ?"]
        values: list[int | str] = [before if before is not None else 2**62]
        for column, allowed in (("state", states), ("kind", kinds)):
            if allowed:
                where.append(f"{column} IN ({', '.join('?' * len(allowed))})")
                values += allowed
        query = f"SELECT * FROM job WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?"
        with self.connection.reading() as con:
            return [shown_row(row) for row in con.execute(query, (*values, limit))]

    def places(self) -> dict[str, int]:
        """Queue position of every waiting job, 1 = next."""
        with self.connection.reading() as con:
            rows = con.execute("SELECT job FROM job WHERE state = 'waiting' ORDER BY queued")
            return {row["job"]: place for place, row in enumerate(rows, start=1)}

    def cancel(self, job: str) -> JobRow:
        """Cancel a job: at once if it is not running, else through its worker. Does nothing to a job that is over."""
        with self.connection.writing() as con:
            row = _get(con, job)
            if row.ended or (row.cancelling and not self.is_abandoned(row)):
                return row
            if row.state == "running" and not self.is_abandoned(row):
                con.execute("UPDATE job SET cancelling = 1 WHERE job = ?", (job,))
                self._log(con, job, "state", {"state": "running", "cancelling": True})
            else:
                self._finish(con, job, "cancelled")
            return _get(con, job)

    def retry(self, job: str, *, later: bool = False) -> JobRow:
        """Put a failed or cancelled job at the end of the queue, as ``submit``; Problem 409 for any other, 503 when too
        many wait."""
        with self.connection.writing() as con:
            row = _get(con, job)
            if row.damaged:
                raise Problem(409, "damaged-job", str(DAMAGE["detail"]))
            if row.state not in ("failed", "cancelled"):
                what = "it succeeded; submit a new one" if row.state == "succeeded" else f"it is {row.state}"
                raise Problem(409, "not-over", f"Only a failed or cancelled job can be tried again, and {what}.")
            self._check_queue(con)
            con.execute(
                "UPDATE job SET state = 'waiting', queued = ?, started_at = NULL, finished_at = NULL, problem = NULL, "
                "result = NULL, done = 0, total = NULL, unit = '', cancelling = 0, deaths = 0, rate = NULL, "
                "message = '', not_before = NULL WHERE job = ?",
                (_position(con, row.kind, later=later), job),
            )
            self._log(con, job, "state", {"state": "waiting"})
            return _get(con, job)

    def remove(self, job: str, set_aside: Callable[[], object] = lambda: None) -> None:
        """Delete a job that is over; Problem 409 for any other. ``set_aside`` is called before it is gone: its files
        would stay for ever if the process died in between."""
        with self.connection.writing() as con:
            row = _get(con, job)
            if not row.ended:
                raise Problem(409, "not-over", f"The job is {row.state}; cancel it first, then remove it.")
            set_aside()
            con.execute("DELETE FROM event WHERE job = ?", (job,))
            con.execute("DELETE FROM job WHERE job = ?", (job,))

    def events(self, job: str, after: int = 0, most: int = 1000) -> list[EventRow]:
        """Events of a job after event ``after``; of progress and of each artifact only the latest."""
        query = "SELECT * FROM event WHERE job = ? AND id > ? ORDER BY id LIMIT ?"
        with self.connection.reading() as con:
            rows = [checked_row(row) for row in con.execute(query, (job, after, most))]
        return [EventRow(row["id"], row["kind"], json.loads(row["data"])) for row in rows]

    def changed(self, after: int) -> tuple[int, set[str]]:
        """The newest event's id, and the jobs with events after ``after``."""
        with self.connection.reading() as con:
            rows = con.execute("SELECT max(id) AS id, job FROM event WHERE id > ? GROUP BY job", (after,)).fetchall()
        return max((row["id"] for row in rows), default=after), {row["job"] for row in rows}

    def counts(self) -> dict[str, int]:
        """Number of jobs by state."""
        with self.connection.reading() as con:
            return {
                row["state"]: row["n"] for row in con.execute("SELECT state, count(*) AS n FROM job GROUP BY state")
            }

    def queue_age(self) -> float:
        """Seconds since the oldest waiting job began to wait; 0 if none waits."""
        since = "SELECT max(at) AS at FROM job JOIN event USING (job) WHERE state = 'waiting' AND event.kind = 'state'"
        with self.connection.reading() as con:
            (oldest,) = con.execute(f"SELECT min(at) FROM ({since} GROUP BY job)").fetchone()
        return 0.0 if oldest is None else max(0.0, self.clock() - oldest)

    def workers(self) -> int:
        """Number of live workers."""
        now = self.clock()
        with self.connection.reading() as con:
            query = "SELECT count(*) FROM worker WHERE seen_at BETWEEN ? AND ?"
            return int(con.execute(query, (now - self.lease_s, now + self.lease_s)).fetchone()[0])

    # -- for workers --------------------------------------------------------------------------
    def lease(self, worker: str, *, resume_paused: bool = True) -> Lease | None:
        """Lease the next job, including one abandoned by another worker; None when there is none."""
        now = self.clock()
        free = "state = 'waiting' OR (state = 'running' AND (lease_until < :now OR lease_until > :now + 2 * :lease))"
        if resume_paused:
            # A later end means that the clock was set back.
            free += " OR (state = 'paused' AND (not_before <= :now OR not_before > :now + 2 * :pause))"
        query = f"SELECT * FROM job WHERE {free} ORDER BY queued LIMIT 1 OFFSET :damaged"
        values = {"now": now, "lease": self.lease_s, "pause": LONGEST_PAUSE_SECONDS, "damaged": 0}
        with self.connection.reading() as con:  # the queue is usually empty: check without a write lock
            if con.execute(query, values).fetchone() is None:
                return None
        with self.connection.writing() as con:
            while (found := con.execute(query, values).fetchone()) is not None:
                row = shown_row(found)
                if row.damaged:  # a damaged row cannot be trusted as a request; it stays until it is removed
                    values["damaged"] += 1
                    continue
                if row.cancelling:
                    self._finish(con, row.job, "cancelled")
                    continue
                lost = row.state == "running" and row.worker is not None
                if lost and row.deaths + 1 >= MOST_DEATHS:
                    self._finish(con, row.job, "failed", problem=_took_workers_with_it(row.deaths + 1))
                    continue
                con.execute(
                    "UPDATE job SET state = 'running', worker = ?, lease_until = ?, attempts = attempts + 1, "
                    "deaths = deaths + ?, started_at = coalesce(started_at, ?), rate = NULL, message = '' "
                    "WHERE job = ?",
                    (worker, now + self.lease_s, int(lost), now, row.job),
                )
                self._log(con, row.job, "state", {"state": "running"}, again=False)
                return Lease(_get(con, row.job), worker)
        return None

    def seen(self, worker: str) -> None:
        """Record that a worker is alive; workers not seen for an hour are deleted."""
        now = self.clock()
        with self.connection.writing() as con:
            con.execute(
                "INSERT INTO worker VALUES (?, ?, ?) ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at",
                (worker, now, now),
            )
            con.execute("DELETE FROM worker WHERE seen_at < ?", (now - 3600,))

    def gone(self, worker: str) -> None:
        """Record that a worker shut down cleanly."""
        with self.connection.writing() as con:
            con.execute("DELETE FROM worker WHERE worker = ?", (worker,))

    def renew(self, lease: Lease) -> Order:
        """Extend the lease."""
        return self._as_holder(lease, "lease_until = ?", (self.clock() + self.lease_s,))

    def report(self, lease: Lease, progress: Progress, rate: float | None, artifacts: Sequence[str] = ()) -> Order:
        """Record progress and new or changed artifacts; renews the lease."""
        values = (
            self.clock() + self.lease_s,
            progress.done,
            progress.total,
            progress.unit,
            rate,
            progress.message,
            progress.done,
            progress.unit,
            progress.unit,
            progress.done,
            progress.done,
        )
        # Right-hand sides are the old values: a job that begins to count another unit has made progress.
        changes = (
            "lease_until = ?, done = ?, total = ?, unit = ?, rate = ?, message = ?, "
            "deaths = CASE WHEN ? > most_done OR unit IS NOT ? THEN 0 ELSE deaths END, "
            "most_done = CASE WHEN unit IS NOT ? THEN ? ELSE max(most_done, ?) END"
        )
        told = {
            "done": progress.done,
            "total": progress.total,
            "unit": progress.unit,
            "rate": rate,
            "seconds_left": seconds_left(progress.done, progress.total, rate),
            "message": progress.message,
        }
        return self._as_holder(lease, changes, values, told, artifacts)

    def end(
        self,
        lease: Lease,
        state: Literal["succeeded", "failed", "cancelled"],
        *,
        result: dict[str, Any] | None = None,
        problem: dict[str, Any] | None = None,
        following: Sequence[tuple[str, dict[str, Any]]] = (),
    ) -> bool:
        """Record the final state of a job; False if the lease was lost. In the same step the jobs that follow it, of
        ``following`` (kind, request), are queued, however many wait."""
        with self.connection.writing() as con:
            if not self._holds(con, lease):
                return False
            for kind, request in following:
                self._queue(con, kind, request)
            self._finish(con, lease.row.job, state, result=result, problem=problem)
            return True

    def pause(self, lease: Lease, message: str, for_s: float) -> bool:
        """Release a job that cannot go on now; it may be leased again after ``for_s`` seconds, at most
        ``LONGEST_PAUSE_SECONDS``."""
        for_s = min(for_s, LONGEST_PAUSE_SECONDS)
        state: State = "paused"
        return self._let_go(lease, state, message, not_before=self.clock() + for_s)

    def give_back(self, lease: Lease) -> bool:
        """Release a job because the worker shuts down; it keeps its place in the queue."""
        return self._let_go(lease, "waiting", "")

    def postpone(self, lease: Lease, for_s: float) -> bool:
        """Undo a lease that cannot be used yet, because another process still holds the job's files."""
        with self.connection.writing() as con:
            if not self._holds(con, lease):
                return False
            con.execute(
                "UPDATE job SET worker = NULL, lease_until = ?, attempts = attempts - 1 WHERE job = ?",
                (self.clock() + for_s, lease.row.job),
            )
            return True

    # -- inside -------------------------------------------------------------------------------
    def _check_queue(self, con: sqlite3.Connection) -> None:
        """Problem 503 when too many jobs wait."""
        waiting = con.execute("SELECT count(*) FROM job WHERE state IN ('waiting', 'paused')").fetchone()[0]
        if waiting >= self.most_waiting:
            raise busy(f"{waiting:,} jobs are waiting already; cancel some, or come back later.", retry_after_s=60)

    def _queue(self, con: sqlite3.Connection, kind: str, request: dict[str, Any], *, later: bool = False) -> str:
        """Add a job at the end of the queue; returns its name."""
        now = self.clock()
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
        job = f"{kind[:24]}-{stamp}-{secrets.token_hex(3)}"
        con.execute(
            "INSERT INTO job (job, kind, request, state, queued, created_at) VALUES (?, ?, ?, 'waiting', ?, ?)",
            (job, kind, as_text(request), _position(con, kind, later=later), now),
        )
        self._log(con, job, "state", {"state": "waiting"})
        return job

    def _ran_out(self, row: JobRow) -> bool:
        """Whether the lease of a running job expired, or ends later than any lease could (clock set back)."""
        now = self.clock()
        return row.lease_until is None or not now <= row.lease_until <= now + 2 * self.lease_s

    def is_abandoned(self, row: JobRow) -> bool:
        """Whether a running job was abandoned and waits for another worker."""
        return row.state == "running" and (row.worker is None or self._ran_out(row))

    def _holds(self, con: sqlite3.Connection, lease: Lease) -> bool:
        query = "SELECT 1 FROM job WHERE job = ? AND worker = ? AND attempts = ? AND state = 'running'"
        return con.execute(query, lease.key).fetchone() is not None

    def _as_holder(
        self,
        lease: Lease,
        changes: str,
        values: tuple[Any, ...],
        progress: dict[str, Any] | None = None,
        artifacts: Sequence[str] = (),
    ) -> Order:
        with self.connection.writing() as con:
            if not self._holds(con, lease):
                return "lost"
            job = lease.row.job
            con.execute(f"UPDATE job SET {changes} WHERE job = ?", (*values, job))
            if progress is not None:
                self._log(con, job, "progress", progress)
            for name in artifacts:
                self._log(con, job, "artifact", {"name": name}, about=name)
            cancelling = con.execute("SELECT cancelling FROM job WHERE job = ?", (job,)).fetchone()[0]
            return "cancel" if cancelling else "go"

    def _let_go(self, lease: Lease, state: State, message: str, not_before: float | None = None) -> bool:
        with self.connection.writing() as con:
            if not self._holds(con, lease):
                return False
            if _get(con, lease.row.job).cancelling:
                self._finish(con, lease.row.job, "cancelled")
                return True
            con.execute(
                "UPDATE job SET state = ?, message = ?, not_before = ?, worker = NULL, lease_until = NULL, rate = NULL "
                "WHERE job = ?",
                (state, message, not_before, lease.row.job),
            )
            self._log(con, lease.row.job, "state", {"state": state, "message": message})
            return True

    def _finish(
        self,
        con: sqlite3.Connection,
        job: str,
        state: State,
        *,
        result: dict[str, Any] | None = None,
        problem: dict[str, Any] | None = None,
    ) -> None:
        assert state in ENDED
        texts = [None if value is None else as_text(value) for value in (result, problem)]
        con.execute(
            "UPDATE job SET state = ?, result = ?, problem = ?, finished_at = ?, worker = NULL, lease_until = NULL, "
            "not_before = NULL, cancelling = 0, rate = NULL, message = '' WHERE job = ?",
            (state, *texts, self.clock(), job),
        )
        told = {"state": state} | ({"result": result} if result else {}) | ({"problem": problem} if problem else {})
        self._log(con, job, "state", told)

    def _log(
        self, con: sqlite3.Connection, job: str, kind: str, data: dict[str, Any], about: str = "", *, again: bool = True
    ) -> None:
        """Add an event. Only the latest progress event, and the latest event of each artifact, are stored.

        ``again``: also where the last event of its kind says the same.
        """
        if not again:
            query = "SELECT data FROM event WHERE job = ? AND kind = ? ORDER BY id DESC LIMIT 1"
            last = con.execute(query, (job, kind)).fetchone()
            if last is not None and last["data"] == as_text(data):
                return
        if kind != "state":
            con.execute("DELETE FROM event WHERE job = ? AND kind = ? AND about = ?", (job, kind, about))
        con.execute(
            "INSERT INTO event (job, kind, about, data, at) VALUES (?, ?, ?, ?, ?)",
            (job, kind, about, as_text(data), self.clock()),
        )


def seconds_left(done: int, total: int | None, rate: float | None) -> float | None:
    """Remaining seconds at ``rate`` units per second; None if unknown."""
    return None if total is None or not rate else round(max(0, total - done) / rate, 1)


def _get(con: sqlite3.Connection, job: str) -> JobRow:
    found = con.execute("SELECT * FROM job WHERE job = ?", (job,)).fetchone()
    if found is None:
        said = f"There is no job {job[:80]!r}; it was removed, or has another name."
        raise Problem(404, "no-such-job", said, field="job")
    return shown_row(found)


def _position(con: sqlite3.Connection, kind: str, *, later: bool) -> int:
    """The next free position of the queue."""
    first = POSITIONS * (2 if kind in BACKGROUND_KINDS else int(later))
    query = "SELECT coalesce(max(queued), ?) FROM job WHERE queued BETWEEN ? AND ?"
    return int(con.execute(query, (first, first, first + POSITIONS - 1)).fetchone()[0]) + 1


def _took_workers_with_it(deaths: int) -> dict[str, Any]:
    return {
        "type": "urn:tokenpaths:worker-died",
        "title": "Internal Server Error",
        "status": 500,
        "detail": f"{deaths} workers died or hung at this job without coming any further, probably for want of "
        "memory, so it was set aside; the workers' log may say more. Ask for less, or try it again.",
    }
