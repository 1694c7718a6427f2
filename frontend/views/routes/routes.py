"""Routes view: the flow chart of the selected tokens, or of two labels side by side with their contrast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import DARKER
from tokenpaths.frontend.charts.flow.flow import LINK_PICK, NODE_PICK, flow_chart, link_rows, node_rows
from tokenpaths.frontend.charts.flow.flow_contrast import (
    FEW_NODES,
    colour_words,
    contrast_map_chart,
    contrast_rows,
    contrast_words,
    few_of,
    flow_contrast,
    flow_contrast_chart,
    share_of,
)
from tokenpaths.frontend.charts.flow.flow_words import flow_captions, flow_words
from tokenpaths.frontend.charts.flow.layout import MANY_LINKS, MOST_LINKS
from tokenpaths.frontend.charts.several_runs.small_flows import MANY_SLOTS
from tokenpaths.frontend.charts.usage import load_chart, load_of_flow
from tokenpaths.frontend.formulas import OF_TOKENS
from tokenpaths.frontend.page import address, chart_keys, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.own_names import names_of

MANY_STEPS = 32
SAMPLED_FROM = 20_000_000
"""runs with more tokens show filtered flows from a sample first; smaller ones are counted fast enough"""
MERGE_STEPS = [0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0]
HIDE_STEPS = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
ALL_LABELS = "*"
"""value in the URL: compare with all labels together"""
SHARE = st.column_config.NumberColumn(format="percent", help=OF_TOKENS["share"]["help"])
MERGING_OPTIONS = ("merge_share", "most_modules")
"""options of ``/flow`` that merge modules"""
FILTERS = ("label", "through", "paths", "steps")
"""fields of the selection that ``/flow`` is asked with"""
BESIDE = [name for name in FILTERS if name != "label"]
"""those that both sides of a comparison share"""


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    _controls(run, selection)
    common.say_steps_left_out(run, selection)
    if selection.other is not None:
        _draw_beside(run, selection)
        return
    asked = question(run, selection)
    if not _takes_long(run, selection):
        _show(run, selection, widgets.client().ask(run["run"], "flow", **asked))
        return
    # A placeholder, so that the exact result replaces the sampled one.
    place = st.empty()
    sampled = widgets.client().ask(run["run"], "flow", **asked)
    if sampled["counted"]["exact"]:  # listed paths, of which all tokens are counted as quickly
        with place.container():
            _show(run, selection, {**sampled, "counted": None})
        return
    if sampled["num_tokens"]:
        with place.container():
            _show(run, selection, sampled)
    del asked["sampled"]
    exact = widgets.client().ask(run["run"], "flow", **asked)
    with place.container():
        _show(run, selection, exact)


def question(run: Mapping[str, Any], selection: Selection) -> dict[str, Any]:
    """The first query of ``/flow``: of a sample, where counting all takes long."""
    asked = common.flow_question(run, selection, limit=MOST_LINKS)
    if _as_map(run, selection):
        asked |= {"limit": 1, **dict.fromkeys(MERGING_OPTIONS)}
    return asked | ({"sampled": True} if _takes_long(run, selection) else {})


def _takes_long(run: Mapping[str, Any], selection: Selection) -> bool:
    """Whether these tokens must be counted in a run large enough for a noticeable wait."""
    return bool(selection.through or selection.paths) and int(run["num_tokens"]) >= SAMPLED_FROM


def _show(run: Mapping[str, Any], selection: Selection, flow: Mapping[str, Any]) -> None:
    """Draw one response, sampled or exact."""
    counted = flow.get("counted")
    widgets.heading("Where do tokens go?", _words(run, flow, as_map=_as_map(run, selection)), "flow")
    if not flow["num_tokens"]:
        widgets.empty("No token passes all of these filters.", "Clear a filter above to see some again.")
        return
    if counted and not counted["exact"]:
        st.caption(widgets.escape(sampled_words(run, flow)))
    widgets.verdict(flow_words(flow))
    if int(run["top_k"]) >= MANY_SLOTS:
        _drawn_picker(run, selection)
    if _as_map(run, selection):
        _map(run, selection, flow)
        return
    least = common.least_drawn(selection, flow)
    names = names_of(run["run"], "module")
    drawing = flow_chart(flow, theme=widgets.theme(), through=selection.through, title=None, least=least, names=names)
    widgets.chart(
        drawing,
        key=chart_keys.steady("flow_sampled" if counted else "flow", selection),
        on_pick=_picked,
        pick=(NODE_PICK, LINK_PICK),
        filters=FILTERS,
    )
    for line in flow_captions(flow, least):
        st.caption(widgets.escape(line))
    st.caption(
        "Click a circle to look into the module; click a ribbon to keep only its tokens, and again to clear. "
        + ("" if flow["own_modules"] else "A horizontal ribbon stays in the same module.")
        + (" Grey: identity modules, which do nothing (the step is skipped)." if common.identities(run) else "")
        + (" Choose fewer steps above to see single flows." if len(flow["steps"]) > MANY_STEPS else "")
    )
    if counted:
        return  # tables and notes are added with the exact result
    common.notes(run)
    widgets.numbers_behind(node_rows(flow), "circles", share=SHARE)
    widgets.numbers_behind(link_rows(flow), "ribbons", share=SHARE)


def _as_map(run: Mapping[str, Any], selection: Selection) -> bool:
    """Whether loads are drawn instead of ribbons, which are a thicket where a token takes many modules at a step."""
    return (selection.drawn or ("map" if int(run["top_k"]) >= MANY_SLOTS else "ribbons")) == "map"


def _drawn_picker(run: Mapping[str, Any], selection: Selection) -> None:
    address.bound(
        st.segmented_control,
        "drawn",
        "Drawn as",
        "map" if _as_map(run, selection) else "ribbons",
        ["map", "ribbons"],
        format_func={"map": "heat map", "ribbons": "ribbons"}.get,
        label_visibility="collapsed",
    )


def _map(run: Mapping[str, Any], selection: Selection, flow: Mapping[str, Any]) -> None:
    """Load of each module at each step by the chosen tokens."""
    load = load_of_flow(flow, widgets.client().ask(run["run"], "usage"))
    names = names_of(run["run"], "module")
    widgets.chart(
        load_chart(load, theme=widgets.theme(), title=None, chosen=common.inspected_module(selection), names=names),
        key=chart_keys.steady("map_sampled" if flow.get("counted") else "map", selection),
        on_pick=_cell_picked,
        pick=("node",),
        filters=FILTERS,
    )
    st.caption(
        f"{DARKER}: more tokens than a module's fair share of the "
        f"{numbers.plural(run['top_k'], 'choice')} that each token makes at a step. Click a cell to look into the "
        "module."
    )
    if not flow.get("counted"):
        common.notes(run)
        widgets.numbers_behind(load["usage"], "cells", share=SHARE)


def _cell_picked(_: str, value: str) -> None:
    address.go_changed(inspect=f"module:{value}")


def sampled_words(run: Mapping[str, Any], flow: Mapping[str, Any]) -> str:
    """Number of tokens counted, and the error bound of a ribbon's share."""
    counted = flow["counted"]
    off = numbers.number(100 * max(((row["high"] - row["low"]) / 2 for row in flow["links"]), default=0.0), 2)
    return (
        f"Estimated from {numbers.plural(counted['num_tokens'], 'token')} of a sample of "
        f"{numbers.count(counted['of_tokens'])}: the share of a ribbon is right within ± {off} percentage "
        f"points (95 %). Now counting all {numbers.plural(run['num_tokens'], 'token')} …"
    )


def _controls(run: Mapping[str, Any], selection: Selection) -> None:
    with common.run_and_label(run, selection):
        _beside_picker(run, selection)
        with st.popover("Steps and small flows", icon=":material/tune:", key="routes_options"):
            _options(run, selection)


def _options(run: Mapping[str, Any], selection: Selection) -> None:
    """Which steps are drawn, what is hidden and what is merged."""
    _step_pickers(run, selection)
    address.bound(
        st.select_slider,
        "hide",
        "Hide small flows",
        "auto" if selection.hide is None else selection.hide,
        ["auto", *sorted({*HIDE_STEPS, *([] if selection.hide is None else [selection.hide])})],
        format_func=lambda value: "automatic" if value == "auto" else f"{value:g} %",
        read=lambda value: None if value == "auto" else float(value),
        help="Ribbons with a smaller share of the tokens are not drawn, but counted. Automatic: nothing is hidden "
        f"of {MANY_LINKS} ribbons or fewer, and never more than a tenth of the moves between modules that are drawn.",
    )
    if int(run["num_modules"]) > common.DRAWN_MODULES:
        merge_slider(run, selection)


def merge_slider(run: Mapping[str, Any], selection: Selection) -> None:
    """Slider: minimum share of tokens of a module that is not merged."""
    what = "experts" if run["family"] == "moe" else "modules"
    usual = f"the {common.DRAWN_MODULES} busiest" if common.merging(run, selection.change(merge=None)) else "no"
    usual = "beyond " + usual if usual != "no" else "none"
    address.bound(
        st.select_slider,
        "merge",
        f"Merge {what} below",
        "auto" if selection.merge is None else selection.merge,
        ["auto", *sorted({*MERGE_STEPS, *([] if selection.merge is None else [selection.merge])})],
        format_func=lambda value: usual if value == "auto" else f"{value:g} %",
        read=lambda value: None if value == "auto" else float(value),
        help=f"{what.capitalize()} that get a smaller share of the tokens become one square of their step, “other”.",
    )


def _step_pickers(run: Mapping[str, Any], selection: Selection) -> None:
    """First and last step to draw, inclusive here; half-open in the URL, as in the API."""
    last, (start, end) = int(run["num_steps"]) - 1, common.step_range(run, selection)

    def now() -> tuple[int, int]:  # the other one may have been chosen just now
        return common.step_range(run, address.current())

    if last < 1:
        return

    def span(first: int, final: int) -> tuple[int, int] | None:
        return None if (first, final) == (0, last) else (first, final + 1)

    address.bound(
        st.selectbox,
        "steps",
        "From step",
        start,
        list(range(last + 1)),
        part="_first",
        read=lambda first: span(first, max(first, now()[1] - 1)),
    )
    address.bound(
        st.selectbox,
        "steps",
        "to step",
        end - 1,
        list(range(last + 1)),
        part="_last",
        read=lambda final: span(min(now()[0], final), final),
    )


def _words(run: Mapping[str, Any], flow: Mapping[str, Any], *, as_map: bool) -> str:
    total, selected = run["num_tokens"], flow["num_tokens"]
    tokens = (
        numbers.plural(selected, "token")
        if selected == total
        else f"{numbers.count(selected)} of {numbers.plural(total, 'token')} "
        f"({numbers.percent(selected / max(1, total))})"
    )
    counted = flow.get("counted")
    if counted and not counted["exact"]:
        tokens = f"About {tokens}"
    rows = "In each the busiest module stands at the top" if flow["own_modules"] else "Rows: modules"
    if as_map:
        return f"{tokens}. One cell: one module at one step."
    return (
        f"{tokens}. Columns: steps. {rows}."
        " Circle area: tokens that a module received; ribbon width: tokens that go that way."
    )


def _picked(name: str, value: str) -> None:
    """A circle opens its module in the inspector; a ribbon keeps the tokens that pass there, or lets go of them."""
    if name == NODE_PICK:
        address.go_changed(inspect=f"module:{value}")
    else:
        address.go(address.current().toggle_through(*value.split(">")))


def _beside_picker(run: Mapping[str, Any], selection: Selection) -> None:
    """Picker of a second label, or all of them, for comparison."""
    labels = [row["label"] for row in run["labels"] if row["label"] is not None]
    if len(labels) < 2:
        return
    options = ["", ALL_LABELS, *labels]
    if selection.other is not None and selection.other not in options:
        options.append(selection.other)
    address.bound(
        st.selectbox,
        "other",
        "Beside",
        selection.other or "",
        options,
        format_func=lambda label: {"": "compare with …", ALL_LABELS: "with all labels"}.get(label, f"with {label}"),
        read=lambda label: label or None,
        label_visibility="collapsed",
    )


def _draw_beside(run: Mapping[str, Any], selection: Selection) -> None:
    """Both flows and their difference."""
    other = None if selection.other == ALL_LABELS else selection.other
    if other == selection.label:
        widgets.heading("Where do they part?", "")
        same = widgets.escape(f"Both sides are {_label_name(other)}.")
        widgets.empty(same, "Choose another label, or nothing, under *Beside*.")
        return
    names = (_label_name(selection.label), _label_name(other))
    if names[0] == names[1]:  # a label that is called as all of them are here
        names = (f"label “{names[0]}”", names[1]) if other is None else (names[0], f"label “{names[1]}”")
    sides = (selection, selection.change(label=other))
    as_map = _as_map(run, selection)
    questions = [common.flow_question(run, side, limit=1 if as_map else MOST_LINKS) for side in sides]
    # Unmerged: modules merged on one side only would count as zero there.
    whole = [{name: value for name, value in question.items() if name not in MERGING_OPTIONS} for question in questions]
    compared = [widgets.client().ask(run["run"], "flow", **question) for question in whole]
    empty = [name for name, flow in zip(names, compared, strict=True) if not flow["num_tokens"]]
    if empty:
        widgets.heading("Where do they part?", "")
        none = f"No token of {' or of '.join(empty)} passes all of these filters."
        widgets.empty(widgets.escape(none), "Clear a filter above.")
        return
    contrast = flow_contrast(*compared)
    widgets.heading("Where do they part?", widgets.escape(contrast_words(contrast, *names)), "contrast")
    if int(run["top_k"]) >= MANY_SLOTS:
        _drawn_picker(run, selection)
    if as_map:
        _maps_beside(run, selection, names, compared, contrast)
    else:
        flows = compared
        if whole != questions:
            flows = [widgets.client().ask(run["run"], "flow", **question) for question in questions]
        _flows_beside(selection, names, compared, flows, contrast)
    percent = st.column_config.NumberColumn(format="percent")
    columns = {**{share_of(name): percent for name in names}, "change": percent}
    widgets.numbers_behind(contrast_rows(contrast, names, "nodes"), "cells" if as_map else "circles", **columns)
    if not as_map:
        widgets.numbers_behind(contrast_rows(contrast, names, "links"), "ribbons", **columns)


def _flows_beside(
    selection: Selection,
    names: tuple[str, str],
    compared: Sequence[Mapping[str, Any]],
    flows: Sequence[Mapping[str, Any]],
    contrast: Mapping[str, Any],
) -> None:
    """The difference as ribbons over both sides; ``flows``: as ``compared``, small modules merged."""
    drawn = few_of(contrast)
    drawing = flow_contrast_chart(drawn, names=names, theme=widgets.theme(), title=None)
    widgets.chart(drawing, about=f"{names[0]} beside {names[1]}", filters=BESIDE)
    st.caption(widgets.escape(colour_words(*names)))
    if drawn is not contrast:
        st.caption(f"Drawn are the {FEW_NODES} modules of each step that differ most; the table below has all.")
    if any(len(flow["links"]) >= MOST_LINKS for flow in compared):
        st.caption(
            f"Ribbons: the {numbers.count(MOST_LINKS)} largest of each side; one that is not among them counts as 0 "
            "there. Circles: all."
        )
    least = common.least_drawn(selection, *flows)
    for column, name, flow in zip(st.columns(2, gap="medium"), names, flows, strict=True):
        with column:
            _side(name, flow, "flow")
            drawing = flow_chart(flow, theme=widgets.theme(), title=None, least=least, interactive=False)
            widgets.chart(drawing, about=name, filters=BESIDE)
            for line in flow_captions(flow, least):
                st.caption(widgets.escape(line))


def _maps_beside(
    run: Mapping[str, Any],
    selection: Selection,
    names: tuple[str, str],
    compared: Sequence[Mapping[str, Any]],
    contrast: Mapping[str, Any],
) -> None:
    """The difference as a heat map over those of both sides, which share a scale."""
    things, usage = names_of(run["run"], "module"), widgets.client().ask(run["run"], "usage")
    look: dict[str, Any] = {"theme": widgets.theme(), "title": None, "chosen": common.inspected_module(selection)}
    # With the cells that neither side visits, so that its lines and columns are those of the maps below.
    met = {(row["step"], row["module"]) for row in contrast["nodes"]}
    empty = [
        {**{key: row[key] for key in ("step", "module", "name", "kind")}, "before": 0.0, "after": 0.0, "change": 0.0}
        for row in usage["usage"]
        if row["step"] in contrast["steps"] and (row["step"], row["module"]) not in met
    ]
    whole = {**contrast, "nodes": [*contrast["nodes"], *empty]}
    drawing = contrast_map_chart(whole, names=names, things=things, **look)
    key, about = chart_keys.steady("contrast_map", selection), f"{names[0]} beside {names[1]}"
    widgets.chart(drawing, key=key, about=about, filters=BESIDE, on_pick=_cell_picked, pick=("node",))
    st.caption(widgets.escape(colour_words(*names, parts=" Click a cell to look into the module.")))
    loads = [load_of_flow(flow, usage) for flow in compared]
    most = max((row["utilisation"] or 0 for load in loads for row in load["usage"]), default=1) or 1
    sides = zip(st.columns(2, gap="medium"), ("map_of_first", "map_of_second"), names, compared, loads, strict=True)
    for column, key, name, flow, load in sides:
        with column:
            _side(name, flow, "load")
            drawing = load_chart(load, names=things, most=most, **look)
            steady = chart_keys.steady(key, selection)
            widgets.chart(drawing, key=steady, about=name, filters=BESIDE, on_pick=_cell_picked, pick=("node",))
    st.caption(f"{DARKER}: more tokens than a module's fair share, on one scale for both.")


def _side(name: str, flow: Mapping[str, Any], help_key: str) -> None:
    head = f"{name}: {numbers.plural(flow['num_tokens'], 'token')}"
    st.subheader(widgets.escape(head), anchor=False, help=widgets.HELP[help_key])


def _label_name(label: str | None) -> str:
    return "all labels" if label is None else label
