"""The REST API as an object: ``create_app(settings)``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI

from tokenpaths.backend import __version__, problems
from tokenpaths.backend.http.concurrency import Crowd
from tokenpaths.backend.http.docs_page import docs_router
from tokenpaths.backend.http.head import HeadAsGet
from tokenpaths.backend.http.paging import refuse_unknown_keys
from tokenpaths.backend.http.redact_paths import hide_places
from tokenpaths.backend.http.security import Guard
from tokenpaths.backend.metrics import Measured
from tokenpaths.backend.routes import (
    compare,
    effects,
    experts,
    exports,
    jobs,
    knowledge,
    models,
    paths,
    report,
    runs,
    samples,
    searches,
    service,
    similar,
    soft,
    traces,
)
from tokenpaths.backend.services import Services
from tokenpaths.backend.settings import Settings, require_safe_bind

PREFIX = "/api/v1"
DESCRIPTION = """
See, measure and compare the paths that tokens take through routed neural networks.

A *run* is one model traced over one data set. It never changes, so every answer about it has an `ETag`: send it
back as `If-None-Match` and get `304` without a body. Lists have `limit` and `next`: give `next` of one answer to
get the following page. A query key that does not exist is refused with `422`. Every error is
`application/problem+json` (RFC 9457) with a sentence in `detail` and the parameter at fault in `field`. When the
server is busy the answer is `503` with `Retry-After`.
"""


def create_app(settings: Settings) -> FastAPI:
    """The app for ``settings``; opens nothing until it is served.

    Raises UserError for a bind that other machines reach without a token.
    """
    require_safe_bind(settings)
    hide_places(settings)
    services = Services.from_settings(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for folder in (settings.runs_dir, settings.data_dir / "inbox"):
            folder.mkdir(parents=True, exist_ok=True)
        yield
        await services.close()

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
    app.include_router(docs_router())
    about_runs = (runs, paths, knowledge, samples, similar, soft, experts, effects, compare, exports, report)
    for part in (*about_runs, models, traces, jobs, searches):
        app.include_router(part.router, prefix=PREFIX)
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        Crowd,
        most=settings.requests_at_once,
        inside=services.metrics.inside,
        refused=services.metrics.turned_away,
        known=services.answers.known,
    )
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Measured, metrics=services.metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description, with problems as they really look and the token."""
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
