"""Sections about the work that tokens get: outcomes, means by kind, likeness, kinds of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts import work
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.slots import offered_ids
from tokenpaths.frontend.charts.drawing.thing_names import whole_images
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.twin_words import twin_reason


def twin_run(run: Mapping[str, Any]) -> str | None:
    """The run of the untrained twin over the same data, if one was traced (`tokenpaths trace --untrained`)."""
    if common.is_untrained(run):
        return None
    same = ("dataset", "split", "num_samples", "num_tokens")
    for card in common.readable_runs():
        if card["model"] == f"{run['model']}{common.UNTRAINED}" and all(card.get(key) == run.get(key) for key in same):
            return str(card["run"])
    return None


def outcomes(run: Mapping[str, Any], selection: Selection) -> None:
    """Loss, confidence and correctness beside the chosen measure and the number of modules visited."""
    measure = selection.measure if selection.measure in ("compute", "reuse") else "compute"
    st.subheader("Is less work a sign of easier inputs?", anchor=False, help=widgets.HELP["outcomes"])
    reasons = []
    for name in (measure, "modules"):
        per = "token" if selection.per == "token" and name != "modules" and run["modality"] != "vision" else "sample"
        answer = widgets.client().ask(run["run"], "outcomes/{measure}", measure=name, per=per, label=selection.label)
        if answer["reason"]:
            reasons.append(answer["reason"])
            continue
        _outcomes(run, answer, work.unit_of(per, run["modality"]), selection)
    if reasons:
        widgets.empty(widgets.escape(common.as_sentence("; ".join(dict.fromkeys(reasons)))))
    common.note_not_independent(run)


def _outcomes(run: Mapping[str, Any], answer: Mapping[str, Any], unit: str, selection: Selection) -> None:
    told = [row["outcome"] for row in answer["differences"]]
    for column, outcome in zip(st.columns(len(told), gap="large"), told, strict=True):
        with column:
            widgets.verdict(work.outcome_words(answer, outcome, unit))
            drawing = work.outcome_chart(answer, outcome, unit=unit, theme=widgets.theme(), title=None)
            widgets.chart(drawing, filters=("label",))
    with st.expander(f"How sure is this? ({work.AXES[answer['measure']]})"):
        st.write(widgets.escape(_how_sure(run, answer, unit, selection)))
    widgets.numbers_behind(work.outcome_rows(answer), f"{unit} by {work.AXES[answer['measure']]}")


def _how_sure(run: Mapping[str, Any], answer: Mapping[str, Any], unit: str, selection: Selection) -> str:
    told = []
    for row in answer["differences"]:
        show = numbers.number if row["outcome"] == "loss" else numbers.percent
        text = f"{work.OUTCOMES[row['outcome']].capitalize()}, least less most: {show(row['difference'])}"
        if row["low"] is not None:
            text += f" (95 % interval {show(row['low'])} … {show(row['high'])})"
        if row["correlation"] is not None:
            text += (
                f", Spearman’s correlation over all {unit} {numbers.number(row['correlation'])} "
                f"({numbers.number(row['correlation_low'])} … {numbers.number(row['correlation_high'])})"
            )
        told.append(text + ".")
    told.append(_counted(answer["counted"]) + f" {unit.capitalize()} of one value share their groups.")
    twin = twin_run(run) if selection.label is None else None
    if twin is None:
        told.append(
            "What an untrained twin would show is not known: a twin that is kept with its run has paths and no losses; "
            "a run of the twin over the same data has both (tokenpaths trace --untrained)."
        )
    else:
        per = answer["per"]
        untrained = widgets.client().ask(twin, "outcomes/{measure}", measure=answer["measure"], per=per)
        words = [work.outcome_words(untrained, row["outcome"], unit) for row in untrained["differences"]]
        told.append(f"The untrained twin ({twin}): {' '.join(words) or untrained['reason']}")
    return " ".join(told)


def _counted(counted: Mapping[str, Any]) -> str:
    if counted["exact"]:
        return f"All {numbers.plural(counted['num_samples'], 'sample')}."
    return (
        f"{numbers.count(counted['num_samples'])} of {numbers.plural(counted['of_samples'], 'sample')}, "
        f"{numbers.count(counted['num_tokens'])} of {numbers.plural(counted['of_tokens'], 'token')}, drawn by hash."
    )


def kinds(run: Mapping[str, Any], selection: Selection) -> None:
    """Means of the chosen measure by region, kind of patch and kind of word."""
    measure = selection.measure if selection.measure in ("compute", "reuse", "loss") else "compute"
    st.subheader(f"Which tokens get more {work.MEASURE_NAMES[measure]}?", anchor=False, help=widgets.HELP["kind_means"])
    answer = widgets.client().ask(run["run"], "means/{measure}", measure=measure)
    if answer["reason"]:
        widgets.empty(widgets.escape(common.as_sentence(answer["reason"])))
        return
    if whole_images(run):
        answer = of_images(answer)
        if not answer["kinds"]:
            widgets.empty("Each image is one token here, so there are no kinds of tokens to tell apart.")
            return
    twin = twin_run(run)
    beside = widgets.client().ask(twin, "means/{measure}", measure=measure) if twin else None
    beside = beside if beside and beside["kinds"] else None
    widgets.verdict(work.kind_words(answer))
    widgets.chart(work.kind_means_chart(answer, beside, theme=widgets.theme(), title=None))
    text = _counted(answer["counted"])
    if any(row["kind"] in ("edge", "flat") for row in answer["kinds"]):
        text += (
            " Kinds overlap: a patch can be flat and in the middle. Busy and flat: the tenth of the patches with the "
            "most, and with the least, contrast."
        )
        if drawn := answer.get("counted_pictures"):
            text += f" Contrast is that of {numbers.count(drawn['num_samples'])} pictures drawn by hash."
    if selection.label is not None:
        text += " Over all labels."
    st.caption(widgets.escape(f"{text} {work.KIND_BARS}"))
    common.note_not_independent(run)
    widgets.numbers_behind(answer["kinds"], f"{measure} by kind")


def of_images(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A response of ``/means/{measure}`` without kinds of patches: a whole image is at the border and in the middle."""
    return {**answer, "kinds": [row for row in answer["kinds"] if row["by"] != "patch"]}


def likeness(run: Mapping[str, Any], selection: Selection) -> None:
    """Whether tokens of one path look alike; ``selection`` is not looked at: the answer is about all tokens."""
    del selection
    st.subheader("Are tokens of one path alike?", anchor=False, help=widgets.HELP["likeness"])
    answer = widgets.client().ask(run["run"], "paths/alikeness")
    if answer["reason"]:
        widgets.empty(widgets.escape(common.as_sentence(answer["reason"])))
        return
    row = answer["looks"][0]
    whole = whole_images(run)
    widgets.verdict(work.likeness_words(answer, whole=whole))
    if row["paths"]:
        options = {"offered": offered_ids(run), "whole": whole}
        widgets.chart(work.likeness_chart(answer, theme=widgets.theme(), title=None, **options))
    with st.expander("How sure is this? (likeness)"):
        st.write(widgets.escape(how_sure_of_likeness(run, answer)))
    if row["paths"]:
        widgets.numbers_behind(work.likeness_rows(answer, offered_ids(run)), "likeness of paths")


def how_sure_of_likeness(run: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """What was counted, the intervals, and what the exchanges give, which are grey where paths are drawn."""
    row = answer["looks"][0]
    text = f"{_counted(answer['counted'])} {numbers.percent(answer['shared'])} are on a path of several samples."
    if row["low"] is not None:
        text += f" 95 % interval by sample: {numbers.number(row['low'])} … {numbers.number(row['high'])}."
    text += " Grey: 95 %" if row["paths"] else " No path has enough tokens, of enough samples, to be drawn. 95 %"
    text += (
        f" of {answer['shuffles']} exchanges, in which each sample gets the looks of another one, place by place; "
        f"of all paths {numbers.number(row['null_low'])} … {numbers.number(row['null_high'])}, "
        f"{numbers.p_words(row['p_value'], answer['shuffles'], 'exchanges')}."
    )
    if answer["untrained_reason"]:
        text += f" Untrained twin: {twin_reason(run, answer['untrained_reason'])}."
    elif row["untrained_low"] is not None:
        text += (
            f" Untrained twin, on {numbers.plural(answer['untrained_tokens'], 'token')}: "
            f"{numbers.number(row['untrained_low'])} … {numbers.number(row['untrained_high'])}."
        )
    return text


def module_kinds(run: Mapping[str, Any], selection: Selection) -> None:
    """Share of kinds of modules by step; nothing where all modules are of one kind."""
    if len({module["kind"] for module in run["modules"]}) < 2:
        return
    st.subheader("Which kinds of modules does each step choose?", anchor=False, help=widgets.HELP["module_kinds"])
    answer = widgets.client().ask(run["run"], "usage/kinds", label=selection.label)
    if answer["reason"]:
        widgets.empty(widgets.escape(common.as_sentence(answer["reason"])))
        return
    widgets.verdict(work.kind_share_words(answer))
    widgets.chart(work.module_kinds_chart(answer, theme=widgets.theme(), title=None), filters=("label",))
    rest = sorted({row["kind"] for row in answer["shares"]} - set(work.drawn_kinds(answer["shares"])))
    st.caption(widgets.escape(work.kind_marks(answer) + (f" Not drawn, the rest: {', '.join(rest)}." if rest else "")))
    widgets.numbers_behind(answer["shares"], "kinds of modules")
