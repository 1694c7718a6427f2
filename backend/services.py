"""Dependencies of the routes, built once per app from its settings."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from fastapi import Depends, Request

from tokenpaths.backend.data_folder import DataFolder
from tokenpaths.backend.http.concurrency import ConcurrencyLimit
from tokenpaths.backend.http.watchdog import Watchdog
from tokenpaths.backend.jobs.rows import STATES
from tokenpaths.backend.jobs.service import Jobs
from tokenpaths.backend.metrics import Metrics
from tokenpaths.backend.runs.answers import Answers
from tokenpaths.backend.runs.received_logs import ReceivedLogs
from tokenpaths.backend.runs.registry import RunRegistry
from tokenpaths.backend.runs.run_names import RunNames
from tokenpaths.backend.settings import Settings
from tokenpaths.backend.worker.client import WorkerClient

JOB_CHANGES = 4
BODIES = 32
"""JSON bodies, of up to 8 MB, that are received or checked at the same time"""
LOG_LOOKS = 4
"""looks at received logs at the same time: each may wait for the lock of those who write them"""


@dataclass
class Services:
    """The services behind the routes; all belong to one event loop."""

    settings: Settings
    folder: DataFolder
    metrics: Metrics
    registry: RunRegistry
    names: RunNames
    answers: Answers
    export_limit: ConcurrencyLimit
    upload_limit: ConcurrencyLimit
    trace_limit: ConcurrencyLimit
    """``POST /traces`` from before the first byte of the upload, which is in memory until the worker has answered"""
    body_limit: ConcurrencyLimit
    job_limit: ConcurrencyLimit
    """changes of the list of jobs: those that wait for its lock must not take the threads that others need"""
    log_limit: ConcurrencyLimit
    worker: WorkerClient
    jobs: Jobs
    received: ReceivedLogs
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def from_settings(cls, settings: Settings) -> Services:
        """The services for ``settings``; opens no file and no connection yet."""
        metrics = Metrics()
        watchdog = Watchdog(2 * settings.query_seconds, settings.query_slots, metrics.stuck)
        registry = RunRegistry.of(
            settings, time_limit_s=settings.query_seconds, max_open=settings.open_runs, watchdog=watchdog
        )
        metrics.open_runs.set_function(registry.count_open)
        metrics.unread_runs.set_function(registry.count_unread)
        folder = DataFolder(settings.data_dir)
        jobs = Jobs(settings, registry.gate, folder)
        metrics.job_listeners.set_function(lambda: jobs.streams)
        metrics.queue_age.set_function(jobs.queue_age)
        for state in STATES:
            metrics.jobs.labels(state).set_function(partial(jobs.count, state))
        wait_s = settings.query_wait_seconds
        queries = ConcurrencyLimit(
            settings.query_slots, wait_s, "other questions", working=metrics.working, waiting=metrics.waiting
        )
        cache_bytes = int(settings.answer_cache_megabytes * 1e6)
        return cls(
            settings=settings,
            folder=folder,
            metrics=metrics,
            registry=registry,
            names=RunNames(settings.data_dir),
            answers=Answers(registry, queries, metrics, cache_bytes),
            export_limit=ConcurrencyLimit(settings.export_slots, wait_s, "other exports"),
            upload_limit=ConcurrencyLimit(settings.upload_slots, wait_s, "other uploads"),
            trace_limit=ConcurrencyLimit(settings.trace_queue_length + 1, wait_s, "other traces"),
            body_limit=ConcurrencyLimit(BODIES, wait_s, "other requests with a body"),
            job_limit=ConcurrencyLimit(JOB_CHANGES, wait_s, "other changes of jobs"),
            log_limit=ConcurrencyLimit(LOG_LOOKS, wait_s, "other looks at received logs"),
            worker=WorkerClient(settings),
            jobs=jobs,
            received=ReceivedLogs(settings.data_dir, int(settings.log_megabytes * 1_000_000), settings.log_responses),
        )

    async def close(self) -> None:
        """Close files and connections."""
        await self.worker.close()
        self.jobs.close()
        self.registry.close()


async def services_of(request: Request) -> Services:
    """The services of the app that received ``request``; async because FastAPI runs synchronous dependencies in a
    thread.
    """
    services: Services = request.app.state.services
    return services


Shared = Annotated[Services, Depends(services_of)]
