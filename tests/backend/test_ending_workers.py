"""A worker that ends in order lets go of its job at once, however long the job takes to close."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.coroutines import run_alone
from tests.support.jobs import CountJob, register_count
from tokenpaths.backend.jobs.files import job_dir
from tokenpaths.backend.jobs.runner import JobRunner, Working
from tokenpaths.backend.jobs.table import MOST_DEATHS, JobTable
from tokenpaths.engine.base.errors import Held
from tokenpaths.engine.base.files import HolderLock
from tokenpaths.engine.jobs.registry import JobContext

register_count()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobTable]:
    """A queue with one job that goes on for ever."""
    monkeypatch.setattr("tokenpaths.backend.jobs.runner.LET_GO_SECONDS", 0)
    made = JobTable(tmp_path / "jobs.sqlite")
    made.submit("count", {"iterations": 10_000_000, "seconds": 0.01, "every": 10_000_000})
    yield made
    made.close()


async def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.01)


def test_workers_that_end_while_a_job_closes_are_no_deaths_and_its_files_stay_theirs(
    tmp_path: Path, table: JobTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = (row.job for row in table.page())
    lock = HolderLock(job_dir(tmp_path, job) / ".lock")
    closing, may_close = threading.Event(), threading.Event()

    def close(count: CountJob) -> None:
        closing.set()
        may_close.wait(60)
        count.made.close()

    monkeypatch.setattr(CountJob, "close", close)

    async def life(attempt: int, *, killed: bool) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            try:
                runner = JobRunner(
                    table, JobContext(tmp_path), lambda work: loop.run_in_executor(thread, work), free_bytes=0
                )
                running = asyncio.create_task(runner.run())
                await until(lambda: table.get(job).attempts == attempt)
                runner.ending.set()
                await until(lambda: closing.is_set() and table.get(job).state == "waiting")
                if killed:  # before it is closed
                    running.cancel()
                    await asyncio.wait([running])
                with pytest.raises(Held):
                    lock.acquire()
            finally:
                may_close.set()
            await asyncio.wait([running])
        closing.clear()
        may_close.clear()

    for attempt in range(1, MOST_DEATHS + 2):
        run_alone(life(attempt, killed=attempt > MOST_DEATHS))
        row = table.get(job)
        assert (row.state, row.worker, row.deaths, row.attempts) == ("waiting", None, 0, attempt)


def test_a_job_that_comes_no_further_at_a_full_disk_fails_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenpaths.backend.jobs.runner.PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("tokenpaths.backend.jobs.runner.POLL_SECONDS", 0.001)
    monkeypatch.setattr("tokenpaths.backend.jobs.runner.MOST_PAUSES", 3)
    table = JobTable(tmp_path / "jobs.sqlite")
    job = table.submit("count", {"iterations": 200, "every": 10, "fail_at": 40, "fail_with": "full"}).job

    async def life() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            runner = JobRunner(
                table, JobContext(tmp_path), lambda work: loop.run_in_executor(thread, work), free_bytes=0
            )
            running = asyncio.create_task(runner.run())
            await until(lambda: table.get(job).ended)
            runner.ending.set()
            await asyncio.wait([running])

    run_alone(life())
    row = table.get(job)
    assert (row.state, row.attempts, row.deaths) == ("failed", 4, 0)
    assert row.problem is not None
    assert row.problem["status"] == 507
    assert "became full 3 times at this job" in row.problem["detail"]
    table.close()


def test_a_job_that_hangs_is_not_let_go(tmp_path: Path, table: JobTable) -> None:
    stuck = True

    async def in_thread(work: object) -> None: ...

    async def end() -> None:
        runner = JobRunner(table, JobContext(tmp_path), in_thread, free_bytes=0, is_stuck=lambda: stuck)
        runner.ending.set()
        await runner._let_go_at_the_end(Working(lease, tmp_path))

    lease = table.lease("one")
    assert lease is not None
    run_alone(end())
    assert table.get(lease.row.job).worker == "one", "it is for the next worker to count as a death"
    stuck = False
    run_alone(end())
    assert table.get(lease.row.job).state == "waiting"
