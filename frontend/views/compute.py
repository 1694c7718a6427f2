"""Compute & reuse view: distributions, samples at both ends, skip against reuse, means by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import NotFound, Refused
from tokenpaths.frontend.charts.distributions import (
    BIN_PICK,
    MEASURES,
    SKIP_AND_REUSE,
    bin_rows,
    distribution_words,
    histogram_chart,
    label_chart,
    label_words,
    skip_reuse_chart,
    skip_reuse_statistics,
    skip_reuse_words,
    skip_rows,
)
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.walls import sample_wall
from tokenpaths.frontend.views.work import sections, training

AT_EACH_END = 8
READ_AT_MOST = 5000
"""maximum number of samples read; a larger run shows both ends and notes that the middle was not read"""


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    measures = _measures(run)
    measure = chosen_measure(run, selection)
    _controls(run, selection, measures, measure)
    name = MEASURES[measure][0]
    widgets.heading("Where is the work spent?", _question_words(measure, selection), measure)
    if selection.measure != measure:
        why = "."
        if selection.measure == "loss" and run["modality"] == "vision":  # as ``seal`` has it
            why = " of its images: they have no labels, or the model knows those of fewer than half."
        widgets.empty(f"This run has no {MEASURES[selection.measure][0]}{why}", f"Shown instead: {name}.")
    distribution = widgets.client().ask(run["run"], "distributions/{measure}", **question(selection, measure))
    if not distribution["num"]:
        widgets.empty(f"No {selection.per} has {name} here.", "Choose another label or measure.")
        return
    if all_alike(distribution):
        _alike(run, selection, distribution, measures)
        return
    left, right = st.columns([3, 2], gap="large")
    with left:
        _histogram(distribution, selection)
    with right:
        _labels(distribution, mean_over_all(run, selection, distribution))
    widgets.first_picture("work")
    rows, whole = listed_samples(run, selection, measure)
    _chosen_bar(distribution, rows, selection, measure, run)
    _ends(rows, whole, measure, run)
    shown = selection.change(measure=measure)
    with widgets.error_boundary("work beside its outcome"):
        sections.outcomes(run, shown)
    with widgets.error_boundary("means by kind of token"):
        sections.kinds(run, shown)
    with widgets.error_boundary("skip beside reuse"):
        _skip_and_reuse(run, selection)
    with widgets.error_boundary("how this model was trained"):
        training.curve(run, selection)


def _measures(run: Mapping[str, Any]) -> list[str]:
    return [measure for measure in MEASURES if measure in run["measures"]]


def chosen_measure(run: Mapping[str, Any], selection: Selection) -> str:
    """The measure of the selection, or the first that the run has."""
    return selection.measure if selection.measure in _measures(run) else next(iter(_measures(run)), "compute")


def question(selection: Selection, measure: str) -> dict[str, Any]:
    """The distribution of a measure."""
    return {"measure": measure, "per": selection.per, "bins": 40, "label": selection.label}


def all_alike(distribution: Mapping[str, Any]) -> bool:
    """Whether all values are equal: a histogram would be one bar, and “most” and “least” arbitrary."""
    low, high = distribution["min"], distribution["max"]
    return low is not None and high is not None and high - low <= 1e-9 * max(1.0, abs(high))


def _alike(
    run: Mapping[str, Any], selection: Selection, distribution: Mapping[str, Any], measures: Sequence[str]
) -> None:
    """Show the single value with an explanation, and links to measures that vary."""
    measure, per, num = distribution["measure"], selection.per, distribution["num"]
    whose = f"The only {per}" if num == 1 else f"Each of the {numbers.plural(num, per)}"
    never = measure == "compute" and distribution["max"] == 1
    why = "no token ever skipped a step"
    if never and not common.identities(run):
        why += ", because this model has no identity modules to skip with"
    others = [other for other in measures if other != measure and _varies(run, selection, other)]
    choose = ["another measure"] if others else []
    wider = selection.change(per="token", label=None)
    more = not others and wider != selection and any(_varies(run, wider, other) for other in measures)
    choose += ["a run of a model that can skip (…-skip)"] if never else [] if others or more else ["another run"]
    less = [("count per token", per == "sample"), ("take all labels", selection.label is not None)]
    advice = [" and ".join(words for words, here in less if here)] if more else []
    advice += [f"choose {', or '.join(choose)}"] if choose else []
    whole = "" if others or more else " No measure of this run has anything to compare here."
    widgets.empty(
        widgets.escape(f"{whose} has {MEASURES[measure][0]} {numbers.number(distribution['max'])}")
        + (f": {why}." if never else ".")
        + (whole or " There is nothing to compare here."),
        f"{numbers.capital(', or '.join(advice))}.",
    )
    if not others:
        return
    with st.container(horizontal=True, gap="small"):
        for other in others:
            st.button(
                f"Show {MEASURES[other][0]}",
                key=f"instead_{other}",
                on_click=address.go_changed,
                kwargs={"measure": other, "bin": None},
            )


def _varies(run: Mapping[str, Any], selection: Selection, measure: str) -> bool:
    """Whether there is something to see of a measure: two of one value each led to one another."""
    try:
        answer = widgets.client().ask(run["run"], "distributions/{measure}", **question(selection, measure))
    except (NotFound, Refused):  # of samples alone, as the loss of images
        return False
    return bool(answer["num"]) and not all_alike(answer)


def _controls(run: Mapping[str, Any], selection: Selection, measures: list[str], measure: str) -> None:
    with common.run_and_label(run, selection):
        address.bound(
            st.selectbox, "measure", "Measure", measure, measures or ["compute"], format_func=lambda m: MEASURES[m][0]
        )
        address.bound(st.segmented_control, "per", "Counted per", selection.per, ["sample", "token"])


def _question_words(measure: str, selection: Selection) -> str:
    words = {
        "compute": (
            "Compute is the share of a token’s choices that did work; a token that chose an identity "
            "module skipped that step."
        ),
        "reuse": "Reuse is the share of a token’s visits that went to a module it had already visited.",
        "loss": "Loss says how surprised the model was, in nats.",
        "gate_entropy": "Gate entropy says how undecided the router was, in nats.",
    }[measure]
    return words + (" One count is one sample." if selection.per == "sample" else " One count is one token.")


def _histogram(distribution: Mapping[str, Any], selection: Selection) -> None:
    bins = distribution["bins"]
    chosen = bins[selection.bin] if selection.bin is not None and selection.bin < len(bins) else None
    drawing = histogram_chart(
        distribution,
        theme=widgets.theme(),
        title=None,
        chosen=(chosen["lo"], chosen["hi"]) if chosen else None,
        height=280,
    )
    widgets.chart(
        drawing,
        key=f"bars_{distribution['run']}_{distribution['measure']}_{selection.per}_{selection.label}_{selection.bin}",
        on_pick=_bar_picked,
        pick=(BIN_PICK,),
        filters=("label",),
    )
    st.caption(
        widgets.escape(distribution_words(distribution))
        + (" Click a bar to see its samples." if selection.per == "sample" else "")
    )
    widgets.numbers_behind(bin_rows(distribution), "bars")


def _bar_picked(_name: str, index: int) -> None:
    now = address.current()
    address.go(now.change(bin=None if now.bin == int(index) else int(index)))


def mean_over_all(run: Mapping[str, Any], selection: Selection, distribution: Mapping[str, Any]) -> float | None:
    """The mean over the whole run, to stand beside the means of all labels, whichever label is chosen."""
    if selection.label is not None:
        whole = question(selection.change(label=None), distribution["measure"])
        distribution = widgets.client().ask(run["run"], "distributions/{measure}", **whole)
    return distribution["mean"]


def _labels(distribution: Mapping[str, Any], mean: float | None) -> None:
    labels = [row for row in distribution["by_label"] if row.get("label") is not None]
    name = MEASURES[distribution["measure"]][0]
    if len(labels) < 2:
        widgets.empty("There are not two labels to compare here." if labels else "This run has no labels to compare.")
        return
    st.subheader(f"Which labels get more {name}?", anchor=False)
    shown = {**distribution, "by_label": labels, "mean": mean}
    if mean is not None and (words := label_words(shown)):
        widgets.verdict(words)
    widgets.chart(label_chart(shown, theme=widgets.theme(), title=None, most=14), filters=("labels",))
    hidden = max(0, len(labels) - 14)
    st.caption(
        "Dashed: mean over all."
        + (" Bars: 95 % intervals by sample." if any(row.get("low") is not None for row in labels) else "")
        + (f" {numbers.plural(hidden, 'label')} between the ends not drawn." if hidden else "")
    )
    widgets.numbers_behind(labels, "labels")


def listed_samples(run: Mapping[str, Any], selection: Selection, measure: str) -> tuple[list[dict[str, Any]], bool]:
    """Samples in descending order of a measure, and whether they are complete; a large run gives both ends."""
    order = measure if measure in ("compute", "reuse", "loss") else "compute"
    ask = {"order": order, "label": selection.label}
    if (run["num_samples"] or 0) <= READ_AT_MOST:
        answer = widgets.client().ask(run["run"], "samples", most=READ_AT_MOST, descending=True, **ask)
        return answer["samples"], True
    high = widgets.client().ask(run["run"], "samples", most=AT_EACH_END, descending=True, **ask)["samples"]
    low = widgets.client().ask(run["run"], "samples", most=AT_EACH_END, descending=False, **ask)["samples"]
    return high + low[::-1], False


def _chosen_bar(
    distribution: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    selection: Selection,
    measure: str,
    run: Mapping[str, Any],
) -> None:
    bins = distribution["bins"]
    if selection.bin is None or selection.bin >= len(bins) or selection.per != "sample" or measure == "gate_entropy":
        return
    chosen, last = bins[selection.bin], selection.bin == len(bins) - 1
    slack = 1e-6 * max(1.0, abs(chosen["hi"]))
    inside = [
        row
        for row in rows
        if row[measure] is not None
        and chosen["lo"] - slack <= row[measure]
        and (row[measure] < chosen["hi"] or last and row[measure] <= chosen["hi"] + slack)
    ]
    st.subheader(
        f"Samples with {MEASURES[measure][0]} from {numbers.number(chosen['lo'])} to {numbers.number(chosen['hi'])}",
        anchor=False,
    )
    if not inside:
        widgets.empty("No listed sample lies in this bar.", "Very large runs list only both ends.")
        return
    _wall(inside[:24], measure, f"bar_{selection.bin}", run)
    if len(inside) > 24:
        st.caption(f"24 of {numbers.plural(len(inside), 'sample')}.")


def _ends(rows: Sequence[Mapping[str, Any]], whole: bool, measure: str, run: Mapping[str, Any]) -> None:
    if measure == "gate_entropy":
        widgets.empty("Samples cannot be sorted by gate entropy.", "Choose compute, reuse or loss to see samples.")
        return
    rows = [row for row in rows if row.get(measure) is not None]
    name = MEASURES[measure][0]
    if not rows:
        return
    num = len(rows)
    size = min(AT_EACH_END, num)
    groups = [(f"Most {name} (top {size})", "top", rows[:size])]
    if whole and num >= 3 * size:
        start = (num - size) // 2
        groups.append((f"In the middle ({size})", "middle", rows[start : start + size]))
    if num >= 2 * size:
        groups.append((f"Least {name} (bottom {size})", "bottom", rows[-size:]))
    for column, (title, key, members) in zip(st.columns(len(groups), gap="large"), groups, strict=True):
        with column:
            st.subheader(title, anchor=False)
            _wall(members, measure, key, run)
    if not whole:
        st.caption(f"This run has more than {numbers.count(READ_AT_MOST)} samples: only both ends were read.")
    columns = (
        "sample",
        "label",
        "prediction",
        "compute",
        "reuse",
        "loss",
        "num_tokens",
        "num_distinct_paths",
        "source",
    )
    widgets.numbers_behind([{key: row.get(key) for key in columns} for row in rows[:1000]], f"samples by {name}")


def _wall(rows: Sequence[Mapping[str, Any]], measure: str, key: str, run: Mapping[str, Any]) -> None:
    sample_wall(
        run,
        rows,
        lambda row: f"{row.get('label') or 'no label'} · {numbers.number(row.get(measure))}",
        f"wall_{key}_{run['run']}",
    )


def _skip_and_reuse(run: Mapping[str, Any], selection: Selection) -> None:
    st.subheader(SKIP_AND_REUSE, anchor=False, help="skip = 1 − compute. " + widgets.HELP["reuse"])
    answer = widgets.client().ask(run["run"], "skip_and_reuse", label=selection.label)
    if answer["reason"]:
        widgets.empty(
            widgets.escape(skip_reuse_words(answer)),
            "" if answer["counted"] else "Models with identity modules (…-skip) can skip steps.",
        )
        return
    listed = widgets.client().ask(run["run"], "samples", most=READ_AT_MOST // 2, order="sample", label=selection.label)
    widgets.verdict(skip_reuse_words(answer))
    drawing = skip_reuse_chart(listed["samples"], answer, theme=widgets.theme(), title=None)
    widgets.chart(
        drawing,
        key=f"scatter_{run['run']}_{selection.label}",
        on_pick=lambda _name, sample: address.go_changed(inspect=f"sample:{int(sample)}"),
        pick=("sample",),
        filters=("label",),
    )
    text = "One point: one sample; click it to open it."
    if listed["total"] > len(listed["samples"]):
        drawn, total = numbers.count(len(listed["samples"])), numbers.count(listed["total"])
        text += f" Drawn are the first {drawn} of {total} samples."
    st.caption(widgets.escape(text))
    common.note_not_independent(run)
    widgets.how_sure("skip_and_reuse", lambda: st.write(widgets.escape(skip_reuse_statistics(answer))))
    widgets.numbers_behind(skip_rows(listed["samples"]), "points")
