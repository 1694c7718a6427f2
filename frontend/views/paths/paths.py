"""Paths view: rank–frequency curve, table of paths, and examples of chosen paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.paths import RANK_PICK, WHO, law_rows, path_rows, rank_frequency_chart, verdict_words
from tokenpaths.frontend.charts.slopes import slope_growth_chart, slope_words
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import ORDERS, Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.paths import knowledge, search
from tokenpaths.frontend.views.walls import token_wall

MOST_ROWS = 200
EXAMPLES = 60


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    with common.run_and_label(run, selection):
        address.bound(
            st.selectbox,
            "order",
            "Table sorted by",
            selection.order,
            list(ORDERS),
            format_func={"rank": "frequency", "compute": "compute", "reuse": "reuse"}.get,
        )
    search.bar(run, selection)
    with widgets.error_boundary("the search"):
        search.answer(run, selection)
    left, right = st.columns([1, 1], gap="large")
    with left:
        judge = _curve(run, selection)
    with right:
        _table(run, selection)
    for rank in selection.paths:
        with widgets.error_boundary(f"the path of rank {rank}"):
            _examples(run, rank, selection)
    if not selection.paths:
        widgets.empty(
            "No path is chosen.",
            ("Click a point of the curve or a row" if run["num_paths"] > 1 else "Click the row")
            + " of the table to see who takes that path.",
        )
    with widgets.error_boundary("the goodness of fit"):
        judge()
    with widgets.error_boundary("slopes at equal numbers of tokens"):
        _slopes(run)
    with widgets.error_boundary("what paths know"):
        knowledge.draw(run, selection)


def _curve(run: Mapping[str, Any], selection: Selection) -> Callable[[], None]:
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
    widgets.chart(
        rank_frequency_chart(fit, law=laws, theme=widgets.theme(), chosen=selection.paths, title=None),
        key=f"curve_{selection.paths}_{run['run']}",
        on_pick=_picked,
        pick=(RANK_PICK,),
    )
    verdict = st.empty()
    verdict.markdown(f"**{widgets.escape(verdict_words(laws['observed']))}**", help=widgets.HELP["law"])
    table = st.empty()
    _law_table(table, fit, laws)
    alone = (
        "This run is of an untrained twin itself: compare it with the run of the trained model."
        if common.is_untrained(run)
        else "This run has no untrained twin to compare with: it was traced without one."
    )
    notes = [] if fit.get("untrained") else [alone]
    if common.all_differ(run):
        notes.append(
            f"Almost every token has a path of its own: {numbers.count(run['num_steps'])} steps × "
            f"{numbers.count(run['top_k'])} of {numbers.count(run['num_modules'])} modules make more paths than there "
            "are tokens. Look at single steps in Flow and Family."
        )
    if notes:
        st.caption("  \n".join(widgets.escape(line) for line in notes), help=widgets.HELP["nulls"])
    if selection.label or selection.through:
        st.caption("The curve shows the whole run; the filters above apply to the table.")
    widgets.numbers_behind(observed["points"], "points of the curve")

    def judge() -> None:
        if any((laws.get(key) or {}).get("alpha") is not None for key in WHO):
            judged = widgets.client().ask(run["run"], "paths/law")
            verdict.markdown(f"**{widgets.escape(verdict_words(judged['observed']))}**", help=widgets.HELP["law"])
            _law_table(table, fit, judged)

    return judge


def _slopes(run: Mapping[str, Any]) -> None:
    """Slopes at equal numbers of tokens, where there is a curve at all."""
    if run["num_paths"] <= 1:
        return
    widgets.heading(
        "Steeper than chance?",
        "The slope over all ranks falls with the number of tokens. Compare the slope of a window of ranks, and only at "
        "equal numbers of tokens.",
        "slopes",
    )
    slopes = widgets.client().ask(run["run"], "paths/slopes")
    st.markdown(f"**{widgets.escape(slope_words(slopes))}**")
    widgets.chart(slope_growth_chart(slopes, theme=widgets.theme(), title=None), key=f"slopes_{run['run']}")
    widgets.numbers_behind(slopes["observed"], "slopes of this run")


def _law_table(place: Any, fit: Mapping[str, Any], laws: Mapping[str, Any]) -> None:
    """Table of the run, its twin and the null: slope, exponent and goodness of fit."""
    place.dataframe(
        law_rows(fit, laws),
        hide_index=True,
        width="stretch",
        column_config={
            "whose": st.column_config.TextColumn("whose", pinned=True, help=widgets.HELP["nulls"]),
            "slope": st.column_config.TextColumn("log–log slope", help=widgets.HELP["paths"]),
            "α": st.column_config.TextColumn("α", help=widgets.HELP["law"]),
            "p": st.column_config.TextColumn("p", help="Goodness of fit; at most 0.1 refuses the power law."),
            "lognormal": st.column_config.TextColumn(
                "vs lognormal", help="Vuong’s ratio on the same tail: negative = the lognormal fits better."
            ),
            "x_min": st.column_config.TextColumn("from", help="The law holds for paths of at least so many tokens."),
            "tail": st.column_config.TextColumn("paths there"),
        },
    )


def _table(run: Mapping[str, Any], selection: Selection) -> None:
    answer = widgets.client().ask(
        run["run"], "paths", most=MOST_ROWS, order=selection.order, label=selection.label, through=selection.through
    )
    rows = path_rows(answer["paths"])
    shown = (
        f"{numbers.count(len(rows))} of {numbers.plural(answer['num_paths'], 'path')}, "
        f"{numbers.plural(answer['num_tokens'], 'token')}."
    )
    widgets.heading("Who takes them?", shown + " Tick rows to see examples below.", "cdf")
    if not rows:
        widgets.empty("No token passes all of these filters.", "Let go of a chip above.")
        return
    has_labels = any(row["label"] is not None for row in rows)
    for row in rows:  # in per cent: the table's own format would mix 0.9 % and 0.94 %
        row.update({name: None if row[name] is None else 100 * row[name] for name in ("share", "cdf", "label_share")})
    percent = st.column_config.NumberColumn(format="%.2f %%")
    columns = {
        "rank": st.column_config.NumberColumn("rank", format="localized"),
        "path": st.column_config.TextColumn("path (module per step)", width="medium"),
        "tokens": st.column_config.NumberColumn("tokens", format="localized"),
        "share": percent,
        "cdf": st.column_config.NumberColumn("CDF", format="%.1f %%", help=widgets.HELP["cdf"]),
        "compute": st.column_config.NumberColumn("compute", format="%.3f", help=widgets.HELP["compute"]),
        "reuse": st.column_config.NumberColumn("reuse", format="%.3f", help=widgets.HELP["reuse"]),
        "label": st.column_config.TextColumn("most frequent label") if has_labels else None,
        "label_share": st.column_config.NumberColumn("its share", format="%.0f %%") if has_labels else None,
    }
    # a new key for every selection, so that the checkboxes always match the URL
    key = f"paths_{run['run']}_{selection.order}_{selection.label}_{selection.through}_{selection.paths}"

    def ticked() -> None:
        ticks = [rows[index]["rank"] for index in st.session_state[key].selection.rows]
        hidden = [rank for rank in selection.paths if rank not in {row["rank"] for row in rows}]
        address.go_changed(paths=tuple([*hidden, *ticks][:32]))

    order = ["rank", "path", "tokens", "share", "label", "label_share", "cdf", "compute", "reuse"]
    st.dataframe(
        [{name: row[name] for name in order} for row in rows],
        key=key,
        height=430,
        hide_index=True,
        width="stretch",
        column_config=columns,
        on_select=ticked,
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [i for i, row in enumerate(rows) if row["rank"] in selection.paths]}},
    )


def _picked(_name: str, rank: int) -> None:
    address.go(address.current().toggle_path(int(rank)))


def _examples(run: Mapping[str, Any], rank: int, selection: Selection) -> None:
    answer = widgets.client().ask(run["run"], "paths/{rank}/examples", rank=rank, limit=EXAMPLES, seed=selection.seed)
    examples = answer["examples"]
    st.subheader(f"Path of rank {rank:,}: {numbers.ribbon_words(answer['ribbon'])}", anchor=False)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            f"{numbers.plural(answer['count'], 'token')} ({numbers.percent(answer['share'])}) take it; CDF "
            f"{numbers.percent(answer['cdf'])}. "
            f"{len(examples)} drawn at random below.",
            width="content",
        )
        st.button(
            "Draw others",
            key=f"redraw_{rank}",
            icon=":material/casino:",
            on_click=address.go_changed,
            kwargs={"seed": selection.seed + 1},
            disabled=answer["count"] <= len(examples),
        )
        st.button(
            "See its flow",
            key=f"flow_{rank}",
            icon=":material/account_tree:",
            on_click=address.go_changed,
            kwargs={"view": "flow", "paths": (rank,)},
        )
    if not examples:
        widgets.empty("This path has no examples.")
    else:
        token_wall(examples, str(rank))
    rows = [{name: value for name, value in example.items() if name != "patch"} for example in examples]
    widgets.numbers_behind(rows, f"examples of path {rank:,}")
