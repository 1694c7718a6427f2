"""The answers of a run as pandas data frames: the same questions and numbers as the methods of ``Run``.

    run = tokenpaths.Run.open("my-run.duckdb")
    run.frames.paths()                  # every path: all pages, one row each
    run.frames.usage(label="code")      # the arguments are those of run.usage
    run.frames.table("token")           # a whole table, as ``export`` gives it
    polars.from_arrow(run.frames.arrow("token"))  # for polars

Scalars of an answer (``num_tokens``, ``baseline`` …) are in ``frame.attrs``. An integer column with missing values has
the dtype ``Int64``; other missing values are NaN or None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenpaths.engine.store.ask.export import check_export, table_batches
from tokenpaths.engine.store.ask.question import Question, Rows

if TYPE_CHECKING:
    import pandas as pd

PAGE = 1000
_FRAMES_OF: dict[str, tuple[str, ...]] = {}
"""the names of the frames of each question, which one looks for under the question's own"""


class Frames:
    """Questions to one run whose answers are ``pandas.DataFrame``; errors are those of the method of ``Run``.

    The methods not written here come from the declarations of the questions (``add_frames``).

    Args:
        run: an opened ``Run``, whose methods check their arguments.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., pd.DataFrame]:
        """The data frame of a plugin's question; its errors are those of ``Run``."""
        if not name.startswith("_") and not hasattr(type(self._run), name):
            with suppress(AttributeError):
                getattr(self._run, name)  # adds the question of a plugin to both classes
            if hasattr(type(self), name):
                method: Callable[..., pd.DataFrame] = object.__getattribute__(self, name)
                return method
        parts = _FRAMES_OF.get(name, ())
        hint = f"; the answer of run.{name}() as frames: {', '.join(parts)}" if parts else ""
        raise AttributeError(f"there is no data frame {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<Frames of {self._run!r}: {', '.join(name for name in dir(self) if name[0] != '_')}>"

    def card(self) -> pd.DataFrame:
        """The card of the run, as one row."""
        return frame([self._run.card()])

    def table(self, name: str) -> pd.DataFrame:
        """A whole table, with the columns of ``Run.export``."""
        return self.arrow(name).to_pandas()

    def arrow(self, name: str) -> pa.Table:
        """A whole table as Arrow: for polars (``polars.from_arrow``), DuckDB and others, without a copy."""
        check_export(self._run, name, "arrow")
        return pa.concat_tables(list(table_batches(self._run, name)))

    def compare(self, other: Any, measure: str = "reuse", **question: Any) -> pd.DataFrame:
        """One row per pair of equal samples: a, b and the label; arguments of ``Run.compare``."""
        answer = self._run.compare(other, measure, **question)
        return frame(answer["points"], answer)

    def effect(self, of: Any, **question: Any) -> pd.DataFrame:
        """Links that changed relative to the unchanged run ``of``: before, after, change."""
        answer = self._run.effect(of, **question)
        return frame(answer["links"], answer)


def add_frames(question: Question) -> None:
    """Add the methods that ``question`` declares to ``Frames``; those of a paged question return all pages, or
    ``limit`` rows."""
    _FRAMES_OF[question.name] = tuple(question.frames)
    for name, table in question.frames.items():
        method = _paged_method(question, table) if question.paged else _method(question, table)
        method.__name__, method.__qualname__, method.__doc__ = name, f"Frames.{name}", table.doc
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [p for p in question.parameters.values() if p.name not in table.fixed]
        if question.paged:
            parameters = [p.replace(default=None) if p.name == "limit" else p for p in parameters]
        method.__signature__ = inspect.Signature([own, *parameters], return_annotation="pd.DataFrame")
        setattr(Frames, name, method)


def _method(question: Question, table: Rows) -> Any:
    def ask(self: Frames, *args: Any, **kwargs: Any) -> pd.DataFrame:
        answer = getattr(self._run, question.name)(*args, **kwargs, **table.fixed)
        return frame(_rows(table, answer), answer)

    return ask


def _paged_method(question: Question, table: Rows) -> Any:
    def ask(self: Frames, *, limit: int | None = None, **kwargs: Any) -> pd.DataFrame:
        rows: list[Mapping[str, Any]] = []
        offset = kwargs.pop("offset", 0)
        while True:
            page = PAGE if limit is None else min(PAGE, limit - len(rows))
            answer = getattr(self._run, question.name)(**kwargs, limit=page, offset=offset)
            rows += _rows(table, answer)
            if answer["next"] is None or len(rows) == limit:
                return frame(rows, answer)
            offset = answer["next"]

    return ask


def _rows(table: Rows, answer: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
    return answer[table.rows] if isinstance(table.rows, str) else table.rows(answer)


def frame(rows: Iterable[Mapping[str, Any]], answer: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Rows as a data frame; scalar values of ``answer`` become ``attrs``."""
    import pandas as pd

    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    data_frame = pd.DataFrame(
        {name: _column([row.get(name) for row in rows]) for name in names}, index=range(len(rows))
    )
    attrs = {
        name: value for name, value in (answer or {}).items() if value is None or isinstance(value, str | int | float)
    }
    data_frame.attrs.update(attrs)
    return data_frame


def _column(values: Sequence[Any]) -> Any:
    """Keep integer columns with missing values integer (nullable dtype)."""
    import pandas as pd

    present = [value for value in values if value is not None]
    if present and len(present) < len(values) and all(type(value) is int for value in present):
        return pd.array(list(values), dtype="Int64")
    if present and all(isinstance(value, list | tuple | dict) for value in present):
        return pd.Series(list(values), dtype=object)
    return list(values)
