"""Wall of clickable patches, thumbnails, snippets or tokens in context (wall.js, wall.css)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

from tokenpaths.frontend.components import component_key
from tokenpaths.frontend.components.wall_data import Kind, wall_data
from tokenpaths.frontend.page import widgets

_HERE = Path(__file__).parent
_MOUNT = """
export default ({ data, parentElement, setTriggerValue }) =>
  void drawWall(parentElement.querySelector(".wall"), data, (item) => setTriggerValue("open", item));"""


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.wall",
        html='<div class="wall"></div>',
        css=(_HERE / "wall.css").read_text("utf-8"),
        js=(_HERE / "wall.js").read_text("utf-8") + _MOUNT,
    )


def wall(
    items: Sequence[Mapping[str, Any]], *, key: str, on_open: Callable[[Mapping[str, Any]], None], kind: Kind = "patch"
) -> None:
    """Show a wall of items.

    Args:
        items: {sample, token?, title, image | snippet | before, text, shown, after, caption?}.
        on_open: Called with {sample, token} of a clicked item.
    """
    key = component_key(key)

    def opened() -> None:
        if value := st.session_state[key].get("open"):
            on_open(value)

    _renderer()(data=wall_data(items, kind, widgets.theme()), key=key, on_open_change=opened)
