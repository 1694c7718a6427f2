"""The engine worker stands back; the API does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tokenpaths.backend.settings import SECRET_HEADER
from tokenpaths.cli.support.processes import pick_port


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="no niceness on this system")
@pytest.mark.parametrize(("role", "wanted"), [("worker", 7), ("api", 0)])
def test_only_the_worker_stands_back(role: str, wanted: int, tmp_path: Path) -> None:
    port = pick_port("127.0.0.1", 0, "--port")
    name = "TOKENPATHS_WORKER_PORT" if role == "worker" else "TOKENPATHS_PORT"
    environment = os.environ | {
        name: str(port),
        "TOKENPATHS_DATA_DIR": str(tmp_path),
        "TOKENPATHS_WORKER_NICE": "7",
        "TOKENPATHS_WORKER_SECRET": "s" * 32,
        "TOKENPATHS_WARM_MODELS": "false",
        "TOKENPATHS_WORKER_JOBS": "false",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenpaths.backend.serve", role], env=environment, start_new_session=True
    )
    try:
        until = time.monotonic() + 120
        while True:
            assert process.poll() is None, "it ended"
            assert time.monotonic() < until, "it does not answer"
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", headers={SECRET_HEADER: "s" * 32})
                with urllib.request.urlopen(request, timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        niceness = os.getpriority(os.PRIO_PROCESS, process.pid)
        assert niceness - os.getpriority(os.PRIO_PROCESS, 0) == wanted
        # Linux shares cores between sessions before it looks at the niceness of a process.
        of_session = Path(f"/proc/{process.pid}/autogroup")
        if of_session.exists():
            assert of_session.read_text().split("nice ")[1].strip() == str(niceness if wanted else 0)
    finally:
        process.terminate()
        process.wait(30)
