"""Two-way binding of the selection and its widgets to the query string of the address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import streamlit as st

from tokenpaths.frontend.page.selection import Selection, from_query, to_query


def current() -> Selection:
    """The selection that the address means now."""
    return from_query({key: st.query_params[key] for key in st.query_params})[0]


def problems() -> list[str]:
    """Sentences for parts of the address that mean nothing, those that ``redirect`` took out included."""
    earlier = st.session_state.pop("address_problems", [])
    return earlier + from_query({key: st.query_params[key] for key in st.query_params})[1]


def redirect(**changes: Any) -> NoReturn:
    """Draw the page anew at a changed address; what was wrong with the old one is still said."""
    st.session_state["address_problems"] = from_query({key: st.query_params[key] for key in st.query_params})[1]
    go_changed(**changes)
    st.rerun()


def go(selection: Selection) -> None:
    """Make this the address. For callbacks: the page is drawn after it."""
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

    The address is the only truth: whatever the widget held is overwritten before it is drawn.
    ``read`` turns the widget's value into the field's; ``part`` tells two widgets of one field apart.
    Not for range sliders: without a default value Streamlit takes them for single ones.
    """
    key = f"in_{name}{part}"
    st.session_state[key] = value
    return widget(
        label, *arguments, key=key, on_change=lambda: go_changed(**{name: read(st.session_state[key])}), **options
    )
