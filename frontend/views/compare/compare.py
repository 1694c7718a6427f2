"""Compare view: the runs side by side are picked here, and each part draws them in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.several_runs.run_labels import run_labels
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import MOST_COMPARED, PARTS, Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.compare import offers, routes, samples, side_by_side, tokens, training
from tokenpaths.frontend.views.compare.compared import Compared, groups_of, names_compared
from tokenpaths.frontend.views.run_names import run_titles

DRAW = {
    "numbers": side_by_side.draw,
    "samples": samples.draw,
    "tokens": tokens.draw,
    "routes": routes.draw,
    "training": training.draw,
}


def draw(selection: Selection) -> None:
    if not selection.runs and common.chosen_run(selection) is None:
        return
    cards = common.readable_runs()
    names = names_compared(selection, cards)
    _picker(names, cards)
    known = {card["run"]: card for card in cards}
    compared = Compared(names, known, run_labels([known.get(name, {"run": name}) for name in names]))
    address.bound(
        st.segmented_control,
        "part",
        "What is compared",
        selection.part,
        list(PARTS),
        format_func=PARTS.get,
        label_visibility="collapsed",
    )
    with widgets.error_boundary(PARTS[selection.part]):
        DRAW[selection.part](selection, compared)
    offers.offer_twin(known.get(names[0]), cards)


@address.unless_embedded
def _picker(names: Sequence[str], cards: Sequence[Mapping[str, Any]]) -> None:
    """The runs side by side; single tries are offered only where one is there already."""
    offered = [card for card in cards if not common.is_try(card) or card["run"] in names]
    options = list(dict.fromkeys([*names, *(card["run"] for card in offered)]))
    titles = dict(zip(options, options, strict=True)) | run_titles(cards)
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with left:
        address.bound(
            st.multiselect,
            "runs",
            "Runs",
            list(names),
            options,
            format_func=titles.__getitem__,
            read=lambda chosen: tuple(chosen),
            max_selections=MOST_COMPARED,
            placeholder="Choose runs",
            help=f"Up to {MOST_COMPARED}. The others are compared with the first one.",
        )
    groups = groups_of(offered)
    with right:
        st.selectbox(
            "Add all of …",
            list(groups),
            index=None,
            placeholder="a model, data or a training",
            format_func=lambda group: f"{group} ({len(groups[group])})",
            key="add_group",
            on_change=_add_group,
            args=(tuple(names), groups),
        )


def _add_group(names: tuple[str, ...], groups: Mapping[str, Sequence[str]]) -> None:
    chosen = str(st.session_state.get("add_group"))
    if chosen in groups:
        st.session_state["add_group"] = None
        address.go_changed(
            runs=lambda now: tuple(dict.fromkeys([*(now.runs or names), *groups[chosen]]))[:MOST_COMPARED]
        )
