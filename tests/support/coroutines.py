"""Run a coroutine in an event loop of its own thread, since the tests share their process."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_alone(coroutine: Coroutine[object, object, T]) -> T:
    """Run ``coroutine`` in a new event loop in a new thread; returns or raises what it does.

    The browser of other tests keeps a loop running in the main thread until the process ends, where `asyncio.run`
    refuses to start a second one; pytest-xdist decides at run time which tests share a process.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()  # noqa: TID251
