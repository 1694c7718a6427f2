"""Many at once: idle connections, readers that do not read, ten thousand requests."""

from __future__ import annotations

import asyncio
import collections
import os
import resource
import socket
import statistics
import time
from pathlib import Path

import pytest

from benchmarks.crew import Crew
from tests.faults.conftest import Keep, memory
from tests.support.coroutines import run_alone

IDLE, HEALTH_S, REQUESTS, P99_S = 200, 0.05, 10_000, 5.0
MEGABYTE = 1_000_000


def test_idle_connections_do_not_slow_health(api_process: Crew, figure: Keep) -> None:
    """200 connections that say nothing and one that asks for an export and reads nothing, while health is asked for"""
    url = api_process.client.base_url
    there = (url.host, url.port)
    idle = [socket.create_connection(there) for _ in range(IDLE)]
    lazy = socket.create_connection(there)
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.sendall(b"GET /api/v1/runs/big/export/token.csv HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        seconds = []
        for _ in range(40):
            began = time.perf_counter()
            assert api_process.client.get(f"http://{url.host}:{url.port}/healthz").status_code == 200
            seconds.append(time.perf_counter() - began)
        assert api_process.client.get("/runs/vision").status_code == 200
    finally:
        for connection in [*idle, lazy]:
            connection.close()
    assert statistics.median(seconds) < 4 * HEALTH_S
    middle, worst = statistics.median(seconds), max(seconds)
    figure(10, f"median {1000 * middle:.1f} ms, worst of {len(seconds)} {1000 * worst:.0f} ms")


def questions() -> list[str]:
    """200 different ones about a run of 96,000 tokens."""
    many = [f"/flow?label={label}&min_share={n / 1000}" for label in ("circle", "square") for n in range(40)]
    many += [f"/flow?through={step}.{module}" for step in range(5) for module in range(6)]
    many += [f"/paths?limit={n}" for n in range(1, 41)] + [f"/samples/{n}" for n in range(40)]
    many += [f"/distributions/compute?bins={n}" for n in range(1, 11)]
    return [f"/api/v1/runs/big{question}" for question in many]


async def ask(host: str, port: int, address: str, go: asyncio.Event, ready: asyncio.Semaphore) -> tuple[int, float]:
    """(status, seconds) of one GET over a connection of its own that is open before all are sent."""
    async with ready:
        reader, writer = await asyncio.open_connection(host, port)
    await go.wait()
    began = time.perf_counter()
    writer.write(f"GET {address} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head = await reader.read(65536)
    while await reader.read(65536):
        pass
    writer.close()
    status = int(head.split()[1])
    assert status != 503 or b"retry-after" in head.lower()
    return status, time.perf_counter() - began


@pytest.mark.slow_fault
@pytest.mark.timeout(400)
def test_ten_thousand_requests_at_once(api_process: Crew, figure: Keep) -> None:
    """10,000 open connections send one GET each at the same moment: 200 different questions, nothing computed before"""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    number = REQUESTS if most > REQUESTS + 500 else most - 500
    host, port = api_process.client.base_url.host, api_process.client.base_url.port
    assert api_process.api is not None
    pid = api_process.api.pid
    before, cpu_before = memory(pid, "VmRSS"), cpu_seconds(pid)
    asked = questions()

    async def all_at_once() -> list[tuple[int, float]]:
        go, ready = asyncio.Event(), asyncio.Semaphore(200)
        tasks = [asyncio.create_task(ask(host, port, asked[n % len(asked)], go, ready)) for n in range(number)]
        while _open(pid) < number:
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in tasks), "a connection was refused"
        go.set()
        return await asyncio.gather(*tasks)

    answers = run_alone(all_at_once())
    cpu = cpu_seconds(pid) - cpu_before
    statuses = collections.Counter(status for status, _ in answers)
    seconds = sorted(second for _, second in answers)
    p99 = seconds[int(0.99 * len(seconds))]
    assert set(statuses) <= {200, 429, 503}
    assert statuses[200] > 0
    assert p99 < 4 * P99_S
    assert api_process.client.get("/runs/big/flow").status_code == 200, "and afterwards all is well"
    grown = memory(pid, "VmRSS") - before
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores, {cpu:.1f} s of one core used by the API"
    told = ", ".join(f"{count:,} × {status}" for status, count in sorted(statuses.items()))
    figure(
        16,
        f"{told}; p50 {seconds[len(seconds) // 2]:.1f} s, p99 {p99:.1f} s ({load}); memory +{grown / MEGABYTE:.0f} MB",
    )


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that a process has used. Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _open(pid: int) -> int:
    """Connections that the process has accepted."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
