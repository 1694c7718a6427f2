"""A claim of a paper beside our measurement, and how a verdict is reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

YES, PARTLY, NO, OPPOSITE, NONE = VERDICTS = ("holds", "partly", "not at this scale", "the opposite", "not tested")
LINE = "<br>"
"""a new line inside of a cell"""


@dataclass(frozen=True)
class Claim:
    """One claim: the paper's words and numbers, ours, and whether it holds here."""

    claim: str
    paper: str
    ours: str
    verdict: str
    rule: str
    """what ours has to show for *holds*, in each setting"""
    basis: str = ""
    """what ours rests on, where that differs from the rest of its table: networks, samples, data"""
    trained: bool = True
    """whether networks trained anew can answer it; False: it rests on other measurements"""
    verdicts: tuple[str, ...] = ()
    """of each training, where there are several"""

    def line(self, basis: str) -> str:
        said = f"**{self.verdict}**"
        if len(self.verdicts) > 1:
            same = len(set(self.verdicts)) == 1
            said += f"<br>({'in all' if same else ', '.join(self.verdicts)}{f' {len(self.verdicts)}' * same})"
        return f"| {self.claim} | {said} | {self.ours} | {self.paper} | {self.basis or basis} | {self.rule} |"

    def with_others(self, others: Sequence[Claim]) -> Claim:
        """The claim with the verdicts of networks trained anew."""
        verdicts = (self.verdict, *(other.verdict for other in others))
        return replace(self, verdict=agreed(verdicts), verdicts=verdicts, basis=several(self.basis, len(verdicts)))


def untested(claim: str, paper: str, why: str) -> Claim:
    """A claim that nothing here can tell."""
    return Claim(claim, paper, why, NONE, rule="–", basis="–", trained=False)


@dataclass(frozen=True)
class Table:
    """Claims that one benchmark measured."""

    benchmark: str
    """its name in ``results``"""
    rows: Callable[[dict[str, Any]], list[Claim]]
    basis: Callable[[dict[str, Any]], str]
    """networks, samples and data behind every row that names none of its own"""
    about: str = ""
    anew: Callable[[dict[str, Any]], dict[str, dict[str, Any]]] = lambda results: {}
    """results of the same form by seed, of networks trained anew"""
    needs: str = ""
    """what its command reads and does not make"""
    besides: tuple[tuple[str, str], ...] = ()
    """rows that another benchmark measured, in words, and its name in ``results``"""


@dataclass(frozen=True)
class Paper:
    """A page."""

    page: str
    title: str
    cited: str
    about: str
    tables: tuple[Table, ...]
    models: tuple[str, ...]
    """shipped checkpoints, whose cards say how they were trained"""
    limits: tuple[str, ...]


def verdict(*settings: bool, opposite: bool = False) -> str:
    """``holds`` where a claim holds in every setting, ``partly`` where in some; ``opposite``: the other way round."""
    if all(settings):
        return YES
    return PARTLY if any(settings) else OPPOSITE if opposite else NO


def several(basis: str, trainings: int) -> str:
    """What rows rest on where networks were trained so often; a dense or an untrained one was trained once."""
    return basis if trainings < 2 else basis.replace("1 network ", f"{trainings} networks ")


def agreed(verdicts: Sequence[str]) -> str:
    """One verdict of several trainings: theirs if it is the same, *partly* if it holds in some of them, else *no*."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return PARTLY if {YES, PARTLY} & set(verdicts) else NO


def share(value: float, digits: int = 1) -> str:
    return minus(f"{100 * value:.{digits}f}\u00a0%")


def minus(text: str) -> str:
    """With the sign that is as wide as a plus."""
    return text.replace("-", "−")


def spanned(effect: Mapping[str, Any], digits: int = 2, scale: float = 1.0, unit: str = "") -> str:
    """A value with its interval, and the range of what untrained networks give."""
    value, low, high = (scale * effect[key] for key in ("value", "low", "high"))
    text = f"{value:.{digits}f}{unit} ({low:.{digits}f} … {high:.{digits}f})"
    return minus(text) + untrained(effect.get("untrained") or (), digits, scale, unit)


def untrained(values: Sequence[float], digits: int = 2, scale: float = 1.0, unit: str = "") -> str:
    """What untrained networks give, from the least to the most."""
    known = sorted(scale * v for v in _known({"untrained": values}))
    if not known:
        return ""
    ends = list(dict.fromkeys(f"{v:.{digits}f}" for v in (known[0], known[-1])))
    return minus(f", untrained {' … '.join(ends)}{unit}")


def above(effect: Mapping[str, Any], level: float = 0.0) -> bool:
    """Whether all of the interval lies above ``level``."""
    return effect["low"] is not None and effect["low"] > level


def below(effect: Mapping[str, Any], level: float = 0.0) -> bool:
    """Whether all of the interval lies below ``level``."""
    return effect["high"] is not None and effect["high"] < level


def above_all(effect: Mapping[str, Any]) -> bool:
    """Whether all of the interval lies above 0 and above what every untrained network gives."""
    return above(effect, max((0.0, *_known(effect))))


def below_all(effect: Mapping[str, Any]) -> bool:
    """Whether all of the interval lies below 0 and below what every untrained network gives."""
    return below(effect, min((0.0, *_known(effect))))


def outside(effect: Mapping[str, Any], level: float) -> bool:
    """Whether all of the interval lies farther than ``level`` from 0."""
    return above(effect, level) or below(effect, -level)


def _known(effect: Mapping[str, Any]) -> list[float]:
    return [v for v in effect.get("untrained") or () if v is not None and math.isfinite(v)]


def within(effect: Mapping[str, Any], level: float) -> bool:
    """Whether all of the interval lies within ``level`` of 0: only that shows that something is absent."""
    return effect["low"] is not None and effect["low"] > -level and effect["high"] < level
