"""Routes of logs that running engines send response by response, until they are sealed as runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from tokenpaths.backend.http.uploads import Body
from tokenpaths.backend.jobs.rows import ENDED
from tokenpaths.backend.problems import Problem, documented, problem_of
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, RunName
from tokenpaths.backend.runs.received_logs import Sealing
from tokenpaths.backend.schemas.jobs import Job
from tokenpaths.backend.schemas.received import ReceivedList, ReceivedLog, Taken
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.adapters.logs.pieces.announced import Announced
from tokenpaths.engine.adapters.logs.responses.received import read_received
from tokenpaths.engine.base.files import NAME_PATTERN, is_disk_full
from tokenpaths.engine.jobs.made_run import MADE_BY

router = APIRouter(prefix="/logs", tags=["logs"], responses=ABOUT_A_RUN)
log = logging.getLogger(__name__)
LOOK_SECONDS = 5.0
"""between two looks for quiet logs and for jobs that are over"""
MOST_JOBS = 1000
"""newest imports among which that of a log is looked for, whose sealing was killed"""
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
        body = await Body(request, services.settings).read()  # before it is refused, so that the answer arrives
        _check_unpacked(request)
        taken = await run_in_threadpool(_take, services, run, body, Announced(layers, top_k, experts))
    return JSONResponse(Taken.model_validate(taken).model_dump(), headers=NEVER_KEPT)


def _check_unpacked(request: Request) -> None:
    """Problem 422 for a body that is packed: how much it would be is not known before it is unpacked."""
    packing = request.headers.get("content-encoding", "").strip().lower()
    if packing not in ("", "identity"):
        raise Problem(
            422,
            "content-encoding",
            f"The body is packed (Content-Encoding: {packing[:40]}); send it unpacked, without that header.",
            field="Content-Encoding",
        )


def _take(services: Services, run: str, body: bytes, given: Announced) -> dict[str, Any]:
    logs = services.received
    sizes = logs.sizes(run, given)
    return logs.add(run, read_received(body, sizes), sizes)


@router.get("", response_model=ReceivedList)
async def list_received(services: Shared) -> JSONResponse:
    """All logs that are being received; one whose file is damaged says so."""
    async with services.log_limit.take():
        answer = ReceivedList.model_validate({"logs": await run_in_threadpool(services.received.listed)})
    return JSONResponse(answer.model_dump(), headers=NEVER_KEPT)


@router.get("/{run}", response_model=ReceivedLog)
async def show_received(services: Shared, run: RunName) -> JSONResponse:
    """What has come so far: responses, tokens, bytes, when the last came, and the load of each layer."""
    async with services.log_limit.take():
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
    skip_bad: Annotated[bool, Query(description="Leave out responses that cannot be read, and count them")] = False,
    target: Annotated[
        str | None, Query(alias="as", pattern=NAME_PATTERN, description="Name of the run, by default that of the log")
    ] = None,
) -> JSONResponse:
    """Make a run of what has come: a job. Until it is over nothing more is taken; where it fails all stays here."""
    options = {"although": although, "skip_bad": skip_bad}
    async with services.job_limit.take():
        job = await run_in_threadpool(seal, services, run, target, options)
    location = f"{request.url.path.partition('/logs/')[0]}/jobs/{job['job']}"
    shown = Job.model_validate(job).model_dump()
    return JSONResponse(shown, status_code=202, headers={"location": location, **NEVER_KEPT})


@router.delete("/{run}", status_code=204, response_class=Response)
async def forget_received(services: Shared, run: RunName) -> Response:
    """Forget a log with all that came, unless a run is being made of it. There is no way back."""
    async with services.log_limit.take():
        await run_in_threadpool(forget, services, run)
    return Response(status_code=204)


def forget(services: Services, run: str) -> None:
    """Delete all that came of a log.

    Raises:
        Problem: 404 if there is no such log (any more: its run may be made), 409 while a run is made of it.
    """
    settle(services)
    services.received.forget(run)


def seal(
    services: Services, run: str, target: str | None = None, options: Mapping[str, bool] | None = None
) -> dict[str, Any]:
    """Write a log into the inbox and submit the import that makes the run ``target`` of it, by default of its name.

    Args:
        options: of the import.

    Raises:
        Problem: 404 if there is no such log, 409 while it is being sealed or if there is such a run, 507 without room.
    """
    logs, target = services.received, target or run
    settle(services)
    with logs.sealer(run):
        sealing, known = logs.begin_sealing(run, target)
        try:
            if services.registry.path(target).exists():
                raise Problem(
                    409, "run-exists", f"There is a run {target} already; name another with `as`.", field="as"
                )
            logs.write_out(sealing)
            request = {**known, "file": sealing.file, "run": target, "model": known["model"] or target}
            job = services.jobs.submit("import", {**request, **(options or {})})
            logs.set_job(sealing, job["job"])
        except BaseException as error:
            with contextlib.suppress(Exception):  # what is left as it is will be settled
                _resolve(services, sealing, again=_will_pass(error))
            raise
    return job


def _will_pass(error: BaseException) -> bool:
    """Whether a log that could not be sealed may be sealed by itself again, though no more has come."""
    return is_disk_full(error) or isinstance(error, Problem) and error.status in (503, 507)


def settle(services: Services) -> None:
    """Forget logs whose job made a run of them; those whose job failed can be sealed again."""
    for sealing in services.received.sealings():
        try:
            _settle(services, sealing)
        except Exception as error:
            log.warning("%s is being sealed, and it cannot be told how: %s", sealing.run, problem_of(error).detail)


def _settle(services: Services, sealing: Sealing) -> None:
    logs = services.received
    if sealing.job is None:
        try:
            with logs.sealer(sealing.run):
                _resolve(services, sealing, again=True)
        except Problem as problem:
            if problem.kind != "sealing":  # it is being written out at this moment
                raise
        return
    try:
        state = services.jobs.table.get(sealing.job).state
    except Problem as problem:
        if problem.status != 404:
            raise
        state = "failed"  # removed from the list: its run tells
    if state == "succeeded" or state in ENDED and _is_made(services, sealing):
        logs.forget_sealed(sealing)
    elif state in ENDED:
        logs.reopen(sealing, again=False)


def _resolve(services: Services, sealing: Sealing, *, again: bool) -> None:
    """End the pending state: the log has the job that reads its file, or is open. ``again`` as of ``reopen``."""
    jobs = services.jobs.table.page(kinds=("import",), limit=MOST_JOBS)
    job = next((row.job for row in jobs if row.request.get("file") == sealing.file), None)
    if job is not None:
        services.received.set_job(sealing, job)
    else:
        services.received.reopen(sealing, again=again)


def _is_made(services: Services, sealing: Sealing) -> bool:
    """Whether the job of a sealing made the run: one of its name may be somebody else's. Waits for its intake."""
    try:
        made_by = services.registry.ask(sealing.target, lambda run: run.info()["findings"].get(MADE_BY))
    except Problem as problem:
        if problem.status in (404, 409):  # there is none, or one that cannot be read
            return False
        raise
    return bool(made_by == sealing.job)


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
        except Exception as error:
            log.warning("%s has been quiet and cannot be sealed: %s", run, problem_of(error).detail)
