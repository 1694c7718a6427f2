"""Why the last request of a kind was refused: kept until the next one, or until the page is at another address.

A timer may draw the page again while somebody reads it.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from tokenpaths.frontend.page import address


def keep(slot: str, reason: Any) -> None:
    """Have ``reason`` shown where ``kept(slot)`` is asked for. ``slot``: key of the session's state."""
    st.session_state[slot] = (reason, address.changes())


def kept(slot: str) -> Any:
    """The reason, or None if there is none at this address."""
    reason, changes = st.session_state.get(slot, (None, None))
    return reason if changes == address.changes() else None


def forget(slot: str) -> None:
    """Before the next request."""
    st.session_state.pop(slot, None)
