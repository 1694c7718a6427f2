"""``/docs``: Swagger UI from an installed package, without any request to another server."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, Response

from tokenpaths.backend.problems import Problem

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
