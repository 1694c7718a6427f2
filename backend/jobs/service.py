"""Jobs as the API offers them: submit, show, cancel, watch, fetch artifacts, remove."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenpaths.backend.data_folder import DataFolder
from tokenpaths.backend.http.redact_paths import redact, redact_data, redact_problem
from tokenpaths.backend.jobs.files import job_dir, read_artifact, set_aside
from tokenpaths.backend.jobs.rows import ENDED, EventRow, JobRow, State, as_text
from tokenpaths.backend.jobs.table import JobTable, seconds_left
from tokenpaths.backend.logs import LastingWarning
from tokenpaths.backend.loops import contained, repeat
from tokenpaths.backend.problems import Problem, busy, disk_full, from_user_error
from tokenpaths.backend.runs.open_runs import gate_of
from tokenpaths.backend.settings import Settings
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.jobs.registry import JobContext, find_kind, list_artifacts, read_request
from tokenpaths.engine.jobs.titles import job_title
from tokenpaths.engine.store.intake.gate import RunGate

PING_SECONDS = 15.0
POLL_SECONDS = 0.25
GONE = "Its worker is gone; the next one that is free goes on with it."


log = logging.getLogger(__name__)


def job_table(settings: Settings, folder: DataFolder | None = None) -> JobTable:
    """The job table described by ``settings``, in the data folder ``folder``; opened at its first use."""
    return JobTable(
        settings.jobs_file,
        folder=folder if folder is not None else DataFolder(settings.data_dir),
        lease_s=settings.job_lease_seconds,
        most_waiting=settings.job_queue_length,
    )


class JobNotifier:
    """Notifies the listeners of all jobs from one poll of the job file; polls only while there are listeners.

    Belongs to one event loop.
    """

    def __init__(self, table: JobTable) -> None:
        self.table = table
        self.listeners: dict[str, set[asyncio.Event]] = {}
        self.polling: asyncio.Task[None] | None = None
        self.newest = self.generation = 0
        self.trouble = LastingWarning(log)

    @contextlib.asynccontextmanager
    async def listening(self, job: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set after each change of the job; clear it before reading the job."""
        listener = asyncio.Event()
        self.listeners.setdefault(job, set()).add(listener)
        if self.polling is None or self.polling.done():
            self.newest = 0
            self.polling = asyncio.create_task(repeat("watching the list of jobs", self._poll, lambda: POLL_SECONDS))
        try:
            yield listener
        finally:
            others = self.listeners[job]
            others.discard(listener)
            if not others:
                del self.listeners[job]
            if not self.listeners:
                self.close()

    def close(self) -> None:
        """Stop polling."""
        if self.polling is not None:
            self.polling.cancel()
            self.polling = None

    async def _poll(self) -> None:
        """Look once. Only after the first listener is registered, so that no change is missed in between."""
        try:
            newest, changed = await asyncio.to_thread(self.table.changed, self.newest)
        except (OSError, Problem) as error:
            self.trouble.warn(f"the list of jobs cannot be read: {error}")
            return
        self.trouble.over("the list of jobs can be read again")
        if self.table.connection.generation != self.generation:  # opened again, perhaps another file: ids begin anew
            self.generation = self.table.connection.generation
            newest, changed = 0, set(self.listeners)
        self.newest = newest
        for job in changed:
            for listener in self.listeners.get(job, ()):
                listener.set()


class Jobs:
    """Jobs as the routes and the command line see them. Methods block, unless they are ``async``."""

    def __init__(self, settings: Settings, gate: RunGate | None = None, folder: DataFolder | None = None) -> None:
        self.settings = settings
        self.folder = folder if folder is not None else DataFolder(settings.data_dir)
        self.gate = gate if gate is not None else gate_of(settings)
        self.table = job_table(settings, self.folder)
        self.notifier = JobNotifier(self.table)
        self.streams = 0
        """number of open event streams"""

    def close(self) -> None:
        """Close the file and stop polling."""
        self.notifier.close()
        self.table.close()

    def submit(self, kind: str, request: object, *, later: bool = False) -> dict[str, Any]:
        """Validate and queue a request, ``later`` behind all that a person asked for.

        Raises:
            Problem: 422 with the name of the field, 503 when too many jobs wait, 507 if the disk is full.
        """
        try:
            job_kind = find_kind(kind)
        except UserError as error:
            raise from_user_error(error) from None
        try:
            checked = contained(read_request)(job_kind, request)
            contained(job_kind.check)(checked, self._context())
        except UserError as error:
            problem = from_user_error(error)
            if problem.status < 500:  # the address was valid; a field of the request was not
                problem.status = 422
            problem.field = "request" if error.field in (None, "request") else f"request.{error.field}"
            raise problem from None
        self._need_space()
        # Store defaults with the request: they may change before the job runs.
        return self.shown(self.table.submit(kind, checked.model_dump(mode="json"), later=later))

    def retry(self, job: str, *, later: bool = False) -> dict[str, Any]:
        """Queue a failed or cancelled job again, as ``submit``.

        Raises:
            Problem: 409 for any other, and for an import whose log is gone; 507 if the disk is full.
        """
        self._need_space()
        row = self.table.get(job)
        if row.kind == "import" and row.state in ("failed", "cancelled") and isinstance(row.request.get("file"), str):
            self._need_log(row.request["file"])
        return self.shown(self.table.retry(job, later=later))

    def _need_log(self, file: str) -> None:
        """Problem 409 where an import would find no log any more."""
        try:
            self._context().inbox_file(file, field="file")
        except UserError:
            from tokenpaths.backend.runs.received_file import log_of

            received = log_of(file)
            if received is None:
                advice = f"put it there again (PUT /inbox/{file}), then try again."
            else:
                advice = f"seal the log again (POST /logs/{received}/seal), which makes a new job."
            raise Problem(409, "log-gone", f"{file!r} is no longer in the inbox; {advice}") from None

    def _context(self) -> JobContext:
        """What requests are checked with."""
        return JobContext(
            self.settings.data_dir,
            tuple(self.settings.all_models_dirs),
            huggingface_dir=self.settings.checkpoints_dir,
            gate=self.gate,
        )

    def _need_space(self) -> None:
        """Problem 507 while jobs would stop or stay paused for want of space."""
        self.folder.require()
        if shutil.disk_usage(self.settings.data_dir).free < self.settings.paused_below_bytes:
            raise disk_full()

    def get(self, job: str) -> dict[str, Any]:
        """One job; Problem 404."""
        return self.shown(self.table.get(job))

    def page(
        self, states: Sequence[State], kinds: Sequence[str], before: int | None, limit: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """A page of jobs, newest first, and the ``before`` number of the next page."""
        rows = self.table.page(states=states, kinds=kinds, before=before, limit=limit + 1)
        places = self.table.places()
        shown = [self.shown(row, places) for row in rows[:limit]]
        return shown, rows[limit - 1].number if len(rows) > limit else None

    def shown(self, row: JobRow, places: dict[str, int] | None = None) -> dict[str, Any]:
        """A job as the API shows it."""
        if places is None:
            places = self.table.places() if row.state == "waiting" else {}
        return {
            "job": row.job,
            "kind": row.kind,
            "title": job_title(row.kind, row.request),
            "state": row.state,
            "cancelling": row.cancelling,
            "place": places.get(row.job) if row.state == "waiting" else None,
            "created_at": iso(row.created_at),
            "started_at": iso(row.started_at),
            "finished_at": iso(row.finished_at),
            "progress": {
                "done": row.done,
                "total": row.total,
                "unit": row.unit,
                "rate": row.rate,
                "seconds_left": seconds_left(row.done, row.total, row.rate),
                "message": GONE if self.table.is_abandoned(row) else redact(row.message),
            },
            "artifacts": list_artifacts(job_dir(self.settings.data_dir, row.job)),
            "result": redact_data(row.result),
            "problem": redact_problem(row.problem),
            "attempts": row.attempts,
            "request": row.request,
        }

    def count(self, state: State) -> float:
        """Number of jobs in a state; NaN if the file cannot be read now."""
        try:
            return self.table.counts().get(state, 0)
        except (OSError, Problem):
            return math.nan

    def queue_age(self) -> float:
        """Seconds that the oldest waiting job has waited, 0 if none waits; NaN if the file cannot be read now."""
        try:
            return self.table.queue_age()
        except (OSError, Problem):
            return math.nan

    def num_workers(self) -> tuple[int | None, str | None]:
        """(live workers, None), or (None, why the list of jobs cannot be read)."""
        try:
            return self.table.workers(), None
        except Problem as problem:
            return None, problem.detail
        except OSError as error:
            return None, f"The list of jobs cannot be read ({error.strerror or error})."

    def artifact(self, job: str, name: str) -> tuple[bytes, str]:
        """(content, ETag) of an artifact, in any state of the job."""
        row = self.table.get(job)
        return read_artifact(job_dir(self.settings.data_dir, row.job), name)

    def remove(self, job: str) -> None:
        """Remove a finished job and delete its files; runs that it made stay."""
        gone: list[Path] = []
        self.table.remove(job, lambda: gone.append(set_aside(job_dir(self.settings.data_dir, job))))
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)

    async def events(self, job: str, after: int) -> AsyncIterator[bytes]:
        """Server-sent events of a job after event ``after``, until it is over or removed. To be sent inside
        ``listening``.

        Raises:
            Problem: 404 for an unknown job, before the first event.
        """
        await asyncio.to_thread(self.table.get, job)
        return self._stream(job, after)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count one event stream for the block; Problem 503 when there are too many."""
        if self.streams >= self.settings.job_streams:
            raise busy(f"{self.streams} clients listen to jobs already; ask for the job now and then instead.")
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def _stream(self, job: str, after: int) -> AsyncIterator[bytes]:
        from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

        async with self.notifier.listening(job) as listener:
            while True:
                listener.clear()
                news, over = await asyncio.to_thread(self._news, job, after)
                for event in news:
                    after = event.id
                    data = as_text(redact_data(event.data))  # redact before JSON escapes change the paths
                    yield format_sse_event(data_str=data, event=event.kind, id=str(event.id))
                if over and not news:
                    return
                if news:
                    continue
                try:
                    await asyncio.wait_for(listener.wait(), PING_SECONDS)
                except TimeoutError:
                    yield KEEPALIVE_COMMENT

    def _news(self, job: str, after: int) -> tuple[list[EventRow], bool]:
        """(events after ``after``, whether no more will come)."""
        try:
            # read the state first: if the job is over, its last event is already stored
            over = self.table.get(job).state in ENDED
            return self.table.events(job, after), over
        except Problem as problem:
            return [], problem.status == 404
        except OSError:
            return [], False

    def is_over(self, job: str, after: int) -> bool:
        """Whether the job is over and event ``after`` was its last; Problem 404."""
        return self.table.get(job).ended and not self.table.events(job, after, most=1)


def iso(seconds: float | None) -> str | None:
    """A time in seconds since 1970 as ISO 8601 in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
