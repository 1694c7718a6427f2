"""Blocking work in threads, with a time limit that holds even when the work cannot be interrupted.

DuckDB and libraries in C notice an interruption only between two pieces of work, and a single piece may never end. Work
that exceeds its time is abandoned: its client is answered and its slot is free, but its thread runs on, since threads
cannot be killed. So the server is told to give up, and to be started anew, when too many threads are stuck or one of
them for too long. Questions in processes of their own could be killed alone; they would cost every question a transfer
between processes, and every process its own open runs (docs/decisions.md).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

import anyio.to_thread
from prometheus_client import Gauge

from tokenpaths.backend.problems import Problem, busy

T = TypeVar("T")
LONG_FACTOR = 3
"""how much more time whole files have than answers: reports, and each part of an export"""
DELETED_SECONDS = 1.0
"""time that work about a run still has once the run is deleted"""
MOST_STUCK_SECONDS = 300.0
"""after which one stuck thread is reason enough to start the server anew"""
RETRY_SECONDS = 30
log = logging.getLogger(__name__)


@dataclass(eq=False)
class Work:
    """One piece of work in a thread."""

    named: tuple[str, ...]
    """the runs that it was said to be about"""
    runs: list[str]
    """these, and those that it holds open now"""
    timeout: asyncio.Timeout | None = None
    thread: int = 0
    has_ended: bool = False
    is_abandoned: bool = False
    of_deleted_run: bool = False

    def subject(self) -> str:
        """The runs, in words."""
        return f"run {', '.join(dict.fromkeys(self.runs))}" if self.runs else "no run in particular"


@dataclass
class Watchdog:
    """Runs work in threads and abandons what exceeds its time; belongs to one event loop.

    Args:
        seconds: time limit of work that is given none.
        most_stuck: number of stuck threads at which the server gives up.
        gauge: shows the number of stuck threads.
    """

    seconds: float = 20.0
    most_stuck: int = 4
    gauge: Gauge | None = None
    give_up: Callable[[], None] = field(default=lambda: None)
    """called once, when the server should be started anew"""
    has_given_up: bool = False
    at_work: set[Work] = field(default_factory=set)
    stuck: set[Work] = field(default_factory=set)

    async def run(self, function: Callable[[], T], *runs: str, seconds: float | None = None) -> T:
        """The result of ``function``, called in a thread; ``runs`` are those that it is about.

        Raises:
            Problem: 503 if it takes longer than ``seconds`` or if other work about one of the runs is stuck, 404 if one
                of them is deleted meanwhile.
        """
        for run_id in runs:
            self.check(run_id)
        limit = self.seconds if seconds is None else seconds
        loop, work = asyncio.get_running_loop(), Work(runs, list(runs))

        def in_thread() -> T:
            work.thread = threading.get_ident()
            try:
                return function()
            finally:
                work.has_ended = True
                if work.is_abandoned:
                    with suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(self._ended, work)

        self.at_work.add(work)
        token = _current.set(work)
        try:
            async with asyncio.timeout(limit) as work.timeout:
                return await anyio.to_thread.run_sync(in_thread, abandon_on_cancel=True)
        except TimeoutError:
            assert work.timeout is not None
            if not work.timeout.expired():  # an error of the work itself
                raise
            if work.of_deleted_run:
                raise Problem(404, "no-such-run", f"Run {', '.join(work.named)} was deleted.", field="run") from None
            advice = "ask for fewer tokens, for example one label or one path" if runs else "try again in a moment"
            raise Problem(
                503,
                "too-slow",
                f"The answer took longer than {limit:g} seconds and was given up: {advice}.",
                headers={"retry-after": str(RETRY_SECONDS)},
            ) from None
        finally:
            _current.reset(token)
            self.at_work.discard(work)
            if not work.has_ended and work.thread:
                self._abandon(work, limit)

    def check(self, run_id: str) -> None:
        """Problem 503 while work about this run is stuck: more of it would only stick as well."""
        if any(run_id in work.runs for work in self.stuck):
            raise busy(
                f"An earlier question to run {run_id} has not ended in its time and cannot be stopped; "
                "delete the run if this goes on, or ask again later.",
                retry_after_s=RETRY_SECONDS,
            )

    @contextmanager
    def about(self, run_id: str) -> Iterator[None]:
        """Note that the block, called in a thread, works on this run; Problem 503 while work about it is stuck."""
        self.check(run_id)
        work = _current.get()
        if work is not None:
            work.runs.append(run_id)
        try:
            yield
        finally:
            if work is not None and not work.is_abandoned:
                work.runs.remove(run_id)

    def release(self, run_id: str) -> None:
        """End the wait for all work about a deleted run."""
        now = asyncio.get_running_loop().time()
        for work in self.at_work:
            if run_id in work.named and work.timeout is not None:
                work.of_deleted_run = True
                work.timeout.reschedule(min(work.timeout.when() or now, now + DELETED_SECONDS))
        if any(run_id in work.runs for work in self.stuck):
            self._give_up(f"run {run_id} is deleted, and a question to it has not ended")

    def _abandon(self, work: Work, limit: float) -> None:
        work.is_abandoned = True
        if work.has_ended:  # just now
            return
        self.stuck.add(work)
        self._show()
        frame = sys._current_frames().get(work.thread)
        log.warning(
            "a thread is stuck: work about %s ignores its time limit of %g seconds",
            work.subject(),
            limit,
            extra={"about": {"stack": traceback.format_stack(frame)[-12:]}},
        )
        if len(self.stuck) >= self.most_stuck:
            self._give_up(f"{len(self.stuck)} threads are stuck")
        elif work.of_deleted_run:
            asyncio.get_running_loop().call_later(DELETED_SECONDS, self._look_again, work)
        else:
            asyncio.get_running_loop().call_later(MOST_STUCK_SECONDS, self._look_again, work)

    def _look_again(self, work: Work) -> None:
        if work in self.stuck:
            self._give_up(f"work about {work.subject()} does not end")

    def _give_up(self, reason: str) -> None:
        if not self.has_given_up:
            self.has_given_up = True
            log.error("the server has to be started anew: %s", reason)
            self.give_up()

    def _ended(self, work: Work) -> None:
        self.stuck.discard(work)
        self._show()

    def _show(self) -> None:
        if self.gauge is not None:
            self.gauge.set(len(self.stuck))


_current: ContextVar[Work | None] = ContextVar("work", default=None)
"""the work that this thread does; a context is copied into the threads that are started from it"""
