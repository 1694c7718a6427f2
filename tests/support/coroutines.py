"""Coroutines of tests that share their process with others."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_alone(coroutine: Coroutine[object, object, T]) -> T:
    """What ``coroutine`` returns or raises, from a loop in a thread of its own.

    The browser of other tests keeps a loop running in the main thread until the process ends, and `asyncio.run`
    refuses to start a second one there: which tests share a process is decided while they run (pytest-xdist).
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()  # noqa: TID251
