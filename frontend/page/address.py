"""Two-way binding of the selection and its widgets to the query string of the URL."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from tokenpaths.frontend.page.selection import Selection, from_query, to_query
from tokenpaths.frontend.server.embedding import asks_to_embed

CHANGES = "address_changes"
"""session state: how often ``go`` changed the URL"""
WRITTEN = "address_written"
"""session state: the query ``before`` the last change and ``after`` it; ``here``: in the run that is at hand"""
P = ParamSpec("P")
T = TypeVar("T")


def current() -> Selection:
    """The selection of the current URL."""
    return from_query(_query())[0]


def _query() -> dict[str, str]:
    """All but the step of Home's tour, which the browser writes and reads alone (``components/tour.js``)."""
    return {key: st.query_params[key] for key in st.query_params if key != "tour"}


def settle() -> None:
    """At the start of each run: set the URL again where this run was asked for before the browser had heard of it.

    A run takes its URL from who asks for it. Between a click and the moment at which the browser has the new URL, a
    timer or another element may ask with the old one; and such a request interrupts the click's run as soon as that
    wants to send something, which is the new URL. Either way the click would be undone. A browser's Back is no such
    run: Streamlit says which those are.
    """
    written = st.session_state.get(WRITTEN)
    context = get_script_run_ctx(suppress_warning=True)
    if written is None or context is None:
        return
    query = _query()
    if query == written["before"] and query != written["after"] and not context.is_history_navigation:
        st.query_params.from_dict(written["after"])
    elif query == written["after"] and written["here"]:
        written["here"] = False
    else:
        del st.session_state[WRITTEN]


def labels() -> str | None:
    """``labels`` of the selection; None outside a session."""
    return current().labels if get_script_run_ctx(suppress_warning=True) else None


def embedded() -> bool:
    """Whether this session is a view in another site's frame (``?embed=1``), which reads and changes nothing.

    A session stays what it was at its first run: later addresses come from the browser.
    """
    context = get_script_run_ctx(suppress_warning=True)
    if context is None:
        return False
    if "embedded" not in st.session_state:
        st.session_state["embedded"] = asks_to_embed(context.query_string)
    return bool(st.session_state["embedded"])


def unless_embedded(draw: Callable[P, T]) -> Callable[P, T | None]:
    """Leave out in a frame what starts, changes or deletes something, or leads to it."""

    @functools.wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> T | None:
        return None if embedded() else draw(*arguments, **options)

    return drawn


def problems() -> list[str]:
    """Sentences for invalid parts of the URL, including those removed by ``redirect``."""
    earlier = st.session_state.pop("address_problems", [])
    return earlier + from_query(_query())[1]


def redirect(**changes: Any) -> NoReturn:
    """Rerun the page at a changed URL; problems of the old one are still shown."""
    st.session_state["address_problems"] = from_query(_query())[1]
    go_changed(**changes)
    st.rerun()


def go(selection: Selection) -> None:
    """Set the URL to ``selection``. For callbacks, which run before the page is drawn."""
    after = to_query(selection)
    st.session_state[WRITTEN] = {"before": _query(), "after": after, "here": True}
    st.session_state[CHANGES] = changes() + 1
    st.query_params.from_dict(after)


def go_changed(**changed: Any) -> None:
    go(current().change(**changed))


def changes() -> int:
    """How often the page changed the URL in this session."""
    return int(st.session_state.get(CHANGES, 0))


def bound(
    widget: Callable[..., Any],
    name: str,
    label: str,
    value: Any,
    *arguments: Any,
    read: Callable[[Any], Any] = lambda value: value,
    part: str = "",
    **options: Any,
) -> Any:
    """A widget that shows ``value`` and writes the field ``name`` of the selection when it is changed.

    The URL is the single source of truth: any state of the widget is overwritten before it is drawn. Not for range
    sliders: without a default value Streamlit makes them single sliders.

    Args:
        read: Converts the widget's value to the field's.
        part: Distinguishes two widgets of one field.
    """
    key = f"in_{name}{part}"

    def chosen() -> None:
        # A browser that goes back once more before it has heard of the first step sends the widget as it was before.
        context = get_script_run_ctx(suppress_warning=True)
        if context is None or not context.is_history_navigation:
            go_changed(**{name: read(st.session_state[key])})

    # A state that is set anew is sent to the browser and overwrites what was clicked there in the meantime; the next
    # timer of a fragment would then send the old value as if somebody had chosen it, and the click were undone.
    if widget is not st.segmented_control or st.session_state.get(key) != value:
        st.session_state[key] = value
    if widget is st.segmented_control:
        # A second click would let go of what is chosen, and the page choose it again. The next click, elsewhere, may be
        # on its way before the browser has heard of that, and would let go once more: two changes, and one is lost.
        options.setdefault("required", True)
    return widget(label, *arguments, key=key, on_change=chosen, **options)
