"""Charts that store the call that made them, so that they can be drawn again with other arguments.

The page shows a chart in its own colours and width; for print the same function is called with the print theme, and its
arguments are the data behind the chart. Every chart function with a ``theme`` is decorated with ``redrawable``, and
names the rows that it draws wherever its arguments are not such rows themselves (tests check both).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from tokenpaths.frontend.charts.drawing.tables import tables_of

Rows = Sequence[Mapping[str, Any]]
Numbers = Callable[..., Rows | Mapping[str, Rows]]
"""makes the table, or the tables by name, of what a chart draws; it takes arguments of the chart by their names"""
_KEPT = "_tokenpaths_call"
_WORDS, _NUMBERED = ("outcome", "measure", "per", "of", "shade", "training"), ("step", "sample", "token")
"""arguments, and fields of answers, by which charts of one function differ"""


@dataclass(frozen=True)
class Call:
    """One call of a chart function."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    """by name, without those at their default"""
    numbers: Numbers | None = None

    @property
    def name(self) -> str:
        """Base name for a file: ``rank-frequency`` of ``rank_frequency_chart``."""
        return self.function.__name__.removesuffix("_chart").replace("_", "-")

    def particulars(self) -> list[str]:
        """What tells this chart from others of the same function, as its arguments and answers say: measure, step …"""
        answers = [value for value in self.arguments.values() if isinstance(value, Mapping)]
        words = (part[name] for name in _WORDS for part in (self.arguments, *answers) if name in part)
        numbered = ((name, self.arguments.get(name)) for name in _NUMBERED)
        told = [word for word in words if isinstance(word, str) and word]
        return list(dict.fromkeys(told + [f"{name} {value}" for name, value in numbered if isinstance(value, int)]))

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The numbers behind the chart, by name: the rows that it names, or else its arguments that are answers."""
        if self.numbers is None:
            tables = tables_of({name: value for name, value in self.arguments.items() if _is_table(value)})
        else:
            bound = inspect.signature(self.function).bind(**self.arguments)
            bound.apply_defaults()
            wanted = inspect.signature(self.numbers).parameters
            found = self.numbers(**{name: value for name, value in bound.arguments.items() if name in wanted})
            named = found if isinstance(found, Mapping) else {self.name: found}
            tables = {name: [dict(row) for row in rows] for name, rows in named.items()}
        return {name: rows for name, rows in tables.items() if rows}

    def redraw(self, **changes: Any) -> Any:
        """Draw the chart again with changed arguments.

        Arguments that the function does not have are ignored; ``...`` restores the default.
        """
        parameters = inspect.signature(self.function).parameters
        arguments = {**self.arguments, **{name: value for name, value in changes.items() if name in parameters}}
        return self.function(**{name: value for name, value in arguments.items() if value is not ...})


def call_of(chart: Any) -> Call | None:
    """The call that made ``chart``; None if the chart was modified afterwards or made elsewhere."""
    call = getattr(chart, "__dict__", {}).get(_KEPT)
    return call if isinstance(call, Call) else None


@overload
def redrawable(function: Callable[..., Any]) -> Callable[..., Any]: ...
@overload
def redrawable(*, numbers: Numbers) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def redrawable(function: Callable[..., Any] | None = None, *, numbers: Numbers | None = None) -> Callable[..., Any]:
    """Decorator of chart functions that attaches the call to the returned chart, and refuses what is no answer to draw.

    Args:
        numbers: Makes the rows that are drawn, for a chart whose arguments are not such rows or answers of the API.
    """
    if function is None:
        return functools.partial(redrawable, numbers=numbers)
    signature = inspect.signature(function)
    title = signature.parameters.get("title")
    question = title.default if title is not None and isinstance(title.default, str) else ""
    first = next(iter(signature.parameters.values()))

    @functools.wraps(function)
    def draw(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named).arguments
        if first.name in bound:
            check_answer(function, bound[first.name])
        chart = function(*arguments, **named)
        if question and "title" in bound and bound["title"] is None:
            # The page shows the title as a heading; the accessible description repeats it for screen readers.
            chart.description = " ".join(filter(None, [question, _description(chart)]))
        # Set on the object directly: Altair would treat an ordinary attribute as part of the specification.
        object.__setattr__(chart, _KEPT, Call(function, dict(bound), numbers))
        return chart

    return draw


def check_answer(function: Callable[..., Any], answer: Any) -> None:
    """Refuse a run, a data frame and whatever else notebooks may give for an answer: some charts would draw nothing.

    Raises:
        TypeError: it is not of the kind that the first annotation of ``function`` names.
    """
    wanted = str(next(iter(function.__annotations__.values())))
    if answer is None and "None" in wanted or _is_kind(answer, wanted):
        return
    about = (inspect.getdoc(function) or "").partition("\n")[0].replace("``", "")
    raise TypeError(
        f"{function.__name__} takes an answer of a run, such as run.flow() gives for flow_chart, "
        f"not a {type(answer).__name__}. {about}"
    )


def _is_kind(answer: Any, wanted: str) -> bool:
    """Whether an answer fits an annotation; a whole answer is no list of its rows, though both can be walked."""
    if hasattr(answer, "columns"):
        return False
    if wanted.startswith("Mapping"):
        return isinstance(answer, Mapping)
    if wanted.startswith(("Iterable", "Sequence")):
        return isinstance(answer, Iterable) and not isinstance(answer, Mapping | str | bytes)
    return True


def _description(chart: Any) -> str:
    description = chart.description
    return description if isinstance(description, str) else ""


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)
