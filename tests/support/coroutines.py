"""Run a coroutine in an event loop of its own thread, since the tests share their process."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_alone(coroutine: Coroutine[object, object, T]) -> T:
    """Run ``coroutine`` in a new event loop in a new thread; returns or raises what it does.

    The browser of other tests keeps a loop running in the main thread until the process ends, and `asyncio.run`
    refuses to start a second one there: which tests share a process is decided while they run (pytest-xdist).
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()  # noqa: TID251
