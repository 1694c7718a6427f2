"""Routes of runs as a whole."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tokenpaths.backend.http.paging import binding_of, decode_cursor, encode_cursor
from tokenpaths.backend.http.redact_paths import redact
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, Cursor, LabelFilter, Limit, RunName, Through
from tokenpaths.backend.runs.answers import Answer, as_json
from tokenpaths.backend.schemas.runs import RunList
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.store.ask.schemas.flow_schema import Flow, Usage
from tokenpaths.engine.store.ask.schemas.run_schema import RunDetails
from tokenpaths.engine.store.ask.schemas.sample_schema import Distribution
from tokenpaths.engine.store.file.filters import parse_paths, parse_steps, parse_through

router = APIRouter(prefix="/runs", tags=["runs"], responses=ABOUT_A_RUN)


@router.get("", response_model=RunList)
async def list_runs(request: Request, services: Shared, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """All runs of the data folder, newest first. A file that cannot be read is listed with its `problem`.

    A run that came from elsewhere is read to its end once before it is opened. Until then it is listed last, as
    `being_read`; ask again for the rest of its card. Asking for that run itself waits for its reading.
    """
    binding = binding_of(request, "runs")
    after = str(decode_cursor(cursor, binding)) if cursor else None

    def compute() -> Answer:
        return as_json(RunList, _page_of_runs(services, after, limit, binding))

    identity = await run_in_threadpool(services.registry.folder_identity)
    return await services.answers.about(request, identity, compute)


def _page_of_runs(services: Services, after: str | None, limit: int, binding: str) -> dict[str, Any]:
    """A page that starts after the run whose key is ``after``: runs may come and go between two pages.

    The cursor holds when the first page was made, in front of the key.
    """
    begun, _, last = after.partition(" ") if after is not None else (f"{time.time():.6f}", "", "")
    cards = [_shown(card) for card in services.registry.cards(wait=False)]
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


@router.get("/{run}", response_model=RunDetails)
async def show_run(request: Request, services: Shared, run: RunName) -> Response:
    """All about one run: model, configuration, labels, modules, summary, what paths know about labels."""
    return await services.answers.about_run(request, run, RunDetails, lambda opened: opened.info())


@router.delete("/{run}", status_code=204, response_class=Response, responses=documented(404, 422))
async def delete_run(services: Shared, run: RunName) -> Response:
    """Delete the run's file. There is no way back."""
    await run_in_threadpool(services.registry.delete, run)
    return Response(status_code=204)


@router.get("/{run}/flow", response_model=Flow)
async def show_flow(
    request: Request,
    services: Shared,
    run: RunName,
    steps: Annotated[
        str | None, Query(max_length=20, description="`first:end` for the steps first … end − 1", examples=["0:5"])
    ] = None,
    label: LabelFilter = None,
    min_share: Annotated[
        float, Query(ge=0, le=1, allow_inf_nan=False, description="Smaller links are summed in `other`")
    ] = 0.0,
    paths: Annotated[
        str | None, Query(max_length=2000, description="Only tokens on paths of these ranks", examples=["1,2,3"])
    ] = None,
    through: Through = None,
    limit: Annotated[int, Query(ge=1, le=2000, description="Most links; the rest is summed in `other`")] = 2000,
    merge_share: Annotated[
        float,
        Query(
            ge=0,
            le=1,
            allow_inf_nan=False,
            description="Modules with a smaller share of the tokens become one node of their step, module −1",
        ),
    ] = 0.0,
    most_modules: Annotated[
        int | None, Query(ge=1, le=65536, description="At most so many modules a step; the smaller ones are merged too")
    ] = None,
    sampled: Annotated[
        bool, Query(description="With `paths` or `through`: from a hash sample of a million tokens, with error bars")
    ] = False,
) -> Response:
    """Where tokens go: modules as nodes, flows between consecutive steps as links."""
    span, ranks, points = parse_steps(steps), parse_paths(paths), parse_through(through)
    return await services.answers.about_run(
        request,
        run,
        Flow,
        lambda opened: opened.flow(
            steps=span,
            label=label or None,
            min_share=min_share,
            paths=ranks,
            through=points,
            limit=limit,
            merge_share=merge_share,
            most_modules=most_modules,
            sampled=sampled,
        ),
    )


@router.get("/{run}/usage", response_model=Usage)
async def show_usage(request: Request, services: Shared, run: RunName, label: LabelFilter = None) -> Response:
    """How much every module is used at every step: load, effective top-k, dead modules."""
    return await services.answers.about_run(request, run, Usage, lambda opened: opened.usage(label=label or None))


@router.get("/{run}/distributions/{measure}", response_model=Distribution)
async def show_distribution(
    request: Request,
    services: Shared,
    run: RunName,
    measure: str,
    per: Annotated[Literal["sample", "token"], Query(description="What is counted")] = "sample",
    bins: Annotated[int, Query(ge=1, le=200, description="Bars of the histogram")] = 40,
    label: LabelFilter = None,
) -> Response:
    """How `compute`, `reuse`, `loss` or `gate_entropy` is distributed, over all and by label."""
    if len(measure) > 64:
        raise Problem(422, "measure", "There is no such measure; try `compute`.", field="measure")
    return await services.answers.about_run(
        request, run, Distribution, lambda opened: opened.distribution(measure, per=per, bins=bins, label=label or None)
    )
