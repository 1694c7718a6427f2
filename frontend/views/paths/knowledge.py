"""NMI of paths with token properties, and the paths and modules most specific to a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.knowledge import (
    PROPERTIES,
    knowledge_chart,
    knowledge_rows,
    knowledge_words,
    span,
    twin_of,
)
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.twin_words import twin_reason
from tokenpaths.frontend.views.work import sections

ROWS = 20
SPECIFIC = (
    "Lift = share of the label among the tokens here / its share in the run. All tokens of a sample have its label, "
    "so the 95 % interval (Wilson) counts samples, (Σx)²/Σx² of them, x = tokens of a sample that are here. Ordered "
    "by its lower end; of many candidates some stand out by chance."
)


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """The dot chart, then the two tables."""
    st.divider()
    with st.spinner("Shuffling 200 times …"):
        answer = widgets.client().ask(run["run"], "paths/knowledge")
    widgets.heading(
        "What do paths know?",
        "One row: one property of tokens. Dot: how much more the path tells of it than of the same property shuffled "
        "(NMI: 0 nothing, 1 everything); the further to the right, the more paths know. Grey: what chance gives."
        + (" Diamond: the same model before training." if any(map(twin_of, answer["properties"])) else ""),
        "nmi",
    )
    if answer["reason"]:
        reason = common.as_sentence(answer["reason"])
        widgets.empty(widgets.escape(reason), "There is nothing to draw.")
    else:
        if common.all_differ(run):
            st.caption("Nearly every token has a path of its own here, so a path tells everything and nothing.")
        widgets.verdict(knowledge_words(answer))
        widgets.chart(knowledge_chart(answer, theme=widgets.theme(), title=None), filters=("labels",))
        if answer["untrained_reason"]:
            answer = answer | {"untrained_reason": twin_reason(run, answer["untrained_reason"])}
        st.caption(widgets.escape(_how(answer)))
        common.note_not_independent(run)
        widgets.numbers_behind(knowledge_rows(answer), "properties")
    with widgets.error_boundary("how alike tokens of a path are"):
        sections.likeness(run, selection)
    _specific(run, selection)


def _how(answer: Mapping[str, Any]) -> str:
    counted = answer["counted"]
    text = f"{answer['shuffles']} shuffles with a fixed seed, "
    text += (
        f"all {numbers.plural(counted['num_tokens'], 'token')}."
        if counted["exact"]
        else f"{numbers.count(counted['num_tokens'])} of {numbers.plural(counted['of_tokens'], 'token')} drawn by hash."
    )
    whole = [PROPERTIES[row["property"]] for row in answer["properties"] if row["shuffled"] == "samples"]
    if whole:
        text += f" Shuffled over whole samples, whose tokens share it: {', '.join(whole)}."
    maps = [PROPERTIES[row["property"]] for row in answer["properties"] if row["shuffled"] == "maps"]
    if maps:
        text += (
            f" {', '.join(maps).capitalize()}: each image gets the map of another one, patch by patch, so that what "
            "the place in the picture alone tells is no knowledge."
        )
    if len(whole) + len(maps) < len(answer["properties"]):
        text += (
            f" {'The others' if whole or maps else 'Shuffled'} as sequences, because neighbours are alike: each "
            "sample gets the values of another one, in their order, from a random token on."
        )
    if any(row["property"] == "place" for row in answer["properties"]):
        text += f" Place: {answer['cells']} × {answer['cells']} cells of the picture."
    if answer["untrained_reason"]:
        text += f" No diamonds of an untrained twin: {answer['untrained_reason']}."
    if answer["unknown"]:
        text += " Left out: " + "; ".join(row["reason"] for row in answer["unknown"]) + "."
    return text


def _specific(run: Mapping[str, Any], selection: Selection) -> None:
    st.subheader("What is specific to a label?", anchor=False, help=SPECIFIC)
    if len([row for row in run["labels"] if row["label"] is not None]) < 2:
        reason = widgets.client().ask(run["run"], "specific")["reason"]
        widgets.empty(widgets.escape(common.as_sentence(reason)))
        return
    left, right = st.columns(2, gap="large")
    with left:
        specific(run, selection, "path")
    with right:
        specific(run, selection, "module")


def specific(run: Mapping[str, Any], selection: Selection, of: str) -> None:
    """The paths or modules most specific to a label: a sentence, and a table whose rows filter the page."""
    answer = widgets.client().ask(run["run"], "specific", of=of, label=selection.label, limit=ROWS)
    if answer["reason"]:
        # capitalize() would lower the case of label names.
        widgets.empty(widgets.with_full_stop(widgets.escape(numbers.capital(answer["reason"]))))
        return
    st.caption(widgets.escape(_first(answer, of)))
    if answer["rows"]:
        _table(answer, of, selection)


def _first(answer: Mapping[str, Any], of: str) -> str:
    if not answer["rows"]:
        return f"No {of} has enough tokens of label {answer['label']}."
    row = answer["rows"][0]
    what = f"Path {row['rank']:,}" if of == "path" else f"Module {row['module']} at step {row['step']}"
    of_all = numbers.plural(answer["num_candidates"], of)
    least = f"No {of} is surely specific to {'a label' if answer['label'] is None else answer['label']}. "
    return (
        f"{'' if row['clear'] else least}{what} is the most specific of {of_all} by the lower end of its interval: "
        f"{numbers.percent(row['share'])} of its tokens are {row['label']}, in the run {numbers.percent(row['base'])}: "
        f"{numbers.number(row['lift'])} times as many ({numbers.number(row['low'])} to {numbers.number(row['high'])})"
        + ("." if row["clear"] else "; of so many some stand out as far by chance.")
    )


def _table(answer: Mapping[str, Any], of: str, selection: Selection) -> None:
    rows = [
        {
            **({"rank": row["rank"]} if of == "path" else {"step": row["step"], "module": row["module"]}),
            "label": row["label"],
            "share": 100 * row["share"],
            "lift": row["lift"],
            "95 %": span(row["low"], row["high"]),
            "tokens": row["count"],
            "of": row["of"],
            "samples": row["num_samples"],
        }
        for row in answer["rows"]
    ]
    key = f"specific_{of}_{answer['run']}_{selection.label}_{selection.inspect}"

    def ticked() -> None:
        row = rows[st.session_state[key].selection.rows[0]] if st.session_state[key].selection.rows else None
        if row is None:
            return
        thing = f"path:{row['rank']}" if of == "path" else f"module:{row['step']}.{row['module']}"
        address.go_changed(inspect=thing)

    st.dataframe(
        rows,
        key=key,
        hide_index=True,
        width="stretch",
        height=min(390, 38 + 35 * max(1, len(rows))),
        column_config={
            "share": st.column_config.NumberColumn("share", format="%.1f %%"),
            "lift": st.column_config.NumberColumn("lift", format="%.2f ×", help=SPECIFIC),
            "95 %": st.column_config.TextColumn("95 %", help=SPECIFIC),
            "tokens": st.column_config.NumberColumn("tokens with this label", format="localized"),
            "of": st.column_config.NumberColumn("all tokens here", format="localized"),
        },
        on_select=ticked,
        selection_mode="single-row",
    )
