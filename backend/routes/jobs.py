"""Routes of long jobs: submit, list, show, cancel, retry, events, artifacts."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, ParamSpec, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tokenpaths.backend.http.paging import binding_of, decode_cursor, encode_cursor
from tokenpaths.backend.http.strict_json import json_body
from tokenpaths.backend.http.uploads import receive_json
from tokenpaths.backend.jobs.rows import STATES
from tokenpaths.backend.jobs.service import Jobs
from tokenpaths.backend.problems import Problem, documented, nearest
from tokenpaths.backend.routes.parameters import Cursor, Limit, json_object
from tokenpaths.backend.runs.answers import is_fresh
from tokenpaths.backend.schemas.jobs import Job, JobList
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.jobs.registry import kinds_in_words

MOST_BODY_BYTES = 1_000_000
KEYS = ("kind", "request")
P = ParamSpec("P")
T = TypeVar("T")
BODY = json_object(
    kind={"type": "string", "description": kinds_in_words()},
    request={"type": "object", "description": "What this kind of job needs; see docs/jobs.md"},
)
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events: `state`, `progress` and `artifact`, each with an id",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The job is over, and `Last-Event-ID` was its last event: do not come back"},
}
FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "It is as `If-None-Match` says"},
}
ABOUT_JOBS = documented(400, 401, 403, 404, 422, 500, 503)
JobName = Annotated[str, Path(description="Name of the job", examples=["trace-20261121-101500-a1b2c3"])]

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=ABOUT_JOBS)


class Listening(StreamingResponse):
    """Events for one listener, counted from before its first byte to after its last: sixty may come at one moment."""

    def __init__(self, jobs: Jobs, stream: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(stream, **options)
        self.jobs = jobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.jobs.listening():
            await super().__call__(scope, receive, send)


@router.post(
    "",
    status_code=202,
    response_model=Job,
    responses=documented(408, 413, 415, 507)
    | {202: {"headers": {"Location": {"description": "Address of the job", "schema": {"type": "string"}}}}},
    openapi_extra=BODY,
)
async def submit_job(request: Request, services: Shared) -> JSONResponse:
    """Queue a long job. What can be refused without loading a model is refused here, with the `field` at fault."""
    kind, wanted = await _read_body(request, services)
    if isinstance(wanted, dict) and isinstance(run := wanted.get("run"), str):
        await services.answers.take_in(run)  # who checks the job opens it
    job = await _change(services, services.jobs.submit, kind, wanted)
    location = f"{request.url.path}/{job['job']}"
    return JSONResponse(_checked(job), status_code=202, headers={"location": location, "cache-control": "no-store"})


@router.get("", response_model=JobList)
async def list_jobs(
    request: Request,
    services: Shared,
    state: Annotated[
        str | None,
        Query(max_length=100, description="Only jobs in these states, with commas", examples=["waiting,running"]),
    ] = None,
    kind: Annotated[
        str | None,
        Query(
            max_length=200,
            description=f"Only jobs of these kinds, with commas: {kinds_in_words()}, or one that an older version had",
            examples=["dream"],
        ),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JSONResponse:
    """All jobs, newest first."""
    states, kinds = _words(state), _words(kind)
    for word in states:
        if word not in STATES:
            raise Problem(422, "state", f"There is no state {word[:40]!r}; {nearest(word, STATES)}", field="state")
    binding = binding_of(request, "jobs")
    before = decode_cursor(cursor, binding, int) if cursor else None

    def compute() -> dict[str, Any]:
        jobs, more = services.jobs.page(states, kinds, before, limit)  # type: ignore[arg-type]
        following = encode_cursor(more, binding) if more is not None else None
        return {"jobs": jobs, "workers": services.jobs.table.workers(), "next": following}

    answer = await run_in_threadpool(compute)
    return JSONResponse(JobList.model_validate(answer).model_dump(), headers={"cache-control": "no-store"})


@router.get("/{job}", response_model=Job)
async def show_job(services: Shared, job: JobName) -> JSONResponse:
    """One job: its state, its place or its progress, what it has made and what came out."""
    shown = await run_in_threadpool(services.jobs.get, job)
    return JSONResponse(_checked(shown), headers={"cache-control": "no-store"})


@router.delete(
    "/{job}",
    response_model=Job,
    responses=documented(409, 507) | {204: {"description": "The job and its files are gone (`remove=true`)"}},
)
async def cancel_job(
    services: Shared,
    job: JobName,
    remove: Annotated[
        bool, Query(description="Instead of cancelling, forget a job that is over and delete its files; its runs stay")
    ] = False,
) -> Response:
    """Cancel a job: at once while it waits, after the piece of work at hand (about a second) while it runs.

    As often as you like: a job that is over stays as it is. What it has made stays, and can be fetched.
    """
    if remove:
        await _change(services, services.jobs.remove, job)
        return Response(status_code=204)
    row = await _change(services, services.jobs.table.cancel, job)
    shown = await run_in_threadpool(services.jobs.shown, row)
    return JSONResponse(_checked(shown), headers={"cache-control": "no-store"})


@router.post("/{job}/retry", status_code=202, response_model=Job, responses=documented(409, 507))
async def retry_job(services: Shared, job: JobName) -> JSONResponse:
    """Put a failed or cancelled job at the end of the queue again; it goes on from what it has kept."""
    shown = await _change(services, services.jobs.retry, job)
    return JSONResponse(_checked(shown), status_code=202, headers={"cache-control": "no-store"})


@router.get("/{job}/events", responses=EVENTS, response_class=Response)
async def job_events(
    services: Shared,
    job: JobName,
    last_event_id: Annotated[
        str | None,
        Header(max_length=20, pattern=r"^\d*$", description="Id of the last event that you have: go on after it"),
    ] = None,
) -> Response:
    """What happens to a job, as server-sent events, from its beginning or after `Last-Event-ID`, until it is over.

    `state` events are all kept; of `progress`, and of each `artifact`, only the newest. A comment comes every 15
    seconds while nothing happens.
    """
    after = min(int(last_event_id or 0), 2**62)
    if after and await run_in_threadpool(services.jobs.is_over, job, after):
        return Response(status_code=204)
    stream = await services.jobs.events(job, after)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return Listening(services.jobs, stream, media_type="text/event-stream", headers=headers)


@router.get("/{job}/artifacts/{name}", responses=FILE, response_class=Response)
async def job_artifact(
    request: Request,
    services: Shared,
    job: JobName,
    name: Annotated[str, Path(description="One of the job's `artifacts`", examples=["frame-000064.png"])],
) -> Response:
    """A file that the job has made, whether the job runs, is over, failed or was cancelled."""
    content, look = await run_in_threadpool(services.jobs.artifact, job, name)
    etag = f'"{look}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if is_fresh(request, etag):
        return Response(status_code=304, headers=headers)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if name.endswith(".svg"):  # an SVG may contain scripts: download it, do not render it in the API's origin
        headers["content-disposition"] = f'attachment; filename="{name}"'
    return Response(content, media_type=kind, headers=headers)


async def _change(services: Services, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run what changes the list of jobs, a few at a time."""
    async with services.job_limit.take():
        return await run_in_threadpool(change, *args, **kwargs)


def _checked(job: dict[str, Any]) -> dict[str, Any]:
    return Job.model_validate(job).model_dump()


def _words(value: str | None) -> list[str]:
    return [word for word in (value or "").split(",") if word]


async def _read_body(request: Request, services: Shared) -> tuple[str, object]:
    """(kind, request) of the body; Problem 408, 413, 415 or 422 that names the field."""
    async with services.body_limit.take():
        values = await run_in_threadpool(json_body, await receive_json(request, services.settings, MOST_BODY_BYTES))
    if not isinstance(values, dict):
        raise Problem(422, "json", 'The body should be an object: {"kind": …, "request": {…}}.', field="body")
    for key in values:
        if key not in KEYS:
            raise Problem(422, "unknown-field", f"There is no {key[:80]!r} here; {nearest(key, KEYS)}", field=key[:80])
    kind = values.get("kind")
    if not isinstance(kind, str):
        raise Problem(422, "missing-field", 'Say which `kind` of job, for example "trace".', field="kind")
    return kind, values.get("request", {})
