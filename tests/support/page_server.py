"""The page's server as a process of its own, without an API behind it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "x3JJHMbDL1EzLkh9GBhXDw==",
}


@dataclass(frozen=True)
class PageServer:
    """Where it listens, its process, and what it wrote."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=30)

    def handshake(self, **headers: str) -> int:
        """Status of a WebSocket's handshake."""
        lines = [
            f"{name}: {value}" for name, value in {"host": f"127.0.0.1:{self.port}", **HANDSHAKE, **headers}.items()
        ]
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall("\r\n".join(["GET /_stcore/stream HTTP/1.1", *lines, "", ""]).encode())
            return int(connection.recv(1000).split()[1])


@contextmanager
def page_server(
    folder: Path, token: str = "", api: str = "http://127.0.0.1:9", before: Sequence[str] = (), port: int = 0
) -> Iterator[PageServer]:
    """Start a page's server and end it.

    Args:
        folder: Where its log is written.
        api: Address of the API; by default nobody listens there.
        before: A command to start it with, such as ``["prlimit", "--nofile=1024"]``.
        port: Where to listen; 0: any free port.
    """
    port = port or free_port()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOKENPATHS_", "STREAMLIT_"))
    }
    environment |= {"TOKENPATHS_API_URL": api, "PYTHONPATH": str(ROOT)}
    environment |= {"TOKENPATHS_TOKEN": token} if token else {}
    flags = {
        "server.address": "127.0.0.1",
        "server.port": port,
        "server.headless": "true",
        "browser.gatherUsageStats": "false",
        "global.developmentMode": "false",
    }
    command = [*before, sys.executable, "-P", "-m", "tokenpaths.frontend.server.serve"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    for host in ("127.0.0.1", "localhost"):
        command += ["--server.allowedHosts", host]
    log = folder / f"page-{port}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    served = PageServer(port, process, log)
    try:
        ends = time.monotonic() + START_SECONDS
        with served.client() as client:
            while not _answers(client):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < ends, log.read_text()
                time.sleep(0.1)
        yield served
    finally:
        process.terminate()
        process.wait(30)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/_stcore/health").status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
