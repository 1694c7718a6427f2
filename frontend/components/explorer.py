"""Sample explorer (explorer.js, explorer.css): image or text, its flow, and the path of the token under the pointer.

Streamlit cannot update one chart while the pointer is over another; this component does it in the browser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.flow.layout import OTHER
from tokenpaths.frontend.components import component_key

_HERE = Path(__file__).parent
_MOUNT = """
export default ({ data, parentElement, setTriggerValue: send }) => {
  drawExplorer(parentElement.querySelector(".tp"), data, {
    pick: (token) => send("pick", { token }),
    node: (key) => send("node", key),
    link: data.open_links && ((key) => send("link", key)),
  });
};"""


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.explorer",
        html='<div class="tp"></div>',
        css=(_HERE / "explorer.css").read_text("utf-8"),
        js=(_HERE / "explorer.js").read_text("utf-8") + _MOUNT,
    )


def explorer(
    data: Mapping[str, Any],
    *,
    key: str,
    on_pick: Callable[[Any], None],
    on_node: Callable[[str], None],
    on_link: Callable[[str, str], None] | None = None,
) -> None:
    """Mount the component.

    Args:
        on_pick: Called with a token or None.
        on_node: Called with a ``step.module``.
        on_link: Called with both ends of a ribbon; None: ribbons cannot be selected.
    """
    key = component_key(key)

    def picked() -> None:
        value = st.session_state[key].get("pick")
        if value is not None:
            on_pick(value.get("token"))

    def node() -> None:
        value = str(st.session_state[key].get("node") or "")
        if value and not value.endswith(f".{OTHER}"):  # “other” cannot be a filter: it stands for many modules
            on_node(value)

    def linked() -> None:
        source, _, target = str(st.session_state[key].get("link") or "").partition(">")
        if target and on_link is not None:
            on_link(source, target)

    _renderer()(
        data=dict(data) | {"open_links": on_link is not None},
        key=key,
        on_pick_change=picked,
        on_node_change=node,
        on_link_change=linked,
    )
