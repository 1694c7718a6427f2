"""Family view of the H-Model: connection graphs of a sample and of labels, separation, live controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.families.hmodel_connections import (
    connection_rows,
    distance_chart,
    distance_rows,
    graph_chart,
    hidden_words,
    nearest_words,
    self_share_words,
    separation_words,
    stability_words,
)
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.samples import retrace

TITLE = "Connections"
MOST_LABELS = 12
HELP = {
    "graph": (
        "Every layer that runs emits a state and a weight c in 0 … 1 for each layer and output: c = sigmoid(logits / "
        "α), α multiplied by α_rate at every iteration. A layer reads Σ c·h / max(1, Σ c); what goes to an output is "
        "summed over the iterations and divided by their number. Shown is the mean of c over the tokens."
    ),
    "separation": (
        "Distance of two inputs: root of the mean squared difference of c over all connections that can exist. Ratio: "
        "mean distance between labels / mean distance within a label. p: share of shuffles of the labels with a ratio "
        "at least as high. Stability: 1 − mean variance of c over inputs. Self-connection share: Σ c_ii / Σ c."
    ),
    "live": (
        "c = sigmoid(logits / α): a small α makes connections all or nothing, a large one makes them all alike. "
        "α_rate multiplies α at every iteration. top-k keeps that many of each layer's outgoing connections."
    ),
}


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    with common.run_row(run):
        common.label_picker(run, selection)
        number = retrace.sample_picker(run, selection)
        other = _other_picker(run, selection, number)
    if number is None:
        widgets.empty("No sample has this label.", "Clear a filter above.")
        return
    if "edges" not in run["soft"]:
        widgets.empty("This run holds no connections.", "Trace the model again with this version to record them.")
        return
    sample = widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    graph = widgets.client().ask(run["run"], "edges", sample=number)
    _graphs(run, sample, graph, other)
    if run["num_samples"] > 1:
        _labels(run)
        _numbers(run, graph)
    common.twin_table(run)
    _live(run, selection, sample, graph)


def _names(run: Mapping[str, Any]) -> list[str]:
    return [row["label"] for row in run["labels"] if row["label"] is not None]


def _other_picker(run: Mapping[str, Any], selection: Selection, number: int | None) -> str | None:
    """Picker of the mean compared with the sample: that of its own label by default. None: of all samples."""
    labels = _names(run)
    if not labels or number is None or run["num_samples"] <= 1:
        return None
    own = widgets.client().ask(run["run"], "samples/{sample}", sample=number).get("label")
    address.bound(
        st.selectbox,
        "other",
        "Beside it the mean of",
        selection.other if selection.other in labels else "",
        ["", *labels],
        format_func=lambda label: label or (f"{own} (its own label)" if own else "all samples"),
        read=lambda label: label or None,
    )
    return selection.other if selection.other in labels else own


def _graphs(run: Mapping[str, Any], sample: Mapping[str, Any], graph: Mapping[str, Any], other: str | None) -> None:
    widgets.heading(
        "Which layers talk to each other?",
        "Read from left to right: the input sends its state to layers, these send theirs on at every iteration, and "
        "what reaches an output is added up (dashed). The wider and bolder a line, the stronger the connection.",
    )
    alone = run["num_samples"] <= 1
    places = st.columns(1 if alone else 2, gap="large")
    with places[0]:
        label = f" ({sample['label']})" if sample.get("label") else ""
        st.subheader(widgets.escape(f"This one: sample {sample['sample']:,}{label}"), anchor=False, help=HELP["graph"])
        st.caption(widgets.escape(_snippet(sample)))
        _graph(graph, f"sample {sample['sample']:,}")
    if alone:
        return
    with places[1]:
        mean = widgets.client().ask(run["run"], "edges", label=other)
        who = f"The mean of {other}" if other else "The mean of all samples"
        st.subheader(widgets.escape(who), anchor=False, help=HELP["graph"])
        st.caption(f"{numbers.plural(mean['num_samples'], 'sample')}.")
        _graph(mean, f"mean of {other}" if other else "mean of all samples", ("labels",) if other else ())


def _graph(answer: Mapping[str, Any], what: str, filters: Sequence[str] = ()) -> None:
    widgets.chart(graph_chart(answer, theme=widgets.theme(), title=None), about=what, filters=filters)
    table = connection_rows(answer)
    for line in hidden_words(table):
        st.caption(line)
    widgets.numbers_behind(table, f"connections, {what}")


def _snippet(sample: Mapping[str, Any]) -> str:
    text = (sample.get("text") or sample.get("source") or "").replace("\n", " ").strip()
    return f"“{text[:110]}{'…' if len(text) > 110 else ''}”" if text else "An image."


def _labels(run: Mapping[str, Any]) -> None:
    """The mean graph of each label, coloured by its difference from the mean of all."""
    labels = _names(run)
    if len(labels) < 2:
        return
    client = widgets.client()
    widgets.heading(
        "Does each label have routes of its own?",
        "The mean graph of each label. Line width: how strong the connection is, in the label or in the mean of all "
        "samples, whichever is stronger. Rose: stronger in the label; blue: weaker; grey: the same.",
    )
    every = client.ask(run["run"], "edges")
    graphs = {label: client.ask(run["run"], "edges", label=label) for label in labels[:MOST_LABELS]}
    tables = {label: connection_rows(answer, every) for label, answer in graphs.items()}
    most = max((abs(row["difference"]) for table in tables.values() for row in table), default=0.0)
    for start in range(0, len(graphs), 3):
        for place, label in zip(st.columns(3, gap="medium"), list(graphs)[start : start + 3], strict=False):
            with place:
                st.subheader(widgets.escape(label), anchor=False)
                widgets.chart(
                    graph_chart(graphs[label], theme=widgets.theme(), title=None, minus=every, most=most, compact=True),
                    about=f"mean of {label} beside the mean of all samples",
                    filters=("labels",),
                )
    if len(labels) > MOST_LABELS:
        st.caption(f"The first {MOST_LABELS} of {numbers.count(len(labels))} labels.")
    st.caption(f"Full colour: a difference of {numbers.number(most)} or more in c, which lies between 0 and 1.")
    rows = [{"label": label, **row} for label, table in tables.items() for row in table]
    widgets.numbers_behind(rows, "mean connections of each label (other: of all samples)")


def _numbers(run: Mapping[str, Any], graph: Mapping[str, Any]) -> None:
    findings = run["findings"].get("connections") or {}
    separation = findings.get("separation")
    st.header("Is that more than chance?", anchor=False, help=HELP["separation"])
    if not findings:
        widgets.empty("This run was sealed without these numbers.", "Trace the model again to have them worked out.")
        return
    left, right = st.columns([1, 1], gap="large")
    with left:
        if separation:
            st.write(widgets.escape(separation_words(separation) + _untrained(run)))
            if findings.get("nearest_label_accuracy") is not None:
                count = len(separation.get("labels") or _names(run))
                st.write(widgets.escape(nearest_words(findings["nearest_label_accuracy"], "label", count)))
        else:
            st.write("This run has too few labels, or too few samples of each, to compare their connections.")
        if findings.get("stability") is not None:
            st.write(widgets.escape(stability_words(findings["stability"])))
        if findings.get("self_share") is not None:
            st.write(widgets.escape(self_share_words(findings["self_share"], len(graph["axes"][2]["names"]))))
    if separation and separation.get("matrix") and len(separation["labels"]) <= MOST_LABELS:
        with right:
            st.subheader("How far apart are two labels?", anchor=False, help=HELP["separation"])
            st.caption("Mean distance of the connections of two inputs, 0 to 1; on the diagonal both have one label.")
            widgets.chart(distance_chart(separation, theme=widgets.theme(), title=None))
            widgets.numbers_behind(
                [{key: row[key] for key in ("one", "other", "distance")} for row in distance_rows(separation)],
                "distances between labels",
            )


def _untrained(run: Mapping[str, Any]) -> str:
    """The same comparison before training, on the model's own held-out texts."""
    distance = ((run["findings"].get("validation") or {}).get("routing") or {}).get("distance") or {}
    if distance.get("untrained_ratio") is None:
        return ""
    return (
        f" On the texts held out in training it is {numbers.number(distance.get('ratio'))}, and "
        f"{numbers.number(distance['untrained_ratio'])} for the same model before training."
    )


@address.unless_embedded
def _live(run: Mapping[str, Any], selection: Selection, sample: Mapping[str, Any], graph: Mapping[str, Any]) -> None:
    st.header("What if the connections were sharper?", anchor=False, help=HELP["live"])
    model = retrace.model_of(run)
    if model is None:
        return
    controls = _controls(model, len(graph["axes"][2]["names"]))
    if not controls:
        widgets.empty("This model allows no changes.", "Choose a run of an H-Model checkpoint.")
        return
    st.caption(
        f"Move a slider: sample {sample['sample']:,} is run again with it, without any training, and shown beside the "
        "unchanged run."
    )
    values = retrace.changes(selection, controls)
    with st.container(horizontal=True, gap="large", key="live_controls"):
        retrace.control_widgets(controls, values)
    if not values:
        return
    after = retrace.again(run, sample, values)
    if after is None:
        return
    changed = widgets.client().ask(after["run"], "edges", sample=0)
    who = f"sample {sample['sample']:,}"
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Unchanged", anchor=False, help=HELP["graph"])
        widgets.chart(graph_chart(graph, theme=widgets.theme(), title=None), about=f"{who}, unchanged")
    with right:
        st.subheader("Changed", anchor=False, help=HELP["graph"])
        _graph(changed, f"{who}, changed")
    retrace.before_and_after(sample, widgets.client().ask(after["run"], "samples/{sample}", sample=0), after["run"])


def _controls(model: Mapping[str, Any], num_targets: int) -> list[retrace.Control]:
    config = (model.get("config") or {}).get("config") or {}
    trained = {
        "alpha": config.get("alpha", 1.0),
        "alpha_rate": config.get("alpha_rate", 1.0),
        "top_k": config.get("route_top_k") or num_targets,
    }
    words = {"alpha": "α (sharpness)", "alpha_rate": "α_rate (per iteration)", "top_k": "top-k (connections kept)"}
    properties = model["controls"].get("properties") or {}
    controls = [
        retrace.control(name, schema, trained=trained.get(name), limit=num_targets, words=words.get(name, ""))
        for name, schema in properties.items()
    ]
    return [control for control in controls if control is not None]
