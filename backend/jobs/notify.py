"""Wakes those who listen to a job: one look at the file for all of them, four times a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from tokenpaths.backend.jobs.table import JobTable
from tokenpaths.backend.problems import Problem

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.25


class Watch:
    """Looks only while somebody listens. Belongs to one event loop."""

    def __init__(self, table: JobTable) -> None:
        self.table = table
        self.ears: dict[str, set[asyncio.Event]] = {}
        self.looking: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def listening(self, job: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever something happened to the job; clear it before you look."""
        ear = asyncio.Event()
        self.ears.setdefault(job, set()).add(ear)
        if self.looking is None or self.looking.done():
            self.looking = asyncio.create_task(self._look())
        try:
            yield ear
        finally:
            others = self.ears[job]
            others.discard(ear)
            if not others:
                del self.ears[job]

    def close(self) -> None:
        """Stop looking."""
        if self.looking is not None:
            self.looking.cancel()

    async def _look(self) -> None:
        newest: int | None = None
        while self.ears:
            try:
                # The first look comes after the first ear was there, so nothing falls between the two.
                newest, changed = await asyncio.to_thread(self.table.changed, newest or 0)
                for job in changed:
                    for ear in self.ears.get(job, ()):
                        ear.set()
            except (OSError, Problem) as error:
                log.warning("the list of jobs cannot be read: %s", error)
            await asyncio.sleep(LOOK_SECONDS)
