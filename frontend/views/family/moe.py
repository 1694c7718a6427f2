"""Family view of a mixture of experts: load, tokens, domains, words, co-activation, stability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import NotFound, Refused
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.slots import offered_ids, taken
from tokenpaths.frontend.charts.families import expert_load, expert_stability, experts
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.samples.one_sample import sample_picker

TITLE = "Experts"
HELP = {
    "load": widgets.HELP["load"] + " Dead: no token chose it.",
    "tokens": (
        "A cell: the token chose the expert at this layer; its darkness is the weight with which the expert's output "
        "was added. What a weight means differs between models: see weight_semantics of the run."
    ),
    "domain": (
        "Domain specialisation of expert i = N(i, D) / N(D): of the N(D) tokens of domain (label) D, the share that "
        "chooses i. Baseline K/M: what even routing gives. First stand the experts that a domain chooses more than the "
        "others do: one that is merely busy is chosen by all."
    ),
    "words": (
        "Vocabulary specialisation of expert i = N(x, i) / N(x): of the N(x) occurrences of token id x, the share that "
        "chooses i; ids seen ≥ 10 times; baseline K/M. Input: the token that is routed. Next: the token that truly "
        "follows it. Shown are the experts with the highest mean over their listed words, by number."
    ),
    "co_activation": (
        "Co-activation = N(i, j) / N(i): of the tokens that choose expert i, the share that chooses j too, over all "
        "pairs chosen together; with equal loads (K−1)/(M−1). By their loads: what sets drawn at random of experts "
        "that are as busy would have."
    ),
    "repetition": (
        "Consecutive repetition: P(top1 of t = top1 of t+1); and P(the two sets share an expert). Neighbours of one "
        "sample only. In random order the same tokens agree by their loads alone; with even choices 1/M, and "
        "1 − C(M−K, K)/C(M, K)."
    ),
    "saturation": (
        "Router saturation = mean over tokens and layers of |S at the checkpoint ∩ S at the last one| / K, on the "
        "same tokens. By chance K/M."
    ),
}
SHOWN_EXPERTS = 16
PARTNERS = 32
ROWS = 32
MANY_COLUMNS = 40
"""with more experts than this, those chosen by a single token are merged"""
WORDS_OF = {"input": "the token itself", "next": "the token that follows", "predicted": "the one the model predicts"}


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """Draw the family view of one mixture of experts."""
    layers = int(run["num_steps"])
    layer = selection.layer if selection.layer is not None and selection.layer < layers else 0
    with common.run_and_label(run, selection):
        address.bound(
            st.selectbox,
            "layer",
            "Layer",
            layer,
            list(range(layers)),
            help="The charts of one layer show this one. A click on a layer chooses it too.",
        )
    common.notes(run)
    with widgets.error_boundary("the load of the layers"):
        _load(run, selection, layer)
    with widgets.error_boundary("tokens and experts"):
        _tokens(run, selection, layer)
    left, right = st.columns(2, gap="large")
    with left, widgets.error_boundary("domains"):
        _domains(run, layer)
    with right, widgets.error_boundary("words"):
        _words(run, selection, layer)
    left, right = st.columns(2, gap="large")
    with left, widgets.error_boundary("experts that work together"):
        _together(run, selection, layer)
    with right:
        with widgets.error_boundary("neighbouring tokens"):
            _repetition(run, selection)
        with widgets.error_boundary("the series of checkpoints"):
            _saturation(run, layer)


def _load(run: Mapping[str, Any], selection: Selection, layer: int) -> None:
    usage = widgets.client().ask(run["run"], "usage", label=selection.label)
    widgets.heading(expert_load.LOAD, "")
    st.caption(widgets.escape(expert_load.load_words(usage, selection.label)), help=HELP["load"])
    widgets.chart(
        expert_load.load_band_chart(usage, theme=widgets.theme(), title=None, chosen=layer),
        key=f"load_{run['run']}_{selection.label}_{layer}",
        on_pick=_picked_layer,
        pick=(expert_load.LAYER_PICK,),
        filters=("label",),
    )
    st.caption("Bar: the middle 80 % of the experts; tick: the median; point: the busiest. Dashed: a fair share.")
    if any(row["dead"] for row in usage["steps"]):
        st.subheader(expert_load.DEAD if selection.label is None else expert_load.DEAD_OF_LABEL, anchor=False)
        drawing = expert_load.dead_chart(usage, theme=widgets.theme(), title=None, chosen=layer)
        widgets.chart(drawing, filters=("label",))
    widgets.numbers_behind(expert_load.load_rows(usage), "load of each layer")


def _picked_layer(_name: str, layer: int) -> None:
    address.go_changed(layer=int(layer))


def _tokens(run: Mapping[str, Any], selection: Selection, layer: int) -> None:
    widgets.heading(experts.TOKENS, "")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        number = sample_picker(run, selection.change(q=None))  # there is no search here
    if number is None:
        widgets.empty("No sample has this label.", "Clear the label above.")
        return
    first = selection.first // ROWS * ROWS
    try:
        answer = widgets.client().ask(
            run["run"], "samples/{sample}/experts", sample=number, step=layer, first=first, limit=ROWS
        )
    except Refused:  # the sample is shorter than the position in the URL
        first, answer = (
            0,
            widgets.client().ask(run["run"], "samples/{sample}/experts", sample=number, step=layer, limit=ROWS),
        )
    if not answer["tokens"]:
        widgets.empty("This sample has no tokens.", "Choose another one.")
        return
    if answer["num_tokens"] > ROWS:
        address.bound(
            st.select_slider,
            "first",
            "Tokens",
            first,
            list(range(0, answer["num_tokens"], ROWS)),
            format_func=lambda start: f"{start:,}–{min(answer['num_tokens'], start + ROWS) - 1:,}",
        )
    offered = offered_ids(run)
    least = least_share(experts.known_choices(answer, offered), selection)
    st.caption(widgets.escape(experts.slice_words(answer, least, offered)), help=HELP["tokens"])
    if not answer.get("weights_recorded", True):
        st.caption("The source recorded no weights: each choice is drawn with the same share, 1/K.")
    widgets.chart(
        experts.slice_chart(
            answer, theme=widgets.theme(), title=None, least=least, chosen=selection.token, offered=offered
        ),
        about=f"sample {number:,}, layer {layer}",
    )
    widgets.numbers_behind(
        [
            {
                "what": label,
                "token": token["token"],
                "modules": taken(token["modules"], slots=int(run["top_k"]), offered=offered),
                "weights": token["weights"] if answer.get("weights_recorded", True) else "not in the log",
            }
            for label, token in zip(experts.token_labels(answer["tokens"]), answer["tokens"], strict=True)
        ],
        f"choices of these tokens at layer {layer}",
    )


def least_share(answer: Mapping[str, Any], selection: Selection) -> float:
    """Minimum share of tokens for a column of its own: as selected, else such that few enough columns remain."""
    if selection.merge is not None:
        return selection.merge / 100
    tokens = answer["tokens"]
    counts: dict[int, int] = {}
    for token in tokens:
        for module in token["modules"]:
            counts[module] = counts.get(module, 0) + 1
    least = 1
    while sum(count >= least for count in counts.values()) > MANY_COLUMNS and least < len(tokens):
        least += 1
    return 0.0 if least == 1 else least / len(tokens)


def _domains(run: Mapping[str, Any], layer: int) -> None:
    st.subheader(experts.DOMAINS, anchor=False, help=HELP["domain"])
    if not any(row["label"] is not None for row in run["labels"]):
        widgets.empty("This run has no labels, so there are no domains to compare.", "Trace a data set with labels.")
        return
    answer = widgets.client().ask(run["run"], "specialisation", of="label", step=layer, limit=SHOWN_EXPERTS)
    more = answer.get("more_labels")
    left = (
        f" Only the {len(answer['domains'])} largest labels: {numbers.count(more)} more are left out." if more else ""
    )
    st.caption(widgets.escape(experts.domain_words(answer) + left))
    drawing = experts.domain_chart(answer, theme=widgets.theme(), title=None)
    widgets.chart(drawing, about=f"layer {layer}", filters=("labels",))
    _listed(answer)
    widgets.numbers_behind(experts.domain_rows(answer), f"domains and experts of layer {layer}")


def _words(run: Mapping[str, Any], selection: Selection, layer: int) -> None:
    st.subheader(experts.WORDS, anchor=False, help=HELP["words"])
    address.bound(
        st.segmented_control,
        "words",
        "Words are",
        selection.words,
        list(WORDS_OF),
        format_func=WORDS_OF.get,
        label_visibility="collapsed",
    )
    try:
        answer = widgets.client().ask(
            run["run"], "specialisation", of=selection.words, step=layer, label=selection.label, limit=SHOWN_EXPERTS
        )
    except Refused as error:
        common.say_nothing_here(error, "Choose another one above.")
        return
    if not answer["modules"]:
        widgets.empty(
            f"No token id was seen {answer['least']} times, so nothing can be said of its experts.",
            "Trace more texts." if selection.label is None else "Clear the label above.",
        )
        return
    drawing = experts.word_chart(answer, theme=widgets.theme(), title=None)
    widgets.chart(drawing, about=f"layer {layer}", filters=("label",))
    _listed(answer)
    st.caption(widgets.escape(counted_words(answer)))
    widgets.numbers_behind(experts.word_rows(answer), f"words and experts of layer {layer}")


def _listed(answer: Mapping[str, Any]) -> None:
    if answer["more"]:
        st.caption(f"The {len(answer['modules'])} most specialised; {numbers.plural(answer['more'], 'other expert')}.")


def counted_words(answer: Mapping[str, Any]) -> str:
    """Number of tokens on which a value was counted."""
    counted = answer["counted"]
    if counted["exact"]:
        return f"Counted on all {numbers.plural(counted['num_tokens'], 'token')}."
    return (
        f"Counted on {numbers.count(counted['num_tokens'])} of {numbers.plural(counted['of_tokens'], 'token')}: a "
        f"seeded draw of {numbers.plural(counted['num_samples'], 'whole sample')}."
    )


def off_by(answer: Mapping[str, Any]) -> str:
    """Error bound of the points of a sampled series; empty if all tokens were counted."""
    if answer["counted"]["exact"]:
        return ""
    errors = [point.get("error") for point in answer["points"]]
    if None in errors:
        return " One sample says nothing of how far that may be off."
    return f" A point may be off by ± {numbers.number(100 * max(errors), 2)} percentage points (95 % interval)."


def _together(run: Mapping[str, Any], selection: Selection, layer: int) -> None:
    st.subheader(experts.TOGETHER, anchor=False, help=HELP["co_activation"])
    if int(run["top_k"]) == 1:
        widgets.empty("Each token chooses one expert a layer, so no two are ever chosen together.")
        return
    answer = widgets.client().ask(run["run"], "co_activation", step=layer, label=selection.label, limit=PARTNERS)
    st.caption(widgets.escape(experts.co_activation_words(answer)))
    if answer["modules"]:
        drawing = experts.co_activation_chart(answer, theme=widgets.theme(), title=None)
        widgets.chart(drawing, about=f"layer {layer}", filters=("label",))
    st.caption(widgets.escape(counted_words(answer)))
    widgets.numbers_behind(answer["pairs"], f"the strongest pairs of layer {layer}")


def _repetition(run: Mapping[str, Any], selection: Selection) -> None:
    st.subheader(expert_stability.REPETITION, anchor=False, help=HELP["repetition"])
    try:
        answer = widgets.client().ask(run["run"], "repetition", label=selection.label)
    except Refused as error:
        common.say_nothing_here(error, "Choose a run of longer samples.")
        return
    st.caption(widgets.escape(expert_stability.repetition_words(answer)))
    widgets.chart(expert_stability.repetition_chart(answer, theme=widgets.theme(), title=None), filters=("label",))
    st.caption("Dashed: the same tokens in random order. " + widgets.escape(counted_words(answer)))
    widgets.numbers_behind(expert_stability.repetition_rows(answer), "repetition of each layer")


def _saturation(run: Mapping[str, Any], layer: int) -> None:
    if not run.get("series"):
        return
    st.subheader(expert_stability.SATURATION, anchor=False, help=HELP["saturation"])
    try:
        answer = widgets.client().ask(run["run"], "saturation")
    except (NotFound, Refused) as error:
        widgets.show_error(error)
        return
    if len(answer["points"]) < 2:
        widgets.empty(
            f"Only one checkpoint of the series “{widgets.escape(answer['series'])}” can be compared, so there is no "
            "curve to draw.",
            "Record more checkpoints over the same tokens under this name.",
        )
    else:
        st.caption(widgets.escape(expert_stability.saturation_words(answer)))
        widgets.chart(
            expert_stability.saturation_chart(answer, theme=widgets.theme(), title=None, step=layer, run=run["run"]),
            about=f"series: {answer['series']}",
        )
        how = widgets.escape(counted_words(answer) + off_by(answer))
        st.caption(f"Dashed: by chance. Dotted: layer {layer} alone. {how}")
        widgets.numbers_behind(expert_stability.saturation_rows(answer, layer), "saturation of each checkpoint")
    if answer["left_out"]:
        st.caption(
            widgets.escape("Left out: " + "; ".join(f"{r['run']} ({r['reason']})" for r in answer["left_out"]) + ".")
        )
