"""Loops and threads that no exception ends in silence.

Some errors are no ``Exception``: the panic of a Rust library (pyo3's ``PanicException``), ``SystemExit`` of a library
that means to end its process, ``StopIteration``, which no asyncio future can hold. ``contained`` turns them into one;
``repeat`` and ``keep_running`` log whatever a loop raises and go on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0
"""a loop that fails at every turn waits twice as long after each failure, up to this"""
UNREADABLE = "its message cannot be read"
P = ParamSpec("P")
T = TypeVar("T")


class ThreadFailure(RuntimeError):
    """What work in a thread raised that is no ordinary exception; ``__cause__`` is the original."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {safe_text(error)}")
        self.kind = type(error).__name__


def contained(work: Callable[P, T]) -> Callable[P, T]:
    """``work``, but every failure is an ``Exception``: a ThreadFailure in place of whatever is none."""

    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except Exception as error:
            if isinstance(error, StopIteration):
                raise ThreadFailure(error) from error
            if safe_text(error) == UNREADABLE:  # whoever asks for its message would fail too
                log.error("%s, whose message cannot be read", type(error).__name__, exc_info=error)
                raise ThreadFailure(error) from None
            raise
        except BaseException as error:
            raise ThreadFailure(error) from error

    return inner


def safe_text(error: BaseException) -> str:
    """The message of an error, also where its ``__str__`` raises."""
    try:
        return str(error) or "no message"
    except Exception:
        return UNREADABLE


def is_own_end(error: BaseException) -> bool:
    """Whether an exception is meant for the running task or process itself: a cancel of this task, Ctrl-C.

    A ``CancelledError`` that nobody asked of this task comes from something it waited for, and is not.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


async def repeat(what: str, step: Callable[[], Awaitable[object]], every_s: Callable[[], float]) -> None:
    """Await ``step`` again and again until this task is cancelled, with ``every_s()`` seconds between.

    Args:
        what: Names the loop in the log.
    """
    failures = 0
    while True:
        try:
            await step()
            failures = 0
        except BaseException as error:
            if is_own_end(error):
                raise
            failures += 1
            _log_failure(what, error)
        await asyncio.sleep(every_s() + (_pause(failures) if failures else 0.0))


def keep_running(what: str, work: Callable[[], object]) -> threading.Thread:
    """A started daemon thread that runs ``work`` until it returns, again after whatever it raises."""

    def loop() -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                work()
                return
            except BaseException as error:
                failures = 1 if time.monotonic() - began > LONGEST_PAUSE_SECONDS else failures + 1
                _log_failure(what, error)
            time.sleep(_pause(failures))

    thread = threading.Thread(target=loop, name=what, daemon=True)
    thread.start()
    return thread


def _pause(failures: int) -> float:
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (min(failures, 16) - 1))


def _log_failure(what: str, error: BaseException) -> None:
    log.error("%s failed (%s) and goes on", what, type(error).__name__, exc_info=error)
