"""Samples and tokens that take similar routes, and samples on a map."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, MAX_INT, RunName, SampleNumber
from tokenpaths.backend.services import Shared
from tokenpaths.engine.store.ask.schemas.sample_schema import SampleMap, SimilarSamples, SimilarTokens

router = APIRouter(prefix="/runs/{run}", tags=["similar"], responses=ABOUT_A_RUN)


@router.get("/samples/{sample}/similar", response_model=SimilarSamples)
async def list_similar_samples(
    request: Request,
    services: Shared,
    run: RunName,
    sample: SampleNumber,
    limit: Annotated[int, Query(ge=1, le=200, description="Most samples")] = 12,
) -> Response:
    """The samples whose tokens load the modules of each step most like this one's, nearest first."""
    return await services.answers.about_run(
        request, run, SimilarSamples, lambda opened: opened.similar_samples(sample, limit=limit)
    )


@router.get("/tokens/similar", response_model=SimilarTokens)
async def list_similar_tokens(
    request: Request,
    services: Shared,
    run: RunName,
    sample: Annotated[int, Query(ge=0, le=MAX_INT, description="Number of the sample, from 0")],
    token: Annotated[int, Query(ge=0, le=MAX_INT, description="Number of the token in its sample, from 0")],
    limit: Annotated[int, Query(ge=1, le=50, description="Most ribbons")] = 8,
    each: Annotated[int, Query(ge=1, le=60, description="Most tokens of a ribbon")] = 12,
    seed: Annotated[int, Query(ge=0, le=MAX_INT, description="Another seed draws other tokens")] = 0,
) -> Response:
    """The ribbons nearest to a token's by path distance, its own first, and tokens that take them."""
    return await services.answers.about_run(
        request,
        run,
        SimilarTokens,
        lambda opened: opened.similar_tokens(sample, token, limit=limit, each=each, seed=seed),
    )


@router.get("/map", response_model=SampleMap)
async def show_map(
    request: Request,
    services: Shared,
    run: RunName,
    method: Annotated[Literal["pca"], Query(description="t-SNE takes longer: POST /jobs with the kind `map`")] = "pca",
    limit: Annotated[int, Query(ge=3, le=5000, description="Most samples, an even draw")] = 2000,
    thumbnails: Annotated[bool, Query(description="With small pictures of up to 600 samples, as data URIs")] = False,
) -> Response:
    """Samples on the plane in which their path profiles differ most."""
    return await services.answers.about_run(
        request, run, SampleMap, lambda opened: opened.map(method, limit=limit, thumbnails=thumbnails)
    )
