"""Home: the tour, a drop zone for one's own, runs, uploads and a glossary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.home import drop, glossary, received, runs, tour, uploads
from tokenpaths.frontend.views.jobs import making


def draw(selection: Selection) -> None:
    """The whole place; right after an upload its answer stands before everything else but the drop zone."""
    if drop.open_answer():  # a click elsewhere came before it could be shown
        st.rerun()
    waiting = making.making_runs()  # before its results are: one that ends meanwhile is shown, and redraws the page
    cards = widgets.client().runs()
    whole = [card for card in runs.sealed(cards) if not is_load_only(card)]
    widgets.heading(
        "See how a network routes its work",
        "A routed network has many small modules; each piece of an image or text is sent through only a few. "
        "Follow the routes.",
    )
    if selection.run is not None and all(card["run"] != selection.run for card in cards):
        making.not_here(selection.run)
    answered = drop.is_answer(selection, cards)
    if not answered:
        tour.draw(whole)
    if not address.embedded():
        drop.draw(selection, answered=answered)
    if answered:
        drop.show_answer(selection)
        st.divider()
        tour.draw(whole)
    if not address.embedded():
        received.draw()
    runs.draw(cards, waiting, selection.q)
    _questions(whole)
    uploads.draw(cards)
    glossary.draw()
    if not address.embedded():
        runs.own()


def _questions(cards: Sequence[Mapping[str, Any]]) -> None:
    """Questions linked to the views that answer them; those that no run can answer are left out."""
    vision, text = (tour.clearest(cards, modality) for modality in ("vision", "text"))
    skipping = next((card for card in cards if "skip" in (card.get("model") or "")), vision or text)
    asked = [
        ("Where do edge patches go?", vision, {"view": "paths", "kind": "edge"}, ":material/image:"),
        ("Which paths do ends of sentences take?", text, {"view": "paths", "kind": "sentence_end"}, ":material/notes:"),
        ("Which inputs need the least work?", skipping, {"view": "work"}, ":material/bolt:"),
    ]
    if not any(run for _, run, _, _ in asked):
        return
    st.subheader("Questions to begin with", anchor=False)
    with st.container(horizontal=True, gap="small"):
        for number, (words, run, to, icon) in enumerate(asked):
            if run is not None:
                st.button(
                    words,
                    key=f"question_{number}",
                    icon=icon,
                    on_click=lambda to=to, run=run: address.go(Selection(**to, run=run["run"])),
                )
