"""``tokenpaths jobs`` and ``tokenpaths worker``: the queue from a terminal, without an API."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command_line import TOKENPATHS, plain_environment, run_cli
from tokenpaths.backend.jobs.service import Jobs
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.main import main


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(load_settings(data_dir=tmp_path))


def submit(jobs: Jobs, **changes: object) -> str:
    request = {"model": "dna-vision-top1", "data": "bundled:scenes", "limit": 4, "batch_size": 2, "twin": False}
    return str(jobs.submit("trace", request | changes)["job"])


def test_the_queue_from_a_terminal(jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = submit(jobs), submit(jobs)
    where = ["--data-dir", str(tmp_path)]

    def said(*arguments: str, code: int = 0) -> str:
        assert main([*arguments]) == code
        out = capsys.readouterr()
        return out.out + out.err

    assert f"{first}  waiting  1" in said("jobs", *where)
    assert "Trace of " in said("jobs", *where)
    assert "0 workers: `tokenpaths worker` starts one" in said("jobs", *where, "list")
    assert said("jobs", "cancel", first, *where) == f"{first}: cancelled\n"
    over = "is over already: it was cancelled."
    assert said("jobs", "cancel", first, *where, code=2) == f"tokenpaths: {first} {over}\n"
    assert said("jobs", "retry", first, *where) == f"{first}: waiting, place 2\n"
    assert "cancelled job can be tried again, and it is waiting" in said("jobs", "retry", first, *where, code=2)
    assert "cancel it first" in said("jobs", "remove", first, *where, code=2)
    assert "no job 'nobody'" in said("jobs", "show", "nobody", *where, code=2)
    assert "no state 'dead'" in said("jobs", "list", "--state", "dead", *where, code=2)
    listed = json.loads(said("jobs", "list", "--json", "--state", "waiting", *where))
    assert [job["job"] for job in listed["jobs"]] == [second, first]
    said("jobs", "cancel", second, *where)
    assert said("jobs", "remove", second, *where) == f"{second}: removed\n"
    assert json.loads(said("jobs", "show", first, *where))["request"]["limit"] == 4


def test_a_further_worker_does_jobs_until_it_is_stopped(jobs: Jobs, tmp_path: Path) -> None:
    job = submit(jobs, run="made")
    with subprocess.Popen(
        [*TOKENPATHS, "worker", "--data-dir", str(tmp_path)],
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            ends = time.monotonic() + 120
            while jobs.get(job)["state"] != "succeeded":
                assert time.monotonic() < ends, jobs.get(job)
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert "Ctrl-C stops it" in process.stdout.read()
    assert process.returncode == 130
    assert (tmp_path / "runs" / "made.duckdb").is_file()
    assert jobs.table.workers() == 0


def test_the_help_says_what_happens_at_the_end() -> None:
    done = run_cli("worker", "--help")
    assert done.returncode == 0
    assert "gives its job back" in " ".join(done.stdout.split())
