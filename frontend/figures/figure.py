"""Types of a figure: its chart, numbers and data, the options, and the ``Source`` of answers about a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Rows = Sequence[Mapping[str, Any]]


class Source(Protocol):
    """Answers about one run, in the shapes of the REST API: ``tokenpaths.engine.store.Run`` is one."""

    def info(self) -> dict[str, Any]: ...
    def flow(self, *, limit: int = 2000, most_modules: int | None = None) -> dict[str, Any]: ...
    def paths(
        self,
        *,
        order: str = "rank",
        limit: int = 100,
        label: str | None = None,
        compute: tuple[int | float, int | float] | None = None,
    ) -> dict[str, Any]: ...
    def knowledge(self) -> dict[str, Any]: ...
    def soft(self, kind: str, *, label: str | None = None, sample: int | None = None) -> dict[str, Any]: ...
    def specialisation(
        self, of: str = "label", step: int = 0, *, label: str | None = None, limit: int = 40
    ) -> dict[str, Any]: ...
    def co_activation(self, step: int = 0) -> dict[str, Any]: ...
    def repetition(self) -> dict[str, Any]: ...
    def fit(self) -> dict[str, Any]: ...
    def law(self, draws: int = 100, seed: int = 0) -> dict[str, Any]: ...
    def examples(self, rank: int, limit: int = 60, seed: int = 0) -> dict[str, Any]: ...
    def usage(self, label: str | None = None) -> dict[str, Any]: ...
    def samples(
        self, *, order: str = "sample", descending: bool = False, limit: int = 50, offset: int = 0
    ) -> dict[str, Any]: ...
    def search_tokens(
        self, *, compute: tuple[int | float, int | float] | None = None, examples: int = 30, seed: int = 0
    ) -> dict[str, Any]: ...
    def sample(self, sample: int) -> dict[str, Any]: ...
    def picture(self, sample: int) -> bytes: ...
    def compare(self, other: Any, measure: str = "reuse") -> dict[str, Any]: ...
    def skip_and_reuse(self) -> dict[str, Any]: ...
    def distribution(self, measure: str, per: str = "sample", bins: int = 40) -> dict[str, Any]: ...


class NotHere(Exception):
    """Why a figure cannot be drawn for a run, as a sentence."""


@dataclass(frozen=True)
class Dreams:
    """Finished dreams of the run's model: {title, result, pictures: name → PNG}."""

    found: Sequence[Mapping[str, Any]] = ()
    command: str = ""
    """command that makes a dream"""


@dataclass(frozen=True)
class Wishes:
    """Options of the figures."""

    seed: int = 0
    sample: int | None = None
    """sample of the token flow and of the tinted image; None: chosen by the figure"""
    ranks: tuple[int, ...] = ()
    """ranks of the paths whose tokens are shown; empty: 1, 2, 4, 8 …"""
    law_draws: int = 100
    other: Source | None = None
    """a second run over the same samples"""
    dreams: Dreams = Dreams()
    refusals: tuple[type[Exception], ...] = ()
    """exceptions whose message says why a figure cannot be drawn; set by ``draw_figures``"""


@dataclass(frozen=True)
class Figure:
    """One figure, ready to be written."""

    key: str
    """base name of its files: ``fig2-flow``"""
    question: str
    caption: str
    """what is drawn, with the exact numbers"""
    numbers: Mapping[str, Any]
    tables: Mapping[str, Rows]
    """the data behind it, by name"""
    formulas: tuple[str, ...] = ()
    """keys of ``tokenpaths.frontend.formulas.HELP``"""
    draw: Callable[[str], Any] | None = None
    """theme → chart"""
    sheet: Callable[[float], str] | None = None
    """width in points → SVG, for figures that are no charts"""
    columns: int = 1
    """width in columns of the page"""
    height: float | None = None
    """height in points of a chart without a height of its own"""


@dataclass(frozen=True)
class Kind:
    """A kind of figure: its numbers in the paper, its view, and the function that makes it."""

    name: str
    """name for ``--only``"""
    paper: tuple[str, ...]
    """figure numbers in the DNA paper, including that in the name; empty if it is not in the paper"""
    shows: str
    make: Callable[[Source, Wishes], list[Figure]] = field(repr=False)
    view: str = ""
    """query of the page's view"""
    rest: str = ""
    test: str = ""
    """test of its numbers"""
    beside: Callable[[Source, Wishes], list[Figure]] | None = field(default=None, repr=False)
    """makes the figures that need a second run; if that run does not fit, only the others are drawn"""
