"""Routes about several runs: two side by side, an edited run, the checkpoints of one training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tokenpaths.backend.problems import Problem
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, MAX_INT, LabelsShown, RunName
from tokenpaths.backend.runs.answers import Answer, as_json
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.store.ask.schemas.agreement_schema import Agreement, SampleDecisions
from tokenpaths.engine.store.ask.schemas.compare_schema import (
    Comparison,
    Effect,
    MeasureOrAuto,
    RunsBeside,
    SameGroups,
    Saturation,
    Training,
)
from tokenpaths.engine.store.ask.schemas.load_schema import LoadComparison
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel
from tokenpaths.engine.store.ask.several_runs import MOST_RUNS

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

Ask = Callable[["Run", "Run"], dict[str, Any]]

router = APIRouter(responses=ABOUT_A_RUN)


@router.get("/compare", response_model=RunsBeside | Comparison, tags=["compare"])
async def show_comparison(
    request: Request,
    services: Shared,
    runs: Annotated[
        str | None,
        Query(
            max_length=65 * MOST_RUNS,
            description=f"Names of up to {MOST_RUNS} runs, with commas between them, the first being what the others "
            "differ from. Nothing else is asked then",
            examples=["first,second,third"],
        ),
    ] = None,
    a: Annotated[str | None, Query(max_length=64, description="Name of a run, to be set beside `b` alone")] = None,
    b: Annotated[str | None, Query(max_length=64, description="Name of another run over the same samples")] = None,
    measure: Annotated[
        MeasureOrAuto,
        Query(description="Of `points` and `most`; `skip` is 1 − compute, `auto` the one by which the two differ most"),
    ] = "reuse",
    limit: Annotated[int, Query(ge=1, le=100, description="Most samples that differ")] = 12,
    links: Annotated[int, Query(ge=1, le=2000, description="Most flows that differ")] = 200,
    points: Annotated[int, Query(ge=1, le=2000, description="Most samples of the scatter, an even draw")] = 2000,
    grouping: Annotated[
        bool, Query(description="Whether to tell how alike both group tokens; without, large runs answer twice as soon")
    ] = True,
    labels: LabelsShown = None,
) -> Response:
    """Any number of `runs` in numbers, or run `b` beside run `a`, sample by sample.

    With `runs`: a row for each number, with intervals, and the differences from the first run that the common samples
    can tell. With `a` and `b`: correlations, groups of tokens, flows, and what differs most; `409` where the two cannot
    stand side by side: a run beside itself, images beside texts, no sample in common.
    """
    if runs is not None:
        return await _numbers(request, services, runs)
    if a is None or b is None:
        field = "a" if a is None else "b"
        raise Problem(
            422, "missing", f"`{field}` is missing: give `a` and `b`, or any number of runs as `runs`.", field=field
        )

    options: dict[str, Any] = {"limit": limit, "links": links, "points": points, "grouping": grouping}
    return await _about_two(
        request, services, (a, b), Comparison, lambda one, other: one.compare(other, measure, labels=labels, **options)
    )


async def _about_two(
    request: Request, services: Services, names: tuple[str, str], model: type[AnswerModel], ask: Ask
) -> Response:
    """What ``ask`` tells of two runs, which the query calls ``a`` and ``b``."""

    def compute() -> Answer:
        with services.registry.lease(names[0]) as one, services.registry.lease(names[1]) as other:
            return as_json(model, ask(one, other))

    identity = identity_of(services, names[0], "a") + identity_of(services, names[1], "b")
    return await services.answers.about(request, identity, compute)


async def _numbers(request: Request, services: Services, runs: str) -> Response:
    """The answer to ``runs``: names with commas between them."""
    if more := sorted(set(request.query_params) - {"runs"}):
        raise Problem(422, "unknown-key", f"`{more[0]}` is a question about two runs; leave it out.", field=more[0])
    names = [name for name in runs.split(",") if name]

    def compute() -> Answer:
        from tokenpaths.engine.store.ask.several_runs.many_runs import compare_runs

        with ExitStack() as stack:
            return as_json(RunsBeside, compare_runs([stack.enter_context(services.registry.lease(n)) for n in names]))

    identity = "".join(identity_of(services, name, "runs") for name in names[: MOST_RUNS + 1])
    return await services.answers.about(request, identity, compute)


@router.get("/compare/load", response_model=LoadComparison, tags=["compare"])
async def show_load_comparison(
    request: Request,
    services: Shared,
    a: Annotated[str, Query(max_length=64, description="Name of a run")],
    b: Annotated[str, Query(max_length=64, description="Name of another run with as many steps")],
    limit: Annotated[int, Query(ge=1, le=1000, description="Most modules")] = 20,
) -> Response:
    """The load of two runs, step by step, and the modules whose share differs most; also of runs without tokens."""
    return await _about_two(
        request, services, (a, b), LoadComparison, lambda one, other: one.compare_load(other, limit=limit)
    )


@router.get("/compare/grouping", response_model=SameGroups, tags=["compare"])
async def show_grouping(
    request: Request,
    services: Shared,
    a: Annotated[str, Query(max_length=64, description="Name of a run")],
    b: Annotated[str, Query(max_length=64, description="Name of another run over the same samples")],
) -> Response:
    """Whether both runs put the same tokens on one path: `grouping` of the comparison, by itself."""
    return await _about_two(request, services, (a, b), SameGroups, lambda one, other: one.grouping(other))


@router.get("/compare/agreement", response_model=Agreement, tags=["compare"])
async def show_agreement(
    request: Request,
    services: Shared,
    a: Annotated[str, Query(max_length=64, description="Name of a run")],
    b: Annotated[str, Query(max_length=64, description="Name of another run of the same architecture")],
    limit: Annotated[int, Query(ge=1, le=100, description="Most samples that differ")] = 12,
    words: Annotated[int, Query(ge=1, le=100, description="Most words")] = 20,
    labels: LabelsShown = None,
) -> Response:
    """Whether the same token takes the same modules in both runs, step by step.

    For a rollout and a training engine, two kernels, a model and its quantised copy. Samples are paired by source or
    content, what is left by vocabulary ids; in each pair the longest stretch of equal ids is compared. Of long runs
    whole samples are drawn by a seed (`counted`); `tokenpaths agree` reads all. `409` where the two have other steps or
    modules, or no token in common.
    """
    return await _about_two(
        request,
        services,
        (a, b),
        Agreement,
        lambda one, other: one.agree(other, limit=limit, words=words, labels=labels),
    )


@router.get("/compare/agreement/sample", response_model=SampleDecisions, tags=["compare"])
async def show_sample_agreement(
    request: Request,
    services: Shared,
    a: Annotated[str, Query(max_length=64, description="Name of a run")],
    b: Annotated[str, Query(max_length=64, description="Name of another run of the same architecture")],
    sample: Annotated[int, Query(ge=0, le=MAX_INT, description="Number of a sample of `a`")],
    first: Annotated[int, Query(ge=0, le=MAX_INT, description="The common token to begin with")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most tokens")] = 200,
) -> Response:
    """Which decisions about one sample differ, token by token and step by step, with the modules of both runs."""
    return await _about_two(
        request,
        services,
        (a, b),
        SampleDecisions,
        lambda one, other: one.agree_in(other, sample, first=first, limit=limit),
    )


@router.get("/runs/{run}/series", response_model=Training, tags=["compare"])
async def show_training(request: Request, services: Shared, run: RunName) -> Response:
    """The numbers of all checkpoints of the training that a run belongs to, in order of iteration."""

    def compute() -> Answer:
        from tokenpaths.engine.store.ask.several_runs.series import over_training

        with runs_of_series(services, run) as members:
            return as_json(Training, over_training(members, run))

    identity = services.registry.identity(run)
    folder = await run_in_threadpool(services.registry.folder_identity)
    return await services.answers.about(request, identity + folder, compute)


@router.get("/runs/{run}/saturation", response_model=Saturation, tags=["experts"])
async def show_saturation(request: Request, services: Shared, run: RunName) -> Response:
    """How much of each checkpoint's routing the last checkpoint of its series keeps, over the same tokens."""

    def compute() -> Answer:
        return as_json(Saturation, _saturation(services, run))

    identity = services.registry.identity(run)
    folder = await run_in_threadpool(services.registry.folder_identity)
    return await services.answers.about(request, identity + folder, compute)


def _saturation(services: Services, run_id: str) -> dict[str, Any]:
    from tokenpaths.engine.store.ask.several_runs.saturation import of_series

    with runs_of_series(services, run_id) as members:
        return of_series(members, run_id)


@router.get("/runs/{run}/effect", response_model=Effect, tags=["effects"])
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

    identity = services.registry.identity(run) + identity_of(services, of, "of")
    return await services.answers.about(request, identity, compute)


@contextmanager
def runs_of_series(services: Services, run_id: str) -> Iterator[list[Run]]:
    """The open runs of the series that ``run_id`` belongs to, itself first.

    Opens the runs of the data folder that may belong to it and keeps those that do. NoSuchThing where it stands alone.
    """
    from tokenpaths.engine.store.ask.several_runs.series import no_series, series_of

    with ExitStack() as stack:
        run = stack.enter_context(services.registry.lease(run_id))
        series = series_of(run)
        if series is None:
            raise no_series(run_id)
        members = [run]
        for card in services.registry.cards():  # runs without a card yet are left out for now
            if card["status"] != "sealed" or card["run"] == run_id or card["family"] != run.row["family"]:
                continue
            with ExitStack() as attempt:
                other = attempt.enter_context(services.registry.lease(card["run"]))
                if (series_of(other) or ("", 0))[0] == series[0]:
                    members.append(other)
                    stack.push(attempt.pop_all())
        yield members


def identity_of(services: Services, name: str, field: str) -> str:
    """The identity of a run that a query names; Problem 422 about ``field`` where there is none."""
    try:
        return services.registry.identity(name)
    except Problem as problem:  # the path was valid, the query was not
        raise Problem(422, problem.kind, problem.detail, field=field) from None
