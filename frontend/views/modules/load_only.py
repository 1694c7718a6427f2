"""What a run of counts shows: load over time, balance over time, domains; and why everything else is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.load_over_time import (
    DOMAINS,
    TIME,
    label_load_chart,
    label_load_words,
    load_time_chart,
    load_time_words,
)
from tokenpaths.frontend.charts.several_runs.training_maps import MAPS, training_map, training_words
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection

CELLS = 12_000
"""cells of a heat map: fewer times of many experts"""
MOST_BINS = 120
BALANCE = ("load_entropy", "max_violation", "dead")
WHY = (
    "This run was made of counts of tokens by expert, not of what each token chose: there are no {what} in it. "
    "Log the ids of every token to see them."
)


def says_why(run: Mapping[str, Any], what: str) -> None:
    """In place of a view of tokens: why it is empty, and the way to what the run does know."""
    widgets.empty(WHY.format(what=what), "*Modules* shows the load of each layer.")
    st.button(
        "Show its load",
        key="to_load",
        icon=":material/grid_on:",
        on_click=address.go_changed,
        kwargs={"view": "modules"},
    )


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """Charts of one layer and of all layers over time, and of domains."""
    names = (run["config"].get("import") or {}).get("layers") or []
    steps = list(range(int(run["num_steps"])))
    st.header("How does the load change?", anchor=False)
    step = min(selection.layer or 0, len(steps) - 1)
    address.bound(
        st.selectbox,
        "layer",
        "Layer",
        step,
        steps,
        format_func=lambda place: f"step {place}: {names[place]}" if place < len(names) else f"step {place}",
    )
    bins = max(8, min(MOST_BINS, CELLS // int(run["num_modules"])))
    load = widgets.client().ask(run["run"], "load", step=step, bins=bins, label=selection.label)
    if load["reason"]:
        st.caption(widgets.escape(f"No time is known: {load['reason']}."))
    else:
        widgets.heading(TIME, widgets.escape(load_time_words(load)))
        drawing = load_time_chart(load, theme=widgets.theme(), title=None)
        widgets.chart(drawing, about=f"step {step}", filters=("label",))
        widgets.numbers_behind(load["bins"], "times of this layer")
        _balance(run, selection)
    if run["labels"]:
        _domains(run, step)


def _balance(run: Mapping[str, Any], selection: Selection) -> None:
    answer = widgets.client().ask(run["run"], "load/balance", label=selection.label)
    firsts = sorted({row["first"] for row in answer["balance"]})
    points = [
        {"iteration": first, "run": None, "steps": [row for row in answer["balance"] if row["first"] == first]}
        for first in firsts
    ]
    training = {"points": points, "untrained": None}
    st.subheader("How does the balance of each layer change?", anchor=False, help=widgets.HELP["load"])
    for column, measure in zip(st.columns(len(BALANCE), gap="medium"), BALANCE, strict=True):
        with column:
            widgets.verdict(MAPS[measure][0])
            st.caption(widgets.escape(training_words(training, measure, when=str(answer["axis"]))))
            chart = training_map(training, measure, theme=widgets.theme(), title=None, when=str(answer["axis"]))
            widgets.chart(chart, filters=("label",))
    widgets.numbers_behind(answer["balance"], "steps over time")


def _domains(run: Mapping[str, Any], step: int) -> None:
    answer = widgets.client().ask(run["run"], "load/labels", step=step)
    widgets.heading(DOMAINS, widgets.escape(label_load_words(answer)))
    drawing = label_load_chart(answer, theme=widgets.theme(), title=None)
    widgets.chart(drawing, about=f"step {step}", filters=("labels",))
    if answer["num_labels"] > len(answer["labels"]):
        shown = f"The {len(answer['labels'])} of {answer['num_labels']} domains that are least like all are drawn."
        st.caption(shown)
    widgets.numbers_behind(answer["labels"], "domains of this layer")


def facts(run: Mapping[str, Any]) -> str:
    """The run in a line, for its card."""
    known = run.get("num_tokens")
    tokens = f", {numbers.plural(known, 'token')}" if known else ""
    return (
        f"Counts only: the load of {numbers.plural(run.get('num_steps'), 'layer')} × "
        f"{numbers.plural(run.get('num_modules'), 'expert')} from “{run.get('dataset')}”{tokens}."
    )
