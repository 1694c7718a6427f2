"""Paths view: rank–frequency curve and table of paths; a click on either opens the path in the inspector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.slots import offered_ids
from tokenpaths.frontend.charts.drawing.thing_names import bare
from tokenpaths.frontend.charts.paths import (
    RANK_PICK,
    WHO,
    count_words,
    law_rows,
    path_rows,
    rank_frequency_chart,
    verdict_words,
    with_one_null,
)
from tokenpaths.frontend.charts.slopes import slope_growth_chart, slope_words
from tokenpaths.frontend.formulas import OF_TOKENS
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import ORDERS, Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.own_names import names_of
from tokenpaths.frontend.views.paths import knowledge, search
from tokenpaths.frontend.views.twin_words import without_twin

MOST_ROWS = 200
NAME_WIDTH = 240
"""pixels: “capitalised words, 98 %” fits"""
NAME_HELP = (
    "Your own name of the path; else what its tokens have in common, with their share, where that is more than chance."
)


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    common.run_and_label(run, selection)
    search.bar(run, selection)
    with widgets.error_boundary("the search"):
        search.answer(run, selection)
    names = names_of(run["run"], "path")
    left, right = st.columns([1, 1], gap="large")
    with left:
        judge = _curve(run, selection, names)
    with right:
        _table(run, selection, names)
    with widgets.error_boundary("the goodness of fit"):
        judge()
    with widgets.error_boundary("what paths know"):
        knowledge.draw(run, selection)


def _curve(run: Mapping[str, Any], selection: Selection, names: Mapping[str, str]) -> Callable[[], None]:
    """Draw the curve; returns a function that draws the goodness of fit after the rest of the page."""
    fit = widgets.client().ask(run["run"], "paths/fit")
    observed = fit["observed"]
    widgets.heading(
        "Which paths exist?",
        "One point: one path, its place by frequency and its share of the tokens. Left: the most frequent. "
        "Both axes grow by factors of ten.",
        "paths",
    )
    if observed["num_paths"] <= 1:
        widgets.empty(
            "All tokens of this run take one and the same path, so there is no curve to draw.",
            "That happens with one sample of one token, or with a router that has collapsed: see *Modules*.",
        )
        return lambda: None
    laws = widgets.client().ask(run["run"], "paths/law", draws=0)
    widgets.verdict(count_words(fit))
    widgets.chart(
        rank_frequency_chart(
            with_one_null(fit), theme=widgets.theme(), chosen=marked(selection), names=names, fitted=False, title=None
        ),
        key=f"curve_{marked(selection)}_{run['run']}",
        on_pick=_picked,
        pick=(RANK_PICK,),
    )
    verdict = st.empty()
    verdict.markdown(f"**{widgets.escape(verdict_words(laws['observed']))}**", help=widgets.HELP["law"])
    notes = [] if fit.get("untrained") else [without_twin(run)]
    if common.all_differ(run):
        notes.append(
            f"Almost every token has a path of its own: {numbers.count(run['num_steps'])} steps × "
            f"{numbers.count(run['top_k'])} of {numbers.count(run['num_modules'])} modules make more paths than there "
            "are tokens. Look at single steps in Routes and Modules."
        )
    if notes:
        st.caption("  \n".join(widgets.escape(line) for line in notes), help=widgets.HELP["nulls"])
    if selection.label or selection.through:
        st.caption("The curve shows the whole run; the filters above apply to the table.")
    widgets.how_sure("paths", lambda: _statistics(run, fit, laws))
    widgets.numbers_behind(observed["points"], "points of the curve", **OF_TOKENS)

    def judge() -> None:
        if any((laws.get(key) or {}).get("alpha") is not None for key in WHO):
            judged = widgets.client().ask(run["run"], "paths/law")
            verdict.markdown(
                f"**{widgets.escape(verdict_words(judged['observed'], judged['draws']))}**", help=widgets.HELP["law"]
            )

    return judge


def question(selection: Selection) -> dict[str, Any]:
    """The query of the table."""
    return {"most": MOST_ROWS, "order": selection.order, "label": selection.label, "through": selection.through}


def marked(selection: Selection) -> tuple[int, ...]:
    """Ranks of the paths that are filtered by or inspected."""
    inspected = (selection.inspect or "").partition("path:")[2]
    return tuple(dict.fromkeys((*selection.paths, *([int(inspected)] if inspected else []))))


def _statistics(run: Mapping[str, Any], fit: Mapping[str, Any], laws: Mapping[str, Any]) -> None:
    """The curve with every null and fit, their numbers, and their slopes at equal numbers of tokens."""
    widgets.chart(rank_frequency_chart(fit, law=laws, theme=widgets.theme(), title=None), key=f"fits_{run['run']}")
    _law_table(fit, widgets.client().ask(run["run"], "paths/law"))
    widgets.heading(
        "Steeper than chance?",
        "The slope over all ranks falls with the number of tokens. Compare the slope of a window of ranks, and only at "
        "equal numbers of tokens.",
        "slopes",
    )
    slopes = widgets.client().ask(run["run"], "paths/slopes")
    widgets.verdict(slope_words(slopes))
    widgets.chart(slope_growth_chart(slopes, theme=widgets.theme(), title=None), key=f"slopes_{run['run']}")
    widgets.numbers_behind(slopes["observed"], "slopes of this run")
    if run.get("path_layout") == "unique":
        st.caption(
            "Most tokens of this run have a path of their own. Paths with equal counts are ranked in the order of "
            "their first tokens, in other runs by the numbers of their modules."
        )


def _law_table(fit: Mapping[str, Any], laws: Mapping[str, Any]) -> None:
    """Table of the run, its twin and the null: slope, exponent and goodness of fit."""
    table = law_rows(fit, laws)
    plain_table(
        [{name: value for name, value in row.items() if name != "verdict"} for row in table],
        "Fits of the run and of what it is compared with",
        {
            "whose": Column("run", help=widgets.HELP["nulls"]),
            "slope": Column("log–log slope", help=widgets.HELP["paths"], right=True),
            "α": Column("α", help=widgets.HELP["law"], right=True),
            "p": Column("p", help="Goodness of fit; at most 0.1: a power law does not fit.", right=True),
            "lognormal": Column(
                "vs lognormal", help="Vuong’s ratio on the same tail: negative = the lognormal fits better.", right=True
            ),
            "x_min": Column(
                "minimum count", help="The law is fitted to paths with at least so many tokens.", right=True
            ),
            "tail": Column("paths above it", right=True),
        },
    )
    # Sentences as a column would make the table wider than its place.
    st.markdown(
        "\n".join(f"- {widgets.escape(row['whose'].capitalize())}: {widgets.escape(row['verdict'])}" for row in table)
    )


def _table(run: Mapping[str, Any], selection: Selection, names: Mapping[str, str]) -> None:
    answer = widgets.client().ask(run["run"], "paths", **question(selection))
    rows = path_rows(answer["paths"], offered_ids(run))
    shown = (
        f"{numbers.count(len(rows))} of {numbers.plural(answer['num_paths'], 'path')}, "
        f"{numbers.plural(answer['num_tokens'], 'token')}."
    )
    widgets.heading("Who takes them?", shown + " Click a row to look into the path.", "cdf")
    address.bound(
        st.segmented_control,
        "order",
        "Sorted by",
        selection.order,
        list(ORDERS),
        format_func={"rank": "most frequent first", "compute": "most compute first", "reuse": "most reuse first"}.get,
        label_visibility="collapsed",
    )
    if not rows:
        widgets.empty("No token passes all of these filters.", "Clear a filter above.")
        return
    if words := table_words(selection):
        st.caption(words)
    has_labels = any(row["label"] is not None for row in rows)
    for row in rows:  # in per cent: the table's own format would mix 0.9 % and 0.94 %
        row["name"] = bare(names, f"path:{row['rank']}") or ""
        row.update({name: None if row[name] is None else 100 * row[name] for name in ("share", "cdf", "label_share")})
    percent = st.column_config.NumberColumn(format="%.2f %%")
    columns = {
        "rank": st.column_config.NumberColumn("rank", format="localized"),
        "path": st.column_config.TextColumn("path (module per step)", width="medium"),
        "name": st.column_config.TextColumn("name", help=NAME_HELP, width=NAME_WIDTH) if names else None,
        "tokens": st.column_config.NumberColumn("tokens", format="localized"),
        "share": percent,
        "cdf": st.column_config.NumberColumn("CDF", format="%.1f %%", help=widgets.HELP["cdf"]),
        "compute": st.column_config.NumberColumn("compute", format="%.3f", help=widgets.HELP["compute"]),
        "reuse": st.column_config.NumberColumn("reuse", format="%.3f", help=widgets.HELP["reuse"]),
        "label": st.column_config.TextColumn("most frequent label") if has_labels else None,
        "label_share": st.column_config.NumberColumn("label share", format="%.0f %%") if has_labels else None,
    }
    # A new key for every selection, so that the chosen row always matches the URL.
    key = f"paths_{run['run']}_{selection.order}_{selection.label}_{selection.through}_{selection.inspect}"

    def clicked() -> None:
        chosen = st.session_state[key].selection.rows
        address.go_changed(inspect=f"path:{rows[chosen[0]]['rank']}" if chosen else None)

    inspected = marked(selection.change(paths=()))
    shown_columns = columns_of(selection.order, named=bool(names))
    st.dataframe(
        [{name: row[name] for name in shown_columns} for row in rows],
        key=key,
        height=430,
        hide_index=True,
        width="stretch",
        column_config=columns,
        on_select=clicked,
        selection_mode="single-row",
        selection_default={"selection": {"rows": [i for i, row in enumerate(rows) if row["rank"] in inspected]}},
    )


def table_words(selection: Selection) -> str:
    """Which of the filters above the table is of; empty where none is set."""
    words = []
    if selection.label or selection.through:
        words.append("Tokens and shares are of what passes the filters; all else, and the order, is of the whole run.")
    if search.active(selection):
        words.append("What is searched for above does not narrow this table: the answer of the search has its paths.")
    return " ".join(words)


def columns_of(order: str, *, named: bool) -> list[str]:
    """Columns of the table: what identifies a path, what it is sorted by, which the place of the table would cut off
    at the right, and the rest.
    """
    first = ["rank", *(["name"] if named else []), *([order] if order != "rank" else [])]
    every = ["path", "tokens", "share", "label", "label_share", "cdf", "compute", "reuse"]
    return first + [name for name in every if name not in first]


def _picked(_name: str, rank: int) -> None:
    """Open a path in the inspector; a second click closes it."""
    thing = f"path:{int(rank)}"
    address.go_changed(inspect=None if address.current().inspect == thing else thing)
