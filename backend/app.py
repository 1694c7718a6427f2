"""FastAPI application of the REST API: ``create_app(settings)``."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenpaths.backend import __version__, problems
from tokenpaths.backend.data_folder import DataFolderGate
from tokenpaths.backend.http.concurrency import RequestLimit
from tokenpaths.backend.http.paging import refuse_unknown_keys
from tokenpaths.backend.http.redact_paths import redact_folders_of
from tokenpaths.backend.http.security import Guard
from tokenpaths.backend.jobs.files import sweep_data_folder
from tokenpaths.backend.loops import repeat
from tokenpaths.backend.metrics import MetricsMiddleware
from tokenpaths.backend.routes import (
    compare,
    exports,
    inbox,
    jobs,
    models,
    names,
    received,
    reference,
    runs,
    searches,
    series,
    service,
    traces,
)
from tokenpaths.backend.routes.questions import plugin_routers, question_router
from tokenpaths.backend.services import Services
from tokenpaths.backend.settings import Settings, require_safe_bind
from tokenpaths.engine.analysis.compiled import comparisons
from tokenpaths.engine.store.ask.questions import QUESTIONS

log = logging.getLogger(__name__)
PREFIX = "/api/v1"
COMPILE_EVERY_S = 2.0
"""how often it is asked whether a question could have used compiled loops: they are made after it, for the next"""
DESCRIPTION = """
See, measure and compare the paths that tokens take through routed neural networks.

A *run* is one model traced over one data set. It never changes, but that its untrained twin may be added, so every
answer about it but `twin` and `names` has an `ETag`: send it back as `If-None-Match` and get `304` without a body.
Lists have `limit` and `next`: give `next` of one answer to get the following page. A query key that does not exist is
refused with `422`. Every error is `application/problem+json` (RFC 9457) with a sentence in `detail` and the parameter
at fault in `field`. When the server is busy the answer is `503` with `Retry-After`.
"""


def create_app(settings: Settings) -> FastAPI:
    """Create the app for ``settings``; opens nothing until it is served.

    Raises:
        UserError: The bind address is reachable from other machines and no token is set.
    """
    require_safe_bind(settings)
    redact_folders_of(settings)
    services = Services.from_settings(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services.folder.make()
        for folder in (settings.runs_dir, settings.data_dir / "inbox"):
            folder.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(sweep_data_folder, settings.data_dir)
        watch = asyncio.create_task(repeat("looking after received logs", look, lambda: received.LOOK_SECONDS))
        compiling = asyncio.create_task(repeat("compiling loops", compile_loops, lambda: COMPILE_EVERY_S))
        yield
        watch.cancel()
        compiling.cancel()
        await services.close()

    async def look() -> None:
        await asyncio.to_thread(received.look_after, services)

    async def compile_loops() -> None:
        if await asyncio.to_thread(comparisons.compile_if_wanted):
            gc.collect()  # what is garbage now would never be freed
            gc.freeze()  # do not scan what came with them again and again

    app = FastAPI(
        title="Tokenpaths",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(refuse_unknown_keys)],
        redirect_slashes=False,
    )
    app.state.services = services
    problems.install(app)
    app.include_router(service.router)
    app.include_router(service.docs_router())
    parts = (runs, compare, reference, exports, models, traces, inbox, jobs, searches, names, series, received)
    for router in (*(part.router for part in parts), question_router(QUESTIONS)):
        app.include_router(router, prefix=PREFIX)
    for router, problem in plugin_routers():  # last: no plugin hides an address of ours
        app.include_router(router, prefix=PREFIX)
        if problem is not None:
            log.warning("%s", problem)
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        RequestLimit,
        limit=settings.requests_at_once,
        inside=services.metrics.inside,
        refused=services.metrics.turned_away,
        cached=services.answers.cached,
    )
    app.add_middleware(DataFolderGate, folder=services.folder)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(MetricsMiddleware, metrics=services.metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description with the actual schema of problems, and the token."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        parts = schema.setdefault("components", {}).setdefault("schemas", {})
        parts.pop("HTTPValidationError", None)
        parts.pop("ValidationError", None)
        parts["ProblemBody"] = problems.ProblemBody.model_json_schema()
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{}, {"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema


class HeadAsGet:
    """ASGI middleware that answers HEAD with the status and headers of GET, without a body.

    Once the headers are sent, the route receives a disconnect, so that an export stops streaming.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        answered = asyncio.Event()
        received = False

        async def receive_until_answered() -> Message:
            nonlocal received
            if not received:
                received = True
                return await receive()
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        inner = dict(scope, method="GET")
        try:
            await self.app(inner, receive_until_answered, send_head)
        finally:
            if "route" in inner:  # read by the metrics middleware
                scope["route"] = inner["route"]
