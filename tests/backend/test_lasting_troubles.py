"""A trouble that lasts is said once, again when it changes, and now and then: not every five seconds."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.support.coroutines import run_alone
from tokenpaths.backend.jobs.runner import JobRunner
from tokenpaths.backend.jobs.table import JobTable, Lease
from tokenpaths.backend.logs import REPEAT_SECONDS, LastingWarning
from tokenpaths.engine.jobs.registry import JobContext


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_once_then_when_it_changes_then_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    trouble = LastingWarning(logging.getLogger("tests.trouble"), clock=lambda: now[0])
    trouble.over("well")
    for _ in range(100):
        now[0] += 5
        trouble.warn("no room")
    assert told(caplog) == ["no room"]
    trouble.warn("no disk")
    trouble.warn("no disk")
    assert told(caplog) == ["no disk"]
    now[0] += REPEAT_SECONDS
    trouble.warn("no disk")
    assert told(caplog) == ["no disk"]
    trouble.over("well")
    trouble.over("well")
    trouble.warn("no disk")
    assert told(caplog) == ["well", "no disk"]


def test_a_worker_without_its_list_of_jobs_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tokenpaths.backend.jobs.runner")
    monkeypatch.setattr("tokenpaths.backend.jobs.runner.PAUSE_SECONDS", 0)
    monkeypatch.setattr("tokenpaths.backend.jobs.runner.POLL_SECONDS", 0)
    tries = 0

    async def in_thread(work: object) -> None: ...

    runner = JobRunner(JobTable(tmp_path / "jobs.sqlite"), JobContext(tmp_path), in_thread, free_bytes=0)

    def lease(worker: str, *, resume_paused: bool) -> Lease | None:
        nonlocal tries
        tries += 1
        if tries == 12:
            runner.ending.set()
        if tries in (*range(1, 6), 7, 8):
            raise PermissionError("jobs.sqlite cannot be opened for writing")
        return None

    monkeypatch.setattr(runner.table, "lease", lease)
    run_alone(asyncio.wait_for(runner.run(), 60))
    cannot = "the list of jobs cannot be used now: jobs.sqlite cannot be opened for writing"
    assert told(caplog) == [cannot, "the list of jobs can be used again"] * 2
    assert tries >= 12
