"""Real processes that are killed, a real disk that is full: what a long job survives."""

from __future__ import annotations

import errno
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.crew import Crew
from tests.backend.conftest import API, SECRET, problem
from tests.faults.conftest import Keep, fill
from tests.support.jobs import counted, register_count
from tokenpaths.engine.jobs.registry import MOST_REPEATED

pytestmark = pytest.mark.slow_fault
register_count()
LEASE_SECONDS = 1.0
KILLS = 10


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """One for all tests: processes take seconds to start."""
    made = Crew(tmp_path_factory.mktemp("crew") / "data", module="tests.support.jobs", job_lease_seconds=LEASE_SECONDS)
    made.staff(3)
    made.start_api()
    yield made
    made.close()


def test_ten_kills_cost_at_most_sixty_four_iterations_each_and_change_nothing(crew: Crew, figure: Keep) -> None:
    """A job that chains 2,500 hashes; its worker is killed ten times and two others go on"""
    iterations, chance = 2500, random.Random(7)
    job = crew.submit("count", iterations=iterations, seconds=0.002)
    made = crew.data_dir / "jobs" / job / "made.txt"
    crew.until(made.exists)
    for _ in range(KILLS):
        before, done = len(made.read_text().splitlines()), crew.job(job)["progress"]["done"]
        wanted = before + chance.randrange(1, 150)
        crew.until(lambda wanted=wanted: len(made.read_text().splitlines()) >= wanted)
        # Three lives without progress would set the job aside.
        crew.until(lambda done=done: crew.job(job)["progress"]["done"] > done)
        crew.kill_holder(job)
        crew.staff(3)  # the new one is not yet there when the others notice
    found = crew.over(job)
    assert found["state"] == "succeeded"
    assert found["attempts"] >= KILLS + 1
    assert found["result"] == {"value": counted(iterations)}, "bit for bit what an uninterrupted count comes to"
    numbers = [int(line) for line in made.read_text().split()]
    repeated = [before - after + 1 for before, after in zip(numbers, numbers[1:], strict=False) if after <= before]
    assert len(repeated) < found["attempts"]
    assert max(repeated) <= MOST_REPEATED
    assert len(numbers) == iterations + sum(repeated)
    figure(2, f"queue: {KILLS} workers killed, at most {max(repeated)} iterations redone, the same hash")


def test_a_killed_api_costs_no_job_anything(crew: Crew) -> None:
    crew.staff(1)
    job, waiting = crew.submit("count", iterations=600, seconds=0.01), crew.submit("count", iterations=5)
    crew.until(lambda: crew.job(job)["progress"]["done"] > 50)
    last = max(int(line[4:]) for line in _events(crew, job) if line.startswith("id: "))
    assert crew.api is not None
    crew.api.kill()
    crew.api.wait()
    crew.start_api()
    found = crew.job(job)
    assert found["state"] == "running"
    assert found["attempts"] == 1, "the worker noticed nothing"
    more = _events(crew, job, last_event_id=last)
    assert min(int(line[4:]) for line in more if line.startswith("id: ")) > last
    assert crew.over(job)["result"] == {"value": counted(600)}
    assert crew.over(waiting)["state"] == "succeeded"


def _events(crew: Crew, job: str, last_event_id: int = 0) -> list[str]:
    """Lines of the stream up to the next artifact."""
    lines: list[str] = []
    headers = {"last-event-id": str(last_event_id)} if last_event_id else {}
    with crew.client.stream("GET", f"/jobs/{job}/events", headers=headers) as stream:
        for line in stream.iter_lines():
            lines.append(line)
            if "event: artifact" in lines and line == "":
                break
    return lines


def test_a_worker_that_ends_in_order_gives_its_job_back(crew: Crew) -> None:
    crew.staff(1)
    job = crew.submit("count", iterations=400, seconds=0.01)
    crew.until(lambda: crew.job(job)["progress"]["done"] > 80)
    for worker in crew.workers:
        worker.terminate()
    for worker in crew.workers:
        worker.wait()
    assert crew.job(job)["state"] == "waiting", "at once, without waiting for its lease to run out"
    assert crew.job(job)["place"] == 1
    crew.staff(1)
    assert crew.over(job)["result"] == {"value": counted(400)}


def test_a_full_disk_pauses_the_job_and_it_goes_on_by_itself(tmp_path: Path, small_disk: Path, figure: Keep) -> None:
    """A tmpfs of 24 MB is filled while a job writes frames to it, and emptied again"""
    crew = Crew(
        small_disk / "data",
        module="tests.support.jobs",
        job_lease_seconds=LEASE_SECONDS,
        job_free_megabytes=2,
        least_free_megabytes=0,
    )
    crew.log = tmp_path / "processes.log"
    try:
        crew.staff(1)
        crew.start_api()
        job = crew.submit("count", iterations=3000, seconds=0.002, frame_bytes=20_000)
        crew.until(lambda: crew.job(job)["progress"]["done"] > 100)
        ballast = small_disk / "ballast"
        fill(ballast)
        crew.until(lambda: crew.job(job)["state"] == "paused")
        assert "full" in crew.job(job)["progress"]["message"]
        fill(ballast)
        assert crew.client.get("/runs").status_code == 200
        kept = crew.job(job)["artifacts"]
        assert all(crew.client.get(f"/jobs/{job}/artifacts/{name}").status_code == 200 for name in kept)
        problem(crew.client.post("/jobs", json={"kind": "count", "request": {"iterations": 1}}), 507)
        ballast.unlink()
        found = crew.over(job)
        assert found["result"] == {"value": counted(3000)}
        assert found["attempts"] >= 2
        figure(4, f"job paused and finished later, {len(kept)} of {len(kept)} artifacts served, a new job 507")
    finally:
        crew.close()


def test_a_full_disk_at_the_real_write_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a small disk: ``os.replace`` of the job's state has no space, then has."""
    from tests.backend.conftest import api_for, serving
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker
    from tokenpaths.engine.base import files

    real, full = files.rename_durably, True

    def renamed(source: Path, target: Path) -> None:
        if full and target.name == "state.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(files, "rename_durably", renamed)
    monkeypatch.setattr("tokenpaths.backend.jobs.runner.PAUSE_SECONDS", 0.2)
    options = {"data_dir": tmp_path / "data", "worker_secret": SECRET, "warm_models": False}
    options |= {"job_free_megabytes": 0.001, "least_free_megabytes": 0}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        answer = served.client.post(f"{API}/jobs", json={"kind": "count", "request": {"iterations": 200}})
        job, ends = answer.json()["job"], time.monotonic() + 60
        while served.get(f"/jobs/{job}").json()["state"] != "paused":
            assert time.monotonic() < ends
            time.sleep(0.01)
        full = False
        while (found := served.get(f"/jobs/{job}").json())["state"] != "succeeded":
            assert time.monotonic() < ends, found
            time.sleep(0.02)
        assert found["result"] == {"value": counted(200)}
    shutil.rmtree(tmp_path / "data")
