"""Short labels of runs that still tell them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 28
_PARTS = re.compile(r"[^-_.]+|[-_.]")


def short_names(*names: str) -> tuple[str, ...]:
    """Names without the beginning that all share, where the rest still says something and tells them apart.

    What is left of each name has three characters and a letter at least, so that checkpoints are not called “00000”.

    >>> short_names("scenes-dna-top1", "scenes-dna-top1-untrained")
    ('top1', 'top1-untrained')
    >>> short_names("flame-moe-00000", "flame-moe-11029")
    ('moe-00000', 'moe-11029')
    """
    parts = [_PARTS.findall(name) for name in names]
    common = 0
    while len(names) > 1 and all(len(own) > common + 1 and own[common] == parts[0][common] for own in parts):
        common += 1
    while common:
        if parts[0][common - 1] in "-_.":
            short = ["".join(own[common:]) for own in parts]
            if all(len(name) >= 3 and any(map(str.isalpha, name)) for name in short):
                return tuple(short)
        common -= 1
    return names


def run_labels(cards: Sequence[Mapping[str, Any]], most: int = MOST_CHARACTERS) -> dict[str, str]:
    """A label for each run: the iteration where all are checkpoints of one training, else the user's name of it, else
    its short id; long ones with their middle left out.

    >>> run_labels([{"run": "scenes-top1", "name": "First"}, {"run": "scenes-top2", "name": None}])
    {'scenes-top1': 'First', 'scenes-top2': 'top2'}
    """
    series = [card.get("series") for card in cards]
    if len(cards) > 1 and all(series) and len({place["name"] for place in series if place}) == 1:
        labels = [f"iteration {place['iteration']:,}" for place in series if place]
        if len(set(labels)) == len(cards):
            return {card["run"]: label for card, label in zip(cards, labels, strict=True)}
    names = [str(card["run"]) for card in cards]
    short = short_names(*names)
    called = [str(card.get("name") or own) for card, own in zip(cards, short, strict=True)]
    if len(set(called)) < len(names):
        called = list(short)
    cut = [without_middle(name, most) for name in called]
    return dict(zip(names, cut if len(set(cut)) == len(names) else called, strict=True))


def without_middle(name: str, most: int) -> str:
    """A name of at most ``most`` characters; what tells runs apart mostly stands at the end, so more of it is kept.

    >>> without_middle("a-very-long-name-of-a-run-00012", 16)
    'a-ver…-run-00012'
    """
    if len(name) <= most:
        return name
    start = (most - 1) // 3
    return name[:start] + "…" + name[len(name) - (most - 1 - start) :]
