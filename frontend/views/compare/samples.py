"""Samples part of Compare: two of the runs over the samples that both have, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, Refused
from tokenpaths.frontend.charts import compare as charts
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.compare.compared import Compared, pair_of, partners

SHOWN = ("reuse", "compute", "loss")
"""measures offered; skip is 1 − compute, so its scatter would only be mirrored"""
MOST_MOVED = 12
MOST_LINKS = 2000
MOST_OFFERED = 3
HELP = (
    "Pearson’s r of the samples’ values with the 95 % interval of Fisher’s z; Spearman’s is that of the ranks, its "
    "error by Bonett and Wright. Where the jackknife’s error is larger, it is that one. Reuse, compute and loss of a "
    "sample: means over its tokens."
)
GROUPING_HELP = (
    "Adjusted mutual information of the paths of the same tokens in both runs: (I − E I) / (mean of both H − E I), E "
    "over random permutations. 0: as by chance; 1: tokens on one path in one run are on one path in the other."
)
TITLE = "Do the two runs agree per sample?"


def draw(selection: Selection, compared: Compared) -> None:
    """Two of the runs; opens on the measure by which they differ most."""
    drawn = drawn_pair(selection, compared, TITLE, lambda pair: pair_answer(pair, selection))
    if drawn is None:
        return
    pair, names, answer, place = drawn
    with place:
        same = {row["measure"] for row in answer["correlations"] if row["pearson"] is None}
        address.bound(
            st.selectbox,
            "by",
            "Measure",
            answer["measure"],
            list(SHOWN),
            help="What the samples are compared by; at first the measure by which the two runs differ most.",
            format_func=lambda name: f"{name} (nothing to compare)" if name in same else name,
        )
        common.label_picker(widgets.client().ask(pair[0], ""), selection)
    widgets.heading(TITLE, widgets.escape(answer["matched"]["sentence"]))
    left, right = st.columns([3, 2], gap="large")
    with left:
        _scatter(answer, names, selection)
    with right:
        _moved(answer, names, selection)
        with widgets.error_boundary("which tokens share a path"):
            _grouping(widgets.client().same_groups(*pair)["grouping"])


def drawn_pair(
    selection: Selection, compared: Compared, title: str, ask: Callable[[tuple[str, str]], dict[str, Any]]
) -> tuple[tuple[str, str], tuple[str, str], dict[str, Any], Any] | None:
    """Two of the runs, their short labels, the answer about both, and the row with their pickers for more of them.

    None: there is one run only, or no answer; why is drawn below ``title``.
    """
    pair = pair_of(selection, compared.names)
    if pair is None:
        widgets.heading(title, "")
        nothing_beside(compared)
        return None
    place = widgets.controls()
    try:
        answer = ask(pair)
    except ApiError as error:
        with place:
            pair_pickers(pair, compared)
        widgets.heading(title, "")
        show_refusal(error, pair, compared)
        return None
    with place:
        pair_pickers(pair, compared)
    return pair, (compared.labels[pair[0]], compared.labels[pair[1]]), answer, place


def wall_item(run: str, row: Mapping[str, Any], number: int, title: str, caption: str) -> dict[str, Any]:
    """A sample of ``run`` on a wall, as its picture or the beginning of its text; a click opens ``number``."""
    item: dict[str, Any] = {"sample": number, "title": title, "caption": caption}
    if row["has_image"]:
        return item | {"image": data_url(widgets.client().image(run, row["sample"]))}
    return item | {"snippet": row["snippet"] or row["source"] or f"sample {row['sample']}"}


def pair_answer(pair: tuple[str, str], selection: Selection) -> dict[str, Any]:
    """The comparison of two runs without token groups, which take as long as all the rest and are loaded last."""
    measure = selection.by or (selection.measure if selection.measure in ("reuse", "loss") else "auto")
    return widgets.client().compare(*pair, measure=measure, limit=MOST_MOVED, links=MOST_LINKS, grouping=False)


def show_refusal(error: ApiError, pair: tuple[str, str], compared: Compared) -> None:
    """Why two runs have no comparison. That they cannot be paired is no fault: it says which runs could be."""
    first = compared.cards.get(pair[0])
    conflict = isinstance(error, Refused) and error.status == HTTPStatus.CONFLICT
    if not conflict or first is None or pair[1] not in compared.cards:
        widgets.show_error(error)
        return
    fitting = [card["run"] for card in partners(first, list(compared.cards.values())) if card["run"] != pair[1]]
    todo = "Samples and routes are compared pair by pair, of two runs over the same data; *Numbers* compares any runs. "
    if fitting:
        names = ", ".join(map(widgets.escape, fitting[:MOST_OFFERED]))
        todo += f"Also over the data of {widgets.escape(pair[0])}: {names}."
    else:
        todo += f"No other run here is over the data of {widgets.escape(pair[0])}: trace another model over it."
    widgets.empty(widgets.error_text(error), todo)


def pair_pickers(pair: tuple[str, str], compared: Compared) -> None:
    """Which two of the runs; with two runs only, which is the first."""
    names = list(compared.names)
    title = compared.labels.__getitem__
    if len(names) > 2:
        address.bound(st.selectbox, "run", "First", pair[0], names, part="_pair", format_func=title)
        others = [name for name in names if name != pair[0]]
        address.bound(st.selectbox, "against", "Beside", pair[1], others, format_func=title)
    st.button(
        "Swap",
        key="swap_pair",
        icon=":material/swap_horiz:",
        help="The second run first.",
        on_click=_swap,
        args=(pair, compared.names),
    )


def _swap(pair: tuple[str, str], names: tuple[str, ...]) -> None:
    now = address.current()
    runs = tuple({pair[0]: pair[1], pair[1]: pair[0]}.get(name, name) for name in now.runs or names)
    address.go(now.change(runs=runs).change(run=pair[1]).change(against=pair[0], by=now.by))


def nothing_beside(compared: Compared) -> None:
    """There is one run only: what to do."""
    widgets.empty(
        widgets.escape(f"{compared.names[0]} stands alone: choose a second run above."),
        "Without one over the same samples, trace another model over the same data, or this model untrained.",
    )


def _scatter(answer: Mapping[str, Any], names: tuple[str, str], selection: Selection) -> None:
    row = charts.correlation_of(answer)
    varies = any(point["a"] != answer["points"][0]["a"] or point["a"] != point["b"] for point in answer["points"])
    if not answer["points"]:
        widgets.empty(f"No sample has {answer['measure']} in both runs.", "Choose another measure.")
    elif not varies:
        value = numbers.number(answer["points"][0]["a"])
        widgets.empty(
            f"{row['measure'].capitalize()} is {value} for every sample in both runs, so there is nothing to draw."
        )
    else:
        st.subheader(widgets.escape(charts.pair_verdict(answer, names) + "."), anchor=False)
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
            runs=[answer[side]["run"] for side in "ab"],
        )
    widgets.how_sure("pairs", lambda: _statistics(answer, names))
    widgets.numbers_behind(answer["points"], "samples")


def _statistics(answer: Mapping[str, Any], names: tuple[str, str]) -> None:
    """Correlations of all measures, with their intervals."""
    row = charts.correlation_of(answer)
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
    if row["pearson"] is not None:
        st.write(widgets.escape(charts.pair_statistics(answer)))
    st.write(widgets.escape(HELP))
    for correlation, name in zip(answer["within"], names, strict=True):
        if correlation["pearson"]:
            words = charts.coefficient_words(correlation["pearson"])
            st.caption(
                widgets.escape(
                    f"Skip against reuse inside {name}: Pearson’s r = {words}; what chance gives is in its Work."
                )
            )
    if words := common.not_independent(answer["a"]):
        st.caption(widgets.escape(words))
    plain_table(table, "Correlations of all measures")


def _open(run: str, sample: int) -> None:
    address.go(Selection(view="samples", run=run, sample=sample))


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
    st.write(f"{verdict}: {numbers.number(size)}, where 0 is as by chance and 1 the same groups.")
    widgets.how_sure("grouping", lambda: _mutual_information(grouping))
    st.caption("Equal patches and equal words take equal paths in untrained models too: compare with a twin.")


def _mutual_information(grouping: Mapping[str, Any]) -> None:
    """The numbers behind the verdict."""
    st.write(
        widgets.escape(
            f"Adjusted mutual information {numbers.number(grouping['ami'])} (0 = by chance, 1 = the same groups), "
            f"over {numbers.plural(grouping['num_tokens'], 'token')}. NMI {numbers.number(grouping['nmi'])}; groups of "
            f"these sizes put together at random have {numbers.number(grouping['expected_nmi'])}."
        )
    )


def _moved(answer: Mapping[str, Any], names: tuple[str, str], selection: Selection) -> None:
    measure = answer["measure"]
    if not answer["points"]:
        return
    st.subheader(f"Which samples differ most in {measure}?", anchor=False)
    if not answer["most"]:
        widgets.empty(f"No sample differs in {measure}.")
        return
    a, b = answer["a"]["run"], answer["b"]["run"]
    where = b if selection.opens == b else a
    address.bound(
        st.segmented_control,
        "opens",
        "A click opens the sample in",
        where,
        [a, b],
        format_func=lambda name: names[0] if name == a else names[1],
    )
    st.caption(widgets.escape(f"Left: {measure} in {names[0]}; right: in {names[1]}. Largest difference first."))
    pictures = any(row["has_image"] for row in answer["most"])
    items = []
    for row in answer["most"]:
        number = row["sample"] if where == a else row["partner"]
        values = " → ".join(numbers.number(row[side]) for side in "ab")
        label = f"{row['label']}, " if row["label"] else ""
        items.append(wall_item(a, row, number, f"sample {number}: {label}{values}", values))
    wall(
        items,
        key=f"moved_{a}_{b}_{measure}_{where}",
        kind="sample" if pictures else "text",
        on_open=lambda one: _open(where, int(one["sample"])),
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
