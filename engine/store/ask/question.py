"""``Question``: what can be asked of a run, declared once by decorating the function that answers it.

The signature of the function is the declaration. From it and from what ``question`` is given come the method of ``Run``
with its argument checks, the REST route with its OpenAPI description, the page's client call, the data frames and the
list of answers that are worked out at sealing::

    @question("paths/{rank}/examples", "path_schema.PathExamples", tag="paths", rows="examples")
    def examples(run: RunFile, rank: RankNumber, limit: Annotated[int, Argument("Most examples", ge=1, le=200)] = 60):
        \"\"\"Tokens that take one path.\"\"\"
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed as read_sealed
from tokenpaths.engine.store.file.filters import parse_bounds, parse_paths, parse_through

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel

Answer = dict[str, Any]
RowsOf = str | Callable[[Answer], Iterable[Mapping[str, Any]]]
"""the list of an answer whose items are the rows of a data frame, by its key or worked out"""
MAX_INT = 2**31 - 1
"""samples, tokens and ranks are 32-bit in a run file"""
UNSET: Any = object()


@dataclass(frozen=True)
class Argument:
    """REST declaration of an argument; put into ``Annotated``. Arguments without one are not offered.

    ``ge`` and ``le`` bound what REST and ``Run`` take; ``max_length`` and ``choices`` what REST takes. ``read`` turns
    the text of a query into the value, for types that a query cannot hold. ``default`` is REST's own, where it differs
    from the function's.
    """

    description: str | None = None
    ge: int | float | None = None
    le: int | float | None = None
    max_length: int | None = None
    examples: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    read: Callable[[str | None], Any] | None = None
    default: Any = UNSET


RankNumber = Annotated[int, Argument("Rank of the path, 1 = most frequent", ge=1, le=MAX_INT)]
SampleNumber = Annotated[int, Argument("Number of the sample, from 0", ge=0, le=MAX_INT)]
StepNumber = Annotated[int, Argument("The step (the layer of a mixture of experts)", ge=0, le=MAX_INT, default=0)]
Seed = Annotated[int, Argument("Another seed draws other examples", ge=0, le=MAX_INT)]
PageLimit = Annotated[int, Argument("Most entries in one answer", ge=1, le=1000, default=100)]
LabelFilter = Annotated[str | None, Argument("Only tokens or samples with this label, exactly", max_length=500)]
Labels = Annotated[
    str | None,
    Argument(
        "`merged`: labels that look alike (case, blanks, invisible characters) count as one; stored values stay",
        choices=("merged",),
    ),
]
Ranks = Annotated[
    Sequence[int],
    Argument("Only tokens on paths of these ranks", max_length=2000, examples=("1,2,3",), read=parse_paths),
]
Points = Annotated[
    Sequence[tuple[int, int]],
    Argument(
        "Only tokens that pass all of these: `step.module`, separated by commas",
        max_length=2000,
        examples=("2.7,3.4",),
        read=parse_through,
    ),
]
Interval = tuple[int | float, int | float] | None
"""minimum and maximum of a measure, both included"""


def within(measure: str, of: str) -> Argument:
    """Declaration of an ``Interval``."""
    description = f"Only {of} has this between both, 0 to 1"
    return Argument(description, max_length=40, examples=("0.5:1",), read=partial(parse_bounds, field=measure))


@dataclass(frozen=True)
class Rows:
    """A data frame of an answer: its rows, and the arguments of the question that it fixes."""

    rows: RowsOf
    doc: str
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """REST address of a question below ``/runs/{run}``; arguments in braces are path parameters."""

    path: str
    name: str
    description: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """arguments fixed by this address"""


@dataclass(frozen=True)
class Question:
    """A question to one run; see the module's docstring."""

    name: str
    """name of the method of ``Run``"""
    function: Callable[..., Answer]
    answer_type: type[AnswerModel] | str
    tag: str
    routes: tuple[Route, ...]
    frames: Mapping[str, Rows]
    sealed: Callable[[RunFile], Iterable[dict[str, Any]]] | None
    """argument sets whose answers are computed at sealing"""
    of_counts: bool = False
    """whether a run that was made of expert counts can answer"""

    @functools.cached_property
    def answer(self) -> type[AnswerModel]:
        """The type of the answer, imported on first use: pydantic costs who only asks 0.1 s."""
        if not isinstance(self.answer_type, str):
            return self.answer_type
        module, _, name = self.answer_type.partition(".")
        answer: type[AnswerModel] = getattr(import_module(f"tokenpaths.engine.store.ask.schemas.{module}"), name)
        return answer

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The resolved annotations, ``Argument`` included."""
        return typing.get_type_hints(self.function, include_extras=True) | {"labels": Labels}

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """All arguments but the run, with plain annotations; ``labels``, which every question has, is the last."""
        kinds = typing.get_type_hints(self.function)
        arguments = list(inspect.signature(self.function).parameters.values())[1:]
        own = {argument.name: argument.replace(annotation=kinds[argument.name]) for argument in arguments}
        labels = inspect.Parameter("labels", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
        return own | {"labels": labels}

    @property
    def bounds(self) -> dict[str, tuple[int | float, int | float | None]]:
        """Least and greatest value of arguments, for ``Run`` as for REST.

        Not of those that name a thing (in an address, or any number from 0): the function says that there is none.
        """
        addressed = {name for route in self.routes for name in re.findall(r"{(\w+)}", route.path)}
        declared = {name: self.argument(name) for name in self.parameters if name not in addressed}
        return {
            name: (argument.ge, None if argument.le == MAX_INT else argument.le)
            for name, argument in declared.items()
            if argument is not None and argument.ge is not None and (argument.ge, argument.le) != (0, MAX_INT)
        }

    @property
    def paged(self) -> bool:
        """Whether the answer is a page of a list: ``offset`` in Python, the cursor ``next`` over REST."""
        return "offset" in self.parameters

    def argument(self, name: str) -> Argument | None:
        """The REST declaration of an argument; None if REST does not offer it."""
        return next(
            (item for item in getattr(self.hints[name], "__metadata__", ()) if isinstance(item, Argument)), None
        )


def declaration_of(name: str, value: Any, own: Iterable[Question], other_paths: Iterable[str]) -> Question:
    """The declaration of a plugin's question, checked as far as its function need not be called for it.

    Args:
        name: of the entry point, which is that of the method of ``Run``.
        value: the object of the entry point.
        own: the questions of this program, whose addresses are taken.
        other_paths: further addresses below ``/runs/{run}`` that are taken.

    Raises:
        UserError: it is no question, has another name, an address that is taken, or a declaration that cannot be read.
    """
    declared = getattr(value, "declaration", None)
    if not isinstance(declared, Question):
        raise UserError("it is no function decorated with tokenpaths.engine.store.ask.question.question")
    if declared.name != name:
        raise UserError(f"it declares the question {declared.name[:40]!r}, which is not the name of its entry point")
    try:
        answer, hints = declared.answer, [declared.argument(argument) for argument in declared.parameters]
        described = hasattr(answer, "model_json_schema")
    except Exception as error:  # annotations of strangers' functions may name anything
        raise UserError(f"its declaration cannot be read ({type(error).__name__}: {error})") from None
    if not described or not hints:
        raise UserError(f"its answer is {answer!r}, not a class derived from AnswerModel")
    taken = [*(route.path for question in own for route in question.routes), *other_paths]
    for route in declared.routes:
        for path in taken:
            if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)), route.path):
                raise UserError(f"its address {route.path!r} is taken by {path!r}")
    return declared


def question(
    path: str | None,
    answer: type[AnswerModel] | str,
    *,
    tag: str,
    name: str | None = None,
    route: str | None = None,
    description: str | None = None,
    routes: Iterable[Route] = (),
    rows: RowsOf | None = None,
    frames: Mapping[str, Rows] | None = None,
    sealed: Callable[[RunFile], Iterable[dict[str, Any]]] | None = None,
    of_counts: bool = False,
) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Declare the decorated function of a ``RunFile`` a question.

    Args:
        path: its REST address below ``/runs/{run}``; None if ``routes`` holds several.
        answer: the type of the answer, or its name in ``ask.schemas`` (``path_schema.PathList``).
        tag: its section of the OpenAPI page.
        name: the method of ``Run``; by default the function's name.
        route: the name of the route in OpenAPI; by default ``show_`` and ``name``.
        description: of the route; by default the first paragraph of the function's docstring.
        routes: several addresses of one question.
        rows: the list of the answer that ``run.frames.<name>`` returns as a data frame.
        frames: several data frames, or one of another name.
        sealed: returns the argument sets whose answers are computed at sealing and stored in the run.
        of_counts: whether a run that was made of expert counts, without tokens, can answer it.
    """

    def declare(function: Callable[..., Answer]) -> Callable[..., Answer]:
        called = name or function.__name__
        text = inspect.getdoc(function) or ""
        first = re.sub(r"\s+", " ", text.split("\n\n")[0])
        own = () if path is None else (Route(path, route or f"show_{called}", description or first),)
        tables = dict(frames or {}) | ({called: Rows(rows, f"{first} One row of ``{rows}`` each.")} if rows else {})
        ask = read_sealed(called)(function) if sealed is not None else function
        declaration = Question(called, ask, answer, tag, (*own, *routes), tables, sealed, of_counts)
        ask.declaration = declaration  # type: ignore[attr-defined]
        return ask

    return declare
