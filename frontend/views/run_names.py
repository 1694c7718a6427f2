"""What runs are called wherever they are listed: the user's name, else the id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.page import widgets

Card = Mapping[str, Any]


def display_name(card: Card) -> str:
    """The user's name of a run, else its id.

    >>> display_name({"run": "a-1", "name": "First try"}), display_name({"run": "a-1", "name": None})
    ('First try', 'a-1')
    """
    return str(card.get("name") or card["run"])


def run_titles(cards: Sequence[Card]) -> dict[str, str]:
    """The display name of each run by id, with the id behind it where two would be called the same.

    >>> run_titles([{"run": "a", "name": "one"}, {"run": "b", "name": "one"}, {"run": "c"}])
    {'a': 'one (a)', 'b': 'one (b)', 'c': 'c'}
    """
    called = Counter(display_name(card) for card in cards)
    titles = {}
    for card in cards:
        run, name = str(card["run"]), display_name(card)
        titles[run] = f"{name} ({run})" if called[name] > 1 and name != run else name
    return titles


def title_of(run: str | None) -> str | None:
    """The display name of one run among all; its id where the list of runs cannot be had."""
    try:
        cards = widgets.client().runs() if run is not None else []
    except ApiError:
        return run
    return run_titles(cards).get(str(run), run)
