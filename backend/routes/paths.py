"""Paths: which exist, how frequent they are, who takes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tokenpaths.backend.http.paging import binding_of, decode_cursor, with_cursor
from tokenpaths.backend.routes.parameters import (
    ABOUT_A_RUN,
    MAX_INT,
    Cursor,
    LabelFilter,
    Limit,
    RankNumber,
    RunName,
    Through,
)
from tokenpaths.backend.services import Shared
from tokenpaths.engine.store.ask.schemas.path_schema import PathExamples, PathFit, PathLaw, PathList
from tokenpaths.engine.store.file.filters import parse_through

router = APIRouter(prefix="/runs/{run}/paths", tags=["paths"], responses=ABOUT_A_RUN)


@router.get("", response_model=PathList)
async def list_paths(
    request: Request,
    services: Shared,
    run: RunName,
    order: Annotated[
        Literal["rank", "compute", "reuse"],
        Query(description="`rank`: most frequent first; `compute`, `reuse`: largest first"),
    ] = "rank",
    label: LabelFilter = None,
    through: Through = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """The paths that tokens take, with their ribbons and how many take them."""
    points = parse_through(through)
    binding = binding_of(request, services.registry.identity(run))
    offset = int(decode_cursor(cursor, binding)) if cursor else 0

    def question(opened: Any) -> dict[str, Any]:
        page = opened.paths(order=order, label=label or None, through=points, limit=limit, offset=offset)
        return with_cursor(page, binding)

    return await services.answers.about_run(request, run, PathList, question)


@router.get("/fit", response_model=PathFit)
async def show_fit(request: Request, services: Shared, run: RunName) -> Response:
    """The rank–frequency curve beside the untrained twin and independent steps."""
    return await services.answers.about_run(request, run, PathFit, lambda opened: opened.fit())


@router.get("/law", response_model=PathLaw)
async def show_law(
    request: Request,
    services: Shared,
    run: RunName,
    draws: Annotated[int, Query(ge=0, le=1000, description="Data sets drawn for each p-value; 0: no p-value")] = 100,
    seed: Annotated[int, Query(ge=0, le=MAX_INT, description="Of the draws")] = 0,
) -> Response:
    """Do path counts follow a power law? Discrete maximum likelihood, goodness of fit, and a lognormal beside it."""
    return await services.answers.about_run(request, run, PathLaw, lambda opened: opened.law(draws=draws, seed=seed))


@router.get("/{rank}/examples", response_model=PathExamples)
async def list_examples(
    request: Request,
    services: Shared,
    run: RunName,
    rank: RankNumber,
    limit: Annotated[int, Query(ge=1, le=200, description="Most examples")] = 60,
    seed: Annotated[int, Query(ge=0, le=MAX_INT, description="Another seed draws other examples")] = 0,
) -> Response:
    """Tokens that take one path: patches of images, or tokens between their neighbours."""
    return await services.answers.about_run(
        request, run, PathExamples, lambda opened: opened.examples(rank, limit=limit, seed=seed)
    )
