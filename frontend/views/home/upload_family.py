"""The family's own picture of an upload: DiPaCo's paths, the H-Model's nearest label, RayTracing's lights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.families import dipaco_rerouting, raytracing_network, raytracing_stops
from tokenpaths.frontend.charts.families.hmodel_connections import LabelDistance, graph_chart, label_distances
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.views.samples import reference

MOST_LABELS = 12
"""compared with an upload: a question to the API each"""
MOST_NAMED = 8


def draw(run: Mapping[str, Any], ranked: reference.Ranked) -> None:
    """The picture of one upload; nothing for families whose routes are shown whole by the flow."""
    if (picture := PICTURES.get(str(run["family"]))) is not None:
        with widgets.error_boundary("the family's picture"):
            picture(run, ranked)


def _parts(run: Mapping[str, Any], ranked: reference.Ranked) -> None:
    """DiPaCo: which path reads which part of a text."""
    config = run.get("config") or {}
    if not {"prefix", "context"} <= set(config):
        return
    tokens = ranked.sample["tokens"]
    starts = dipaco_rerouting.decisions(
        len(tokens), int(config["prefix"]), config.get("reroute_every"), int(config["context"])
    )
    parts = dipaco_rerouting.chunks(tokens, starts)
    st.markdown("**Which path reads which part of it?**")
    widgets.chart(dipaco_rerouting.strip_chart(parts, theme=widgets.theme(), title=None))


def _connections(run: Mapping[str, Any], ranked: reference.Ranked) -> None:
    """H-Model: the label of the reference run whose mean connections are nearest, beside the upload's own."""
    if "edges" not in (run.get("soft") or ()):
        return
    client = widgets.client()
    own = client.ask(run["run"], "edges", sample=ranked.sample["sample"])
    known = client.ask(str(ranked.name), "") if ranked.name else {}
    every = [row["label"] for row in known.get("labels") or () if row["label"] is not None]
    labels = every[:MOST_LABELS]
    if not labels or "edges" not in (known.get("soft") or ()):
        st.markdown("**Which layers talk to each other for it?**")
        widgets.chart(graph_chart(own, theme=widgets.theme(), title=None, compact=True))
        return
    means = {label: client.ask(known["run"], "edges", label=label) for label in labels}
    near = label_distances(own, means)
    st.subheader(widgets.escape(nearest_label_words(near)), anchor=False)
    st.caption(widgets.escape(how_telling(known) + left_out_words(every[MOST_LABELS:])))
    left, right = st.columns(2, gap="large")
    mean = f"mean of {near[0].label}"
    with left:
        st.caption("Yours")
        widgets.chart(graph_chart(own, theme=widgets.theme(), title=None, compact=True))
    with right:
        st.caption(widgets.escape(f"The {mean}"))
        drawing = graph_chart(means[near[0].label], theme=widgets.theme(), title=None, compact=True)
        widgets.chart(drawing, about=mean, runs=[str(known["run"])])
    widgets.numbers_behind([{"label": row.label, "distance": row.distance} for row in near], "distances to the labels")


def nearest_label_words(near: list[LabelDistance]) -> str:
    """“Its layers talk to each other most as for English (distance 0.0123); next: German (0.0151)”."""
    text = f"Its layers talk to each other most as for {near[0].label} (distance {numbers.number(near[0].distance)})"
    return text + (f"; next: {near[1].label} ({numbers.number(near[1].distance)})" if len(near) > 1 else "")


def how_telling(known: Mapping[str, Any]) -> str:
    """How far connections tell the label at all, in the run that is compared with."""
    words = (
        f"Compared with the means of the labels of {known['run']}. Distance: root of the mean squared difference of "
        "all weights of connections."
    )
    findings = (known.get("findings") or {}).get("connections") or {}
    accuracy, labels = findings.get("nearest_label_accuracy"), (findings.get("separation") or {}).get("labels")
    if accuracy is None or not labels:
        return words
    chance = numbers.percent(1 / len(labels))  # it was measured among all labels, also where fewer are compared here
    return f"{words} There the nearest is right for {numbers.percent(accuracy)} of the samples (guessing: {chance})."


def left_out_words(labels: Sequence[str]) -> str:
    """Which labels are not compared, a few by name; empty if none is left out."""
    if not labels:
        return ""
    named = ", ".join(labels[:MOST_NAMED])
    more = f" and {numbers.count(len(labels) - MOST_NAMED)} more" if len(labels) > MOST_NAMED else ""
    return f" Nearest among the first {MOST_LABELS} labels; not compared: {named}{more}."


def _lights(run: Mapping[str, Any], ranked: reference.Ranked) -> None:
    """RayTracing: the blocks that are lit when the output fires."""
    sample = ranked.sample
    soft = widgets.client().ask(run["run"], "blocks", sample=sample["sample"])
    network, values, names = raytracing_network.network_of(run), soft["values"], soft["axes"][0]["names"]
    last = raytracing_network.last_step(values)
    curve = raytracing_network.share_rows(network, values, names)
    lit = round(curve[last]["lit_so_far"] * network.num_blocks)
    blocks = numbers.plural(network.num_blocks, "block")
    how = "up at any threshold" if raytracing_network.silent(values) else "up before the answer was strong enough"
    st.subheader(f"{numbers.count(lit)} of {blocks} lit {how}", anchor=False)
    st.caption(widgets.escape(raytracing_stops.step_words(network, curve, last, last, names, run["config"], sample)))
    widgets.chart(raytracing_network.network_chart(network, values, last, theme=widgets.theme(), title=None))


PICTURES: Mapping[str, Callable[[Mapping[str, Any], reference.Ranked], None]] = {
    "dipaco": _parts,
    "hmodel": _connections,
    "raytracing": _lights,
}
"""family → its picture"""
