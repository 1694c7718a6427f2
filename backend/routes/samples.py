"""Samples: the images and texts of a run, token by token."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tokenpaths.backend.http.paging import binding_of, decode_cursor, with_cursor
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, Cursor, LabelFilter, Limit, RunName, SampleNumber
from tokenpaths.backend.runs.answers import Answer
from tokenpaths.backend.services import Shared
from tokenpaths.engine.store.ask.schemas.sample_schema import SampleDetails, SampleList

router = APIRouter(prefix="/runs/{run}/samples", tags=["samples"], responses=ABOUT_A_RUN)
Order = Literal["sample", "compute", "reuse", "loss", "confidence", "num_distinct_paths"]


@router.get("", response_model=SampleList)
async def list_samples(
    request: Request,
    services: Shared,
    run: RunName,
    order: Annotated[Order, Query(description="What to sort by; samples without a value come last")] = "sample",
    descending: Annotated[bool, Query(description="Largest first")] = False,
    label: LabelFilter = None,
    q: Annotated[
        str | None, Query(max_length=500, description="Only samples whose text, label or source has these words")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """The samples of a run in the chosen order."""
    binding = binding_of(request, services.registry.identity(run))
    offset = int(decode_cursor(cursor, binding)) if cursor else 0

    def question(opened: Any) -> dict[str, Any]:
        page = opened.samples(
            order=order, descending=descending, label=label or None, q=q or None, limit=limit, offset=offset
        )
        return with_cursor(page, binding)

    return await services.answers.about_run(request, run, SampleList, question)


@router.get("/{sample}", response_model=SampleDetails)
async def show_sample(request: Request, services: Shared, run: RunName, sample: SampleNumber) -> Response:
    """One sample with every token: ribbon, weights, rank, compute, reuse, text or place."""
    return await services.answers.about_run(request, run, SampleDetails, lambda opened: opened.sample(sample))


@router.get(
    "/{sample}/image",
    response_class=Response,
    responses={200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def show_image(request: Request, services: Shared, run: RunName, sample: SampleNumber) -> Response:
    """The picture that the model saw, cropped to the patch grid, as PNG."""

    def compute() -> Answer:
        return Answer(services.registry.ask(run, lambda opened: opened.picture(sample)), "image/png")

    return await services.answers.about(request, services.registry.identity(run), compute)
