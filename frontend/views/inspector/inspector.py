"""The inspector: the module, path, token or sample that was clicked, in a column at the right of the view.

On narrow screens it is a sheet at the bottom. What stands in it is in the URL (``inspect``), and so is what was pinned
below it for comparison (``pinned``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import PLACE_OF, Selection
from tokenpaths.frontend.views.inspector import module, path, sample, token

INSPECTED_PLACES = ("home", "explore", "experiment")
DRAW: Mapping[str, Callable[[Mapping[str, Any], Selection, str, str], None]] = {
    "module": module.draw,
    "path": path.draw,
    "token": token.draw,
    "sample": sample.draw,
}
"""kind of thing → function of the run, the selection, the thing and a prefix of widget keys"""


def draw(selection: Selection) -> None:
    """Draw the inspector; nothing unless something was clicked."""
    things = [thing for thing in (selection.inspect, selection.pinned) if thing is not None]
    if not things or selection.run is None or PLACE_OF.get(selection.view) not in INSPECTED_PLACES:
        return
    with st.container(key="inspector", gap="small"), widgets.error_boundary("the inspector"):
        # Streamlit gives the page's colour to no variable that reaches here.
        st.html(f"<style>.st-key-inspector {{ background: {widgets.theme().background}; }}</style>")
        run = widgets.client().ask(selection.run, "")
        for place, thing in enumerate(things):
            kind, _, value = thing.partition(":")
            field = "inspect" if thing == selection.inspect else "pinned"
            if place:
                st.divider()
            with widgets.error_boundary(f"this {kind}"):
                _close(field, selection)
                DRAW[kind](run, selection, value, f"inspector_{field}")


def _close(field: str, selection: Selection) -> None:
    """Buttons that let go of a thing, and that pin it while others are clicked."""
    with st.container(horizontal=True, horizontal_alignment="right", gap="small", key=f"inspector_{field}_top"):
        if field == "inspect":
            st.button(
                "Pin",
                key="inspector_pin",
                type="tertiary",
                icon=":material/keep:",
                help="Keep it here while you click another one, and compare the two.",
                disabled=selection.pinned == selection.inspect,
                on_click=address.go_changed,
                kwargs={"pinned": selection.inspect},
            )
        st.button(
            "Close",
            key=f"inspector_{field}_close",
            type="tertiary",
            icon=":material/close:",
            shortcut="Escape" if field == "inspect" else None,
            on_click=address.go_changed,
            kwargs={field: None},
        )
