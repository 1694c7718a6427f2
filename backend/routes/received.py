"""Routes of logs that running engines send response by response, until they are sealed as runs."""

from __future__ import annotations

import contextlib
import logging
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from tokenpaths.backend.http.uploads import Body
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, RunName
from tokenpaths.backend.schemas.jobs import Job
from tokenpaths.backend.schemas.received import ReceivedList, ReceivedLog, Taken
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.adapters.logs.pieces import Announced
from tokenpaths.engine.adapters.logs.responses.received import read_received

router = APIRouter(prefix="/logs", tags=["logs"], responses=ABOUT_A_RUN)
log = logging.getLogger(__name__)
LOOK_SECONDS = 5.0
"""between two looks for quiet logs and for jobs that are over"""
NEVER_KEPT = {"cache-control": "no-store"}
TEXT = {"schema": {"type": "string"}}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {}},
            "application/x-ndjson": TEXT,
            "application/jsonl": TEXT,
            "text/event-stream": TEXT,
        },
    }
}


def _size(words: str) -> Any:
    return Query(ge=1, le=65_536, description=f"{words}; as with `tokenpaths import`, and the same for a whole log")


@router.post(
    "/{run}", response_model=Taken, responses=documented(408, 413, 507), openapi_extra=BODY, name="receive_responses"
)
async def receive(
    request: Request,
    services: Shared,
    run: RunName,
    layers: Annotated[int | None, _size("Layers, where responses hold flat ids")] = None,
    top_k: Annotated[int | None, _size("Experts a token and layer, where they are flat")] = None,
    experts: Annotated[int | None, _size("Experts a layer")] = None,
) -> JSONResponse:
    """Take a response of vLLM, SGLang or Dynamo with its decisions, several as JSON lines, or streams of events.

    What is answered for is on the disk. Each request id is kept once, so send again whatever was not answered for; a
    response without an id is known by its bytes.
    """
    async with services.upload_limit.take():
        body = await Body(request, services.settings).read()
        taken = await run_in_threadpool(_take, services, run, body, Announced(layers, top_k, experts))
    return JSONResponse(Taken.model_validate(taken).model_dump(), headers=NEVER_KEPT)


def _take(services: Services, run: str, body: bytes, given: Announced) -> dict[str, Any]:
    logs = services.received
    sizes = logs.sizes(run, given)
    if run not in logs.names() and services.registry.path(run).exists():
        raise Problem(409, "run-exists", f"There is a run {run} already; send to another name.", field="run")
    return logs.add(run, read_received(body, sizes), sizes)


@router.get("", response_model=ReceivedList)
async def list_received(services: Shared) -> JSONResponse:
    """All logs that are being received."""

    def all_of_them() -> dict[str, Any]:
        found = []
        for name in services.received.names():
            with contextlib.suppress(Problem):  # sealed or forgotten meanwhile
                found.append(services.received.about(name))
        return {"logs": found}

    answer = ReceivedList.model_validate(await run_in_threadpool(all_of_them))
    return JSONResponse(answer.model_dump(), headers=NEVER_KEPT)


@router.get("/{run}", response_model=ReceivedLog)
async def show_received(services: Shared, run: RunName) -> JSONResponse:
    """What has come so far: responses, tokens, bytes, when the last came, and the load of each layer."""
    answer = ReceivedLog.model_validate(await run_in_threadpool(services.received.about, run))
    return JSONResponse(answer.model_dump(), headers=NEVER_KEPT)


@router.post(
    "/{run}/seal",
    status_code=202,
    response_model=Job,
    responses=documented(507)
    | {202: {"headers": {"Location": {"description": "Address of the job", "schema": {"type": "string"}}}}},
)
async def seal_received(
    request: Request,
    services: Shared,
    run: RunName,
    although: Annotated[bool, Query(description="Seal although the doctor found an artefact")] = False,
) -> JSONResponse:
    """Make a run of what has come: a job. Until it is over nothing more is taken; where it fails all stays here."""
    async with services.job_limit.take():
        job = await run_in_threadpool(seal, services, run, although)
    location = f"{request.url.path.partition('/logs/')[0]}/jobs/{job['job']}"
    shown = Job.model_validate(job).model_dump()
    return JSONResponse(shown, status_code=202, headers={"location": location, **NEVER_KEPT})


@router.delete("/{run}", status_code=204, response_class=Response)
async def forget_received(services: Shared, run: RunName) -> Response:
    """Forget a log with all that came. There is no way back."""
    await run_in_threadpool(services.received.forget, run)
    return Response(status_code=204)


def seal(services: Services, run: str, although: bool = False) -> dict[str, Any]:
    """Write a log into the inbox and submit the import that makes a run of it."""
    logs = services.received
    settle(services)
    sizes = logs.write_out(run)
    request = {"file": logs.inbox_file(run).name, "run": run, "although": although, **sizes}
    try:
        job = services.jobs.submit("import", request)
    except Problem:
        logs.inbox_file(run).unlink(missing_ok=True)
        raise
    logs.set_job(run, job["job"])
    return job


def settle(services: Services) -> None:
    """Forget logs whose job made a run of them; those whose job failed can be sealed again."""
    logs = services.received
    for run, job in logs.jobs().items():
        try:
            state = services.jobs.table.get(job).state
        except Problem as problem:  # removed from the list
            if problem.status != 404:
                continue
            state = "succeeded" if services.registry.path(run).exists() else "failed"
        with contextlib.suppress(Problem):
            if state == "succeeded":
                logs.forget(run)
            elif state in ("failed", "cancelled"):
                logs.set_job(run, None)
                logs.inbox_file(run).unlink(missing_ok=True)


def look_after(services: Services) -> None:
    """Settle what jobs ended, and seal logs that have been quiet for as long as the settings say."""
    if not services.received.folder.is_dir():
        return
    settle(services)
    if not services.settings.log_quiet_seconds:
        return
    for run in services.received.quiet(services.settings.log_quiet_seconds):
        try:
            job = seal(services, run)
            log.info("%s has been quiet and is sealed by job %s", run, job["job"])
        except Problem as problem:
            log.warning("%s has been quiet and cannot be sealed: %s", run, problem.detail)
