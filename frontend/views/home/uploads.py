"""One's own uploads on Home: pictures, or the first words of texts; and the runs that detours made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.home import manage
from tokenpaths.frontend.views.run_names import display_name

SHOWN = 12
MOST_DETOURS = 50


def draw(cards: Sequence[Mapping[str, Any]]) -> None:
    """Uploads and detours of ``cards``; nothing if there are none."""
    tries = [card for card in cards if card["status"] == "sealed" and common.is_try(card)]
    own = [card for card in tries if card["split"] != common.DETOUR]
    detours = [card for card in tries if card["split"] == common.DETOUR]
    if own:
        _uploads(own)
    if detours:
        _detours(detours)


def _uploads(cards: Sequence[Mapping[str, Any]]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader(f"Your uploads: {numbers.count(len(cards))}", anchor=False, width="content")
        manage.opener("Rename or delete …", "manage_uploads", cards)
    every = st.session_state.get("all_uploads", False)
    shown = cards if every else cards[:SHOWN]
    for pictures in (True, False):
        items = [
            item
            for place, card in enumerate(shown)
            if (card["modality"] == "vision") == pictures and (item := _item(place, card)) is not None
        ]
        if items:
            wall(
                items,
                key=f"uploads_{'images' if pictures else 'texts'}",
                kind="sample" if pictures else "text",
                on_open=lambda item: address.go(
                    Selection(view="home", run=shown[int(item["sample"])]["run"], sample=0)
                ),
            )
    if len(cards) > len(shown):
        st.button(
            f"Show all {len(cards)} uploads",
            key="show_all_uploads",
            icon=":material/expand_more:",
            on_click=lambda: st.session_state.update(all_uploads=True),
        )


def _item(place: int, card: Mapping[str, Any]) -> dict[str, Any] | None:
    """An upload for the wall; None if it is gone or cannot be read now."""
    caption = f"{card.get('name') or card.get('model')}, {str(card.get('created_at') or '')[:16].replace('T', ' ')}"
    try:
        looks = _looks(card["run"], str(card.get("created_at")), card["modality"] == "vision")
    except ApiError:
        return None
    return {"sample": place, "title": f"Open {display_name(card)}", "caption": caption, **looks}


@st.cache_data(max_entries=200, show_spinner=False)
def _looks(run: str, created_at: str, picture: bool) -> dict[str, str]:
    """Picture or first words of an upload; a sealed run of one date never changes."""
    if picture:
        return {"image": data_url(widgets.client().image(run, 0))}
    rows = widgets.client().ask(run, "samples", limit=1)["samples"]
    return {"snippet": str(rows[0].get("snippet") or rows[0].get("source") or run) if rows else run}


def _detours(cards: Sequence[Mapping[str, Any]]) -> None:
    with st.expander(f"Detours, without and with an edit: {numbers.plural(len(cards), 'run')} of one sample"):
        for card in cards[:MOST_DETOURS]:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.button(
                    widgets.escape(display_name(card)),
                    key=f"try_{card['run']}",
                    on_click=lambda run=card["run"]: address.go(Selection(view="samples", run=run, sample=0)),
                )
                st.caption(
                    widgets.escape(
                        f"{card.get('model')}, {numbers.plural(card.get('num_tokens'), 'token')}, "
                        f"{str(card.get('created_at') or '')[:16].replace('T', ' ')}"
                    )
                )
                manage.button(card)
