"""Functions called at a later time, all from one thread: a ``threading.Timer`` for each query would start a thread."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

log = logging.getLogger(__name__)


HANGS_SECONDS = 2.0
"""after which a function that was called counts as hanging"""
LOOKS_SECONDS = 0.5
"""between two looks at the clock while an alarm is set: a machine that stood still may wake with another time"""


class Alarms:
    """Calls functions at their time. One that hangs delays the others until the next alarm is set, no longer."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, list[Callable[[], None]]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._called_at: float | None = None
        """when the function that is running was called"""

    @contextmanager
    def after(self, seconds: int | float, function: Callable[[], None]) -> Iterator[None]:
        """Call ``function`` unless the block ends within ``seconds``."""
        functions = [function]
        with self._changed:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), functions))
            if self._heap[0][2] is functions:
                self._changed.notify()
            # A forked process has the object, not the thread.
            if self._thread is None or not self._thread.is_alive() or self._hangs():
                self._called_at = None
                self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            functions.clear()  # its place in the heap goes when its time comes

    def _hangs(self) -> bool:
        return self._called_at is not None and time.monotonic() - self._called_at > HANGS_SECONDS

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._thread is not me:
                    return  # it hung, and another thread took its place
                self._called_at = None
                while not self._heap or self._heap[0][0] > time.monotonic():
                    left = self._heap[0][0] - time.monotonic() if self._heap else None
                    self._changed.wait(None if left is None else min(left, LOOKS_SECONDS))
                functions = heapq.heappop(self._heap)[2]
                self._called_at = time.monotonic()
            for function in tuple(functions):
                try:
                    function()
                except BaseException:  # the thread serves all others
                    log.exception("an alarm failed")


ALARMS = Alarms()
"""those of this process"""
