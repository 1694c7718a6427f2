"""Routes of routing statistics."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, MAX_INT, LabelFilter, RunName, SampleNumber
from tokenpaths.backend.services import Shared
from tokenpaths.engine.store.ask.schemas.expert_schema import CoActivation, Repetition, Specialisation, TokenSlice

router = APIRouter(prefix="/runs/{run}", tags=["experts"], responses=ABOUT_A_RUN)
Step = Annotated[int, Query(ge=0, le=MAX_INT, description="The step (the layer of a mixture of experts)")]


@router.get("/specialisation", response_model=Specialisation)
async def show_specialisation(
    request: Request,
    services: Shared,
    run: RunName,
    of: Annotated[
        Literal["label", "input", "next", "predicted"],
        Query(description="In labels (domains), in the input token, in the true next token, or in the predicted one"),
    ] = "label",
    step: Step = 0,
    label: LabelFilter = None,
    limit: Annotated[int, Query(ge=1, le=256, description="Most modules, the most specialised first")] = 40,
    each: Annotated[int, Query(ge=1, le=100, description="Most token ids of a module")] = 5,
) -> Response:
    """What the modules of one step prefer, beside the share that even routing would give them."""
    return await services.answers.about_run(
        request,
        run,
        Specialisation,
        lambda opened: opened.specialisation(of, step, label=label or None, limit=limit, each=each),
    )


@router.get("/co_activation", response_model=CoActivation)
async def show_co_activation(
    request: Request,
    services: Shared,
    run: RunName,
    step: Step = 0,
    label: LabelFilter = None,
    limit: Annotated[int, Query(ge=1, le=256, description="Most modules, those of the strongest pairs")] = 32,
) -> Response:
    """Which modules of one step are chosen together, over all pairs that a token chooses."""
    return await services.answers.about_run(
        request, run, CoActivation, lambda opened: opened.co_activation(step, label=label or None, limit=limit)
    )


@router.get("/repetition", response_model=Repetition)
async def show_repetition(request: Request, services: Shared, run: RunName, label: LabelFilter = None) -> Response:
    """How often neighbouring tokens choose the same modules, per step, beside two baselines."""
    return await services.answers.about_run(
        request, run, Repetition, lambda opened: opened.repetition(label=label or None)
    )


@router.get("/samples/{sample}/experts", response_model=TokenSlice)
async def show_slice(
    request: Request,
    services: Shared,
    run: RunName,
    sample: SampleNumber,
    step: Step = 0,
    first: Annotated[int, Query(ge=0, le=MAX_INT, description="The first token")] = 0,
    limit: Annotated[int, Query(ge=1, le=500, description="Most tokens")] = 40,
) -> Response:
    """Token × module of one sample at one step: what each token chose, with its weights."""
    return await services.answers.about_run(
        request, run, TokenSlice, lambda opened: opened.token_slice(sample, step, first=first, limit=limit)
    )
