"""Groups of runs for the cards of Home: one model over one data set, or the checkpoints of one training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.views.common import UNTRAINED, is_untrained
from tokenpaths.frontend.views.run_names import display_name

Card = Mapping[str, Any]


@dataclass(frozen=True)
class RunGroup:
    """Runs that share a card: the one shown first, then the others."""

    key: str
    runs: tuple[Card, ...]
    """of a series the last checkpoint first; else trained before untrained, newest first"""
    series: bool = False

    @property
    def first(self) -> Card:
        return self.runs[0]

    @property
    def others(self) -> tuple[Card, ...]:
        return self.runs[1:]


def groups(cards: Sequence[Card]) -> list[RunGroup]:
    """Group ``cards``, keeping the order of each group's first run in it. An untrained twin stands with its model."""
    members: dict[tuple[str, ...], list[Card]] = {}
    for card in cards:
        members.setdefault(_key(card), []).append(card)
    result = []
    for key, some in members.items():
        series = key[0] == "series"
        if series:
            some = sorted(some, key=lambda card: -_iteration(card))
        else:
            some = sorted(some, key=lambda card: is_untrained({"model": card.get("model") or ""}))
        result.append(RunGroup(" ".join(key[1:]), tuple(some), series))
    return result


def _key(card: Card) -> tuple[str, ...]:
    if card.get("series") is not None:
        return ("series", str(card["series"]["name"]), str(card.get("dataset") or ""))
    model = str(card.get("model") or card["run"])
    return ("model", model.removesuffix(UNTRAINED), str(card.get("dataset") or ""), str(card.get("split") or ""))


def _iteration(card: Card) -> int:
    return int((card.get("series") or {}).get("iteration") or 0)


def others_words(group: RunGroup) -> str:
    """What the other runs of a card are."""
    if group.series:
        iterations = [_iteration(card) for card in group.runs]
        return (
            f"{numbers.plural(len(group.runs), 'checkpoint')}, iteration {numbers.count(min(iterations))} to "
            f"{numbers.count(max(iterations))}"
        )
    untrained = sum(is_untrained({"model": card.get("model") or ""}) for card in group.others)
    more = len(group.others) - untrained
    parts = [numbers.plural(more, "more run")] if more else []
    parts += [numbers.plural(untrained, "untrained twin")] if untrained else []
    return " and ".join(parts)


def other_words(group: RunGroup, card: Card) -> str:
    """One of the other runs."""
    name = display_name(card)
    if group.series:
        return f"iteration {numbers.count(_iteration(card))}: {name}"
    return f"untrained: {name}" if is_untrained({"model": card.get("model") or ""}) else name
