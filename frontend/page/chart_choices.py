"""Menu of everything that a click in a chart can select, as a searchable list.

For keyboards and screen readers, and for marks too small to hit. The list is built when the menu is opened, and its
choices go to the chart's click handler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitDuplicateElementKey

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.choices import choices_of
from tokenpaths.frontend.charts.drawing.redraw import call_of

MENU = "choose"
"""prefix of the buttons' keys"""
MOST_ON_A_PAGE = 40
HELP = "Everything that a click in this picture chooses, as a list to search. No mouse is needed."


def menu(drawing: Any, pick: Sequence[str], on_pick: Callable[[str, Any], None]) -> None:
    """The choices button of ``drawing``; ``on_pick(name, value)`` is called for a choice as for a click."""
    call = call_of(drawing)
    # A stable key, so that the button keeps the focus after a choice.
    kind = f"{MENU}_{'' if call is None else call.name}_{'_'.join(pick)}"
    for number in range(MOST_ON_A_PAGE):
        try:
            box = st.container(key=f"{kind}_{number}", width="content")
        except StreamlitDuplicateElementKey:
            continue
        with box:
            _menu(drawing, f"{kind}_{number}", pick, on_pick)
        return


@st.fragment
def _menu(drawing: Any, key: str, pick: Sequence[str], on_pick: Callable[[str, Any], None]) -> None:
    """A fragment: opening the menu reruns nothing else of the page."""
    panel, selected, done = f"{key}_panel", f"{key}_one", f"{key}_done"
    if st.session_state.pop(done, False):
        st.rerun()  # rerun the whole page, not only this fragment
    opened = st.popover(
        "Choose from a list",
        key=panel,
        icon=":material/list:",
        type="tertiary",
        on_change="rerun",
        width="content",
        help=HELP,
    )
    if not opened.open:
        return

    def chosen() -> None:
        if (choice := st.session_state[selected]) is not None:
            st.session_state[selected] = None  # choosing the same value again deselects it
            st.session_state[panel] = False
            st.session_state[done] = True
            on_pick(choice.name, choice.value)

    choices = choices_of(drawing, pick)
    with opened:
        st.selectbox(
            f"{numbers.count(len(choices))} to choose from",
            choices,
            index=None,
            key=selected,
            on_change=chosen,
            format_func=lambda choice: choice.words,
            placeholder="Type to search, Enter to choose",
            width=420,
        )
