"""Numbers part of Compare: a column a run, what differs marked, a sentence on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.several_runs.numbers_table import (
    clear_rows,
    difference_rows,
    number_chart,
    number_title,
    runs_table_html,
    runs_words,
    what_cannot_be_told,
)
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import plain_table
from tokenpaths.frontend.views.compare.compared import Compared
from tokenpaths.frontend.views.compare.samples import nothing_beside

MOST_CHARTS = 4
ALWAYS = ("loss", "accuracy", "load_entropy", "mean_reuse")
"""numbers that are drawn where no difference is clear"""
SURE = (
    "Loss, accuracy, compute and reuse are means (compute and reuse over tokens): the difference from the first run is "
    "taken sample by sample over those that both have, and its interval is Student’s: the standard error of the mean "
    "difference times the t-quantile of as many samples as their lengths leave effective. Paths and loads are no "
    "means: their standard errors come from 24 random halves of the samples (of a large run, of 32 stretches of it), "
    "the two runs taken as independent, which makes intervals rather too wide. Samples are taken as what was drawn, so "
    "these intervals say nothing about other data or other trainings. Each number is told for itself: of twenty that "
    "do not differ, one is marked by chance."
)


def draw(selection: Selection, compared: Compared) -> None:
    """The sentence, the charts of what differs, and the table."""
    try:
        answer = widgets.client().compare_runs(compared.drawn)
    except ApiError as error:
        widgets.heading("How do the runs compare?", "")
        widgets.show_error(error)
        return
    widgets.heading("How do the runs compare?", "")
    st.write(widgets.escape(runs_words(answer, compared.labels)))
    if words := compared.not_drawn():
        st.caption(words)
    if len(compared.names) == 1:
        nothing_beside(compared)
    else:
        _charts(answer, compared)
    st.html(runs_table_html(answer, compared.labels, widgets.theme()))
    reasons = what_cannot_be_told(answer)
    marks = "▲ ▼: clearly higher or lower than the first run: the 95 % interval of the difference excludes zero."
    if answer["equal_tokens"]:  # runs of counts have no tokens
        marks += f" Equal tokens: {numbers.count(answer['equal_tokens'])} of each run."
    st.caption(widgets.escape(marks))
    for reason in reasons:
        st.caption(widgets.escape(f"Not compared: {reason}"))
    if len(compared.names) > 1:
        widgets.how_sure("runs", lambda: _differences(answer, compared))


def _differences(answer: Mapping[str, Any], compared: Compared) -> None:
    """Where the intervals come from, and all of them."""
    st.write(SURE)
    told = difference_rows(answer, compared.labels)
    if told:
        plain_table(told, "Differences from the first run")
    else:
        st.write("There is no difference whose interval could be given.")


def _charts(answer: Mapping[str, Any], compared: Compared) -> None:
    """Up to four numbers, those that differ clearly first."""
    clear = clear_rows(answer)
    rows = clear or [row for row in answer["rows"] if row["name"] in ALWAYS]
    rows = [row for row in rows if sum(value is not None for value in row["values"]) > 1][:MOST_CHARTS]
    if not rows:
        return
    for row, column in zip(rows, st.columns(len(rows), gap="medium"), strict=True):
        with column:
            widgets.verdict(number_title(row, answer["runs"], compared.labels))
            drawing = number_chart(row, answer["runs"], labels=compared.labels, theme=widgets.theme(), title=None)
            widgets.chart(drawing, runs=[run["run"] for run in answer["runs"]])
