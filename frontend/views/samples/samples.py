"""Samples view: one sample in full, or all of them as a wall beside the map of their routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import MOST_MORE, Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.samples import one_sample, sample_map
from tokenpaths.frontend.views.walls import sample_wall

WALL = 60
"""samples on the wall at first, and those that “Show more” adds"""
SORTS = {
    "sample": "in their own order",
    "loss": "largest loss first",
    "confidence": "least confident first",
    "compute": "most compute first",
    "reuse": "most reuse first",
    "drawn": "in random order",
}
ANY = ("vision", "text")
SORTED_BY = {"confidence": ("vision",)}
"""orders that are of samples of some modalities only: a text has no one answer to be sure of"""
RISING = ("sample", "confidence", "drawn")
"""orders that begin with the smallest value"""
ALL = "all"


def _is_known(run: Mapping[str, Any], order: str) -> bool:
    """Whether samples of the run have what they would be sorted by: a log has no loss."""
    has = {"loss": run.get("loss"), "confidence": run.get("accuracy")}
    return run["modality"] in SORTED_BY.get(order, ANY) and has.get(order, True) is not None


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    if selection.sample is None and int(run["num_samples"]) == 1:  # its only sample, with the filters of a sample
        address.redirect(sample=0, token=selection.token, first=selection.first)
    with common.run_and_label(run, selection):
        if run["modality"] == "text":
            address.bound(
                st.text_input,
                "q",
                "Find",
                selection.q or "",
                placeholder="only texts that contain …",
                read=lambda words: words.strip() or None,
                label_visibility="collapsed",
            )
        if selection.sample is not None:
            one_sample.sample_picker(run, selection)
    if selection.sample is None:
        _all(run, selection)
        return
    if int(run["num_samples"]) > 1:
        st.button(
            "All samples",
            key="all_samples",
            icon=":material/arrow_back:",
            type="tertiary",
            on_click=address.go_changed,
            kwargs={"sample": None, "inspect": None},
        )
    one_sample.show(run, selection, selection.sample)


def _all(run: Mapping[str, Any], selection: Selection) -> None:
    """The wall and the map side by side; a click on either opens a sample in the inspector."""
    answer = widgets.client().ask(run["run"], "samples", **question(selection))
    rows = answer["samples"]
    if not rows:
        widgets.empty("No sample has this label or these words.", "Clear a filter above.")
        return
    left, right = st.columns([1, 1], gap="large")
    with left:
        total = int(answer.get("total") or len(rows))
        shown = f"{numbers.plural(total, 'sample')}" + (f"; the first {len(rows)}." if total > len(rows) else ".")
        widgets.heading("Which samples are there?", shown + " Click one to look into it.")
        address.bound(
            st.selectbox,
            "sort",
            "Samples sorted",
            selection.sort,
            [name for name in SORTS if name in (selection.sort, "sample") or _is_known(run, name)],
            format_func=SORTS.__getitem__,
            label_visibility="collapsed",
        )
        if words := caption_words(rows):
            st.caption(words)
        sample_wall(run, rows, _caption, key=f"samples_{run['run']}_{selection.label}_{selection.q}_{selection.sort}")
        if total > len(rows) and selection.more < MOST_MORE:
            st.button(
                f"Show {min(WALL, total - len(rows))} more",
                key="more_samples",
                icon=":material/expand_more:",
                on_click=address.go_changed,
                kwargs={"more": selection.more + 1},
            )
        elif total > len(rows):
            st.caption("Narrow them down by a label or by words, or choose another order, to see others.")
    with right, widgets.error_boundary("the map of samples"):
        sample_map.draw(run, selection)


def question(selection: Selection) -> dict[str, Any]:
    """The samples of the wall."""
    asked = {"most": WALL * (1 + selection.more), "label": selection.label, "q": selection.q}
    if selection.sort != "sample":
        asked |= {"order": selection.sort, "descending": None if selection.sort in RISING else True}
    return asked


def caption_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """What “cat → dog” below a sample means; empty where no caption has an arrow."""
    others = [row for row in rows if _other_answer(row)]
    if not others:
        return ""
    words = "An arrow: what the model answers where it is not the label."
    if any(row.get("loss") is None for row in others):
        words += " A label that the model does not know cannot be its answer, so that is neither right nor wrong."
    return words


def _other_answer(row: Mapping[str, Any]) -> bool:
    """Whether the model answers another label than the sample has."""
    return bool(row.get("prediction") and row.get("label") and row["prediction"] != row["label"])


def _caption(row: Mapping[str, Any]) -> str:
    """Number and label, and the prediction where it differs."""
    words = " · ".join(part for part in (f"{row['sample']:,}", row.get("label") or "") if part)
    return words + (f" → {row['prediction']}" if _other_answer(row) else "")
