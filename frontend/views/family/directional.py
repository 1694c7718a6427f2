"""Family view of Directional Routing: gates, specialist heads, PCA, vocabulary of directions, live interventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import tamed
from tokenpaths.frontend.charts.families.directional_gates import (
    GATE_PICK,
    SAMPLE_PICK,
    ablation_rows,
    ablation_words,
    centroid_title,
    centroid_words,
    gate_chart,
    gate_rows,
    gate_words,
    pca_chart,
    specialist_chart,
    specialist_words,
    variance_chart,
    variance_rows,
    variance_words,
)
from tokenpaths.frontend.charts.flow.token_flow import visible
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.family import gate_worth
from tokenpaths.frontend.views.samples import retrace

TITLE = "Gates"
HELP = {
    "gates": (
        "Each head owns unit directions d in its output. Per text, the layer's router gives each a gate r = "
        "sigmoid(logit / τ), and the head's output o becomes o − Σ r (o·d) d. r = 0 leaves the direction alone, "
        "r = 1 removes it. For many texts: the mean of r."
    ),
    "variance": (
        "Variance of r between the means of the domains, each domain counted once, mean over a head's directions. "
        "Specialists: the quarter of all heads where it is largest."
    ),
    "plane": (
        "All gates of a text are one routing vector; principal components are the two directions in which these "
        "vectors differ most. Accuracy: a text counts as right if the centre of its own domain (without itself) is "
        "the nearest. p: share of shuffles of the domains that do as well."
    ),
    "words": (
        "The direction, padded to the model's width, through the attention's output matrix, then the dot product with "
        "every row of the unembedding: the ten tokens with the largest score, largest first."
    ),
    "ablation": (
        "The whole checkpoint under an intervention on every text. Perplexity = exp(mean loss). Induction: accuracy "
        "on random sequences written twice, counted in the second copy."
    ),
    "live": "Gates fixed at a value instead of what the router says: 0 = routing off, 0.5 = neutral, 1 = full.",
}
NAMED: dict[str, dict[Any, str]] = {
    "gate": {None: "as trained", 0.0: "off (0)", 0.5: "neutral (0.5)", 1.0: "full (1)"},
    "pooling": {None: "as trained", "sequence": "the whole text", "prefix": "only what stands before"},
}
EVERY: dict[Any, str] = {None: "every one"}
"""display names of control values"""


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    labels = [row["label"] for row in run["labels"] if row["label"] is not None]
    alone = run["num_samples"] <= 1
    with common.run_row(run):
        common.label_picker(run, selection)
        number = retrace.sample_picker(run, selection, whole="the mean of its texts" if not alone else None)
        other = _other_picker(selection, labels)
    if "gates" not in run["soft"]:
        widgets.empty("This run holds no gates.", "Trace the model again with this version to record them.")
        return
    findings = run["findings"].get("gates") or {}
    _heat_map(run, selection, number, other, findings)
    if not alone:
        _specialists(findings)
        _plane(findings, selection)
    common.twin_table(run)
    _ahead(run)
    measurable = gate_worth.can_be_measured(run)
    _ablation(run, measurable)
    if measurable:
        gate_worth.draw(run, selection)
    _live(run, selection, number)


def _other_picker(selection: Selection, labels: Sequence[str]) -> str | None:
    if not labels:
        return None
    chosen = selection.other if selection.other in labels else ""
    address.bound(
        st.selectbox,
        "other",
        "Minus the mean of",
        chosen,
        ["", *labels],
        format_func=lambda label: label or "nothing (show the gates)",
        read=lambda label: label or None,
        help="Show the difference from another label instead of the gates themselves.",
    )
    return chosen or None


def _heat_map(
    run: Mapping[str, Any], selection: Selection, number: int | None, other: str | None, findings: Mapping[str, Any]
) -> None:
    client = widgets.client()
    answer = client.ask(run["run"], "gates", label=None if number is not None else selection.label, sample=number)
    minus = client.ask(run["run"], "gates", label=other) if other else None
    who = f"text {number:,}" if number is not None else (selection.label or "all texts")
    st.header("Which directions are switched on?", anchor=False, help=HELP["gates"])
    caption = f"Shown: {who}" + (
        "" if number is not None else f", mean of {numbers.plural(answer['num_samples'], 'text')}"
    )
    st.caption(widgets.escape(caption + (f", minus the mean of {other}. " if other else ". ") + _reading(minus)))
    widgets.verdict(gate_words(answer, minus))
    about = who + (f" minus the mean of {other}" if other else "")
    of_labels = ("labels",) if other or number is None and selection.label is not None else ()
    words = findings.get("vocabulary")
    drawing = gate_chart(answer, theme=widgets.theme(), title=None, minus=minus, chosen=selection.gate)
    if words:
        widgets.chart(
            drawing,
            key=f"gates_{run['run']}_{selection.label}_{number}_{other}_{selection.gate}",
            on_pick=lambda _name, gate: address.go_changed(gate=lambda now: None if gate == now.gate else gate),
            pick=(GATE_PICK,),
            about=about,
            filters=of_labels,
        )
    else:
        widgets.chart(drawing, about=about, filters=of_labels)
    widgets.numbers_behind(gate_rows(answer, minus), f"gates, {who}" + (f" minus {other}" if other else ""))
    if words:
        _words(words, selection)


def _reading(minus: Mapping[str, Any] | None) -> str:
    if minus is None:
        return (
            "One cell: one direction of one head. Stronger colour: more of the direction is removed from what the "
            "head says (0 = left alone, 1 = removed)."
        )
    return "Rose: more of the direction is removed than in the other; blue: less."


def _words(vocabulary: Sequence[Mapping[str, Any]], selection: Selection) -> None:
    st.subheader("What words does a direction write?", anchor=False, help=HELP["words"])
    by_place = {f"{row['layer']}.{row['head']}.{row['direction']}": row for row in vocabulary}
    chosen = by_place.get(selection.gate or "")
    if chosen is None:
        st.caption("Click a cell above to see its ten words here; all directions are in the table.")
    else:
        layer, head, direction = (selection.gate or "").split(".")
        st.write(f"Layer {layer}, head {head}, direction {direction}:")
        st.markdown("  ".join(f"`{_code(token)}`" for token in chosen["tokens"]))
    widgets.numbers_behind(
        [
            {key: row[key] for key in ("layer", "head", "direction")}
            | {"ten words, strongest first": "  ".join(_visible(token) for token in row["tokens"])}
            for row in vocabulary
        ],
        "the words of every direction",
    )


def _visible(token: Any) -> str:
    """A token with visible spaces; unprintable characters (partial UTF-8, control codes) become �."""
    return visible(str(token).replace(" ", "␣")) or "�"


def _code(token: Any) -> str:
    return _visible(token).replace("`", "ˋ")


def _specialists(findings: Mapping[str, Any]) -> None:
    if not findings.get("variance"):
        widgets.empty("Heads cannot be compared over domains: the texts of this run have fewer than two labels.")
        return
    left, right = st.columns(2, gap="large")
    with left:
        st.header("Which heads treat domains differently?", anchor=False, help=HELP["variance"])
        st.caption("Stronger colour: its gates differ more between domains. Dot: a specialist, in the top quarter.")
        widgets.verdict(variance_words(findings["variance"]))
        widgets.chart(
            variance_chart(findings["variance"], findings.get("specialists") or (), theme=widgets.theme(), title=None)
        )
        special = {(int(head["layer"]), int(head["head"])) for head in findings.get("specialists") or ()}
        widgets.numbers_behind(
            [
                {key: row[key] for key in ("layer", "head", "variance", "specialist")}
                for row in variance_rows(findings["variance"], special)
            ],
            "variance of every head",
        )
    with right:
        share = findings.get("specialist_share_by_layer")
        if share:
            st.header("In which layers do specialists sit?", anchor=False, help=HELP["variance"])
            st.caption("Share of each layer's heads that are specialists. Dashed: as many in every layer.")
            widgets.verdict(specialist_words(share))
            widgets.chart(specialist_chart(share, theme=widgets.theme(), title=None))
            widgets.numbers_behind(
                [{"layer": layer, "share": head} for layer, head in enumerate(share)], "specialists per layer"
            )


def _plane(findings: Mapping[str, Any], selection: Selection) -> None:
    if not findings.get("pca"):
        return
    st.header("Do texts of one domain lie together?", anchor=False, help=HELP["plane"])
    st.caption(
        "One point: one text, its shape the domain. Texts with similar gates lie close. Click one to look at it."
    )
    accuracy = findings.get("centroid_accuracy")
    if accuracy:
        widgets.verdict(centroid_title(accuracy))
    chosen = [label for label in (selection.label, selection.other) if label]
    widgets.chart(
        pca_chart(findings["pca"], theme=widgets.theme(), title=None, chosen=chosen, sample=selection.sample),
        key=f"plane_{selection.run}_{selection.label}_{selection.other}_{selection.sample}",
        on_pick=lambda _name, sample: address.go_changed(sample=int(sample)),
        pick=(SAMPLE_PICK,),
    )
    if accuracy:
        st.write(widgets.escape(centroid_words(accuracy)))
        by_domain = accuracy.get("by_domain") or {}
        widgets.numbers_behind(
            [{"domain": name, "share right": value} for name, value in by_domain.items()],
            "accuracy of each domain",
            **{"share right": st.column_config.NumberColumn(format="percent")},
        )
    widgets.numbers_behind(findings["pca"]["points"], "points")


def _ahead(run: Mapping[str, Any]) -> None:
    """Warning for routers that read the whole text, and so leak later tokens to every position, with the measured
    effect.
    """
    ahead = (run["findings"].get("validation") or {}).get("lookahead")
    if not ahead or ahead.get("gain") is None:
        return
    st.caption(
        widgets.escape(
            f"With the tokens behind each position hidden, as when a text is being written, the loss of this model is "
            f"{numbers.number(ahead['hidden'])} instead of {numbers.number(ahead['in_view'])} nats: seeing ahead is "
            f"worth {numbers.number(ahead['gain'])} ± {numbers.number(ahead.get('standard_error'), 2)} nats. "
            f"(Measured at {numbers.plural(ahead.get('positions'), 'position')} of "
            f"{numbers.plural(ahead.get('rows'), 'validation text')}; losses of other parts differ a little.)"
        )
    )


def _ablation(run: Mapping[str, Any], measurable: bool) -> None:
    """The heading, and the ablations of the checkpoint's card; nothing without a table or a model to measure."""
    validation = run["findings"].get("validation") or {}
    table = validation.get("ablations") or validation.get("ablation")
    if table or measurable:
        st.header("What breaks without routing?", anchor=False, help=HELP["ablation"] if table else None)
    if not table:
        return
    if words := ablation_words(table):
        st.write(widgets.escape(words))
    st.caption(widgets.escape(ablated_data(run)))
    st.dataframe(
        ablation_rows(table),
        hide_index=True,
        width="stretch",
        height="content",
        column_config={
            "what": st.column_config.TextColumn("gates", width="medium"),
            "perplexity": st.column_config.NumberColumn("perplexity", format="%.2f"),
            "loss": st.column_config.NumberColumn("loss (nats)", format="%.3f"),
            "delta_loss": st.column_config.NumberColumn("rise of loss (nats)", format="%.3f"),
            "kl": st.column_config.NumberColumn("KL from unchanged (nats)", format="%.3f"),
            "top1_changed": st.column_config.NumberColumn("next token changed", format="percent"),
            "induction": st.column_config.NumberColumn("induction accuracy", format="percent"),
        },
    )


def ablated_data(run: Mapping[str, Any]) -> str:
    """Which texts the ablations are of: the losses of one model on three sets of texts stand on this page."""
    loss = (run["findings"].get("validation") or {}).get("loss")
    whole = f" (all of them: {numbers.number(loss)} nats)" if loss is not None else ""
    return f"Of a part of the validation texts{whole}: compare with the row “as trained”.{common.own_loss_words(run)}"


@address.unless_embedded
def _live(run: Mapping[str, Any], selection: Selection, number: int | None) -> None:
    st.header("What if the gates were fixed?", anchor=False, help=HELP["live"])
    model = retrace.model_of(run)
    if model is None:
        return
    client = widgets.client()
    if number is None:
        listed = client.ask(run["run"], "samples", most=1, label=selection.label)["samples"]
        if not listed:
            widgets.empty("No text has this label.", "Let go of a chip above.")
            return
        number = int(listed[0]["sample"])
    sample = client.ask(run["run"], "samples/{sample}", sample=number)
    before = client.ask(run["run"], "gates", sample=number)
    sizes = [len(axis["names"]) for axis in before["axes"]]
    controls = _controls(model, sizes)
    if not controls:
        widgets.empty("This model allows no changes.", "Choose a run of a Directional Routing checkpoint.")
        return
    text = (sample.get("text") or "").replace("\n", " ").strip()
    st.caption(widgets.escape(f"Text {number:,} is run again: “{text[:110]}{'…' if len(text) > 110 else ''}”"))
    values = retrace.changes(selection, controls)
    silent = _silent(selection, sizes)
    places = [control.name for control in controls if control.name.startswith("gate_")]
    if "gate" not in values:
        values = {name: value for name, value in values.items() if name not in places}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="live_controls"):
        retrace.control_widgets(controls, values, disabled=[] if "gate" in values else places)
        properties = model["controls"].get("properties") or {}
        other = _gates_picker(run, selection, number) if "gates" in properties else None
        if "knocked_out" in properties:
            _silence_picker(silent, sizes)
    if silent:
        values["knocked_out"] = silent
    if other is not None:
        values["gates"] = client.ask(run["run"], "gates", sample=other)["values"]
    if not values:
        return
    after = retrace.again(run, sample, values)
    if after is None:
        return
    changed = client.ask(after["run"], "gates", sample=0)
    st.subheader("How did the gates change?", anchor=False, help=HELP["gates"])
    st.caption("Changed minus unchanged. Rose: more of the direction is removed than before; blue: less.")
    drawing = gate_chart(changed, theme=widgets.theme(), title=None, minus=before)
    widgets.chart(drawing, about=f"text {number:,}, changed minus unchanged")
    widgets.numbers_behind(gate_rows(changed, before), "gates, changed (other: unchanged)")
    retrace.before_and_after(sample, client.ask(after["run"], "samples/{sample}", sample=0), after["run"])


def _controls(model: Mapping[str, Any], sizes: Sequence[int]) -> list[retrace.Control]:
    """Controls: the value of the gates, where it applies, and what the routers read."""
    last = {f"gate_{name}": size - 1 for name, size in zip(("layer", "head", "direction"), sizes, strict=True)}
    words = {
        "gate": "Gates",
        "gate_layer": "in layer",
        "gate_head": "in head",
        "gate_direction": "in direction",
        "pooling": "Routers read",
    }
    result = []
    for name, schema in (model["controls"].get("properties") or {}).items():
        control = retrace.control(
            name, schema, limit=last.get(name), words=words.get(name, ""), named=NAMED.get(name, EVERY)
        )
        if control is not None:
            result.append(control)
    return result


def _silent(selection: Selection, sizes: Sequence[int]) -> list[list[int]]:
    """The silenced heads in the URL that the model has."""
    text = next((one.partition(":")[2] for one in selection.controls if one.startswith("knocked_out:")), "")
    pairs = [part.split(".") for part in text.split("+")]
    heads = [
        [int(a) for a in pair] for pair in pairs if len(pair) == 2 and all(a.isascii() and a.isdigit() for a in pair)
    ]
    return [head for head in heads if head[0] < sizes[0] and head[1] < sizes[1]]


def _gates_picker(run: Mapping[str, Any], selection: Selection, number: int) -> int | None:
    """Picker of the gates for this text: those of another text of the run, or its own."""
    listed = widgets.client().ask(run["run"], "samples", most=retrace.LISTED)["samples"]
    words = {str(row["sample"]): text_words(row) for row in listed if row["sample"] != number}
    chosen = next((row.partition(":")[2] for row in selection.controls if row.startswith("gates_of:")), "")
    return _number(
        address.bound(
            st.selectbox,
            "controls",
            "Gates of another text",
            chosen if chosen in words else "",
            ["", *words],
            part="_gates_of",
            read=lambda text: retrace.changed(address.current(), "gates_of", text or None),
            format_func=lambda text: words.get(text, "its own"),
            help="The text is run with every gate as it was for that text: what do its own decisions matter?",
        )
    )


def text_words(row: Mapping[str, Any]) -> str:
    """A text in a list: its number, label and first words.

    >>> text_words({"sample": 12, "label": "English", "snippet": "the cat sat on the mat and looked at the moon"})
    '12 · English · the cat sat on the mat and loo'
    """
    start = tamed(row.get("snippet") or "").replace("\n", " ").strip()[:30]
    return " · ".join(part for part in (str(row["sample"]), row.get("label") or "no label", start) if part)


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _silence_picker(silent: Sequence[Sequence[int]], sizes: Sequence[int]) -> None:
    def read(heads: Sequence[str]) -> tuple[str, ...]:
        return retrace.changed(address.current(), "knocked_out", "+".join(heads) or None)

    address.bound(
        st.multiselect,
        "controls",
        "Silenced heads",
        [f"{layer}.{head}" for layer, head in silent],
        [f"{layer}.{head}" for layer in range(sizes[0]) for head in range(sizes[1])],
        part="_knocked_out",
        read=read,
        format_func=lambda head: "layer {}, head {}".format(*head.split(".")),
        placeholder="none",
        help="These heads add nothing to the residual stream.",
        max_selections=16,
    )
