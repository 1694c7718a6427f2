"""Long work as generators that yield progress, return the result, and leave nothing behind when closed early."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from tokenpaths.engine.base.lifecycle import SealedOnce

Progress = TypeVar("Progress")
Other = TypeVar("Other")
Result = TypeVar("Result")


def run_with_progress(work: Generator[Progress, None, Result], on_progress: Callable[[Progress], None]) -> Result:
    """Run ``work`` to its end and return its result; an exception of ``on_progress`` closes it at once."""
    with closing(work):
        while True:
            try:
                progress = next(work)
            except StopIteration as end:
                result: Result = end.value
                return result
            on_progress(progress)


def map_progress(
    work: Generator[Progress, None, Result], convert: Callable[[Progress], Other]
) -> Generator[Other, None, Result]:
    """``work`` with ``convert`` applied to each progress report."""
    with closing(work):
        while True:
            try:
                progress = next(work)
            except StopIteration as end:
                result: Result = end.value
                return result
            yield convert(progress)


SIGN_OF_LIFE_S = 1.0
"""seconds between two yields within one stage"""


class _Stopped(BaseException):
    """The caller has closed the generator. Not an ``Exception``, so that nothing takes it for a failed stage."""


def seal_in_stages(writer: SealedOnce) -> Generator[str, None, Path]:
    """Seal in a thread; yield ``sealing: flows and usage (4 of 10)`` at each stage and once a second, return the file.

    Closed early, sealing ends behind the running stage as if interrupted there: nothing is left of a run, or the run
    without the slow answers if those were being computed. Errors of the sealing are raised here.
    """
    stages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stop = threading.Event()
    outcome: dict[str, Any] = {}

    def on_stage(name: str, done: int, of: int) -> None:
        if stop.is_set():
            raise _Stopped
        stages.put(f"sealing: {name}" + (f" ({done + 1} of {of})" if done < of else ""))

    def work() -> None:
        try:
            outcome["file"] = writer.seal(on_stage)
        except BaseException as error:
            outcome["error"] = error
        stages.put(None)

    thread = threading.Thread(target=work, name="sealing")
    thread.start()
    stage: str | None = "sealing"
    try:
        while stage is not None:
            with suppress(queue.Empty):
                stage = stages.get(timeout=SIGN_OF_LIFE_S)
            if stage is not None:
                yield stage
    finally:
        stop.set()
        thread.join()
    if "error" in outcome:
        raise outcome["error"]
    file: Path = outcome["file"]
    return file
