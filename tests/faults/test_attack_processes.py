"""Processes of ``tokenpaths up`` that die again and again or hang, the worker's health, and logs under a flood."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.backend.conftest import API, SECRET, Served, models_dir, tracing  # noqa: F401
from tests.faults.conftest import Keep
from tests.support.command_line import TOKENPATHS, children_of, plain_environment, read_until
from tests.support.jobs import register_count
from tests.support.runs import make_run
from tokenpaths.backend.process_states import VARIABLE
from tokenpaths.backend.settings import SECRET_HEADER
from tokenpaths.cli.support import processes
from tokenpaths.cli.support.processes import Child, pick_port, wait_until_healthy, watch

register_count()
FLOOD = 2000
Start = Callable[..., tuple[dict[str, Child], list[str]]]
"""starts roles with settings; (child by role, what is said at the terminal)"""


def test_the_health_of_a_worker_wants_its_secret_and_its_name(tracing: Served, figure: Keep) -> None:  # noqa: F811
    """Each path of the worker is asked without the secret, with a wrong one, and with names of other hosts"""
    url = tracing.settings.worker_url
    assert url is not None
    right = {SECRET_HEADER: SECRET}
    with httpx.Client(base_url=url, trust_env=False) as client:
        refused = 0
        for path in ("/healthz", "/models", "/models/tiny-text"):
            for headers in ({}, {SECRET_HEADER: "wrong"}):
                answer = client.get(path, headers=headers)
                assert answer.status_code == 401
                assert "tiny" not in answer.text.partition('"instance"')[0]
                refused += 1
            for host in ("evil.example", "127.0.0.1.evil.example", "", "a@b", "localhost:80:80"):
                answer = client.get(path, headers=right | {"host": host})
                assert answer.status_code == 400
                refused += 1
        health = client.get("/healthz", headers=right)
        assert (health.status_code, health.json()["status"], health.json()["restart"]) == (200, "ok", False)
    metrics = tracing.client.get("/metrics").text
    assert "tokenpaths_worker_up 1.0" in metrics
    figure(39, f"{refused} of {refused} refused; with secret and name 200")


@pytest.fixture
def tended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start API and worker of the tests as `up` does, with the kind ``count``; (child by role, what is said)."""
    for name in list(os.environ):
        if name.startswith("TOKENPATHS_"):
            monkeypatch.delenv(name)
    over = threading.Event()
    threads: list[threading.Thread] = []
    children: dict[str, Child] = {}

    def start(*roles: str, **settings: object) -> tuple[dict[str, Child], list[str]]:
        ports = {role: pick_port("127.0.0.1", 0, "--port") for role in ("worker", "api")}
        chosen = {"data_dir": tmp_path / "data", "port": ports["api"], "worker_port": ports["worker"], **settings}
        chosen |= {"worker_secret": SECRET, "warm_models": "false", "job_lease_seconds": 1}
        environment = plain_environment(**{f"TOKENPATHS_{name.upper()}": str(value) for name, value in chosen.items()})
        environment[VARIABLE] = str(tmp_path / "processes.json")
        for role in roles:
            command = [sys.executable, "-m", "tests.support.jobs", role]
            url, log = f"http://127.0.0.1:{ports[role]}/healthz", tmp_path / "data" / "logs" / f"{role}.log"
            children[role] = Child(role, command, url, log, environment, {SECRET_HEADER: SECRET}, 10.0)
        (tmp_path / "data").mkdir(exist_ok=True)
        for child in children.values():
            child.start()
        wait_until_healthy(list(children.values()), 120)
        said: list[str] = []
        arguments = (list(children.values()), said.append, over.is_set, tmp_path / "processes.json")
        threads.append(threading.Thread(target=watch, args=arguments))
        threads[-1].start()
        return children, said

    yield start
    over.set()
    for thread in threads:
        thread.join()
    for child in children.values():
        child.stop()


def client_of(child: Child) -> httpx.Client:
    return httpx.Client(base_url=child.health_url.removesuffix("/healthz"), trust_env=False, timeout=60)


def until(condition: Callable[[], object], limit_s: float = 150) -> float:
    """Wait for ``condition``; seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + limit_s
        time.sleep(0.1)
    return time.monotonic() - began


def test_a_flood_of_refusals_leaves_a_short_log(tended: Start, figure: Keep) -> None:
    """2,000 requests that are refused in eight ways, and a log whose file is moved away in between"""
    children, _ = tended("api")
    log = children["api"].log_file
    with client_of(children["api"]) as client:
        for number in range(FLOOD // 8):
            for path in ("/runs/no", "/nowhere", "/jobs/none", "/runs?odd=1"):
                assert client.get(API + path).status_code in (404, 422)
            assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 400
            assert client.post(f"{API}/jobs", content=b"{").status_code == 415
            assert client.post(f"{API}/jobs", headers={"origin": "http://evil.example"}).status_code == 403
            assert client.request(f"ODD{number}", f"{API}/runs").status_code in (400, 405)
            if number == 10:
                log.rename(log.with_name("moved.log"))
    children["api"].stop()
    until(lambda: "more like" in log.read_text(), 10)
    text = log.read_text()
    assert len(text) < 100_000
    counted = sum(int(line.split("more like")[0].split('"')[-1]) for line in text.splitlines() if "more like" in line)
    assert counted > FLOOD * 0.8
    figure(37, f"{FLOOD:,} refusals: {len(text):,} bytes of log, {counted:,} of them as counts")


@pytest.mark.slow_fault
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_worker_that_keeps_dying_or_hangs_ends_nothing_else(tmp_path: Path, figure: Keep) -> None:
    """Under `tokenpaths up`, the worker is killed until it is paused, later stopped; the others are asked meanwhile"""
    make_run(tmp_path / "runs", "vision", samples=3)
    environment = plain_environment(
        TOKENPATHS_WARM_MODELS="false",
        TOKENPATHS_HUNG_SECONDS="5",
        OMP_NUM_THREADS="1",
        TOKENPATHS_JOB_LEASE_SECONDS="2",
    )
    command = [*TOKENPATHS, "up", "--data-dir", str(tmp_path), "--port", "0", "--page-port", "0"]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        said = {line.split()[0]: line.split()[-1] for line in read_until(up, "Ctrl-C") if "http" in line}
        first = children_of(up)
        printed: list[str] = []
        assert up.stdout is not None
        threading.Thread(target=lambda: printed.extend(up.stdout or ()), daemon=True).start()
        with httpx.Client(base_url=said["API"].removesuffix("/docs"), trust_env=False, timeout=30) as client:
            kills = 0
            while not any("paused" in line for line in printed):
                worker = children_of(up).get("worker")
                if worker is not None:
                    os.kill(worker, signal.SIGKILL)
                    kills += 1
                    until(lambda worker=worker: children_of(up).get("worker") != worker)
                assert client.get(f"{API}/runs").status_code == 200
                assert httpx.get(f"{said['page']}/_stcore/health", trust_env=False).text == "ok"
                assert kills < 20
            health = client.get(f"{API}/health").json()
            assert health["status"] == "impaired"
            sentence = {part["part"]: part["problem"] for part in health["parts"]}["worker"]
            assert "in a row" in sentence
            refused = client.get(f"{API}/models")
            assert refused.status_code == 503
            assert "in a row" in refused.json()["detail"]
            until(lambda: client.get(f"{API}/models").status_code == 200)
            # Asked by `up` itself too: one that has not answered it yet has the longer time of a start.
            time.sleep(3 * processes.LOOK_SECONDS)
            stopped = children_of(up)["worker"]
            os.kill(stopped, signal.SIGSTOP)
            noticed_s = until(lambda: children_of(up).get("worker", stopped) != stopped)
            until(lambda: client.get(f"{API}/models").status_code == 200)
            assert noticed_s < 4 * 10
        now = children_of(up)
        assert {role: now[role] for role in now if role != "worker"} == {r: first[r] for r in first if r != "worker"}
        figure(
            28, f"worker killed {kills} times, then paused with a sentence; stopped: replaced after {noticed_s:.0f} s"
        )
    finally:
        up.terminate()
        up.wait(60)


@pytest.mark.slow_fault
def test_a_job_that_hangs_its_worker_is_set_aside(tended: Start, monkeypatch: pytest.MonkeyPatch, figure: Keep) -> None:
    """A job waits for ever in the thread of the models; `stuck_seconds` is 3; another job waits behind it"""
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.3)
    children, said = tended("api", "worker", stuck_seconds=3)
    with client_of(children["api"]) as client:

        def submit(**request: object) -> str:
            return str(client.post(f"{API}/jobs", json={"kind": "count", "request": request}).json()["job"])

        bad, good = submit(iterations=9, fail_at=3, fail_with="hang"), submit(iterations=9)
        until(lambda: client.get(f"{API}/jobs/{good}").json()["state"] == "succeeded", 280)
        # The next job need not wait for the lease of the lost one to run out.
        took_s = until(lambda: client.get(f"{API}/jobs/{bad}").json()["state"] == "failed", 280)
        card = client.get(f"{API}/jobs/{bad}").json()
    assert (card["state"], card["attempts"]) == ("failed", 3)
    assert "set aside" in card["problem"]["detail"]
    assert sum("stuck_seconds" in line for line in said) == 3
    assert "File" in children["worker"].log_file.read_text(), "where its threads stood"
    figure(28, f"a job that hangs its worker was set aside after three lives, {took_s:.0f} s; the next one ran")
