"""One sample in both runs, token by token: which of its decisions differ."""

from __future__ import annotations

from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.several_runs import agreement_map as charts
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection

MOST_TOKENS = 160
"""columns that can still be told apart"""


def draw(pair: tuple[str, str], names: tuple[str, str], sample: int) -> None:
    """The map of a sample of the first run, and the ways to it in each run."""
    st.subheader(f"Which decisions of sample {sample} differ?", anchor=False)
    with widgets.error_boundary(f"the decisions of sample {sample}"):
        answer = widgets.client().sample_agreement(*pair, sample, MOST_TOKENS)
        st.caption(widgets.escape(charts.sample_agreement_words(answer)))
        drawing = charts.sample_agreement_chart(answer, theme=widgets.theme(), title=None)
        widgets.chart(drawing, runs=list(pair))
        with st.container(horizontal=True):
            for run, name, number in zip(pair, names, (answer["sample"], answer["partner"]), strict=True):
                _way(run, f"Sample {numbers.count(number)} in {name}", number)
        different = [row for row in charts.sample_agreement_rows(answer) if row["apart"]]
        widgets.numbers_behind(different, "different decisions")


def _way(run: str, words: str, number: int) -> None:
    def go(*_: Any) -> None:
        address.go(Selection(view="samples", run=run, sample=number))

    st.button(widgets.escape(words), key=f"apart_{run}", icon=":material/arrow_forward:", on_click=go)
