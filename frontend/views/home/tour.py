"""The tour on Home: one photograph and one text, step by step, from sealed files; needs no run, model or worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tokenpaths.frontend.components.tour import tour
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection, to_query
from tokenpaths.frontend.views.home.tour_steps import tours

INVITATION = (
    "New here? A class of five minutes: follow one token through a network, with everything already worked out."
)
MODALITY = {"photograph": "vision", "text": "text"}


def draw(cards: Sequence[Mapping[str, Any]]) -> None:
    """The invitation or the step at hand; links lead to the clearest run of ``cards`` of the modality, if there is one.

    Nothing is drawn if the files of the tour are missing.
    """
    if not tours():
        return
    theme = widgets.theme()
    targets = {key: _targets(clearest(cards, modality), modality) for key, modality in MODALITY.items()}
    shown = [
        one | {"steps": [step | {"link": _link(one["key"], step["link"], targets)} for step in one["steps"]]}
        for one in tours()
    ]

    def go(to: str) -> None:
        key, _, place = to.partition(".")
        if selection := targets.get(key, {}).get(place):
            address.go(selection)

    colours = {name: getattr(theme, name) for name in ("accent", "muted", "module")}
    tour({"invitation": INVITATION, "tours": shown, "colours": colours}, key="tour", on_go=go)


def _link(key: str, link: tuple[str, str], targets: Mapping[str, Mapping[str, Selection]]) -> dict[str, str]:
    words, place = link
    return {"words": words, "to": f"{key}.{place}", "href": "?" + urlencode(to_query(targets[key][place]))}


def _targets(run: Mapping[str, Any] | None, modality: str) -> dict[str, Selection]:
    """Where each place is; without a run every one is the drop zone, with the tour's model."""
    own = Selection(view="home", model=f"dna-{modality}-top1")
    places = {"image": own, "text": own}
    views = ("samples", "modules", "routes", "paths", "change", "dream")
    return places | {view: Selection(view=view, run=str(run["run"])) if run else own for view in views}


def clearest(cards: Sequence[Mapping[str, Any]], modality: str) -> Mapping[str, Any] | None:
    """Preferably a run with top-1 routing per token: its paths are the easiest to read."""
    mine = [card for card in cards if card["modality"] == modality]
    hard = [card for card in mine if card["family"] in ("dna", "moe")]
    single = [card for card in hard if card["top_k"] == 1]
    return next(iter(single or hard or mine), None)
