"""Is it alive, and how is it doing."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tokenpaths.backend import __version__
from tokenpaths.backend.problems import documented
from tokenpaths.backend.schemas.service import Health
from tokenpaths.backend.services import Shared

router = APIRouter(tags=["service"])


@router.get("/healthz", response_model=Health, responses=documented(400, 422))
async def health(services: Shared) -> Health:
    """Whether the API is alive. Needs no token."""
    return Health(status="ok", version=__version__, uptime_seconds=time.monotonic() - services.started)


@router.get(
    "/metrics",
    responses=documented(400, 401, 422) | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
async def metrics(services: Shared) -> Response:
    """Counters for Prometheus: requests, seconds, answers, open runs, waiting questions, jobs, GPU memory."""
    await services.worker.look(services.metrics)
    text = await run_in_threadpool(services.metrics.text)  # some are asked of files
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
