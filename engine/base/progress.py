"""Long work as a generator: yields how far it is, returns what it made, and leaves nothing when it is closed early."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from tokenpaths.engine.base.lifecycle import SealedOnce

How = TypeVar("How")
Made = TypeVar("Made")
Was = TypeVar("Was")


def followed(parts: Generator[How, None, Made], on_progress: Callable[[How], None]) -> Made:
    """Work to the end, telling of each part; what ``parts`` returns. An exception on the way ends it at once."""
    kept = _Kept(parts)
    with closing(parts):
        for progress in kept:
            on_progress(progress)
    return kept.made


def reworded(parts: Generator[Was, None, Made], how: Callable[[Was], How]) -> Generator[How, None, Made]:
    """``parts`` with its progress in other words."""
    kept = _Kept(parts)
    with closing(parts):
        for progress in kept:
            yield how(progress)
    return kept.made


class _Kept(Generic[Was, Made]):
    """Goes through ``parts``, and keeps what it returns at its end."""

    made: Made

    def __init__(self, parts: Generator[Was, None, Made]) -> None:
        self._parts = parts

    def __iter__(self) -> Generator[Was, None, None]:
        self.made = yield from self._parts


SIGN_OF_LIFE_S = 1.0
"""between two yields while one stage of the sealing lasts"""


class _Stopped(BaseException):
    """Nobody waits for the sealing any more. No ``Exception``: nothing on the way may take it for a failed stage."""


def sealed(writer: SealedOnce) -> Generator[str, None, Path]:
    """Seal, and say where that is: yields ``sealing: flows and usage (4 of 10)`` at each stage and once a second, so
    that who waits can also stop; returns the file.

    Closed early, it ends behind the stage at work as if sealing had been interrupted there: nothing is left of a run,
    or the run without the answers that take long, if it was at those. What the sealing raises is raised here.
    """
    stages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stop = threading.Event()
    ended: dict[str, Any] = {}

    def on_stage(name: str, done: int, of: int) -> None:
        if stop.is_set():
            raise _Stopped
        stages.put(f"sealing: {name}" + (f" ({done + 1} of {of})" if done < of else ""))

    def work() -> None:
        try:
            ended["file"] = writer.seal(on_stage)
        except BaseException as error:
            ended["error"] = error
        stages.put(None)

    thread = threading.Thread(target=work, name="sealing")
    thread.start()
    words: str | None = "sealing"
    try:
        while words is not None:
            with suppress(queue.Empty):
                words = stages.get(timeout=SIGN_OF_LIFE_S)
            if words is not None:
                yield words
    finally:
        stop.set()
        thread.join()
    if "error" in ended:
        raise ended["error"]
    file: Path = ended["file"]
    return file
