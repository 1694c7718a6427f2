"""Test processes: an API and workers over one data folder, which may be killed at any moment."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
API = "/api/v1"


class Crew:
    """An API and workers as separate processes over one data folder; ``module`` is the module that starts them."""

    patience_s = 150.0

    def __init__(self, data_dir: Path, *, module: str = "tokenpaths.backend.serve", **settings: object) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        chosen = {
            "data_dir": data_dir,
            "port": self.port,
            "worker_secret": secrets.token_hex(16),
            "warm_models": "false",
            **settings,
        }
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENPATHS_")}
        self.environment |= {f"TOKENPATHS_{name.upper()}": str(value) for name, value in chosen.items()}
        self.module, self.data_dir, self.log = module, data_dir, data_dir.parent / "processes.log"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}{API}", timeout=60, trust_env=False)
        self.api: subprocess.Popen[bytes] | None = None

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, role], env=self.environment, cwd=ROOT, stdout=log, stderr=log
            )

    def staff(self, number: int) -> None:
        """Keep ``number`` workers alive; new ones take a moment to start."""
        self.workers = [one for one in self.workers if one.poll() is None]
        while len(self.workers) < number:
            self.workers.append(self._start("worker"))

    def start_api(self) -> None:
        """Start the API and wait until it responds."""
        self.api = self._start("api")
        self.until(lambda: self.get("/jobs") is not None)

    def get(self, path: str) -> dict[str, Any] | None:
        """The response as JSON; None while the API does not respond."""
        try:
            return self.client.get(path).json()
        except httpx.TransportError:
            return None

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for ``condition``; AssertionError with the end of the log after ``patience_s``."""
        ends = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < ends, self.log.read_text()[-3000:]
            time.sleep(0.03)

    def submit(self, kind: str, **request: object) -> str:
        """Queue a job; returns its name."""
        answer = self.client.post("/jobs", json={"kind": kind, "request": request})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job"])

    def job(self, job: str) -> dict[str, Any]:
        """The current state of the job."""
        found = self.get(f"/jobs/{job}")
        assert found is not None
        return found

    def over(self, job: str) -> dict[str, Any]:
        """Wait for the job to end and return it."""
        self.until(lambda: self.job(job)["state"] in ("succeeded", "failed", "cancelled"))
        return self.job(job)

    def holder(self, job: str) -> subprocess.Popen[bytes] | None:
        """The worker that holds the job's lease."""
        with sqlite3.connect(self.data_dir / "jobs.sqlite") as con:
            (worker,) = con.execute("SELECT worker FROM job WHERE job = ?", (job,)).fetchone()
        pid = int(worker.split("-")[-2]) if worker else 0
        return next((one for one in self.workers if one.pid == pid and one.poll() is None), None)

    def kill_holder(self, job: str) -> None:
        """``kill -9`` the worker that holds the job's lease."""
        self.until(lambda: self.holder(job) is not None)
        held = self.holder(job)
        assert held is not None
        held.send_signal(signal.SIGKILL)
        held.wait()
        self.workers.remove(held)

    def close(self) -> None:
        """Stop all processes."""
        for process in [*self.workers, self.api]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self.client.close()
