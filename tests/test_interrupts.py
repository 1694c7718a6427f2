"""Ctrl-C reaches the processes that tests start, also where the suite itself was started with SIGINT ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# In short naps: a signal that comes just before a sleep is heard after it only.
WAITING = "import time; print('ready', flush=True); [time.sleep(0.05) for _ in range(1200)]"
INSIDE = "TESTS_STARTED_WITH_SIGINT_IGNORED"


def interrupted() -> int:
    """The status of a child that got SIGINT."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        return child.wait(30)


def test_a_child_hears_ctrl_c() -> None:
    assert interrupted() == -signal.SIGINT


@pytest.mark.skipif(INSIDE in os.environ, reason="this is the suite that the test below starts")
def test_a_child_hears_ctrl_c_of_a_suite_in_the_background() -> None:
    """Pytest over this file, with SIGINT ignored as `nohup make test &` in a script hands it down."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
        cwd=ROOT,
        env=os.environ | {INSIDE: "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
