"""Few at a time: work that waits too long is told to come back (503 with Retry-After) instead of piling up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import Gauge

from backend.problems import busy


class Slots:
    """A semaphore with a longest wait.

    Belongs to one event loop. ``what`` completes the sentence "The server is busy with …".
    """

    def __init__(
        self,
        count: int,
        wait_s: float,
        what: str,
        *,
        working: Gauge | None = None,
        waiting: Gauge | None = None,
    ) -> None:
        self.semaphore = asyncio.Semaphore(count)
        self.count, self.wait_s, self.what = count, wait_s, what
        self.working, self.waiting = working, waiting

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Hold one slot; Problem 503 when none came free in time."""
        await self._acquire()
        if self.working is not None:
            self.working.inc()
        try:
            yield
        finally:
            self.semaphore.release()
            if self.working is not None:
                self.working.dec()

    async def _acquire(self) -> None:
        if self.waiting is not None:
            self.waiting.inc()
        try:
            async with asyncio.timeout(self.wait_s):
                await self.semaphore.acquire()
        except TimeoutError:
            raise busy(
                f"The server is busy with {self.what} ({self.count} at a time); try again in a moment."
            ) from None
        finally:
            if self.waiting is not None:
                self.waiting.dec()
