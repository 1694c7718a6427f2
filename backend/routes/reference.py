"""Route that ranks a sample against a reference run: another run of the same model, over a data set."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tokenpaths.backend.routes.compare import identity_of
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, MAX_INT, RunName
from tokenpaths.backend.runs.answers import Answer, as_json
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.store.ask.schemas.reference_schema import SampleInReference

router = APIRouter(responses=ABOUT_A_RUN)


@router.get("/runs/{run}/samples/{sample}/reference", response_model=SampleInReference, tags=["samples"])
async def show_sample_in_reference(
    request: Request,
    services: Shared,
    run: RunName,
    sample: Annotated[int, Path(ge=0, le=MAX_INT, description="Number of the sample, from 0")],
    reference: Annotated[
        str | None,
        Query(
            max_length=64,
            description="Name of the run to rank against; by default the largest run over a data set with the same "
            "weights, else of the same model's name",
        ),
    ] = None,
    similar: Annotated[int, Query(ge=0, le=60, description="Most samples of the reference")] = 6,
    unusual: Annotated[int, Query(ge=0, le=30, description="Most paths that the reference does not have")] = 6,
    each: Annotated[int, Query(ge=1, le=60, description="Most tokens of a path")] = 12,
    seed: Annotated[int, Query(ge=0, le=MAX_INT, description="Another seed draws other tokens")] = 0,
) -> Response:
    """The tokens of a sample with the ranks, counts and shares that their paths have in a reference run.

    For uploads: a run of one sample has no ranks of its own that mean anything. `reference` is null where there is no
    run of this model over a data set; `reason` says so.
    """
    identity = services.registry.identity(run)
    if reference is not None:
        identity += identity_of(services, reference, "reference")
    else:
        identity += await run_in_threadpool(services.registry.folder_identity)

    def compute() -> Answer:
        return as_json(SampleInReference, _answer(services, run, sample, reference, (similar, unusual, each, seed)))

    return await services.answers.about(request, identity, compute)


def _answer(
    services: Services, run: str, sample: int, named: str | None, limits: tuple[int, int, int, int]
) -> dict[str, object]:
    from tokenpaths.engine.store.ask.several_runs.reference import (
        Choice,
        choose_reference,
        in_reference,
        without_reference,
    )

    with services.registry.lease(run) as own:
        choice = Choice(named, "named")
        if named is None:
            choice = choose_reference(own.card(), services.registry.cards())
        if choice.run is None:
            return without_reference(own, sample, choice.reason)
        similar, unusual, each, seed = limits
        with services.registry.lease(choice.run) as other:
            answer = in_reference(own, other, sample, similar=similar, unusual=unusual, each=each, seed=seed)
    return answer | {"found_by": choice.found_by}
