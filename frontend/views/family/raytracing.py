"""Family view of RayTracing: the network by threshold step, costs of samples and classes, the MLP twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.families import raytracing_costs, raytracing_network, raytracing_stops
from tokenpaths.frontend.charts.families.raytracing_costs import sharpening_chart
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.walls import sample_wall

TITLE = "Lights"
LISTED = 300
AT_EACH_END = 12
READ_AT_MOST = 5000
PICTURE = 140
"""width in pixels"""
POINTS = 2500
HELP = {
    "network": (
        "Firing rate r of a block = sum of the signals that reach it. It computes only where r > θ, and sends r − θ, "
        "shared out over its wires. θ starts at 1 and is multiplied by 0.9 a step until the signal at the output "
        "exceeds θ_out."
    ),
    "share": (
        "Active share = blocks that fired at any step so far / all blocks. Used-parameter share = parameters through "
        "which a signal went / all parameters (frozen convolutions left out): weights of wires that carried nothing "
        "when their block fired, or when the output was read, are multiplied by zero and not counted."
    ),
    "correlation": (
        "Pearson’s r of active share and loss over samples, with the 95 % interval of Fisher’s z; its error is that of "
        "the jackknife where this is larger."
    ),
    "fired": "Threshold steps until the signal at the output exceeded θ_out; the last step at which a block was lit.",
    "used": (
        "Mean over the test samples of the used-parameter share. The MLPs use all they have: one has as many "
        "parameters as the network, one as many as the network uses."
    ),
    "class_blocks": "Share of the samples of a class in which the block fired at any threshold step.",
}
SHARPENED = "sharpened"
"""session state: {(run, sample): rows}, only for the last sample"""
SHARPENING_HELP = (
    "The picture as the run keeps it is run again with the relaxation cut short after 1, 2, 3 … threshold steps: what "
    "has reached the output by then is read."
)


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """Draw the family view of one RayTracing run."""
    with common.run_row(run):
        common.label_picker(run, selection)
        number = _sample_picker(run, selection)
    if number is None:
        widgets.empty("No sample has this label.", "Clear the label above.")
        return
    with widgets.error_boundary("the network"):
        _network(run, selection, number)
    samples, total = drawn_samples(run, selection)
    with widgets.error_boundary("the cheapest and dearest samples"):
        _ends(run, selection, total)
    left, right = st.columns(2, gap="large")
    with left, widgets.error_boundary("the classes"):
        _classes(samples, total)
    with right, widgets.error_boundary("the loss"):
        _difficulty(run, selection, samples, total)
    left, right = st.columns(2, gap="large")
    with left, widgets.error_boundary("the blocks of each class"):
        _class_blocks(run)
    with right, widgets.error_boundary("the comparison with the twin"):
        _twin(run)


def _sample_picker(run: Mapping[str, Any], selection: Selection) -> int | None:
    samples = widgets.client().ask(run["run"], "samples", most=LISTED, label=selection.label)["samples"]
    labels = {row["sample"]: row.get("label") for row in samples}
    if not labels and selection.sample is None:
        return None
    number = selection.sample if selection.sample is not None else next(iter(labels))
    options = list(labels) if number in labels else [number, *labels]
    address.bound(
        st.selectbox,
        "sample",
        "Sample",
        number,
        options,
        format_func=lambda n: " · ".join(filter(None, (f"{n:,}", labels.get(n)))),
    )
    return number


def _network(run: Mapping[str, Any], selection: Selection, number: int) -> None:
    client = widgets.client()
    soft, sample = (
        client.ask(run["run"], "blocks", sample=number),
        client.ask(run["run"], "samples/{sample}", sample=number),
    )
    network, values, names = raytracing_network.network_of(run), soft["values"], soft["axes"][0]["names"]
    last = raytracing_network.last_step(values)
    step = last if selection.light is None else min(selection.light, last)
    prediction = (
        f"{sample['prediction']} {numbers.percent(sample['confidence'], 2)}" if sample.get("prediction") else "fired"
    )
    curve = raytracing_network.share_rows(network, values, names)
    left, right = st.columns([5, 3], gap="large")
    with left:
        st.header(raytracing_network.NETWORK, anchor=False, help=HELP["network"])
        st.caption(
            "Circles are blocks; the fuller, the higher the firing rate. Hollow: silent, so nothing is computed there. "
            "Lines: wires that carry a signal now. Inputs send all the time."
        )
        silent = raytracing_network.silent(values)
        _slider(names, last, step, silent)
        drawing = raytracing_network.network_chart(
            network, values, step, theme=widgets.theme(), prediction=prediction, title=None
        )
        widgets.chart(drawing, about=f"sample {number:,}")
        finding = run["findings"].get("lights") or {}
        _fired(finding, names, None if silent else last)
    with right:
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="light_now"):
            if sample.get("has_image"):
                with st.container(width=PICTURE):
                    _picture(client.image(run["run"], number), sample)
            with st.container(key="light_words"):  # beside the picture if there is room, else below it
                said = raytracing_stops.step_words(network, curve, step, last, names, run["config"], sample)
                st.markdown(widgets.escape(said))
        if selection.light is not None and selection.light > last:
            st.caption(f"The address asks for step {selection.light:,}; this sample had stopped by then.")
        st.subheader(raytracing_network.SHARES, anchor=False, help=HELP["share"])
        mean = finding.get("lit_share_by_step") or ()
        if last > 0:
            drawing = raytracing_network.share_chart(curve, mean, step=step, theme=widgets.theme(), title=None)
            widgets.chart(drawing, about=f"sample {number:,}")
        else:
            st.write(
                "No block fired at any step, so there is no curve to draw."
                if silent
                else "This sample used all that it needed at the first step, so there is no curve to draw."
            )
        widgets.numbers_behind(curve, "threshold steps of this sample")
        widgets.numbers_behind(raytracing_network.block_rows(network, values, step), "blocks at this step")
        if sample.get("has_image") and last > 0:
            _sharpening(run, sample, names, last, step)


def _fired(finding: Mapping[str, Any], names: Sequence[str], last: int | None) -> None:
    """Threshold steps at which all samples' outputs fired, with this sample's bar marked; None: it has none."""
    st.subheader("When does the output fire?", anchor=False, help=HELP["fired"])
    steps = finding.get("steps_until_fired") or {}
    table = raytracing_stops.fired_rows(steps.get("counts") or (), names)
    if not table:
        widgets.empty("This run does not say when its outputs fired.", "Trace it again to have that worked out.")
        return
    if len(table) == 1:
        when = "never" if table[0]["step"] is None else f"at step {table[0]['step']}"
        st.write(widgets.escape(f"In all {numbers.plural(table[0]['samples'], 'sample')} {when}."))
        return
    widgets.chart(raytracing_stops.fired_chart(table, chosen=last, theme=widgets.theme(), title=None))
    fired = [row for row in table if row["step"] is not None]
    mean = sum(row["step"] * row["samples"] for row in fired) / sum(row["samples"] for row in fired)
    st.caption(
        f"Samples of the run; on average they stopped at step {numbers.number(mean)}."
        + raytracing_stops.never_words(table)
        + (" In colour: the one above." if last is not None else "")
    )
    widgets.numbers_behind(table, "samples by the step at which they stopped")


def _slider(names: Sequence[str], last: int, step: int, silent: bool) -> None:
    if silent:
        widgets.empty("No block of this sample fired at any threshold, so there is nothing to slide through.")
        return
    if last == 0:
        widgets.empty(
            f"This sample’s output fired at the first threshold ({widgets.escape(names[0])}), so there is nothing to "
            "slide through."
        )
        return
    address.bound(
        st.select_slider,
        "light",
        "Threshold",
        step,
        list(range(last + 1)),
        format_func=lambda t: widgets.escape(f"{names[t]} (step {t})"),
        read=lambda t: None if t == last else int(t),
        help="Move left for a higher threshold: fewer blocks are lit. At the right end the output fires.",
    )


def _picture(png: bytes, sample: Mapping[str, Any]) -> None:
    st.image(
        png, width=PICTURE, caption=widgets.escape(f"sample {sample['sample']}: {sample.get('label') or 'no label'}")
    )


def drawn_samples(run: Mapping[str, Any], selection: Selection) -> tuple[list[dict[str, Any]], int]:
    """Samples in a random order, at most ``READ_AT_MOST`` drawn evenly, and how many there are."""
    answer = widgets.client().ask(run["run"], "samples", most=READ_AT_MOST, order="drawn", label=selection.label)
    return answer["samples"], answer["total"]


def drawn_words(read: int, total: int) -> str:
    """What numbers over samples are counted on; empty if on all of them."""
    whole = f" Counted on {numbers.count(read)} samples drawn at random from {numbers.count(total)}."
    return "" if read == total else whole


def _ends(run: Mapping[str, Any], selection: Selection, total: int) -> None:
    size = min(AT_EACH_END, total // 2)
    if not size:
        widgets.empty("One sample alone is neither cheap nor dear.", "Trace more samples to compare them.")
        return
    cheap, dear = (
        widgets.client().ask(
            run["run"], "samples", most=size, order="compute", descending=descending, label=selection.label
        )["samples"]
        for descending in (False, True)
    )
    groups = [(f"Which {size} samples are cheapest?", "cheap", cheap), (f"Which {size} are dearest?", "dear", dear)]
    for column, (title, key, members) in zip(st.columns(2, gap="large"), groups, strict=True):
        with column:
            st.subheader(title, anchor=False, help=HELP["share"])
            sample_wall(
                run,
                members,
                lambda row: f"{row.get('label') or 'no label'} · {numbers.percent(row['compute'])}",
                f"wall_lights_{key}_{run['run']}",
                light=None,
            )
    st.caption("Below each: its label and its active share, the share of blocks that fired. Click one to light it up.")
    widgets.numbers_behind(
        [
            {"end": key, **{k: row.get(k) for k in ("sample", "label", "prediction", "compute", "loss")}}
            for _title, key, members in groups
            for row in members
        ],
        "cheapest and dearest samples (compute = active share)",
    )


def _classes(samples: Sequence[Mapping[str, Any]], total: int) -> None:
    st.subheader("Which classes light more of the network?", anchor=False, help=HELP["share"])
    table = raytracing_costs.class_rows(samples)
    if len(table) < 2:
        widgets.empty(
            "There are not two labels to compare here.",
            "Clear the label above." if table else "Trace a data set with labels.",
        )
        return
    drawing = raytracing_costs.class_chart(table, theme=widgets.theme(), title=None)
    widgets.chart(drawing, filters=("label", "labels"))
    st.caption(
        "Dot: mean. Thick: the middle half of the class’s samples. Thin: the middle 90 %."
        + raytracing_costs.ends_words(table)
        + drawn_words(len(samples), total)
    )
    widgets.numbers_behind(table, "active share by label")


def _difficulty(run: Mapping[str, Any], selection: Selection, samples: Sequence[Mapping[str, Any]], total: int) -> None:
    st.subheader("Do difficult samples light more of the network?", anchor=False, help=HELP["correlation"])
    points = raytracing_costs.difficulty_points(samples)
    if len(points) < 4:
        widgets.empty("Fewer than four samples have a loss.", "Trace labelled samples of classes that the model knows.")
        return
    finding = raytracing_costs.kept_correlation(run) if selection.label is None else None
    correlation = finding or raytracing_costs.correlation(points)
    shown = points[:: -(-len(points) // POINTS)]
    widgets.chart(
        raytracing_costs.difficulty_chart(shown, theme=widgets.theme(), title=None),
        key=f"difficulty_{run['run']}_{selection.label}_{selection.sample}",
        on_pick=lambda _name, sample: address.go_changed(sample=int(sample), light=None),
        pick=(raytracing_costs.SAMPLE_PICK,),
        filters=("label",),
    )
    words = raytracing_costs.correlation_words(correlation, len(points))
    if not finding:
        words += drawn_words(len(samples), total)
    if len(shown) < len(points) or len(samples) < total:
        words += f" {numbers.count(len(shown))} of them are shown, at random."
    st.caption(widgets.escape(words + " Circle: right; cross: wrong. Click one to light it up."))
    common.note_not_independent(run)
    widgets.numbers_behind(shown, "points")


def _class_blocks(run: Mapping[str, Any]) -> None:
    st.subheader("Which blocks does each class light?", anchor=False, help=HELP["class_blocks"])
    sizes = {row["label"]: row["num_samples"] for row in run["labels"] if row["label"] is not None}
    if len(sizes) < 2:
        widgets.empty("There are not two labels to compare here.")
        return
    shown = dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[: raytracing_costs.MOST_LABELS])
    usage = {label: widgets.client().ask(run["run"], "usage", label=label) for label in shown}
    table = raytracing_costs.class_block_rows(usage, shown)
    widgets.chart(raytracing_costs.class_block_chart(table, theme=widgets.theme(), title=None), filters=("labels",))
    st.caption(
        "One column: one block. A column that is full for some classes only is a block that knows them."
        + (f" {raytracing_costs.MOST_LABELS} of {numbers.count(len(sizes))} labels." if len(sizes) > len(shown) else "")
    )
    widgets.numbers_behind(table, "labels and blocks")


def _twin(run: Mapping[str, Any]) -> None:
    st.subheader("How accurate for how many parameters?", anchor=False, help=HELP["used"])
    table = raytracing_costs.used_rows(run["findings"].get("validation") or {})
    if not table:
        widgets.empty(
            "The checkpoint of this run does not say what it was measured at.",
            "The shipped RayTracing models do; their cards have accuracy, used parameters and the MLP twin.",
        )
        return
    widgets.chart(raytracing_costs.used_chart(table, theme=widgets.theme(), title=None))
    st.caption(twin_words(table))
    widgets.numbers_behind(table, "network and twin")


def twin_words(table: Sequence[Mapping[str, Any]]) -> str:
    """Comparison with the MLP twin in one sentence."""
    if len(table) < 2:
        return "Filled: used by a sample on average. Outline: all parameters. No MLP twin was measured."
    own, twin, *as_used = table
    fewer = 1 - own["used"] / twin["used"]
    small = f", and {_than(own, as_used[0])} an MLP with only as many as it uses" if as_used else ""
    return (
        f"On its test data the network is {_than(own, twin)} its MLP twin, with {numbers.percent(abs(fewer))} "
        f"{'fewer' if fewer >= 0 else 'more'} parameters used a sample{small}. Filled: used on average. Outline: all "
        "it has. "
        "The other numbers of this page are of this run's images, which the network may have been trained on."
    )


def _than(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    points = 100 * (own["accuracy"] - other["accuracy"])
    many = f"{numbers.number(abs(points), 2)} percentage point{'' if abs(points) == 1 else 's'}"
    return f"{many} {'more' if points > 0 else 'less'} accurate than" if points else "as accurate as"


@address.unless_embedded
def _sharpening(run: Mapping[str, Any], sample: Mapping[str, Any], names: Sequence[str], last: int, step: int) -> None:
    """A button that requests the predictions by step, then their chart."""
    st.subheader("How does the prediction sharpen?", anchor=False, help=SHARPENING_HELP)
    of = (run["run"], sample["sample"])
    table = st.session_state.get(SHARPENED, {}).get(of)
    if table is None:
        clicked = st.button(f"Ask at each of {last + 1} thresholds", icon=":material/bolt:", key="sharpen")
        st.caption("A run keeps what the output said when it fired. This reads it earlier: the picture is run again.")
        if not clicked or not (table := prediction_by_step(run, sample, names, last)):
            return
        st.session_state[SHARPENED] = {of: table}
        st.rerun()
    drawing = sharpening_chart(table, step=step, theme=widgets.theme(), title=None)
    widgets.chart(drawing, about=f"sample {sample['sample']:,}")
    st.caption(widgets.escape(sharpening_words(table, sample)))
    widgets.numbers_behind(table, "prediction by threshold step")


def prediction_by_step(
    run: Mapping[str, Any], sample: Mapping[str, Any], names: Sequence[str], last: int
) -> list[dict[str, Any]]:
    """One trace per step, deleted afterwards; empty, with a message on the page, if the model cannot be run."""
    client, table = widgets.client(), []
    picture = client.image(run["run"], sample["sample"])
    bar = st.progress(0.0, text="Running it again …")
    try:
        for step in range(last + 1):
            made = client.trace(run["model"], image=("sample.png", picture), controls={"theta_steps": step + 1})
            answer = client.ask(made["run"], "samples/{sample}", sample=0)
            with suppress(ApiError):  # already deleted by another session
                client.delete(made["run"])
            table.append(
                {
                    "step": step,
                    "theta": names[step],
                    "prediction": answer.get("prediction") or "–",
                    "confidence": answer.get("confidence"),
                    "verdict": _verdict(answer.get("prediction"), sample),
                }
            )
            bar.progress((step + 1) / (last + 1), text="Running it again …")
    except ApiError as error:
        widgets.show_error(error)
        return []
    finally:
        bar.empty()
    return table


def _verdict(prediction: str | None, sample: Mapping[str, Any]) -> str:
    if sample.get("label") is None or sample.get("loss") is None:
        return "unknown"
    return "right" if prediction == sample["label"] else "wrong"


def sharpening_words(table: Sequence[Mapping[str, Any]], sample: Mapping[str, Any]) -> str:
    """The step from which the prediction is stable, and whether the run's final prediction agrees."""
    final = table[-1]["prediction"]
    since = next(row for i, row in enumerate(table) if all(later["prediction"] == final for later in table[i:]))
    words = f"From {since['theta']} (step {since['step']}) on it says “{final}”. Circle: right; cross: wrong."
    if sample.get("prediction") and final != sample["prediction"]:
        words += f" In the run it said “{sample['prediction']}”; the stored picture is not quite what the model saw."
    return words
