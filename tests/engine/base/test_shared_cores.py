"""Processes of the background let others have the cores first, also those of other sessions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenpaths.engine.base import shared_cores

REPORT = """
import os
from pathlib import Path
from tokenpaths.engine.base.shared_cores import SESSION_GROUP, stand_back
stand_back({by})
print(os.nice(0), SESSION_GROUP.read_text().split("nice ")[1].strip() if SESSION_GROUP.exists() else os.nice(0))
"""


@pytest.mark.skipif(not hasattr(os, "nice"), reason="no niceness on this system")
@pytest.mark.parametrize("by", [0, 3])
def test_a_session_stands_back_as_far_as_its_process(by: int) -> None:
    child = subprocess.run(
        ["nice", "-n", "4", sys.executable, "-c", REPORT.format(by=by)],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    wanted = str(min(19, os.nice(0) + 4 + by))
    assert child.stdout.split() == [wanted, wanted]


def test_a_system_without_such_groups_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cores, "SESSION_GROUP", tmp_path / "nothing" / "there")
    shared_cores.stand_back(0)


def test_threads_sleep_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (shared_cores.POLICY, shared_cores.BLAS_TIMEOUT, *shared_cores.OTHERS):
        monkeypatch.delenv(name, raising=False)
    shared_cores.wait_asleep()
    assert (os.environ[shared_cores.POLICY], os.environ[shared_cores.BLAS_TIMEOUT]) == ("passive", "4")
    monkeypatch.setenv(shared_cores.BLAS_TIMEOUT, "20")
    monkeypatch.delenv(shared_cores.POLICY)
    monkeypatch.setenv(shared_cores.OTHERS[0], "5")
    shared_cores.wait_asleep()
    assert shared_cores.POLICY not in os.environ
    assert os.environ[shared_cores.BLAS_TIMEOUT] == "20"


def test_each_part_is_worked_on_once_while_the_next_is_waited_for() -> None:
    begun, at_once, done = threading.Barrier(2, timeout=10), [], []

    def work(part: int) -> None:
        if part < 2:  # neither ends before both have begun
            begun.wait()
            at_once.append(threading.get_ident())
        done.append(part)

    shared_cores.on_two_cores(iter(range(50)), work)
    assert sorted(done) == list(range(50))
    assert len(set(at_once)) == 2


@pytest.mark.parametrize("place", ["parts", "work"])
def test_what_goes_wrong_in_either_thread_is_raised_here(place: str) -> None:
    def parts() -> Iterator[int]:
        yield from range(5)
        if place == "parts":
            raise OSError("cut off")

    def work(part: int) -> None:
        if place == "work" and part == 3:
            raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        shared_cores.on_two_cores(parts(), work)


def test_after_a_fault_the_other_thread_stops() -> None:
    done = []

    def work(part: int) -> None:
        if part == 0:
            raise KeyboardInterrupt
        time.sleep(0.01)
        done.append(part)

    with pytest.raises(KeyboardInterrupt):
        shared_cores.on_two_cores(iter(range(1000)), work)
    assert len(done) < 100


@pytest.mark.parametrize("number", [0, 1, 2, 7])
def test_two_parts_at_once_come_in_their_order(number: int) -> None:
    threads = set()

    def work(part: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.002 * (number - part))  # the later, the sooner
        return part * part

    assert list(shared_cores.two_at_once(iter(range(number)), work)) == [part * part for part in range(number)]
    assert len(threads) == min(2, number)


def test_what_fails_in_the_other_thread_fails_here() -> None:
    def work(part: int) -> int:
        if part == 1:
            raise ValueError("the second")
        return part

    made = shared_cores.two_at_once(iter(range(4)), work)
    assert next(made) == 0
    with pytest.raises(ValueError, match="the second"):
        next(made)
