"""Routes of the user's own names and notes of the things of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from tokenpaths.backend.http.uploads import receive_json
from tokenpaths.backend.problems import documented
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, RunName, json_content
from tokenpaths.backend.runs import names
from tokenpaths.backend.schemas.names import OwnName, OwnNames
from tokenpaths.backend.services import Services, Shared

router = APIRouter(prefix="/runs/{run}/names", tags=["names"], responses=ABOUT_A_RUN)
Thing = Annotated[
    str,
    Path(
        description="`run`, `module:3.4` (step.module), `path:12` (rank), `sample:5` or `token:5.17` (sample.token)",
        examples=["module:3.4"],
    ),
]
NEVER_KEPT = {"cache-control": "no-store"}
TEXT = {"type": "string"}
ENTRY: dict[str, Any] = {"type": "object", "properties": {"name": TEXT, "note": TEXT}}
T = TypeVar("T")


@router.get("", response_model=OwnNames)
async def list_names(services: Shared, run: RunName) -> JSONResponse:
    """All names and notes of a run, for showing and as an export."""
    return await _at(services, run, (), lambda file, made: _listed(run, made, names.read_names(file)))


@router.put(
    "",
    response_model=OwnNames,
    responses=documented(408, 413, 415, 507),
    openapi_extra=json_content(
        {
            "type": "object",
            "required": ["names"],
            "properties": {"names": {"type": "object", "additionalProperties": ENTRY}},
        }
    ),
)
async def import_names(request: Request, services: Shared, run: RunName) -> JSONResponse:
    """All names and notes at once, in place of those that were there: what `GET` gave, here or elsewhere."""
    async with services.body_limit.take():
        data = await receive_json(request, services.settings, names.MOST_IMPORT_BYTES)
        wanted = await run_in_threadpool(names.check_import, data)  # most of a second for the longest
        del data
    return await _at(services, run, wanted, lambda file, made: _listed(run, made, names.put_names(file, wanted)))


@router.put(
    "/{thing}",
    response_model=OwnName,
    responses=documented(408, 413, 415, 507) | {201: {"model": OwnName, "description": "It is new"}},
    openapi_extra=json_content(ENTRY),
)
async def save_name(request: Request, services: Shared, run: RunName, thing: Thing) -> JSONResponse:
    """Name a thing, or write a note to it; an older name and note are replaced."""
    names.check_thing(thing)
    async with services.body_limit.take():
        entry = names.check_entry(await receive_json(request, services.settings, names.MOST_BYTES))

    def save(file: FilePath, _: str) -> JSONResponse:
        saved, new = names.put_name(file, thing, entry)
        return JSONResponse(saved, status_code=201 if new else 200, headers=NEVER_KEPT)

    return await _at(services, run, [thing], save)


@router.delete("/{thing}", status_code=204, response_class=Response)
async def delete_name(services: Shared, run: RunName, thing: Thing) -> Response:
    """Forget the name and note of a thing."""
    names.check_thing(thing)

    def forget(file: FilePath, _: str) -> Response:
        names.delete_name(file, thing)
        return Response(status_code=204)

    return await _at(services, run, (), forget)


def _listed(run: str, created_at: str, entries: names.Names) -> JSONResponse:
    return JSONResponse({"run": run, "created_at": created_at, "names": entries}, headers=NEVER_KEPT)


async def _at(services: Services, run: str, things: Iterable[str], act: Callable[[FilePath, str], T]) -> T:
    """``act`` on the file of names of a run and when the run was made, once it is known to have ``things``."""
    answers, registry = services.answers, services.registry
    await answers.take_in(run)
    wanted = dict.fromkeys(things)
    async with answers.queries.take():
        made: str = await registry.watchdog.run(
            lambda: registry.ask(run, lambda opened: names.check_there(opened, wanted)), run
        )
    return await run_in_threadpool(lambda: act(names.names_file(services.settings.data_dir, run, made), made))
