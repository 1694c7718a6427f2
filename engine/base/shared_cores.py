"""How this program's processes share cores: idle threads sleep, what runs in the background stands back, and one
question may take two. No torch, no numpy."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
POLICY = "OMP_WAIT_POLICY"
OTHERS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""finer settings of OpenMP libraries: who set one of them has decided"""
BLAS_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
"""logarithm of the cycles that OpenBLAS's threads (of numpy, SciPy) spin; 26 by itself, tens of milliseconds"""
ASLEEP = {POLICY: "passive", BLAS_TIMEOUT: "4"}
"""what lets idle threads sleep"""
SESSION_GROUP = Path("/proc/self/autogroup")
"""where Linux keeps the priority of a session's processes as a whole"""


def wait_asleep() -> None:
    """Let idle threads sleep while they wait, unless the environment says otherwise.

    A spinning thread takes the core that the other one waits for: where cores are shared the same trace takes two to
    five times as long. Both libraries read the environment when they are loaded, so call this before torch and numpy
    are imported. Child processes inherit it.
    """
    for name, value in ASLEEP.items():
        if name != POLICY or not any(other in os.environ for other in OTHERS):
            os.environ.setdefault(name, value)


def stand_back(by: int = 0) -> None:
    """Raise this process's ``nice`` by so much, and let other sessions have the cores first, too.

    Linux shares cores between sessions first (``sched_autogroup``), and looks at ``nice`` only within one. A service
    has a session of its own, so that ``nice`` alone changes nothing for the others. A child in a new session calls this
    with 0: it inherits the number, and its session knows nothing of it yet.
    """
    if not hasattr(os, "nice"):  # Windows
        return
    niceness = os.nice(by)
    # Not there on other systems and without that kind of scheduler; written ten times a second at most.
    with contextlib.suppress(OSError):
        SESSION_GROUP.write_text(str(niceness), encoding="ascii")


def two_at_once(parts: Iterator[T], work: Callable[[T], R]) -> Iterator[R]:
    """What ``work`` makes of each of ``parts``, in their order, every second one in another thread meanwhile."""
    with ThreadPoolExecutor(1, "beside") as beside:
        for part in parts:
            others = [beside.submit(work, other) for other in islice(parts, 1)]
            yield work(part)
            yield from (other.result() for other in others)


def on_two_cores(parts: Iterator[T], work: Callable[[T], None]) -> None:
    """Do the ``work`` on each of ``parts`` in this thread and in another one, in any order.

    The parts come one after the other: while one thread waits for the next, as for a page of a file, the other works.
    Both gain as far as they are in code that lets other threads run, as DuckDB and numpy do with large arrays.
    """
    turn, ended = threading.Lock(), threading.Event()

    def go_on() -> None:
        try:
            while not ended.is_set():
                with turn:
                    part = next(parts, None)
                if part is None:
                    return
                work(part)
        except BaseException:
            ended.set()  # what is left is not done in the other thread, for which the caller waits
            raise

    with ThreadPoolExecutor(1, "beside") as beside:
        other = beside.submit(go_on)
        go_on()
        other.result()
