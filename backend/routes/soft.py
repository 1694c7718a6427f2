"""What soft, gated and threshold routers said: connections, gates and firing rates."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, MAX_INT, LabelFilter, RunName
from tokenpaths.backend.services import Shared
from tokenpaths.engine.store.ask.schemas.expert_schema import SoftValues

router = APIRouter(prefix="/runs/{run}", tags=["soft routers"], responses=ABOUT_A_RUN)
OneSample = Annotated[int | None, Query(ge=0, le=MAX_INT, description="Of this sample; else the mean over samples")]


@router.get("/edges", response_model=SoftValues)
async def show_edges(
    request: Request, services: Shared, run: RunName, label: LabelFilter = None, sample: OneSample = None
) -> Response:
    """Weight of each connection by iteration, source and target (H-Model)."""
    return await _soft(request, services, run, "edges", label, sample)


@router.get("/gates", response_model=SoftValues)
async def show_gates(
    request: Request, services: Shared, run: RunName, label: LabelFilter = None, sample: OneSample = None
) -> Response:
    """Weight of each direction by layer and head (Directional Routing)."""
    return await _soft(request, services, run, "gates", label, sample)


@router.get("/blocks", response_model=SoftValues)
async def show_blocks(
    request: Request, services: Shared, run: RunName, label: LabelFilter = None, sample: OneSample = None
) -> Response:
    """Firing rate of each block at each threshold step, 0 where it was silent (RayTracing)."""
    return await _soft(request, services, run, "blocks", label, sample)


async def _soft(
    request: Request, services: Shared, run: str, kind: str, label: str | None, sample: int | None
) -> Response:
    return await services.answers.about_run(
        request, run, SoftValues, lambda opened: opened.soft(kind, label=label or None, sample=sample)
    )
