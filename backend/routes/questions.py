"""The routes of all questions to a run, made from their declarations (``engine.store.ask.question``)."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from tokenpaths.backend.http.paging import binding_of, decode_cursor, with_cursor
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, Cursor, RunName
from tokenpaths.backend.services import Services, Shared
from tokenpaths.engine.base.plugins import PluginError
from tokenpaths.engine.store.ask.question import UNSET, Argument, Question, Route
from tokenpaths.engine.store.ask.run import PLUGIN_QUESTIONS

KEYWORD = inspect.Parameter.KEYWORD_ONLY
OWN = {"request": Request, "services": Shared, "run": RunName}
"""what every endpoint takes beside the arguments of its question"""


def question_router(questions: Iterable[Question]) -> APIRouter:
    """A router with the addresses of ``questions`` below ``/runs/{run}``."""
    router = APIRouter(prefix="/runs/{run}", responses=ABOUT_A_RUN)
    for question in questions:
        for route in question.routes:
            router.add_api_route(
                f"/{route.path}" if route.path else "",
                _endpoint(question, route),
                methods=["GET"],
                response_model=question.answer,
                name=route.name,
                description=route.description,
                tags=[question.tag],
            )
    return router


def plugin_routers() -> Iterator[tuple[APIRouter, PluginError | None]]:
    """A router for the questions of each plugin; one that cannot be used has a router that says why."""
    for name, question in PLUGIN_QUESTIONS.plugins():
        if not isinstance(question, PluginError):
            try:
                yield question_router([question]), None
                continue
            except Exception as error:  # FastAPI on annotations that it cannot offer
                question = PluginError(f"the question {name!r} cannot be offered over REST: {error}")
        yield _refusing_router(name, question), question


def _refusing_router(name: str, error: PluginError) -> APIRouter:
    async def refuse() -> None:
        raise error.with_traceback(None)

    router = APIRouter(prefix="/runs/{run}")
    if name:
        router.add_api_route(f"/{name}", refuse, include_in_schema=False)
    return router


def _endpoint(question: Question, route: Route) -> Any:
    """The function that answers requests; its signature is what FastAPI reads."""
    arguments = {
        name: argument
        for name in question.parameters
        if name not in route.fixed and (argument := question.argument(name)) is not None
    }

    async def answer(request: Request, services: Services, run: str, **values: Any) -> Response:
        values = {name: _read(question, name, value) for name, value in values.items()} | dict(route.fixed)
        cursor = values.pop("cursor", None)
        if not question.paged:
            return await services.answers.about_run(
                request, run, question.answer, lambda opened: getattr(opened, question.name)(**values)
            )
        binding = binding_of(request, services.registry.identity(run))
        values["offset"] = decode_cursor(cursor, binding, int) if cursor else 0
        return await services.answers.about_run(
            request, run, question.answer, lambda opened: with_cursor(getattr(opened, question.name)(**values), binding)
        )

    parameters = [inspect.Parameter(name, KEYWORD, annotation=kind) for name, kind in OWN.items()]
    parameters += [_parameter(question, route, name, argument) for name, argument in arguments.items()]
    if question.paged:
        parameters.append(inspect.Parameter("cursor", KEYWORD, annotation=Cursor, default=None))
    answer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return answer


def _parameter(question: Question, route: Route, name: str, argument: Argument) -> inspect.Parameter:
    """One argument as FastAPI has it: in the path where the address holds it, else in the query."""
    python = question.parameters[name].default
    default = argument.default
    if default is UNSET:
        default = None if argument.read is not None else python
    kind = str | None if argument.read is not None else typing.get_args(question.hints[name])[0]
    if kind == int | float:
        kind = float
    if argument.choices is not None:
        kind = Literal[argument.choices] | None if kind == str | None else Literal[argument.choices]  # type: ignore[assignment]
    told = {
        key: value
        for key in ("description", "ge", "le", "max_length", "examples")
        if (value := getattr(argument, key)) is not None
    }
    if "examples" in told:
        told["examples"] = list(told["examples"])
    if kind is float:
        told["allow_inf_nan"] = False
    if f"{{{name}}}" in route.path:
        return inspect.Parameter(name, KEYWORD, annotation=Annotated[kind, Path(**told)] if told else kind)
    return inspect.Parameter(name, KEYWORD, annotation=Annotated[kind, Query(**told)], default=default)


def _read(question: Question, name: str, value: Any) -> Any:
    """The value that the question takes; an empty text counts as not given."""
    argument = question.argument(name) if name in question.parameters else None
    if argument is not None and argument.read is not None:
        return argument.read(value)
    return value if value != "" else None
