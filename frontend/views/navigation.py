"""The bar on top of every view: four places, the views of the place at hand, and what belongs to no place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.components.keys import keys_help
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import PLACE_OF, PLACES, VIEWS, Selection
from tokenpaths.frontend.views.family.family import view_of
from tokenpaths.frontend.views.run_names import title_of

OF_COUNTS = ("modules", "paths", "samples")
"""views offered for a run of counts: its load, and why it has no paths and samples"""
TO_TOP = """
const PATIENCE_MS = 10000;
export default ({ data }) => {
  const main = document.querySelector('[data-testid="stMain"]');
  if (!window.tokenpathsAt) {
    window.tokenpathsAt = { view: data.view, clicked: "" };
    document.addEventListener("click", (event) => {
      window.tokenpathsAt.clicked = event.target.closest?.('[class*="st-key-to_"] button')?.innerText ?? "";
    }, true);
  }
  const at = window.tokenpathsAt, until = performance.now() + PATIENCE_MS;
  if (!main || at.view === data.view) return;
  at.view = data.view;
  main.scrollTo(0, 0);
  const words = at.clicked;
  const look = () => {
    if (!words || at.view !== data.view || main.scrollTop > 0 || performance.now() > until) return;
    const headings = [...main.querySelectorAll("h2, h3")];
    const named = headings.find((one) => one.innerText.trim() && words.endsWith(one.innerText.trim()));
    if (named) named.scrollIntoView();
    else setTimeout(look, 100);
  };
  look();
};"""
"""A view opens at its top: the browser stays where it was scrolled to while Streamlit replaces one view by the next, so
a link far down on *Home* opened the middle of a long view. A button with a key ``to_…`` that has the words of a heading
of the other view leads to that heading, once it is there and unless somebody scrolls."""
LAST = "last_view_of_place"
"""session state: place → the view of it that was seen last"""


@lru_cache(maxsize=1)
def _to_top() -> Any:
    return st.components.v2.component("tokenpaths.to_top", html="<span hidden></span>", js=TO_TOP)


def window_title(selection: Selection) -> str:
    """Title of the browser's window, the most specific part first.

    >>> window_title(Selection(view="jobs"))
    'Jobs · Tokenpaths'
    >>> window_title(Selection())
    'Tokenpaths'
    """
    if selection.view == "home":
        return "Tokenpaths"
    parts = [title_of(selection.run) if selection.view != "jobs" else None, VIEWS[selection.view], "Tokenpaths"]
    return " · ".join(part for part in parts if part)


def bar(selection: Selection) -> Any:
    """Draw the bar; returns the container of the badge, which waits for the view: it asks the API too."""
    _to_top()(data={"view": selection.view}, key="to_top")
    place = PLACE_OF.get(selection.view)
    if place is not None:
        st.session_state.setdefault(LAST, {})[place] = selection.view
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="views"):
        st.html('<span class="tp-brand">Tokenpaths</span>', width="content")
        address.bound(
            st.segmented_control,
            "view",
            "Place",
            place,
            list(PLACES),
            format_func=PLACES.get,
            label_visibility="collapsed",
            read=_view_of,
            width="content",
            part="_place",
        )
        with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content", key="bar_end"):
            badge = st.container(width="content")
            # In a window of its own; relative to the page, whatever a proxy puts before it.
            st.link_button("Documentation", "documentation/index.html", icon=":material/menu_book:", type="tertiary")
            keys_help()
    views = {view: VIEWS[view] for view in PLACE_OF if place and PLACE_OF[view] == place}
    if len(views) < 2:
        return badge
    card = _card(selection)
    if place == "explore" and card is not None and is_load_only(card):
        views = {view: name for view, name in views.items() if view in (*OF_COUNTS, selection.view)}
    if "family" in views:
        if own := family_view(card):
            views["family"] = own
        elif selection.view != "family":
            del views["family"]
    with st.container(horizontal=True, vertical_alignment="center", key="place_views"):
        address.bound(
            st.segmented_control,
            "view",
            "View",
            selection.view,
            list(views),
            format_func=views.get,
            label_visibility="collapsed",
            width="content",
        )
    return badge


def _card(selection: Selection) -> Mapping[str, Any] | None:
    try:
        cards = widgets.client().runs() if selection.run is not None else []
    except ApiError:
        return None  # the view itself says so
    return next((card for card in cards if card["run"] == selection.run), None)


def family_view(card: Mapping[str, Any] | None) -> str | None:
    """Name of the view that only the family of a run has, if it has one."""
    view = view_of(str(card.get("family"))) if card is not None else None
    return None if view is None else str(view.TITLE)


def _view_of(place: str) -> str:
    """The view of a place that was seen last, or its first."""
    last = st.session_state.get(LAST, {}).get(place)
    return str(last) if last else next(view for view in PLACE_OF if PLACE_OF[view] == place)
