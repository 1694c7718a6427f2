"""``tokenpaths up``: starts its processes, starts them again, and stops them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest

from tests.backend.conftest import API
from tests.support.command_line import ROOT, TOKENPATHS, children_of, own_modules, plain_environment, read_until
from tests.support.runs import make_run
from tokenpaths.backend.jobs.rows import JobRow
from tokenpaths.backend.jobs.service import job_table
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.demo import FIRST, missing_runs
from tokenpaths.cli.up import _refuse_shared_port
from tokenpaths.engine.base.errors import UserError


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with one good and one broken run."""
    make_run(tmp_path / "runs", "good", samples=3)
    (tmp_path / "runs" / "broken.duckdb").write_bytes(b"not a run")
    return tmp_path


@pytest.fixture
def start_up(data_dir: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `tokenpaths up` beside modules of the user's own; whatever happens, it is ended."""
    started: list[subprocess.Popen[str]] = []
    own_modules(data_dir)
    environment = plain_environment(TOKENPATHS_WARM_MODELS="false", OMP_NUM_THREADS="1")

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [*TOKENPATHS, "up", "--data-dir", str(data_dir), *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=data_dir,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for_worker(client: httpx.Client) -> None:
    """Until the worker lists its models; on a busy machine its first answer is late."""
    ends = time.monotonic() + 240
    while client.get(f"{API}/models").status_code != 200:
        assert time.monotonic() < ends, "the worker does not answer"
        time.sleep(0.2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_up_starts_mends_and_stops(start_up: Callable[..., subprocess.Popen[str]]) -> None:
    """API and worker come up; a killed worker comes back; no secret shows in the process list; Ctrl-C is 130."""
    process = start_up("--no-page", "--port", "0")
    lines = read_until(process, "Ctrl-C")
    url = next(line.split()[-1] for line in lines if "http" in line).removesuffix("/docs")
    with httpx.Client(base_url=url, trust_env=False, timeout=240) as client:
        assert client.get("/healthz").json()["status"] == "ok"
        assert {card["run"] for card in client.get(f"{API}/runs").json()["runs"]} == {"good", "broken"}
        wait_for_worker(client)
        children = children_of(process)
        assert set(children) == {"worker", "api"}
        for pid in children.values():
            environment = Path(f"/proc/{pid}/environ").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_text()
            secret = next(v for v in environment.split("\0") if v.startswith("TOKENPATHS_WORKER_SECRET="))
            assert len(secret.partition("=")[2]) == 64
            assert secret.partition("=")[2] not in command
        os.kill(children["worker"], signal.SIGKILL)
        read_until(process, "starting it again")
        wait_for_worker(client)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0].count("Stopped.") == 1
    assert process.returncode == 130
    for pid in children_of(process).values():
        assert not Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{children['api']}").exists()


@pytest.mark.parametrize(
    ("host", "page_host", "refused"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("10.0.0.5", "0.0.0.0", True),
        ("10.0.0.5", "127.0.0.1", False),
    ],
)
def test_two_processes_that_would_be_found_at_one_place_are_refused(host: str, page_host: str, refused: bool) -> None:
    ports = {"port": 8123, "page_port": 8123, "worker_port": 0}
    settings = load_settings(host=host, page_host=page_host, **ports)
    with pytest.raises(UserError, match="Port 8123 is given to") if refused else nullcontext():
        _refuse_shared_port(settings, page=True)
    _refuse_shared_port(settings, page=False)


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_starting_ends_it_without_waiting_for_answers(
    start_up: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    """Ctrl-C, or a terminal that is closed"""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever runs the tests has this signal ignored, as `nohup` does, and so has `up`")
    process = start_up("--no-page", "--port", "0")
    lines = read_until(process, "Starting")
    children = children_of(process)
    process.send_signal(number)
    output = "".join(lines) + process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    assert "http" not in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in children.values())


def test_up_on_a_busy_port_says_so(start_up: Callable[..., subprocess.Popen[str]]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start_up("--no-page", "--port", str(taken.getsockname()[1]))
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--port" in output
    assert "Traceback" not in output


@pytest.mark.skipif(not (ROOT / "frontend" / "app.py").exists(), reason="needs the page")
def test_up_starts_the_page_too(start_up: Callable[..., subprocess.Popen[str]]) -> None:
    """The page answers, on loopback only, and does not know the worker's secret."""
    process = start_up("--port", "0", "--page-port", "0")
    lines = read_until(process, "Ctrl-C")
    url = next(line.split()[-1] for line in lines if line.split()[:1] == ["page"])
    assert httpx.get(f"{url}/_stcore/health", trust_env=False).text == "ok"
    if sys.platform.startswith("linux"):
        pid = children_of(process)["tokenpaths.frontend.server.serve"]
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert "TOKENPATHS_WORKER_SECRET" not in environment
        assert "TOKENPATHS_API_URL=http://127.0.0.1:" in environment
        assert "--server.allowedHosts\x00127.0.0.1" in Path(f"/proc/{pid}/cmdline").read_text()
    process.terminate()
    assert process.communicate(timeout=60)[0].count("Stopped.") == 1
    assert process.returncode == 143


def test_up_demo_opens_with_the_first_runs_and_goes_on_where_it_was_stopped(
    start_up: Callable[..., subprocess.Popen[str]], data_dir: Path
) -> None:
    """With the shipped models: both first runs are there when the address is told; Ctrl-C leaves the rest queued."""
    wanted = {run.run_id for run in missing_runs(load_settings(data_dir=data_dir))}
    process = start_up("--demo", "--no-page", "--port", "0")
    lines = read_until(process, "Ctrl-C")
    url = next(line.split()[-1] for line in lines if "http" in line).removesuffix("/docs")
    with httpx.Client(base_url=url, trust_env=False, timeout=240) as client:
        runs = {card["run"] for card in client.get(f"{API}/runs").json()["runs"] if card["status"] == "sealed"}
    assert {"good", *FIRST} <= runs
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    rows = traces(data_dir)
    assert set(rows) == wanted > set(FIRST)
    assert {rows[run].state for run in FIRST} == {"succeeded"}
    assert {row.state for row in rows.values()} <= {"succeeded", "waiting"}
    process = start_up("--demo", "--no-page", "--port", "0")
    read_until(process, "Ctrl-C")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    again = traces(data_dir)
    assert {run: row.job for run, row in again.items()} == {run: row.job for run, row in rows.items()}
    assert not list((data_dir / "runs").glob(".*.partial"))


def traces(data_dir: Path) -> dict[str, JobRow]:
    """Traces of the data folder by the run that they make; each run once."""
    table = job_table(load_settings(data_dir=data_dir))
    rows = [row for row in table.page() if row.kind == "trace"]  # a twin follows each
    table.close()
    by_run = {row.request["run"]: row for row in rows}
    assert len(by_run) == len(rows)
    return by_run
