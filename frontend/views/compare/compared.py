"""Which runs stand side by side, in what order and under what names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common

MOST_DRAWN = 12
"""runs that are drawn at once; of more, how many are not drawn is said"""


@dataclass(frozen=True)
class Compared:
    """The runs that are compared, the first being what the others differ from."""

    names: tuple[str, ...]
    cards: Mapping[str, Mapping[str, Any]]
    """all runs that can be read, by name"""
    labels: Mapping[str, str]
    """short labels of ``names``"""

    @property
    def drawn(self) -> tuple[str, ...]:
        """Those that are drawn at once."""
        return self.names[:MOST_DRAWN]

    def not_drawn(self) -> str:
        """A sentence about those that are not drawn; empty if all are."""
        more = len(self.names) - len(self.drawn)
        if not more:
            return ""
        return f"The first {MOST_DRAWN} of {len(self.names)} runs are shown; take some away above to see the others."


def names_compared(selection: Selection, cards: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """``runs`` of the address; without, ``run`` and ``against``, or the run and the likeliest other one."""
    if selection.runs:
        return selection.runs
    names = [selection.run, selection.against] if selection.against else [selection.run]
    if not selection.against:
        own = next((card for card in cards if card["run"] == selection.run), None)
        names += [card["run"] for card in partners(own, cards)[:1]] if own else []
    return tuple(dict.fromkeys(name for name in names if name))


def pair_of(selection: Selection, names: Sequence[str]) -> tuple[str, str] | None:
    """The two runs of the parts that compare two: ``run`` and ``against`` where they are compared; None: only one."""
    if len(names) < 2:
        return None
    first = selection.run if selection.run in names else names[0]
    second = selection.against if selection.against in names else None
    if second is None or second == first:
        second = next(name for name in names if name != first)
    return str(first), second


def partners(run: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs that may be over the same samples, the likeliest first: same data, then own untrained twin, then others."""
    candidates = [
        card
        for card in cards
        if card["run"] != run["run"]
        and card["modality"] == run["modality"]
        and card["dataset"] == run["dataset"]
        and common.is_try(card) == common.is_try(run)
    ]
    return sorted(
        candidates,
        key=lambda card: (
            card["num_samples"] != run["num_samples"],
            card["family"] != run["family"],
            str(card["model"]).removesuffix("-untrained") != run["model"],
            str(card["run"]),
        ),
    )


def groups_of(cards: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of runs by training (in the order of iterations), by model and by data; groups of one are left out."""
    groups: dict[str, list[str]] = {}
    placed = [card for card in cards if card.get("series")]
    for card in sorted(placed, key=lambda card: (card["series"]["name"], card["series"]["iteration"])):
        groups.setdefault(f"training {card['series']['name']}", []).append(card["run"])
    for kind, field in (("model", "model"), ("data", "dataset")):
        for card in cards:
            groups.setdefault(f"{kind} {card[field]}", []).append(card["run"])
    return {name: members for name, members in groups.items() if len(members) > 1}
