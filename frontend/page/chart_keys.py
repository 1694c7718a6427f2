"""Keys of charts that a click leaves as they are: opening something in the inspector changes nothing that they draw.

Streamlit knows a chart by its key. With the whole address in the key, as charts need that forget their last click, a
click makes the browser throw the chart away and lay out another one while it should draw the answer. ``steady`` gives
the same key for as long as only clicks in this chart change what is inspected, and a new one otherwise: then the chart
has no last click, and the same mark can be clicked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.page.selection import Selection, to_query

KEPT = "steady_chart_"
"""prefix in the session state: key → query of the address, number of the key, selection at the last click"""


def steady(name: str, selection: Selection) -> str:
    """Key of the chart ``name`` of a view; new wherever the address was changed by something else than its clicks."""
    query, kept = to_query(selection), st.session_state.get(KEPT + name)
    if kept is None or kept["query"] != query:
        kept = {"query": query, "number": 0 if kept is None else kept["number"] + 1, "clicked": {}}
        st.session_state[KEPT + name] = kept
    return f"{name}_{kept['number']}"


def clicked(key: str, selected: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``selected`` (selection → values) the click at hand has changed.

    A steady chart keeps the value of one selection while another one is clicked.
    """
    kept = st.session_state.get(KEPT + key.rpartition("_")[0])
    before = {} if kept is None else kept["clicked"]
    return {name: values for name, values in selected.items() if values != before.get(name)}


def keep(key: str, selected: Mapping[str, Any], before: Selection, after: Selection) -> None:
    """Keep the key over a click that changed only what is inspected."""
    kept = st.session_state.get(KEPT + key.rpartition("_")[0])
    if kept is None or kept["query"] != to_query(before) or before.change(inspect=after.inspect) != after:
        return
    kept["query"], kept["clicked"] = to_query(after), dict(selected)
