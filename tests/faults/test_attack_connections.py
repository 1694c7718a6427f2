"""More connections than open files: the API answers others meanwhile, and its log stays short."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.crew import ROOT, Crew
from tests.faults.conftest import Keep
from tests.support.runs import make_run
from tokenpaths.backend.http.connections import HEAD_SECONDS, most_connections

FILES, CONNECTIONS, HEALTH_S, LOG_BYTES = 1024, 1100, 1.0, 100_000
HALVES = {
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nx-half: ",
    "nothing": b"",
    "one letter": b"G",
    "half a body": b"POST /api/v1/traces HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n--x\r\n",
    "a body where none belongs": b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx",
    "an answer not read": b"GET /api/v1/runs/big/export/token.csv HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


class SmallCrew(Crew):
    """Processes that can open ``FILES`` files."""

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        command = f"ulimit -n {FILES} && exec {sys.executable} -m {self.module} {role}"
        with open(self.log, "ab") as log:
            return subprocess.Popen(["bash", "-c", command], env=self.environment, cwd=ROOT, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCrew]:
    """An API that can open 1,024 files."""
    data_dir = tmp_path_factory.mktemp("small") / "data"
    make_run(data_dir / "runs", "vision", samples=30, seed=1)
    make_run(data_dir / "runs", "big", samples=1500, seed=3, twin=False)
    crew = SmallCrew(data_dir)
    try:
        crew.start_api()
        yield crew
    finally:
        crew.close()


@pytest.mark.parametrize(
    "half", [half if half == "half a head" else pytest.param(half, marks=pytest.mark.slow_fault) for half in HALVES]
)
def test_more_connections_than_open_files(small: SmallCrew, half: str, figure: Keep) -> None:
    """1,100 connections that send a half and wait, to an API that may open 1,024 files; others ask meanwhile"""
    url = f"http://127.0.0.1:{small.port}/healthz"
    before = small.log.stat().st_size
    opened: list[socket.socket] = []
    seconds = []
    try:
        for number in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", small.port), timeout=10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            opened.append(connection)
            with suppress(ConnectionError):  # the server may have closed it for a newer one
                connection.sendall(HALVES[half])
            if number % 100 == 99:
                seconds.append(_seconds_of(url))
        for _ in range(20):
            seconds.append(_seconds_of(url))
            time.sleep(0.05)
        assert small.client.get("/runs/vision", timeout=30).status_code in (200, 503)
    finally:
        for connection in opened:
            connection.close()
    small.until(lambda: small.client.get("/runs/vision/flow").status_code == 200)
    grown = small.log.stat().st_size - before
    assert max(seconds) < 4 * HEALTH_S
    assert grown < LOG_BYTES, small.log.read_text()[-3000:]
    figure(27, f"{half}: `/healthz` at worst after {1000 * max(seconds):.0f} ms, log +{grown:,} bytes")


def _seconds_of(url: str) -> float:
    began = time.perf_counter()
    assert httpx.get(url, timeout=20, trust_env=False).status_code == 200
    return time.perf_counter() - began


def test_a_head_has_to_arrive_in_time(small: SmallCrew, figure: Keep) -> None:
    """A client that sends a byte of a head every half second; how long the server listens"""
    began = time.monotonic()
    seconds, answer = 0.0, b""
    with socket.create_connection(("127.0.0.1", small.port), timeout=0.5) as connection:
        while not answer and time.monotonic() - began < 4 * HEAD_SECONDS:
            connection.sendall(b"a" if seconds else b"GET /healthz HTTP/1.1\r\nx-slow: ")
            with suppress(TimeoutError):
                answer = connection.recv(1000)
            seconds = time.monotonic() - began
    assert b" 408 " in answer.split(b"\r\n")[0] + b" "
    assert HEAD_SECONDS - 1 < seconds < 4 * HEAD_SECONDS
    figure(27, f"a slow head: 408 after {seconds:.0f} s")


def test_files_run_out_in_the_middle(tmp_path: Path, figure: Keep) -> None:
    """The process opens every file it may; 200 clients connect meanwhile; then it closes them again"""
    make_run(tmp_path / "data" / "runs", "vision", samples=3)
    crew = SmallCrew(tmp_path / "data", module="tests.faults.no_descriptors")
    try:
        crew.start_api()
        assert crew.api is not None
        url = f"http://127.0.0.1:{crew.port}/healthz"
        crew.api.send_signal(signal.SIGUSR2)  # takes all descriptors for three seconds
        time.sleep(0.5)
        refused = 0
        for _ in range(200):
            try:
                _seconds_of(url)
            except httpx.TransportError:
                refused += 1
        assert refused > 0, "the descriptors ran out"
        crew.until(lambda: crew.get("/runs/vision/flow") is not None)
        text = crew.log.read_text()
        assert len(text) < LOG_BYTES, text[-2000:]
        assert "no connection can be accepted" in text
        figure(27, f"no file left for 3 s: {refused} connections refused at once, log {len(text):,} bytes")
    finally:
        crew.close()


def test_connections_leave_room_for_files() -> None:
    assert most_connections(FILES) <= FILES - 256
    assert most_connections(64) == 32
