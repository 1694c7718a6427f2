"""Routes that put a run into a series of checkpoints, and take it out."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tokenpaths.backend.http.strict_json import json_body
from tokenpaths.backend.http.uploads import receive_json
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, RunName, json_object
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.store.ask.run_series import check_iteration, put_into_series

MOST_BYTES = 2_000
router = APIRouter(prefix="/runs/{run}/series", tags=["compare"], responses=ABOUT_A_RUN)
BODY = json_object(
    name={"type": "string", "maxLength": 64, "description": "Name of the series"},
    iteration={"type": "integer", "minimum": 0, "description": "Where in it the run stands"},
)


@router.put("", status_code=204, response_class=Response, responses=documented(408, 413, 415, 507), openapi_extra=BODY)
async def put_run_into_series(request: Request, services: Shared, run: RunName) -> Response:
    """Put a run into a series of checkpoints, whatever it was recorded as. The run's file stays as it is."""
    said = json_body(await receive_json(request, services.settings, MOST_BYTES))
    if not isinstance(said, dict) or set(said) != {"name", "iteration"} or not isinstance(said["name"], str):
        raise Problem(422, "json", 'The body should be {"name": "…", "iteration": 100}.', field="name")
    await _say(services, run, said["name"], check_iteration(said["iteration"], "iteration"))
    return Response(status_code=204)


@router.delete("", status_code=204, response_class=Response)
async def take_run_out_of_series(services: Shared, run: RunName) -> Response:
    """Take a run out of its series. The run's file stays as it is."""
    await _say(services, run, None, None)
    return Response(status_code=204)


async def _say(services: Services, run: str, name: str | None, iteration: int | None) -> None:
    await services.answers.take_in(run)
    registry = services.registry

    def act() -> None:
        registry.ask(run, lambda opened: put_into_series(opened, name, iteration))

    async with services.answers.queries.take():
        await registry.watchdog.run(act, run)
    await run_in_threadpool(registry.forget_idle, run)
