"""Health, metrics and ``/docs`` (Swagger UI from an installed package, no request to another server)."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, HTMLResponse, Response

from tokenpaths.backend import __version__
from tokenpaths.backend.http.redact_paths import redact
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.process_states import read_states
from tokenpaths.backend.schemas.service import Health, State
from tokenpaths.backend.services import Shared

router = APIRouter(tags=["service"])
ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Tokenpaths API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="docs/favicon.png"><link rel="stylesheet" href="docs/swagger-ui.css"></head>
<body><div id="ui"><p>The interactive page needs the package <code>fastapi-offline</code>;
the plain description is at <a href="openapi.json">openapi.json</a>.</p></div>
<script src="docs/swagger-ui-bundle.js"></script><script src="docs/start.js"></script></body>
</html>
"""
START = """SwaggerUIBundle({
  url: "openapi.json", dom_id: "#ui", deepLinking: true, validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis], layout: "BaseLayout", tryItOutEnabled: true
});
"""


@router.get("/healthz", response_model=Health, responses=documented(400, 422))
async def health(services: Shared) -> Health:
    """Whether the API is alive. Needs no token."""
    seconds, stuck = time.monotonic() - services.started, len(services.registry.watchdog.stuck)
    return Health(status="ok", version=__version__, uptime_seconds=seconds, stuck_threads=stuck)


@router.get("/api/v1/health", response_model=State, responses=documented(400, 401, 403, 422))
async def state(services: Shared) -> State:
    """Whether each part takes and finishes work, and in a sentence why not. Answered whatever is gone or hangs."""
    gone = services.folder.problem()
    workers, jobs_problem = await run_in_threadpool(services.jobs.num_workers)
    problems = {
        "data folder": gone.detail if gone is not None else None,
        "list of jobs": None if gone is not None else jobs_problem,
        "worker": await services.worker.problem(),
    }
    states = read_states()
    for part in ("API", "page"):
        if part in states:
            problems[part] = states[part].problem if states[part].state != "up" else None
    parts = [{"part": part, "problem": redact(problem) if problem else None} for part, problem in problems.items()]
    status = "impaired" if any(problems.values()) else "ok"
    return State.model_validate({"status": status, "workers": workers, "parts": parts})


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


def assets_dir() -> Path | None:
    """Where ``fastapi-offline`` keeps Swagger UI; found without importing it, None when not installed."""
    spec = importlib.util.find_spec("fastapi_offline")
    return Path(spec.origin).parent / "static" if spec is not None and spec.origin else None


def docs_router() -> APIRouter:
    """The page and its files."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def page(request: Request) -> HTMLResponse:
        return HTMLResponse(PAGE, headers={"content-security-policy": POLICY})

    @router.get("/docs/start.js")
    async def start() -> Response:
        return Response(START, media_type="text/javascript")

    @router.get("/docs/{name}")
    async def asset(name: str) -> FileResponse:
        folder = assets_dir()
        if folder is None or name not in ASSETS:
            raise Problem(404, "not-found", f"There is no /docs/{name[:80]}.")
        return FileResponse(folder / name, media_type=ASSETS[name], headers={"cache-control": "private, max-age=3600"})

    return router
