"""Compare view: two runs over the same samples, by sample, by flow and over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts import compare as charts
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.flow_contrast import (
    FEW_NODES,
    colour_words,
    contrast_rows,
    contrast_words,
    few_of,
    flow_contrast_chart,
)
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.jobs import panel

BUNDLED = ("scenes", "photos", "texts", "digits", "languages")
SHOWN = ("reuse", "compute", "loss")
"""measures offered; skip is 1 − compute, so its scatter would only be mirrored"""
MOST_MOVED = 12
"""with more circles, only the largest changes of each step are drawn"""
HELP = (
    "Pearson’s r of the samples’ values with the 95 % interval of Fisher’s z, tanh(atanh r ± 1.96/√(n−3)); Spearman’s "
    "is that of the ranks, its error by Bonett and Wright. Reuse, compute and loss of a sample: means over its tokens."
)
GROUPING_HELP = (
    "Adjusted mutual information of the paths of the same tokens in both runs: (I − E I) / (mean of both H − E I), E "
    "over random permutations. 0: as by chance; 1: tokens on one path in one run are on one path in the other."
)
FLOW_HELP = (
    "½ Σ |f′ − f| over all links, f the share of the paired samples’ tokens; mean over pairs of steps. 0: the same "
    "flow, 1: no link in common."
)
LOAD_HELP = "Load entropy = H(c/Σc)/ln M of the tokens c of each module: 1 = all get the same, 0 = one gets everything."


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    cards = partners(run, common.readable_runs())
    against = selection.against or (cards[0]["run"] if cards else None)
    place = widgets.controls()
    if against is None:
        _controls(place, run, selection, cards, against)
        widgets.heading("What differs between these two?", "")
        widgets.empty(
            f"There is no other run over the samples of {run['run']}.",
            "Trace another model over the same data, or this model untrained.",
        )
        _offer_twin(run, cards)
        _training(run, selection)
        return
    measure = selection.measure if selection.measure in SHOWN else "reuse"
    try:
        answer = _asked(run, against, measure)
    except ApiError as error:
        _controls(place, run, selection, cards, against)
        widgets.heading("What differs between these two?", "")
        widgets.show_error(error)
        _offer_twin(run, cards)
        _training(run, selection)
        return
    names = short_names(run["run"], against)
    widgets.heading("What differs between these two?", widgets.escape(answer["matched"]["sentence"]))
    telling = _telling(answer, measure)
    _controls(place, run, selection, cards, against, answer)
    if telling != measure:
        why = charts.correlation_of(answer)["reason"]
        st.caption(widgets.escape(widgets.with_full_stop(f"Shown is {telling} in place of {measure}, because {why}")))
        answer = _asked(run, against, telling)
    left, right = st.columns([3, 2], gap="large")
    with left:
        _scatter(answer, names, selection)
    with right:
        _summary(answer, names)
        groups = st.container()
    _moved(run, answer, names)
    _flow(answer, names)
    with groups, widgets.error_boundary("which tokens share a path"):
        _grouping(widgets.client().same_groups(run["run"], against)["grouping"])
    _training(run, selection)
    _offer_twin(run, cards)


def _asked(run: Mapping[str, Any], against: str, measure: str) -> dict[str, Any]:
    """The comparison without token groups, which take as long as all the rest and are loaded after the chart."""
    return widgets.client().compare(run["run"], against, measure=measure, limit=MOST_MOVED, links=2000, grouping=False)


def partners(run: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs that may be over the same samples, the likeliest first: same data, then own untrained twin, then others."""
    candidates = [
        card
        for card in cards
        if card["run"] != run["run"]
        and card["modality"] == run["modality"]
        and card["dataset"] == run["dataset"]
        and common.is_try(card) == common.is_try(run)
    ]
    return sorted(
        candidates,
        key=lambda card: (
            card["num_samples"] != run["num_samples"],
            card["family"] != run["family"],
            str(card["model"]).removesuffix("-untrained") != run["model"],
            str(card["run"]),
        ),
    )


def short_names(first: str, second: str) -> tuple[str, str]:
    """Names of two runs without their common prefix, if the rest still distinguishes them."""
    parts = first.split("-"), second.split("-")
    common_start = 0
    while common_start < min(map(len, parts)) - 1 and parts[0][common_start] == parts[1][common_start]:
        common_start += 1
    short = ["-".join(words[common_start:]) for words in parts]
    if common_start and all(len(word) >= 3 for word in short):
        return short[0], short[1]
    return first, second


def _controls(
    place: Any,
    run: Mapping[str, Any],
    selection: Selection,
    cards: Sequence[Mapping[str, Any]],
    against: str | None,
    answer: Mapping[str, Any] | None = None,
) -> None:
    """``answer``: the response being drawn, so that the selected measure is the one shown."""
    names = [card["run"] for card in cards]
    if against is not None and against not in names:
        names.insert(0, against)
    with place:
        common.run_picker(run)
        if names:
            address.bound(
                st.selectbox,
                "against",
                "Beside",
                against,
                names,
                help="Another run over the same samples: another model, another checkpoint, the untrained twin.",
            )
        else:
            st.selectbox("Beside", ["no other run over these samples"], disabled=True)
        measure, same = selection.measure if selection.measure in SHOWN else "reuse", set()
        if answer is not None:
            measure = _telling(answer, measure)
            same = {row["measure"] for row in answer["correlations"] if row["pearson"] is None}
        address.bound(
            st.selectbox,
            "measure",
            "Measure",
            measure,
            list(SHOWN),
            help="What the samples are compared by.",
            format_func=lambda name: f"{name} (nothing to compare)" if name in same else name,
        )
        common.label_picker(run, selection)
        if against is not None:
            st.button(
                "Swap",
                icon=":material/swap_horiz:",
                help="The second run first.",
                on_click=_swap,
                args=(run["run"], against),
            )


def _swap(run: str, against: str) -> None:
    now = address.current()
    address.go(now.change(run=against, against=run, measure=now.measure))


def _telling(answer: Mapping[str, Any], measure: str) -> str:
    """The requested measure, or the first that varies between samples if this one does not."""
    by_measure = {row["measure"]: row for row in answer["correlations"]}
    return next((name for name in (measure, *SHOWN) if by_measure[name]["pearson"] is not None), measure)


def _scatter(answer: Mapping[str, Any], names: tuple[str, str], selection: Selection) -> None:
    st.subheader("Do the same samples stand out in both?", anchor=False, help=HELP)
    row = charts.correlation_of(answer)
    if not answer["points"]:
        widgets.empty(f"No sample has {answer['measure']} in both runs.", "Choose another measure.")
    else:
        st.write(widgets.escape(charts.pair_words(answer, names)))
        st.caption(
            widgets.escape(
                " ".join(
                    filter(
                        None,
                        [
                            "One point: one sample. Dashed: equal in both. Click one to open it.",
                            f"Accent: samples with the label {selection.label}." if selection.label is not None else "",
                            charts.mean_words(answer, names),
                            f"{numbers.count(len(answer['points']))} of {numbers.count(answer['points_of'])} are drawn."
                            if len(answer["points"]) < answer["points_of"]
                            else "",
                            common.not_independent(answer["a"]),
                        ],
                    )
                )
            )
        )
        widgets.chart(
            charts.pair_chart(answer, names=names, theme=widgets.theme(), chosen=selection.label, title=None),
            key=f"pairs_{answer['a']['run']}_{answer['b']['run']}_{row['measure']}_{selection.label}",
            on_pick=lambda _name, number: _open(answer["a"]["run"], int(number)),
            pick=(charts.SAMPLE_PICK,),
        )
    table = [
        {
            "measure": correlation["measure"],
            "Pearson’s r (95 %)": charts.coefficient_words(correlation["pearson"]),
            "Spearman’s (95 %)": charts.coefficient_words(correlation["spearman"]),
            "samples": correlation["num"],
            f"mean, {names[0]}": numbers.number(correlation["mean_a"]),
            f"mean, {names[1]}": numbers.number(correlation["mean_b"]),
            "why none": correlation["reason"] or "",
        }
        for correlation in answer["correlations"]
    ]
    widgets.numbers_behind(table, "correlations of all measures")
    widgets.numbers_behind(answer["points"], "samples")
    for correlation, name in zip(answer["within"], names, strict=True):
        if correlation["pearson"]:
            words = charts.coefficient_words(correlation["pearson"])
            st.caption(widgets.escape(f"Skip against reuse inside {name}: Pearson’s r = {words}."))


def _open(run: str, sample: int) -> None:
    address.go(Selection(view="sample", run=run, sample=sample))


def _summary(answer: Mapping[str, Any], names: tuple[str, str]) -> None:
    st.subheader("Both runs in numbers", anchor=False, help=f"{widgets.HELP['topk']} {widgets.HELP['load']}")
    rows = charts.summary_rows(answer, names)
    columns = {name: Column(name, right=True) for row in rows for name in row} | {"what": Column("number")}
    plain_table(rows, "Both runs in numbers", columns)


def _grouping(grouping: Mapping[str, Any]) -> None:
    st.subheader("Do both put the same tokens on one path?", anchor=False, help=GROUPING_HELP)
    if grouping["ami"] is None:
        st.write(widgets.escape(f"That cannot be told: {grouping['reason']}."))
        return
    size = grouping["ami"]
    verdict = (
        "Hardly more than by chance"
        if size < 0.1
        else "A little"
        if size < 0.4
        else "In part"
        if size < 0.7
        else "Largely"
        if size < 0.95
        else "Yes, nearly all"
    )
    st.write(
        widgets.escape(
            f"{verdict}: adjusted mutual information {numbers.number(size)} (0 = by chance, 1 = the same groups), "
            f"over {numbers.plural(grouping['num_tokens'], 'token')}. "
            f"NMI {numbers.number(grouping['nmi'])}; groups of these sizes put together "
            f"at random have {numbers.number(grouping['expected_nmi'])}."
        )
    )
    st.caption("Equal patches and equal words take equal paths in untrained models too: compare with a twin.")


def _moved(run: Mapping[str, Any], answer: Mapping[str, Any], names: tuple[str, str]) -> None:
    measure = answer["measure"]
    if not answer["points"]:
        return
    st.subheader(f"Which samples differ most in {measure}?", anchor=False)
    if not answer["most"]:
        widgets.empty(f"No sample differs in {measure}.")
        return
    a, b = answer["a"]["run"], answer["b"]["run"]
    where = (
        st.segmented_control(
            "A click opens the sample in",
            [a, b],
            default=a,
            key=f"open_in_{a}_{b}",
            format_func=lambda name: names[0] if name == a else names[1],
        )
        or a
    )
    st.caption(widgets.escape(f"Left: {measure} in {names[0]}; right: in {names[1]}. Largest difference first."))
    pictures = any(row["has_image"] for row in answer["most"])
    items = []
    for row in answer["most"]:
        number = row["sample"] if where == a else row["partner"]
        values = " → ".join(numbers.number(row[side]) for side in "ab")
        label = f"{row['label']}, " if row["label"] else ""
        item: dict[str, Any] = {"sample": number, "title": f"sample {number}: {label}{values}", "caption": values}
        if row["has_image"]:
            item["image"] = data_url(widgets.client().image(a, row["sample"]))
        else:
            item["snippet"] = row["snippet"] or row["source"] or f"sample {row['sample']}"
        items.append(item)
    wall(
        items,
        key=f"moved_{a}_{b}_{measure}_{where}",
        kind="sample" if pictures else "text",
        on_open=lambda one: _open(str(where), int(one["sample"])),
    )
    widgets.numbers_behind(
        [
            {
                "sample": r["sample"],
                "partner": r["partner"],
                "label": r["label"],
                names[0]: r["a"],
                names[1]: r["b"],
                "difference": r["difference"],
                "source": r["source"],
            }
            for r in answer["most"]
        ],
        "samples that differ most",
    )


def _flow(answer: Mapping[str, Any], names: tuple[str, str]) -> None:
    flow = answer["flow"]
    if flow["reason"] is None:
        st.subheader("Where do their tokens part?", anchor=False, help=FLOW_HELP)
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
        widgets.chart(flow_contrast_chart(drawn, names=sides, theme=widgets.theme(), title=None))
        if drawn is not flow:
            st.caption(f"Drawn are the {FEW_NODES} modules of each step that differ most; the table below has all.")
        st.caption(widgets.escape(colour_words(*sides)))
        percent = st.column_config.NumberColumn(format="percent")
        columns = {sides[0]: percent, sides[1]: percent, "change": percent}
        widgets.numbers_behind(contrast_rows(flow, sides, "nodes"), "circles", **columns)
        widgets.numbers_behind(contrast_rows(flow, sides, "links"), "ribbons", **columns)
    st.subheader("How evenly does each step load its modules?", anchor=False, help=LOAD_HELP)
    if flow["reason"] is not None:
        why = flow["reason"]
        st.caption(widgets.escape(f"Their flows cannot be subtracted ({why}), so their loads stand side by side."))
    st.write(widgets.escape(charts.load_words(answer, names)))
    widgets.chart(charts.load_chart(answer, names=names, theme=widgets.theme(), title=None))
    widgets.numbers_behind(charts.load_rows(answer, names), "steps")


def _training(run: Mapping[str, Any], selection: Selection) -> None:
    """The checkpoints of the run's training; nothing if it belongs to none."""
    if not isinstance(run["config"].get("series"), dict):
        return
    try:
        training = widgets.client().ask(run["run"], "series")
    except NotFound:
        return
    st.subheader("How did it change over training?", anchor=False)
    points = training["points"]
    if len(points) < 2:
        only = f"{run['run']} is the only checkpoint of {training['series']} here."
        widgets.empty(widgets.escape(only), "Trace another one.")
        return
    measures = [
        name
        for name in charts.SUMMARY
        if name not in ("num_samples", "num_tokens") and any(row.get(name) is not None for row in points)
    ]
    measure = st.selectbox(
        "Number",
        measures,
        index=measures.index("effective_paths"),
        format_func=charts.SUMMARY.__getitem__,
        key="training_number",
    )
    widgets.chart(
        charts.training_chart(
            training, measure, theme=widgets.theme(), chosen=[run["run"], str(selection.against)], title=None
        )
    )
    widgets.numbers_behind(charts.training_rows(training), "checkpoints")


@address.unless_embedded
def _offer_twin(run: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> None:
    """A button that traces the untrained model over the same data, if that is possible here."""
    twin = f"{run['model']}-untrained"
    there = any(card["model"] == twin for card in cards)
    if there or run["dataset"] not in BUNDLED or str(run["model"]).endswith("-untrained"):
        return
    try:
        models = [row["model"] for row in widgets.client().models()]
    except ApiError:  # without a worker nothing can be traced
        return
    if common.model_name(run) not in models:
        return
    panel.refusal()
    st.button(
        "Trace its untrained twin to compare with",
        icon=":material/casino:",
        key="trace_twin",
        help="The same architecture with fresh weights over the same samples, as a run of its own. A job of seconds "
        "to minutes.",
        on_click=_trace_twin,
        args=(common.model_name(run), run["dataset"], f"{run['run'][:53]}-untrained"),
    )


def _trace_twin(model: str, dataset: str, name: str) -> None:
    job = panel.submit(
        "trace", {"model": model, "data": f"bundled:{dataset}", "untrained": True, "twin": False, "run": name}
    )
    if job is not None:
        address.go_changed(view="jobs", job=job)
