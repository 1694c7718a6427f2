"""Charts that store the call that made them, so that they can be drawn again with other arguments.

The page shows a chart in its own colours and width; for print the same function is called with the print theme, and its
arguments are the data behind the chart. Every chart function with a ``theme`` is decorated with ``redrawable`` (a test
checks that).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_KEPT = "_tokenpaths_call"


@dataclass(frozen=True)
class Call:
    """One call of a chart function."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    """by name, without those at their default"""

    @property
    def name(self) -> str:
        """Base name for a file: ``rank-frequency`` of ``rank_frequency_chart``."""
        return self.function.__name__.removesuffix("_chart").replace("_", "-")

    def answers(self) -> dict[str, Any]:
        """The data of the chart: the arguments that are a mapping or a list of mappings."""
        return {name: value for name, value in self.arguments.items() if _is_table(value)}

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


def redrawable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of chart functions that attaches the call to the returned chart."""
    signature = inspect.signature(function)
    title = signature.parameters.get("title")
    question = title.default if title is not None and isinstance(title.default, str) else ""

    @functools.wraps(function)
    def draw(*arguments: Any, **named: Any) -> Any:
        chart = function(*arguments, **named)
        bound = signature.bind(*arguments, **named).arguments
        if question and "title" in bound and bound["title"] is None:
            # The page shows the title as a heading; the accessible description repeats it for screen readers.
            chart.description = " ".join(filter(None, [question, _description(chart)]))
        # Set on the object directly: Altair would treat an ordinary attribute as part of the specification.
        object.__setattr__(chart, _KEPT, Call(function, dict(bound)))
        return chart

    return draw


def _description(chart: Any) -> str:
    description = chart.description
    return description if isinstance(description, str) else ""


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)
