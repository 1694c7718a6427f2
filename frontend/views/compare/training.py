"""Training part of Compare: the checkpoints of one training as heat maps, with the load of the chosen one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts import compare as charts
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.charts.several_runs.training_maps import (
    UNTRAINED,
    places_of,
    training_map,
    training_map_rows,
    training_words,
    with_saturation,
)
from tokenpaths.frontend.charts.usage import load_chart
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import MOST_COMPARED, Selection
from tokenpaths.frontend.views.compare.compared import Compared

TITLE = "How did the routing change over training?"
MAP_HELP = (
    "A column is a checkpoint, a row a step (a layer). Load entropy = H(c/Σc)/ln M of the tokens c of each module; "
    "MaxVio = load of the busiest / fair share − 1; dead: no token chose it."
)
KEPT_HELP = (
    "Load kept = 1 − ½ Σ |l − l′|, l the modules’ shares of the choices of a step, l′ those of the checkpoint before, "
    "so that the first has none: of loads alone, whichever tokens make them. Choices as at the end (router "
    "saturation) = mean |S ∩ S′| / K over the same tokens, S′ those of the last checkpoint."
)


def draw(selection: Selection, compared: Compared) -> None:
    """The training of the first compared run that belongs to one."""
    series = _series(compared)
    run = next((name for name in compared.names if (compared.cards.get(name) or {}).get("series")), None)
    if run is None:
        widgets.heading(TITLE, "")
        widgets.empty("None of the runs compared is a checkpoint of a training.", _how(series))
        _series_picker(series, None)
        return
    training = widgets.client().ask(run, "series")
    widgets.heading(TITLE, "")
    _series_picker(series, training["series"])
    places = places_of(training)
    if len(training["points"]) < 2 and not training["untrained"]:
        only = f"{run} is the only checkpoint of {training['series']} here."
        widgets.empty(widgets.escape(only), "Record another one under the same series.")
        return
    st.write(widgets.escape(_what(training, places)))
    chosen = _slider(places, selection)
    for name, column in zip(("load_entropy", "max_violation", "dead"), st.columns(3, gap="medium"), strict=True):
        with column:
            st.subheader(TITLES[name], anchor=False, help=MAP_HELP)
            st.caption(widgets.escape(training_words(training, name)))
            drawing = training_map(training, name, theme=widgets.theme(), chosen=chosen["label"], title=None)
            widgets.chart(drawing, about=about(training))
    _load(training, places, chosen)
    _curves(training, chosen, selection)
    _stability(training, compared, run, chosen["label"])
    widgets.numbers_behind(training_map_rows(training), "checkpoints by step")


def about(training: Mapping[str, Any]) -> str:
    """What a saved picture is about."""
    return f"series: {training['series']}"


TITLES = {
    "load_entropy": "How evenly are modules loaded?",
    "max_violation": "How busy is the busiest?",
    "dead": "How many get nothing?",
}


def _what(training: Mapping[str, Any], places: Sequence[Mapping[str, Any]]) -> str:
    """Which checkpoints there are, and whether an untrained model stands before them."""
    iterations = [place["label"] for place in places if place["run"] is not None]
    first = ", beside the untrained model (the first column)" if places[0]["run"] is None else ""
    return (
        f"{numbers.plural(len(iterations), 'checkpoint')} of {training['series']}, iterations {iterations[0]} to "
        f"{iterations[-1]}{first}. Move the slider to see the load of a checkpoint."
    )


def _series(compared: Compared) -> dict[str, list[str]]:
    """Runs of each training in the data folder, in the order of iterations."""
    found: dict[str, list[tuple[int, str]]] = {}
    for card in compared.cards.values():
        if place := card.get("series"):
            found.setdefault(str(place["name"]), []).append((int(place["iteration"]), str(card["run"])))
    return {name: [run for _, run in sorted(members)] for name, members in sorted(found.items())}


def _how(series: Mapping[str, Sequence[str]]) -> str:
    if series:
        return "Choose one below."
    return "Record checkpoints under one name: `tokenpaths.record(model, series=…, iteration=…)`."


def _series_picker(series: Mapping[str, Sequence[str]], now: str | None) -> None:
    """Another training: its checkpoints become the runs that are compared."""
    if not series or (len(series) == 1 and now is not None):
        return
    st.session_state["training_series"] = now
    st.selectbox(
        "Training",
        list(series),
        index=None,
        key="training_series",
        format_func=lambda name: f"{name} ({len(series[name])} checkpoints)",
        on_change=_choose_series,
        args=(series,),
    )


def _choose_series(series: Mapping[str, Sequence[str]]) -> None:
    chosen = str(st.session_state.get("training_series"))
    if chosen in series:
        address.go_changed(runs=tuple(series[chosen][:MOST_COMPARED]), at=None)


def _slider(places: Sequence[Mapping[str, Any]], selection: Selection) -> Mapping[str, Any]:
    """The chosen column: that of ``at``, else the last one."""
    by_iteration = {place["iteration"]: place for place in reversed(places)}
    options = sorted(by_iteration)
    at = selection.at if selection.at in by_iteration else options[-1]
    if len(options) > 1:
        address.bound(
            st.select_slider,
            "at",
            "Checkpoint",
            at,
            options,
            format_func=lambda iteration: by_iteration[iteration]["label"],
            help="Framed in the maps and marked in the curves; its load stands below.",
        )
    return by_iteration[at]


def _load(training: Mapping[str, Any], places: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> None:
    """Utilisation of every module at the chosen checkpoint, on the scale of all checkpoints."""
    when = UNTRAINED if chosen["run"] is None else f"at iteration {chosen['label']}"
    st.subheader(f"Which modules are busy {when}?", anchor=False)
    try:
        run = chosen["run"] or training["untrained"]["beside"]
        usage = widgets.client().ask(run, "usage")
    except ApiError as error:
        widgets.show_error(error)
        return
    if chosen["run"] is None:
        usage = _untrained_usage(usage, training["untrained"])
    most = 1 + max(float(step["max_violation"] or 0) for place in places for step in place["steps"])
    drawing = load_chart(usage, theme=widgets.theme(), title=None, most=most)
    widgets.chart(drawing, runs=[run], about="its untrained twin" if chosen["run"] is None else "")


def _untrained_usage(usage: Mapping[str, Any], twin: Mapping[str, Any]) -> dict[str, Any]:
    """``usage`` of a checkpoint with the counts of its untrained ``twin`` in place of its own."""
    flat = [(count, len(step), sum(step)) for step in twin["counts"] for count in step]
    tokens = max(1, int(twin["num_tokens"]))
    cells = [
        {**cell, "count": count, "utilisation": count * modules / total if total else 0.0, "share": count / tokens}
        for cell, (count, modules, total) in zip(usage["usage"], flat, strict=True)
    ]
    return {**usage, "usage": cells}


def _curves(training: Mapping[str, Any], chosen: Mapping[str, Any], selection: Selection) -> None:
    """The loss and one other number of every checkpoint; the one of the slider in the colour of its frame in maps."""
    marked = [chosen["run"]]
    measures = [
        name
        for name in charts.SUMMARY
        if name not in ("num_samples", "num_tokens") and any(row.get(name) is not None for row in training["points"])
    ]
    left, right = st.columns(2, gap="medium")
    with left:
        if "loss" in measures:
            st.subheader("Does the loss fall?", anchor=False)
            widgets.chart(
                charts.training_chart(training, "loss", theme=widgets.theme(), chosen=marked, title=None),
                about=about(training),
            )
        else:
            widgets.empty("No loss was recorded with these checkpoints.")
    with right:
        others = [name for name in measures if name != "loss"]
        if not others:
            widgets.empty("No other number of these checkpoints is known.")
            return
        # Of counts alone no path is known.
        usual = "effective_paths" if "effective_paths" in others else others[0]
        measure = selection.number if selection.number in others else usual
        address.bound(st.selectbox, "number", "Number", measure, others, format_func=charts.SUMMARY.__getitem__)
        widgets.chart(
            charts.training_chart(training, measure, theme=widgets.theme(), chosen=marked, title=None),
            about=about(training),
        )
    widgets.numbers_behind(charts.training_rows(training), "checkpoints")


def _stability(training: Mapping[str, Any], compared: Compared, run: str, label: str) -> None:
    """Whether modules keep their load, and tokens their modules."""
    st.header("When do modules settle?", anchor=False, help=KEPT_HELP)
    left, right = st.columns(2, gap="medium")
    with left:
        st.subheader("Do modules keep their load?", anchor=False)
        st.caption(widgets.escape(training_words(training, "kept")))
        drawing = training_map(training, "kept", theme=widgets.theme(), chosen=label, title=None)
        widgets.chart(drawing, about=about(training))
    with right:
        st.subheader("Do tokens choose as at the end?", anchor=False)
        if is_load_only(compared.cards[run]):
            widgets.empty("These checkpoints are of counts of tokens by expert; no token’s choice is known.")
            return
        try:
            saturation = widgets.client().ask(run, "saturation")
        except ApiError as error:
            widgets.show_error(error)
            return
        with_choices = with_saturation(training, saturation)
        st.caption(widgets.escape(training_words(with_choices, "saturation")))
        drawing = training_map(with_choices, "saturation", theme=widgets.theme(), chosen=label, title=None)
        widgets.chart(drawing, about=about(training))
        for row in saturation["left_out"]:
            st.caption(widgets.escape(f"Left out: {row['run']} {row['reason']}."))
