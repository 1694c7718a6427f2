"""Executes jobs inside a worker: one at a time, in slices, in the thread that owns the models.

An interactive trace waits for at most one slice. The lease is renewed concurrently, however long a slice takes. A lock
on the job's folder keeps a second worker from its files even if the first one slept past its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenpaths.backend.jobs.files import changed_artifacts, job_dir, sweep
from tokenpaths.backend.jobs.table import JobTable, Lease, Order
from tokenpaths.backend.logs import LastingWarning
from tokenpaths.backend.loops import ThreadFailure, contained, is_own_end, repeat
from tokenpaths.backend.problems import Problem, problem_of
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import HolderLock, is_disk_full
from tokenpaths.engine.jobs.registry import JobContext, LongJob, Progress, find_kind, read_request

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
SLICE_SECONDS = 0.4
"""minimum seconds between progress reports; shorter slices are merged"""
RATE_SECONDS = 30.0
PAUSE_SECONDS = 5.0
MOST_PAUSES = 12
"""pauses at a full disk of one job in one worker that come no further, each twice as long as the one before: an hour"""
MOST_REMEMBERED = 1000
LET_GO_SECONDS = 2.0
"""how long a job in hand may take to come to an end of its own once the worker ends"""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass
class Working:
    """The job that this worker is executing."""

    lease: Lease
    folder: Path
    job: LongJob | None = None
    order: Order = "go"
    known: dict[str, tuple[int, int]] = field(default_factory=dict)
    """artifacts already reported, with their (time, size)"""
    pace: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, units done) of the last half minute"""
    unit: str = ""
    done: int = 0
    """the most that was reported in this attempt"""
    free: int = 0
    """bytes of the disk when this attempt began"""

    def rate(self, done: int, unit: str = "") -> float | None:
        """Units per second over the last half minute of this attempt; restarts when the unit changes."""
        now = time.monotonic()
        if unit != self.unit:
            self.pace.clear()
            self.unit = unit
        self.pace.append((now, done))
        while len(self.pace) > 2 and self.pace[0][0] < now - RATE_SECONDS:
            self.pace.popleft()
        (began, first), (ended, last) = self.pace[0], self.pace[-1]
        return round((last - first) / (ended - began), 4) if ended > began and last > first else None


class JobRunner:
    """Leases jobs of ``table`` and executes them.

    Args:
        in_thread: runs a function in the model thread.
        free_bytes: on the disk, below which paused jobs stay paused.
        is_stuck: whether the work in the model thread lasts so long that it hangs.
    """

    def __init__(
        self,
        table: JobTable,
        context: JobContext,
        in_thread: InThread,
        *,
        free_bytes: float,
        is_stuck: Callable[[], bool] = lambda: False,
    ) -> None:
        self.table, self.context, self.free_bytes, self.is_stuck = table, context, free_bytes, is_stuck
        self.in_thread: InThread = lambda work: in_thread(contained(work))
        self.worker = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
        self.ending = asyncio.Event()
        self.trouble = LastingWarning(log)
        self.trouble_now: str | None = None
        """why no job can be taken up or recorded at the moment"""
        self.at_work = False
        """whether a job is in hand"""
        self.last_turn = time.monotonic()
        """when the loop last came round, or a slice of a job was over"""
        self.full_disk: dict[str, tuple[int, int]] = {}
        """(pauses at a full disk, the most that was done before one) of jobs, the latest last"""

    def has_work(self) -> bool:
        """Whether a job is in hand, or one waits for this or another worker."""
        if self.at_work:
            return True
        try:
            return self.table.counts().get("waiting", 0) > 0
        except (OSError, Problem):
            return False

    async def run(self) -> None:
        """Lease and execute jobs until ``ending`` is set; no exception of a job or of the table ends it."""
        alive = repeat("recording that this worker is alive", self._beat, lambda: self.table.lease_s / 5)
        beat = asyncio.create_task(alive)
        try:
            while not self.ending.is_set():
                self.last_turn = time.monotonic()
                try:
                    if not await self._one():
                        await self._rest(POLL_SECONDS)
                except BaseException as error:
                    if is_own_end(error):
                        raise
                    log.error("the loop of jobs failed (%s) and goes on", type(error).__name__, exc_info=error)
                    await self._rest(PAUSE_SECONDS)
        finally:
            beat.cancel()
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self.table.gone, self.worker)

    async def _one(self) -> bool:
        """Execute one job; False if none is waiting."""
        try:
            lease = await asyncio.to_thread(self._lease)
        except Exception as error:  # a full disk or a missing file: both may be temporary
            self._cannot(f"the list of jobs cannot be used now: {error}")
            await self._rest(PAUSE_SECONDS)
            return True
        self._can_again()
        if lease is None:
            return False
        self.at_work = True
        try:
            await self._work(lease)
        except Exception:  # the lease expires and the job is taken up again
            log.exception("job %s was lost hold of", lease.row.job)
            await self._rest(PAUSE_SECONDS)
        finally:
            self.at_work = False
        return True

    def _cannot(self, message: str) -> None:
        self.trouble_now = message
        self.trouble.warn(message)

    def _can_again(self) -> None:
        self.trouble_now = None
        self.trouble.over("the list of jobs can be used again")

    def _lease(self) -> Lease | None:
        self.table.connection.folder.require()
        free = shutil.disk_usage(self.context.data_dir).free
        return self.table.lease(self.worker, resume_paused=free >= self.free_bytes)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)

    async def _beat(self) -> None:
        """Record that this worker is alive."""
        with contextlib.suppress(OSError, Problem):
            await asyncio.to_thread(self.table.seen, self.worker)

    async def _work(self, lease: Lease) -> None:
        work = Working(lease, job_dir(self.context.data_dir, lease.row.job))
        try:
            work.folder.parent.mkdir(exist_ok=True)
            work.folder.mkdir(exist_ok=True)
            lock = HolderLock(work.folder / ".lock")
            lock.acquire()
        except UserError as error:  # the previous worker lost its lease but still writes
            log.warning("job %s: %s", lease.row.job, error)
            await asyncio.to_thread(self.table.postpone, lease, self.table.lease_s / 5)
            return
        except OSError as error:
            await self._trouble(work, error)
            return
        renewing = asyncio.create_task(
            repeat(f"renewing the lease of {lease.row.job}", lambda: self._renew(work), lambda: 0.0)
        )
        letting_go = asyncio.create_task(self._let_go_at_the_end(work))
        kept = False
        try:
            await self._life(work)
        except BaseException as error:
            kept = is_own_end(error)  # the thread may still write these files: the lock ends with the process
            raise
        finally:
            renewing.cancel()
            letting_go.cancel()
            if not kept:
                lock.release()

    async def _let_go_at_the_end(self, work: Working) -> None:
        """Release the job when this worker ends, also in the middle of a long slice or of closing it.

        Else its lease would expire like that of a worker that died. Whoever takes it up waits for the lock. A job that
        hangs keeps its lease: it counts as the death that it is.
        """
        await self.ending.wait()
        await asyncio.sleep(LET_GO_SECONDS)
        if self.is_stuck():
            return
        log.info("job %s is let go, though it is not closed yet", work.lease.row.job)
        await self._say(lambda: self.table.give_back(work.lease))

    async def _renew(self, work: Working) -> None:
        """Renew the lease while a slice runs."""
        await asyncio.sleep(self.table.lease_s / 5)
        if work.order != "lost":
            with contextlib.suppress(OSError, Problem):
                order = await asyncio.to_thread(self.table.renew, work.lease)
                if order != "go":
                    work.order = order

    async def _life(self, work: Working) -> None:
        """Start, advance and close the job, and record its outcome."""
        row, end = work.lease.row, None
        log.info("job %s, attempt %d", row.job, row.attempts)
        try:
            await self.in_thread(lambda: self._start(work))
            end = await self._advance(work)
        except Exception as error:
            await self._close(work)
            await self._trouble(work, error)
            return
        await self._close(work)
        if end is not None:
            self.full_disk.pop(row.job, None)
            following = _following(end)
            try:
                await self._say(
                    lambda: self.table.end(work.lease, "succeeded", result=plain(end.result), following=following)
                )
            except Exception as error:  # a result that is no JSON
                await self._trouble(work, error)
                return
        elif work.order == "cancel":
            await self._say(lambda: self.table.end(work.lease, "cancelled"))
        elif work.order == "go":  # the worker is shutting down
            await self._say(lambda: self.table.give_back(work.lease))
        log.info("job %s: %s", row.job, "done" if end is not None else f"let go ({work.order})")

    def _start(self, work: Working) -> None:
        """Start the job; in the model thread."""
        row = work.lease.row
        sweep(work.folder)
        work.free = shutil.disk_usage(self.context.data_dir).free
        kind = find_kind(row.kind)
        work.job = kind.start(read_request(kind, row.request), work.folder, self.context)

    async def _advance(self, work: Working) -> Progress | None:
        """Run slices until the job is finished (returns its last progress), cancelled or lost (returns None)."""
        work.known = dict(changed_artifacts(work.folder, {}))
        names = list(work.known)
        while work.order == "go" and not self.ending.is_set():
            progress = await self.in_thread(partial(_slices, work, SLICE_SECONDS if work.pace else 0.0))
            changes = await asyncio.to_thread(changed_artifacts, work.folder, work.known)
            work.known |= changes
            names += [name for name in changes if name not in names]
            work.done = max(work.done, progress.done)
            rate = work.rate(progress.done, progress.unit)
            order: Order = "go"
            try:
                order = await asyncio.to_thread(self.table.report, work.lease, progress, rate, names)
                names = []
                self._can_again()
            except (OSError, Problem) as error:  # said later, where the trouble is not the job's
                if is_disk_full(error):
                    raise
                self._cannot(f"the list of jobs cannot be written: {error}")
            self.last_turn = time.monotonic()
            if order != "lost" and progress.finished:
                return progress
            work.order = order if order != "go" else work.order
        return None

    async def _close(self, work: Working) -> None:
        job, work.job = work.job, None
        if job is None:
            return
        try:
            await self.in_thread(job.close)
        except Exception:
            log.exception("job %s could not be closed in order", work.lease.row.job)

    async def _trouble(self, work: Working, error: Exception) -> None:
        """Record a job that raised: paused if the disk is full, else failed."""
        if is_disk_full(error) or self._is_nearly_full(error):
            if (seconds := self._pause_at_full_disk(work)) is not None:
                log.warning("job %s pauses for %.0f s: the disk is full", work.lease.row.job, seconds)
                message = "The disk of the data folder is full; this goes on by itself when there is space again."
                await self._say(lambda: self.table.pause(work.lease, message, seconds))
                return
            error = Problem(
                507,
                "disk-full",
                f"The disk became full {MOST_PAUSES} times at this job, and it came no further: it needs more than "
                f"the {work.free / 1e9:.1f} GB that were free when it began. Make space, and try it again.",
            )
        if (gone := self.table.connection.folder.problem()) is not None:
            log.warning("job %s pauses: %s", work.lease.row.job, gone.detail)
            message = "The data folder was gone for a while; this goes on by itself."
            await self._say(lambda: self.table.pause(work.lease, message, PAUSE_SECONDS))
            return
        problem = plain(as_problem(error))
        log.warning("job %s failed: %s", work.lease.row.job, problem["detail"])
        await self._say(lambda: self.table.end(work.lease, "failed", problem=problem))

    def _pause_at_full_disk(self, work: Working) -> float | None:
        """Seconds until a job is tried again whose disk is full; None where that was in vain too often.

        What it wrote goes with it, so that the disk has space as soon as it pauses.
        """
        times, furthest = self.full_disk.pop(work.lease.row.job, (0, -1))
        times = 0 if work.done > furthest else times
        if times == MOST_PAUSES:
            return None
        while len(self.full_disk) >= MOST_REMEMBERED:
            self.full_disk.pop(next(iter(self.full_disk)))
        self.full_disk[work.lease.row.job] = times + 1, max(furthest, work.done)
        return PAUSE_SECONDS * 2.0**times

    def _is_nearly_full(self, error: Exception) -> bool:
        """Whether an error while storing a run was probably a full disk: not every library reports ENOSPC."""
        from tokenpaths.engine.base.errors import WriterFailed

        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self.context.data_dir).free
            return isinstance(error, WriterFailed) and free < 1_000_000
        return False

    async def _say(self, word: Callable[[], object]) -> None:
        """Write the outcome of a job; retried, since the job table may be on the disk that is full."""
        while True:
            self.last_turn = time.monotonic()
            try:
                await asyncio.to_thread(word)
                self._can_again()
                return
            except (OSError, Problem) as error:
                self._cannot(f"the list of jobs cannot be written: {error}")
                if self.ending.is_set():
                    return
                await self._rest(PAUSE_SECONDS / 5)


def _slices(work: Working, seconds: float) -> Progress:
    """Advance for at least ``seconds``, or to the end; in the model thread."""
    assert work.job is not None
    ends = time.monotonic() + seconds
    while True:
        progress = work.job.advance()
        progress = replace(progress, message=plain(progress.message)[:500])
        if progress.finished or work.order != "go" or time.monotonic() >= ends:
            return progress


def _following(end: Progress) -> list[tuple[str, dict[str, Any]]]:
    """The jobs that follow a finished one, their requests as the job file keeps them."""
    following = []
    for name, request in end.following:
        try:
            following.append((name, read_request(find_kind(name), request).model_dump(mode="json")))
        except Exception as error:  # the job itself is done, whatever became of what follows it
            log.warning("a job of kind %s could not be queued: %s", name, error or type(error).__name__)
    return following


def as_problem(error: Exception) -> dict[str, Any]:
    """The error of a failed job as a problem dict (RFC 9457)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        error = Problem(500, "out-of-memory", "There was not enough memory for this; ask for less at once.")
    if not isinstance(error, (UserError, Problem)):
        log.error("a job failed", exc_info=error)
        kind = error.kind if isinstance(error, ThreadFailure) else type(error).__name__
        said = f"Something unforeseen happened ({kind}); the worker's log has the details."
        error = Problem(500, "internal", said)
    return problem_of(error).body()


def plain(value: Any) -> Any:
    """``value`` made representable in JSON: NaN and infinities become None, lone surrogates a question mark."""
    if isinstance(value, dict):
        return {plain(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
