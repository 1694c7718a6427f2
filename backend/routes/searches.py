"""Routes of saved searches."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from tokenpaths.backend.http.uploads import receive_json
from tokenpaths.backend.problems import documented
from tokenpaths.backend.routes.parameters import json_object
from tokenpaths.backend.runs import searches
from tokenpaths.backend.schemas.searches import SavedSearch, SavedSearches
from tokenpaths.backend.services import Shared

router = APIRouter(prefix="/searches", tags=["searches"], responses=documented(400, 401, 403, 404, 422, 500))
SearchName = Annotated[str, Path(description="Name of the search", examples=["plural-nouns"])]
NEVER_KEPT = {"cache-control": "no-store"}
BODY = json_object(
    query={
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "The query of an address of the page",
    }
)


@router.get("", response_model=SavedSearches)
async def list_searches(services: Shared) -> JSONResponse:
    """All saved searches, by name."""
    found = await run_in_threadpool(searches.list_searches, services.settings.data_dir)
    return JSONResponse({"searches": found}, headers=NEVER_KEPT)


@router.get("/{name}", response_model=SavedSearch)
async def show_search(services: Shared, name: SearchName) -> JSONResponse:
    """One saved search."""
    return JSONResponse(
        await run_in_threadpool(searches.get_search, services.settings.data_dir, name), headers=NEVER_KEPT
    )


@router.put(
    "/{name}",
    response_model=SavedSearch,
    responses=documented(408, 409, 413, 415, 507) | {201: {"model": SavedSearch, "description": "It is new"}},
    openapi_extra=BODY,
)
async def save_search(request: Request, services: Shared, name: SearchName) -> JSONResponse:
    """Save an address of the page under a name; an older search of this name is replaced."""
    data = await receive_json(request, services.settings, searches.MOST_BYTES)
    query = searches.check_query(data)
    saved, new = await run_in_threadpool(searches.put_search, services.settings.data_dir, name, query)
    return JSONResponse(saved, status_code=201 if new else 200, headers=NEVER_KEPT)


@router.delete("/{name}", status_code=204, response_class=Response)
async def delete_search(services: Shared, name: SearchName) -> Response:
    """Forget a saved search."""
    await run_in_threadpool(searches.delete_search, services.settings.data_dir, name)
    return Response(status_code=204)
