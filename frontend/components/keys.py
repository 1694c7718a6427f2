"""Keys for the whole page (keys.js): what a button opens can be walked through and left without a mouse."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

_HERE = Path(__file__).parent


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.keys", html="<span hidden></span>", js=(_HERE / "keys.js").read_text("utf-8")
    )


def keys() -> None:
    """Listen to keys. Once a page; nothing is drawn."""
    _renderer()(key="keys")
