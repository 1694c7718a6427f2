"""Routes of runs that are no questions: list, delete, pictures."""

from __future__ import annotations

import math
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from tokenpaths.backend.http.paging import binding_of, decode_cursor, encode_cursor
from tokenpaths.backend.http.redact_paths import redact
from tokenpaths.backend.jobs.twin_state import twin_state
from tokenpaths.backend.problems import documented
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, Cursor, Limit, RunName, SampleNumber
from tokenpaths.backend.runs.answers import Answer, as_json
from tokenpaths.backend.schemas.runs import RunList, TwinState
from tokenpaths.backend.services import Services, Shared

router = APIRouter(prefix="/runs", responses=ABOUT_A_RUN)


@router.get("", response_model=RunList, tags=["runs"])
async def list_runs(request: Request, services: Shared, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """All runs of the data folder, newest first. A file that cannot be read is listed with its `problem`.

    A run that came from elsewhere is never opened: it is taken in once, that is, its tables are copied into a file of
    this program. Until then it is listed last, as `being_read` with its `progress`; ask again for the rest of its card.
    Asking for that run itself waits for its intake.
    """
    binding = binding_of(request, "runs")
    after = decode_cursor(cursor, binding, str) if cursor else None

    def compute() -> Answer:
        return as_json(RunList, _page_of_runs(services, after, limit, binding))

    def folder_and_names() -> str:
        return f"{services.registry.folder_identity()} {services.names.identity()}"

    identity = await run_in_threadpool(folder_and_names)
    return await services.answers.about(request, identity, compute)


def _page_of_runs(services: Services, after: str | None, limit: int, binding: str) -> dict[str, Any]:
    """A page that starts after the run whose key is ``after``: runs may come and go between two pages.

    The cursor holds when the first page was made, in front of the key.
    """
    begun, _, last = after.partition(" ") if after is not None else (f"{time.time():.6f}", "", "")
    cards = services.registry.cards()
    names = services.names.of(cards)
    cards = [_shown(card) | {"name": names[str(card["run"])]} for card in cards]
    at = _seconds(begun)
    keyed = sorted(((" ".join(services.registry.place(card, at)), card) for card in cards), key=_key, reverse=True)
    rest = [(key, card) for key, card in keyed if after is None or key < last]
    page = rest[:limit]
    more = encode_cursor(f"{begun} {page[-1][0]}", binding) if len(rest) > limit else None
    return {"runs": [card for _, card in page], "next": more}


def _shown(card: dict[str, Any]) -> dict[str, Any]:
    return card | {"problem": redact(card["problem"])} if card["problem"] else card


def _key(keyed: tuple[str, dict[str, Any]]) -> str:
    return keyed[0]


def _seconds(begun: str) -> float:
    try:
        return float(begun)
    except ValueError:
        return math.inf


@router.delete("/{run}", status_code=204, response_class=Response, tags=["runs"], responses=documented(404, 422))
async def delete_run(services: Shared, run: RunName) -> Response:
    """Delete the run's file. There is no way back."""
    await run_in_threadpool(services.registry.delete, run)
    services.registry.watchdog.release(run)
    return Response(status_code=204)


@router.get("/{run}/twin", response_model=TwinState, tags=["runs"])
async def show_twin(services: Shared, run: RunName) -> JSONResponse:
    """Whether answers about the run have numbers of its untrained twin, and if not, whether a job is about to add them.

    The file of the run is replaced when its twin is added: answers change then, and so do their ETags.
    """
    await services.answers.take_in(run)

    def compute() -> dict[str, Any]:
        there, made = services.registry.ask(run, lambda opened: (opened.has_twin, str(opened.row["created_at"])))
        return twin_state(run, there, made, services.jobs.table)

    answer = TwinState.model_validate(await run_in_threadpool(compute))
    return JSONResponse(answer.model_dump(), headers={"cache-control": "no-store"})


@router.get(
    "/{run}/samples/{sample}/image",
    response_class=Response,
    tags=["samples"],
    responses={200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def show_image(request: Request, services: Shared, run: RunName, sample: SampleNumber) -> Response:
    """The picture that the model saw, cropped to the patch grid, as PNG."""

    def compute() -> Answer:
        return Answer(services.registry.ask(run, lambda opened: opened.picture(sample)), "image/png")

    return await services.answers.about(request, services.registry.identity(run), compute)
