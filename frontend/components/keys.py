"""Keys and clicks of the whole page (keys.js): tab and Escape in what a button opens, the focus where what had it goes,
texts pasted into short fields, clicks in charts sent at once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

_HERE = Path(__file__).parent
KEYS = {
    "Tab, Shift Tab": "to the next thing, to the one before",
    "Enter": "open it, choose it; on *Choose from a list* under a chart, which takes no keys itself: everything that a "
    "click there chooses",
    "arrows": "among the views, the patches or words of a sample, its circles and ribbons, and the small pictures of a "
    "wall",
    "Escape": "close what was opened and go back to its button",
    "N, P": "the next sample, the previous one",
}


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.keys", html="<span hidden></span>", js=(_HERE / "keys.js").read_text("utf-8")
    )


def keys() -> None:
    """Register the keyboard handlers. Call once per page; draws nothing."""
    _renderer()(key="keys")


def keys_help() -> None:
    """A small button that lists the keys."""
    with st.popover("Keys", icon=":material/keyboard:", type="tertiary", width="content", key="keys_help"):
        st.markdown("\n".join(f"- **{name}** {what}" for name, what in KEYS.items()))
