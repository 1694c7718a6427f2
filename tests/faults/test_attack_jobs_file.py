"""The list of jobs under the hands of running processes: deleted, moved with its folder, locked by another program."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.crew import Crew
from tests.faults.conftest import Keep
from tests.support.jobs import counted, register_count
from tests.support.runs import make_run

register_count()
BODY = {"kind": "count", "request": {"iterations": 3}}
LOCKED_SECONDS = 8.0


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """An API and a worker in processes of their own over a folder with one run."""
    make_run(tmp_path / "data" / "runs", "vision", samples=3)
    made = Crew(tmp_path / "data", module="tests.support.jobs", job_lease_seconds=2)
    made.staff(1)
    made.start_api()
    yield made
    made.close()


def test_a_list_that_is_deleted_or_moved_leaves_one_world(crew: Crew, tmp_path: Path, figure: Keep) -> None:
    """`jobs.sqlite`, or its log, is deleted, moved or replaced between jobs; the folder is moved and comes back"""
    data, file = crew.data_dir, crew.data_dir / "jobs.sqlite"
    assert crew.over(crew.submit("count", iterations=3))["state"] == "succeeded"
    changes = {
        "deleted": lambda: file.unlink(),
        "with its log": lambda: [one.unlink() for one in data.glob("jobs.sqlite*")],
        "log": lambda: (data / "jobs.sqlite-wal").unlink(),
        "moved": lambda: file.rename(data / "old.sqlite"),
        "replaced": lambda: (data / "old.sqlite").replace(file),
    }
    for change in changes.values():
        change()
        assert crew.over(crew.submit("count", iterations=5))["result"] == {"value": counted(5)}
    job = crew.submit("count", iterations=400, seconds=0.01)
    crew.until(lambda: crew.job(job)["progress"]["done"] > 30)
    data.rename(tmp_path / "elsewhere")
    for answer in (crew.client.get("/runs"), crew.client.get("/jobs"), crew.client.post("/jobs", json=BODY)):
        assert answer.status_code == 503
        assert "data folder is gone" in answer.json()["detail"]
    health = crew.get("/health")
    assert health is not None
    assert health["status"] == "impaired"
    assert "data folder is gone" in health["parts"][0]["problem"]
    time.sleep(3)
    assert not data.exists(), "nothing is made in its place"
    (tmp_path / "elsewhere").rename(data)
    assert crew.over(job)["result"] == {"value": counted(400)}, "it goes on where it was"
    assert crew.over(crew.submit("count", iterations=5))["state"] == "succeeded"
    assert crew.workers[0].poll() is None
    figure(
        34, f"{len(changes)} changes of the file, each next job ran; folder gone: 503, nothing made; the job went on"
    )


def test_readers_and_questions_go_on_while_the_list_is_locked(crew: Crew, figure: Keep) -> None:
    """Another program holds the write lock for 8 s; 45 jobs are submitted, a job runs, lists and questions are asked"""
    running = crew.submit("count", iterations=900, seconds=0.01)
    crew.until(lambda: crew.job(running)["state"] == "running")
    answers: list[tuple[int, bool, float]] = []
    slowest = asked = 0.0

    def post() -> None:
        began = time.monotonic()
        answer = crew.client.post("/jobs", json=BODY)
        answers.append((answer.status_code, "retry-after" in answer.headers, time.monotonic() - began))

    with closing(sqlite3.connect(crew.data_dir / "jobs.sqlite", isolation_level=None)) as con:
        con.execute("BEGIN EXCLUSIVE")
        ends = time.monotonic() + LOCKED_SECONDS
        posts = [threading.Thread(target=post) for _ in range(45)]
        for one in posts:
            one.start()
        while time.monotonic() < ends:
            for path in ("/jobs", "/runs", "/runs/vision/flow", "/jobs?state=waiting"):
                began = time.monotonic()
                assert crew.client.get(path).status_code == 200
                slowest, asked = max(slowest, time.monotonic() - began), asked + 1
        con.execute("ROLLBACK")
    for one in posts:
        one.join()
    refused = [answer for answer in answers if answer[0] == 503]
    assert {status for status, *_ in answers} <= {202, 503}
    assert all(retry for _, retry, _ in refused)
    assert slowest < 4
    longest = max(seconds for *_, seconds in refused)
    assert longest < 4 * 5
    assert crew.over(running)["result"] == {"value": counted(900)}, "its worker went on and recorded it later"
    assert crew.job(running)["attempts"] == 1
    figure(
        36,
        f"{len(refused)} of 45 told to come back after {longest:.1f} s at most; {asked:.0f} other answers, the slowest "
        f"{slowest:.2f} s; the job went on",
    )
