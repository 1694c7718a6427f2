"""Long work as a generator: yields how far it is, returns what it made, and leaves nothing when it is closed early."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar

How = TypeVar("How")
Made = TypeVar("Made")


def followed(parts: Generator[How, None, Made], on_progress: Callable[[How], None]) -> Made:
    """Work to the end, telling of each part; what ``parts`` returns. An exception on the way ends it at once."""
    with closing(parts):
        while True:
            try:
                progress = next(parts)
            except StopIteration as end:
                made: Made = end.value
                return made
            on_progress(progress)
