"""Guard of the drop zone (drop_guard.js): a file that is too large is refused in words, before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

_HERE = Path(__file__).parent
_MOUNT = """
export default ({ data, setTriggerValue }) => {
  guardDrops(data.limit, (file) => setTriggerValue("refused", file));
  return () => { GUARD.limit = Infinity; };
};"""


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.drop_guard", html="<span hidden></span>", js=(_HERE / "drop_guard.js").read_text("utf-8") + _MOUNT
    )


def drop_guard(limit: int, *, on_refused: Callable[[str, int, bytes], None]) -> None:
    """Watch the file uploaders of the page; draws nothing.

    Args:
        limit: Largest size in bytes.
        on_refused: Called with name, size and first bytes of a larger file.
    """

    def refused() -> None:
        value = st.session_state["drop_guard"].get("refused")
        try:
            on_refused(str(value["name"]), int(value["size"]), bytes.fromhex(value["head"]))
        except (TypeError, KeyError, ValueError):
            return

    _renderer()(data={"limit": limit}, key="drop_guard", on_refused_change=refused)
