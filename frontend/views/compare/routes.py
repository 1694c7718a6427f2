"""Routes part of Compare: the flow of each run at one scale, and where two of them part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts import compare as charts
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.flow import flow_chart
from tokenpaths.frontend.charts.flow.flow_contrast import (
    FEW_NODES,
    colour_words,
    contrast_rows,
    contrast_words,
    few_of,
    flow_contrast_chart,
    share_of,
)
from tokenpaths.frontend.charts.flow.flow_words import flow_captions, flow_words
from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.charts.several_runs.small_flows import alike_flows, as_maps, largest_circles
from tokenpaths.frontend.charts.usage import load_chart
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.compare.compared import Compared, pair_of
from tokenpaths.frontend.views.compare.samples import pair_answer, pair_pickers, show_refusal

MOST_LINKS = 400
"""of each small flow; the rest is counted"""
FLOW_HELP = (
    "½ Σ |f′ − f| over all links, f the share of the paired samples’ tokens; mean over pairs of steps. 0: the same "
    "flow, 1: no link in common."
)
LOAD_HELP = "Load entropy = H(c/Σc)/ln M of the tokens c of each module: 1 = all get the same, 0 = one gets everything."


def draw(selection: Selection, compared: Compared) -> None:
    """Small multiples, then the difference of two."""
    runs = [compared.cards[name] for name in compared.drawn if name in compared.cards]
    if not runs:
        widgets.empty("None of these runs can be read.", "Choose others above.")
        return
    if as_maps(runs):
        widgets.heading(
            "Which modules does each run load?", "One scale for all: 1 is a fair share, × a module that no token chose."
        )
        _maps(runs, compared)
    else:
        widgets.heading(
            "Where does each run send its tokens?",
            "One scale for all: circle area and ribbon width are shares of a run’s tokens; rows are modules, in one "
            "order.",
        )
        _flows(runs, compared, selection)
    if words := compared.not_drawn():
        st.caption(words)
    if pair := pair_of(selection, compared.names):
        _difference(selection, compared, pair)


def _flows(runs: Sequence[Mapping[str, Any]], compared: Compared, selection: Selection) -> None:
    flows = [widgets.client().ask(run["run"], "flow", limit=MOST_LINKS) for run in runs]
    shapes = [
        (run["num_steps"], run["num_modules"], bool(flow["own_modules"])) for run, flow in zip(runs, flows, strict=True)
    ]
    alike: list[dict[str, Any]] = [dict(flow) for flow in flows]
    for shape in set(shapes):  # runs of other modules or steps get rows of their own
        members = [place for place, own in enumerate(shapes) if own == shape]
        for place, flow in zip(members, alike_flows([flows[place] for place in members]), strict=True):
            alike[place] = flow
    largest, least = largest_circles(flows), common.least_drawn(selection, *flows)

    def one(place: int) -> Any:
        return flow_chart(
            alike[place],
            theme=widgets.theme(),
            title=None,
            least=least,
            largest=largest[place],
            interactive=False,
            most_links=MOST_LINKS,
        )

    _grid(runs, compared, [flow_words(flow) for flow in flows], one, [flow_captions(flow, least) for flow in flows])


def _maps(runs: Sequence[Mapping[str, Any]], compared: Compared) -> None:
    usages = [widgets.client().ask(run["run"], "usage") for run in runs]
    busiest = [max(usage["usage"], key=lambda cell: cell["utilisation"] or 0) for usage in usages]
    most = max(float(cell["utilisation"] or 0) for cell in busiest)
    words = [
        f"Busiest: module {cell['module']} at step {cell['step']}, {numbers.number(cell['utilisation'])} times its "
        "fair share."
        for cell in busiest
    ]
    _grid(runs, compared, words, lambda place: load_chart(usages[place], theme=widgets.theme(), title=None, most=most))


def _grid(
    runs: Sequence[Mapping[str, Any]],
    compared: Compared,
    words: Sequence[str],
    chart: Any,
    below: Sequence[Sequence[str]] = (),
) -> None:
    """Charts in rows of two, of three from five runs on; on a narrow page one below the other.

    ``below``: captions under each chart.
    """
    width = 1 if len(runs) == 1 else 2 if len(runs) in (2, 4) else 3
    for start in range(0, len(runs), width):
        for place, column in zip(
            range(start, min(start + width, len(runs))), st.columns(width, gap="medium"), strict=False
        ):
            name = runs[place]["run"]
            with column:
                st.subheader(widgets.escape(compared.labels[name]), anchor=False)
                st.caption(widgets.escape(words[place]))
                widgets.chart(chart(place), runs=[name])
                for line in below[place] if below else ():
                    st.caption(widgets.escape(line))
                st.button(
                    "Open its load" if is_load_only(runs[place]) else "Open its routes",
                    key=f"open_routes_{name}",
                    type="tertiary",
                    icon=":material/arrow_forward:",
                    on_click=address.go_changed,
                    kwargs={"view": "routes", "run": name},
                )


def _difference(selection: Selection, compared: Compared, pair: tuple[str, str]) -> None:
    names = (compared.labels[pair[0]], compared.labels[pair[1]])
    st.header("Where do two of them part?", anchor=False, help=FLOW_HELP)
    with widgets.controls():
        pair_pickers(pair, compared)
    counted = any(is_load_only(compared.cards.get(name, {})) for name in pair)
    try:
        if counted:
            _load_difference(widgets.client().compare_load(*pair), names)
            return
        answer = pair_answer(pair, selection)
    except ApiError as error:
        show_refusal(error, pair, compared)
        return
    flow = answer["flow"]
    if flow["reason"] is None:
        sides = (names[1], names[0])  # what the second run has more of is shown as an increase
        by = numbers.percent(flow["difference"])
        st.write(
            widgets.escape(
                f"The flows differ by {by} of the tokens; those that trade places cancel. "
                f"{contrast_words(flow, *sides)}"
            )
        )
        if flow["note"]:
            st.caption(widgets.escape(flow["note"]))
        drawn = few_of(flow)
        widgets.chart(flow_contrast_chart(drawn, names=sides, theme=widgets.theme(), title=None), runs=pair)
        if drawn is not flow:
            st.caption(f"Drawn are the {FEW_NODES} modules of each step that differ most; the table below has all.")
        st.caption(widgets.escape(colour_words(*sides)))
        percent = st.column_config.NumberColumn(format="percent")
        columns = {**{share_of(name): percent for name in sides}, "change": percent}
        widgets.numbers_behind(contrast_rows(flow, sides, "nodes"), "circles", **columns)
        widgets.numbers_behind(contrast_rows(flow, sides, "links"), "ribbons", **columns)
    _loads(answer, names, pair)


def _load_difference(answer: Mapping[str, Any], names: tuple[str, str]) -> None:
    """The loads of two runs of which one has no tokens."""
    st.write(widgets.escape(load_difference_words(answer, names)))
    if answer["note"]:
        st.caption(widgets.escape(answer["note"]))
    measures = {"load_entropy": "load entropy", "max_violation": "MaxVio", "dead": "dead modules"}
    plain_table(
        [
            {"step": row["step"], "overlap": row["overlap"]}
            | {
                f"{name}: {words}": row[side][what]
                for what, words in measures.items()
                for side, name in zip("ab", names, strict=True)
            }
            for row in answer["steps"]
        ],
        "Loads by step",
    )
    widgets.numbers_behind(answer["modules"], "modules whose share differs most")


def load_difference_words(answer: Mapping[str, Any], names: tuple[str, str]) -> str:
    """The step whose loads overlap least, and the module that differs most."""
    known = [row for row in answer["steps"] if row["overlap"] is not None]
    if not known:
        return "Their steps have other modules, so only the balance of each step is compared."
    least = min(known, key=lambda row: row["overlap"])
    text = f"Their loads part most at step {least['step']}: {numbers.percent(1 - least['overlap'])} of the choices."
    if answer["modules"]:
        most = answer["modules"][0]
        text += (
            f" Module {most['module']} at step {most['step']} has {numbers.percent(most['a'])} in {names[0]} and "
            f"{numbers.percent(most['b'])} in {names[1]}."
        )
    return text


def _loads(answer: Mapping[str, Any], names: tuple[str, str], pair: tuple[str, str]) -> None:
    flow = answer["flow"]
    st.subheader("How evenly does each step load its modules?", anchor=False, help=LOAD_HELP)
    if flow["reason"] is not None:
        why = flow["reason"]
        st.caption(widgets.escape(f"Their flows cannot be subtracted ({why}), so their loads stand side by side."))
    st.write(widgets.escape(charts.load_words(answer, names)))
    widgets.chart(charts.load_chart(answer, names=names, theme=widgets.theme(), title=None), runs=pair)
    widgets.numbers_behind(charts.load_rows(answer, names), "steps")
