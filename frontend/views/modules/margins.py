"""Section on how close decisions were: the share of close ones by step, and who came second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.margins import TITLE, margin_chart, margin_words
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table

MOST_PAIRS = 12


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    answer = widgets.client().ask(run["run"], "margins", label=selection.label)
    st.subheader(TITLE, anchor=False, help=widgets.HELP["margin"])
    if answer["reason"]:
        st.caption(widgets.escape(widgets.with_full_stop(numbers.capital(answer["reason"]))))
        return
    left, right = st.columns([3, 2], gap="large")
    with left:
        widgets.verdict(margin_words(answer))
        widgets.chart(margin_chart(answer, theme=widgets.theme(), title=None), filters=("label",))
    with right:
        st.markdown("**Who came second most often**")
        plain_table(
            pair_rows(answer),
            "Who came second most often",
            {"decision": Column("chosen → runner-up"), "share": Column("of the step", numbers.percent)}
            | {"mean": Column("mean margin", numbers.number)},
        )
    steps = [{name: value for name, value in row.items() if name != "counts"} for row in answer["steps"]]
    widgets.numbers_behind(steps, "steps")
    widgets.numbers_behind(answer["pairs"], "pairs of chosen module and runner-up")


def pair_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pairs with the largest shares of their step, as rows of a table."""
    pairs = sorted(answer["pairs"], key=lambda pair: (-pair["share"], pair["step"], pair["winner"]))[:MOST_PAIRS]
    return [
        {
            "step": pair["step"],
            "decision": f"{pair['winner']} → {pair['runner_up']}",
            "share": pair["share"],
            "mean": pair["mean"],
        }
        for pair in pairs
    ]


def closeness(margin: Mapping[str, Any] | None, modules: Sequence[int]) -> str:
    """How close one decision was.

    >>> closeness({"margin": 0.02, "runner_up": 7}, [5, 3])
    'module 3 by 0.020 before module 7'
    >>> closeness({"margin": None, "runner_up": None}, [5]), closeness(None, [5])
    ('not known', 'not known')
    """
    if margin is None or margin["margin"] is None or not modules:
        return "not known"
    return f"module {modules[-1]} by {numbers.number(margin['margin'], 2)} before module {margin['runner_up']}"
