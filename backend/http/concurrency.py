"""Limits on concurrent work: requests that wait too long or exceed a maximum get 503 with Retry-After."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol

from prometheus_client import Counter, Gauge
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenpaths.backend.problems import busy

LATE_SECONDS = 0.25
UNCOUNTED = re.compile(r"/healthz|/api/v1/jobs/[^/]+/events")


class ConcurrencyLimit:
    """A semaphore with a maximum wait, for one event loop.

    Args:
        count: how many may hold it at once.
        wait_s: seconds after which a waiter gets Problem 503.
        what: completes the sentence "The server is busy with …".
        working, waiting: gauges of holders and waiters.
    """

    def __init__(
        self, count: int, wait_s: float, what: str, *, working: Gauge | None = None, waiting: Gauge | None = None
    ) -> None:
        self.semaphore = asyncio.Semaphore(count)
        self.count, self.wait_s, self.what = count, wait_s, what
        self.working, self.waiting = working, waiting

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Hold one slot for the block; raises Problem 503 when none becomes free within ``wait_s``."""
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
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.wait_s
        try:
            while True:
                try:
                    async with asyncio.timeout_at(ends):
                        await self.semaphore.acquire()
                    return
                except TimeoutError:
                    late = loop.time() - ends
                    if late < LATE_SECONDS:
                        raise busy(
                            f"The server is busy with {self.what} ({self.count} at a time); try again in a moment."
                        ) from None
                    ends = loop.time() + late  # the event loop was blocked, so no slot could be released meanwhile
        finally:
            if self.waiting is not None:
                self.waiting.dec()


class CachedAnswer(Protocol):
    """Interface of ``tokenpaths.backend.runs.answers.Answers.cached``: the response to a repeated request, or None."""

    def __call__(self, scope: Scope, *, wait: bool) -> Awaitable[Response | None]: ...


class RequestLimit:
    """ASGI middleware that serves repeated requests from the response cache and refuses more than ``limit`` with 503.

    ``/healthz`` is always served. Job event streams are not counted: they stay open for hours and have a limit of their
    own.
    """

    def __init__(self, app: ASGIApp, limit: int, inside: Gauge, refused: Counter, cached: CachedAnswer) -> None:
        self.app, self.limit, self.cached = app, limit, cached
        self.inside, self.refused = inside, refused
        self.num_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or UNCOUNTED.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        answer = await self.cached(scope, wait=False)
        if answer is not None:
            await answer(scope, receive, send)
            return
        crowded = scope.get("state", {}).get("crowded", False)  # by ``connections.LimitedProtocol``
        if self.num_inside >= self.limit or crowded:
            self.refused.inc()
            problem = busy(f"{self.num_inside:,} requests are being answered already; try again in a moment.")
            if crowded:
                problem.headers["connection"] = "close"
            await problem.response(scope["path"])(scope, receive, send)
            return
        self.num_inside += 1
        self.inside.set(self.num_inside)
        try:
            answer = await self.cached(scope, wait=True)
            await (answer or self.app)(scope, receive, send)
        finally:
            self.num_inside -= 1
            self.inside.set(self.num_inside)
