"""Buttons that act on what the fields of the page hold when they are clicked.

Streamlit calls back with the arguments of the last drawing. Who writes a number and clicks at once has the click come
before the page was drawn with that number, and it would act on the number before. So the callback keeps the click
only, and the drawing that follows acts, where the button stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from tokenpaths.frontend.page import address

CLICKED = "clicked"
"""session state: a click that was not acted on yet: the button's key, and its view and what it did when drawn last"""


def button(label: str, act: Callable[[], object], *, key: str, **look: Any) -> None:
    """``st.button`` whose click calls ``act`` as of the drawing after the click, and has the page drawn again.

    ``act`` may be called twice if another click interrupts it: requests go through ``repeats.once``.
    """
    st.button(label, key=key, on_click=_clicked, args=(key, address.current().view, act), **look)
    clicked = st.session_state.get(CLICKED)
    if clicked is None or clicked[0] != key:
        return
    if not look.get("disabled"):
        act()
    st.session_state.pop(CLICKED)
    st.rerun()


def over() -> None:
    """At the end of each whole run. Whoever clicked and was at another view before the button was drawn again gets what
    it did there, and stays at that view; a button that is gone from the same view was not clicked.
    """
    _, view, act = st.session_state.get(CLICKED, (None, None, None))
    if act is not None and address.current().view != view:
        stays = address.current()
        act()
        address.go(stays)
    st.session_state.pop(CLICKED, None)


def _clicked(*click: Any) -> None:
    st.session_state[CLICKED] = click
