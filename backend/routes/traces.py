"""Route that traces an uploaded image or text."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from tokenpaths.backend.http.uploads import PURPOSES, Body, read_trace_form
from tokenpaths.backend.metrics import HUNG_UP
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.schemas.traces import Traced
from tokenpaths.backend.services import Shared

FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["model"],
                    "properties": {
                        "model": {"type": "string", "description": "Name of a model of GET /models"},
                        "image": {
                            "type": "string",
                            "format": "binary",
                            "description": "PNG, JPEG, WebP, GIF or BMP, still, at most 25 MB and 16.8 megapixels",
                        },
                        "text": {"type": "string", "description": "UTF-8, at most 2 000 tokens"},
                        "controls": {
                            "type": "string",
                            "description": "JSON object: what to change of the model for this trace, see `controls` "
                            "of GET /models/{model}",
                        },
                        "purpose": {
                            "type": "string",
                            "enum": list(PURPOSES),
                            "description": "What the run is for, kept as its `split`: `try` (when left out), or "
                            "`detour` for one that only stands beside another; lists show both apart from data sets",
                        },
                    },
                }
            }
        },
    }
}
router = APIRouter(tags=["traces"])


@router.post(
    "/traces",
    status_code=201,
    response_model=Traced,
    responses=documented(400, 401, 403, 404, 408, 413, 415, 422, 500, 503, 507),
    openapi_extra=FORM,
)
async def trace(request: Request, services: Shared) -> JSONResponse:
    """Send one image or one text through a model. The answer names the new run, which holds that one sample."""
    status, reading = "500", False
    try:
        async with services.trace_limit.take():
            async with services.upload_limit.take():
                reading = True
                form = await read_trace_form(request, services.settings)
            done = Traced.model_validate(await services.worker.trace(form))
        status = "201"
    except Problem as problem:
        status = str(problem.status)
        if not reading:  # or a client that goes on sending does not receive the answer
            await Body(request, services.settings).drain()
        raise
    except ClientDisconnect:
        status = str(HUNG_UP)
        raise
    finally:
        services.metrics.traces.labels(status).inc()
    location = f"{request.url.path.removesuffix('/traces')}/runs/{done.run}"
    return JSONResponse(done.model_dump(), status_code=201, headers={"location": location})
