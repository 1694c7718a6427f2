"""The machine goes down: API, worker and page are killed at once, and start again over the same data folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backend.conftest import API
from tests.support.checkpoints import save_tiny
from tests.support.command_line import TOKENPATHS, children_of, read_until
from tokenpaths.engine.jobs.registry import MOST_REPEATED

PATIENCE_SECONDS = 200.0
ITERATIONS = 448
Started = tuple[subprocess.Popen[str], str, str]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[], Started]]:
    """Start ``tokenpaths up`` over ``tmp_path``; (process, address of the API, address of the page)."""
    started: list[subprocess.Popen[str]] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENPATHS_")}
    environment |= {"TOKENPATHS_JOB_LEASE_SECONDS": "1", "TOKENPATHS_WARM_MODELS": "false", "OMP_NUM_THREADS": "1"}
    command = [*TOKENPATHS, "up", "--data-dir", str(tmp_path), "--port", "0", "--page-port", "0"]

    def start() -> Started:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        lines = read_until(process, "Ctrl-C")
        said = {line.split()[0]: line.split()[-1] for line in lines if "http" in line}
        return process, said["API"].removesuffix("/docs"), said["page"]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def job_of(client: httpx.Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"{API}/jobs/{job}").json()
    return found


def until(client: httpx.Client, job: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition(found := job_of(client, job)):
        assert time.monotonic() < ends, found
        time.sleep(0.05)
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_dream_and_a_waiting_trace_survive_the_machine_going_down(up: Callable[[], Started], tmp_path: Path) -> None:
    save_tiny(tmp_path / "models" / "tiny", "vision")
    process, api, _ = up()
    dream = {"model": "tiny", "target": {"of": "class", "index": 0}, "image": {"iterations": ITERATIONS}}
    trace = {"model": "tiny", "data": "bundled:scenes", "limit": 4, "run": "afterwards", "twin": False}
    with httpx.Client(base_url=api, trust_env=False, timeout=60) as client:
        names = []
        for kind, request in (("dream", dream), ("trace", trace)):
            answer = client.post(f"{API}/jobs", json={"kind": kind, "request": request})
            assert answer.status_code == 202, answer.text
            names.append(answer.json()["job"])
        far = until(client, names[0], lambda job: job["progress"]["done"] >= 2 * MOST_REPEATED)["progress"]["done"]
        assert job_of(client, names[0])["state"] == "running"
        assert job_of(client, names[1])["state"] == "waiting"
    children = children_of(process)
    assert set(children) == {"worker", "api", "tokenpaths.frontend.server.serve"}
    for pid in (process.pid, *children.values()):
        with suppress(ProcessLookupError):  # a child may be gone with its parent already
            os.kill(pid, signal.SIGKILL)
    process.wait(30)
    assert far < ITERATIONS
    assert not (tmp_path / "runs" / "afterwards.duckdb").exists()

    _, api, page = up()
    assert httpx.get(f"{page}/_stcore/health", trust_env=False).text == "ok"
    with httpx.Client(base_url=api, trust_env=False, timeout=60) as client:
        again = until(client, names[0], lambda job: job["attempts"] == 2 and job["state"] != "waiting")
        assert again["progress"]["done"] >= far - MOST_REPEATED, "it began anew"
        over = [until(client, name, lambda job: job["state"] not in ("waiting", "running")) for name in names]
        assert [job["state"] for job in over] == ["succeeded", "succeeded"], [job["problem"] for job in over]
        assert over[0]["progress"]["done"] == ITERATIONS
        assert over[1]["attempts"] == 1
        assert client.get(f"{API}/runs/afterwards").json()["num_samples"] == 4
    assert not list((tmp_path / "runs").glob(".*"))
