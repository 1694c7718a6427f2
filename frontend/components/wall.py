"""Wall of clickable patches, thumbnails, snippets or tokens in context (wall.js, wall.css)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import tamed
from tokenpaths.frontend.page import widgets

_HERE = Path(__file__).parent
KINDS = {
    "patch": ("patch", "patches"),
    "sample": ("sample",),
    "text": ("text",),
    "context": ("token in its context", "tokens in their context"),
}


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.wall",
        html='<div class="wall"></div>',
        css=(_HERE / "wall.css").read_text("utf-8"),
        js=(_HERE / "wall.js").read_text("utf-8"),
    )


def wall(
    items: Sequence[Mapping[str, Any]],
    *,
    key: str,
    on_open: Callable[[Mapping[str, Any]], None],
    kind: Literal["patch", "sample", "text", "context"] = "patch",
) -> None:
    """Show a wall of items.

    Args:
        items: {sample, token?, title, image | snippet | before, text, shown, after, caption?}.
        on_open: Called with {sample, token} of a clicked item.
    """

    def opened() -> None:
        if value := st.session_state[key].get("open"):
            on_open(value)

    theme = widgets.theme()
    _renderer()(
        data={
            "items": [_tamed(item) for item in items],
            "kind": kind,
            "label": f"{numbers.plural(len(items), *KINDS[kind])}; each opens its sample",
            "colours": {"accent": theme.accent, "muted": theme.muted},
        },
        key=key,
        on_open_change=opened,
    )


def _tamed(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item with bidirectional controls in its texts made visible."""
    return {name: tamed(value) if isinstance(value, str) else value for name, value in item.items()}
