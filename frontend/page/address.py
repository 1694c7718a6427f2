"""Two-way binding of the selection and its widgets to the query string of the URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import streamlit as st

from tokenpaths.frontend.page.selection import Selection, from_query, to_query


def current() -> Selection:
    """The selection of the current URL."""
    return from_query({key: st.query_params[key] for key in st.query_params})[0]


def problems() -> list[str]:
    """Sentences for invalid parts of the URL, including those removed by ``redirect``."""
    earlier = st.session_state.pop("address_problems", [])
    return earlier + from_query({key: st.query_params[key] for key in st.query_params})[1]


def redirect(**changes: Any) -> NoReturn:
    """Rerun the page at a changed URL; problems of the old one are still shown."""
    st.session_state["address_problems"] = from_query({key: st.query_params[key] for key in st.query_params})[1]
    go_changed(**changes)
    st.rerun()


def go(selection: Selection) -> None:
    """Set the URL to ``selection``. For callbacks, which run before the page is drawn."""
    st.query_params.from_dict(to_query(selection))


def go_changed(**changes: Any) -> None:
    go(current().change(**changes))


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
    st.session_state[key] = value
    return widget(
        label, *arguments, key=key, on_change=lambda: go_changed(**{name: read(st.session_state[key])}), **options
    )
