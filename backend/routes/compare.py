"""Two runs side by side, and the checkpoints of one training."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tokenpaths.backend.problems import Problem
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, RunName
from tokenpaths.backend.routes.series import runs_of_series
from tokenpaths.backend.runs.answers import Answer, as_json
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.store.ask.schemas.compare_schema import Comparison, Measure, SameGroups, Training

router = APIRouter(tags=["compare"], responses=ABOUT_A_RUN)


@router.get("/compare", response_model=Comparison)
async def show_comparison(
    request: Request,
    services: Shared,
    a: Annotated[str, Query(max_length=64, description="Name of a run")],
    b: Annotated[str, Query(max_length=64, description="Name of another run over the same samples")],
    measure: Annotated[Measure, Query(description="Of `points` and `most`; `skip` is 1 − compute")] = "reuse",
    limit: Annotated[int, Query(ge=1, le=100, description="Most samples that differ")] = 12,
    links: Annotated[int, Query(ge=1, le=2000, description="Most flows that differ")] = 200,
    points: Annotated[int, Query(ge=1, le=2000, description="Most samples of the scatter, an even draw")] = 2000,
    grouping: Annotated[
        bool, Query(description="Whether to tell how alike both group tokens; without, large runs answer twice as soon")
    ] = True,
) -> Response:
    """Run `b` beside run `a`, sample by sample: correlations, groups of tokens, flows, and what differs most.

    `409` where the two cannot stand side by side: a run beside itself, images beside texts, no sample in common.
    """

    def compute() -> Answer:
        with services.registry.lease(a) as one, services.registry.lease(b) as other:
            found = one.compare(other, measure, limit=limit, links=links, points=points, grouping=grouping)
            return as_json(Comparison, found)

    identity = _identity_of(services, a, "a") + _identity_of(services, b, "b")
    return await services.answers.about(request, identity, compute)


@router.get("/compare/grouping", response_model=SameGroups)
async def show_grouping(
    request: Request,
    services: Shared,
    a: Annotated[str, Query(max_length=64, description="Name of a run")],
    b: Annotated[str, Query(max_length=64, description="Name of another run over the same samples")],
) -> Response:
    """Whether both runs put the same tokens on one path: `grouping` of the comparison, by itself."""

    def compute() -> Answer:
        with services.registry.lease(a) as one, services.registry.lease(b) as other:
            return as_json(SameGroups, one.grouping(other))

    identity = _identity_of(services, a, "a") + _identity_of(services, b, "b")
    return await services.answers.about(request, identity, compute)


@router.get("/runs/{run}/series", response_model=Training)
async def show_training(request: Request, services: Shared, run: RunName) -> Response:
    """The numbers of all checkpoints of the training that a run belongs to, in order of iteration."""

    def compute() -> Answer:
        from tokenpaths.engine.store.ask.compare import over_training

        with runs_of_series(services, run) as members:
            return as_json(Training, over_training(members, run))

    identity = services.registry.identity(run)
    folder = await run_in_threadpool(services.registry.folder_identity)
    return await services.answers.about(request, identity + folder, compute)


def _identity_of(services: Services, name: str, field: str) -> str:
    try:
        return services.registry.identity(name)
    except Problem as problem:  # the address was right, the query was not
        raise Problem(422, problem.kind, problem.detail, field=field) from None
