"""Two labels on the Flow view: side by side, and as a difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.flow import flow_chart
from tokenpaths.frontend.charts.flow.flow_contrast import (
    FEW_NODES,
    colour_words,
    contrast_rows,
    contrast_words,
    few_of,
    flow_contrast,
    flow_contrast_chart,
)
from tokenpaths.frontend.charts.flow.layout import MOST_LINKS
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common

ALL = "*"
"""in the address: beside all labels together"""
CUTS = ("min_share", "merge_share", "most_modules")
"""what a question of ``/flow`` leaves out or merges"""


def picker(run: Mapping[str, Any], selection: Selection) -> None:
    """A second label, or all of them, to look at beside the first."""
    labels = [row["label"] for row in run["labels"] if row["label"] is not None]
    if len(labels) < 2:
        return
    options = ["", ALL, *labels]
    if selection.other is not None and selection.other not in options:
        options.append(selection.other)
    address.bound(
        st.selectbox,
        "other",
        "Beside",
        selection.other or "",
        options,
        format_func=lambda label: {"": "nothing", ALL: "all labels"}.get(label, label),
        read=lambda label: label or None,
        help="A second label: both flows side by side, and where they differ.",
    )


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """Both flows and their difference."""
    other = None if selection.other == ALL else selection.other
    if other == selection.label:
        widgets.heading("Where do they part?", "")
        widgets.empty(f"Both sides are {_name(other)}.", "Choose another label, or nothing, under *Beside*.")
        return
    names = (_name(selection.label), _name(other))
    sides = (selection, selection.change(label=other))
    asked = [common.flow_question(run, side, limit=MOST_LINKS) for side in sides]
    flows = [widgets.client().flow(run["run"], **question) for question in asked]
    empty = [name for name, flow in zip(names, flows, strict=True) if not flow["num_tokens"]]
    if empty:
        widgets.heading("Where do they part?", "")
        widgets.empty(f"No token of {' or of '.join(empty)} passes all of these filters.", "Let go of a chip above.")
        return
    # Each side merges and hides its own small ones: what only one side merged would count as nothing there.
    whole = [{name: value for name, value in question.items() if name not in CUTS} for question in asked]
    compared = flows if whole == asked else [widgets.client().flow(run["run"], **question) for question in whole]
    contrast = flow_contrast(*compared)
    drawn = few_of(contrast)
    widgets.heading("Where do they part?", widgets.plain(contrast_words(contrast, *names)), "contrast")
    widgets.chart(flow_contrast_chart(drawn, names=names, theme=widgets.theme(), title=None))
    st.caption(widgets.plain(colour_words(*names)))
    if drawn is not contrast:
        st.caption(f"Drawn are the {FEW_NODES} modules of each step that differ most; the table below has all.")
    if any(flow["other"] for flow in compared):
        st.caption(
            f"Ribbons: the {numbers.count(MOST_LINKS)} largest of each side; one that is not among them counts as 0 "
            "there. Circles: all."
        )
    for column, name, flow in zip(st.columns(2, gap="medium"), names, flows, strict=True):
        with column:
            st.subheader(
                widgets.plain(f"{name}: {flow['num_tokens']:,} tokens"), anchor=False, help=widgets.HELP["flow"]
            )
            widgets.chart(flow_chart(flow, theme=widgets.theme(), title=None, interactive=False))
    percent = st.column_config.NumberColumn(format="percent")
    columns = {names[0]: percent, names[1]: percent, "change": percent}
    widgets.numbers_behind(contrast_rows(contrast, names, "nodes"), "circles", **columns)
    widgets.numbers_behind(contrast_rows(contrast, names, "links"), "ribbons", **columns)


def _name(label: str | None) -> str:
    return "all labels" if label is None else label
