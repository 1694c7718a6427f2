"""What an edit changed: an edited run beside the unchanged one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tokenpaths.backend.problems import Problem
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, MAX_INT, RunName
from tokenpaths.backend.runs.answers import Answer, as_json
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.store.ask.schemas.compare_schema import Effect

router = APIRouter(prefix="/runs/{run}", tags=["effects"], responses=ABOUT_A_RUN)


@router.get("/effect", response_model=Effect)
async def show_effect(
    request: Request,
    services: Shared,
    run: RunName,
    of: Annotated[str, Query(max_length=64, description="Name of the unchanged run of the same model and inputs")],
    sample: Annotated[
        int | None, Query(ge=0, le=MAX_INT, description="The one sample of this run stands beside this sample of `of`")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=2000, description="Most links")] = 200,
) -> Response:
    """Routes, loss and answers of an edited run beside the unchanged one, token by token for a single sample."""

    def compute() -> Answer:
        with services.registry.lease(run) as after, services.registry.lease(of) as before:
            return as_json(Effect, after.effect(before, sample=sample, limit=limit))

    identity = services.registry.identity(run) + _identity_of(services, of)
    return await services.answers.about(request, identity, compute)


def _identity_of(services: Services, of: str) -> str:
    try:
        return services.registry.identity(of)
    except Problem as problem:  # the address was right, the query was not
        raise Problem(422, problem.kind, problem.detail, field="of") from None
