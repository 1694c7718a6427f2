"""Tour of Home (tour.js, tour.css): small steps with pictures, all in the browser, so that no click waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

_HERE = Path(__file__).parent
_MOUNT = """
export default ({ data, parentElement, setTriggerValue }) =>
  drawTour(parentElement.querySelector(".tour"), data, (to) => setTriggerValue("go", to));"""


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.tour",
        html='<div class="tour"></div>',
        css=(_HERE / "tour.css").read_text("utf-8"),
        js=(_HERE / "tour.js").read_text("utf-8") + _MOUNT,
    )


def tour(data: Mapping[str, Any], *, key: str, on_go: Callable[[str], None]) -> None:
    """Show the invitation, or the step at which the visitor is.

    Args:
        data: As of ``tour_steps.tour_data``.
        on_go: Called with the ``to`` of a step's link.
    """

    def gone() -> None:
        if to := st.session_state[key].get("go"):
            on_go(str(to))

    _renderer()(data=dict(data), key=key, on_go_change=gone)
