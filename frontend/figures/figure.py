"""Types of a figure: its picture, numbers and data, the options, and the ``Source`` that answers about a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Rows = Sequence[Mapping[str, Any]]


class Source(Protocol):
    """Answers about one run, in the shapes of the REST API: ``tokenpaths.engine.store.Run`` is one."""

    def info(self) -> dict[str, Any]: ...
    def flow(self, *, most_modules: int | None = None) -> dict[str, Any]: ...
    def paths(
        self, *, order: str = "rank", limit: int = 100, offset: int = 0, label: str | None = None
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
    def distribution(self, measure: str, per: str = "sample", bins: int = 40) -> dict[str, Any]: ...


class NotHere(Exception):
    """Why a run does not allow a figure: one sentence for a person."""


@dataclass(frozen=True)
class Dreams:
    """Finished dreams of the run's model: {title, result, pictures: name → PNG}."""

    found: Sequence[Mapping[str, Any]] = ()
    command: str = ""
    """what makes one"""


@dataclass(frozen=True)
class Wishes:
    """What is drawn where there is a choice."""

    seed: int = 0
    sample: int | None = None
    """of the whole token flow and of the tinted image; None: chosen by the figure"""
    ranks: tuple[int, ...] = ()
    """of the paths whose travellers are shown; empty: 1, 2, 4, 8 …"""
    law_draws: int = 100
    other: Source | None = None
    """a second run over the same samples"""
    dreams: Dreams = Dreams()
    refusals: tuple[type[Exception], ...] = ()
    """errors that say why something cannot be drawn; set by ``draw_figures``"""


@dataclass(frozen=True)
class Figure:
    """One picture, ready to be written."""

    key: str
    """of its file: ``fig2-flow``"""
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
    """width in points → SVG, for what is no chart"""
    columns: int = 1
    """columns of a page that it is wide"""
    height: float | None = None
    """points, of a chart that has no height of its own"""


@dataclass(frozen=True)
class Kind:
    """A figure of the paper: where else it is shown, and what makes it."""

    name: str
    """what ``--only`` takes"""
    paper: tuple[str, ...]
    """numbers in the DNA paper, the name's own included; none of what is not in it"""
    shows: str
    make: Callable[[Source, Wishes], list[Figure]] = field(repr=False)
    view: str = ""
    """of the page, as a query"""
    rest: str = ""
    test: str = ""
    """that checks its numbers"""
    beside: Callable[[Source, Wishes], list[Figure]] | None = field(default=None, repr=False)
    """makes what needs a second run; where that does not fit, the other figures stand"""
