"""RayTracing: active share by class and by loss, used parameters beside the MLP twin, predictions by threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, either, shade, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, neutral_scale, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import axis_labels, click_selection, finish, highest, rows

SAMPLE_PICK = "sample"
MOST_LABELS = 30
ENDS = MOST_LABELS // 2
"""labels drawn from each end, where there are more"""


def class_rows(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per label: mean, middle 50 % and middle 90 % of the active share; highest mean first."""
    by_label: dict[str, list[float]] = {}
    for sample in samples:
        if sample.get("label") is not None and sample.get("compute") is not None:
            by_label.setdefault(str(sample["label"]), []).append(float(sample["compute"]))
    table = [
        {"label": label, "num": len(shares), "mean": sum(shares) / len(shares)}
        | {f"q{q:02d}": numbers.quantile(sorted(shares), q / 100) for q in (5, 25, 75, 95)}
        for label, shares in by_label.items()
    ]
    return sorted(table, key=lambda row: (-row["mean"], row["label"]))


def ends_words(table: Sequence[Mapping[str, Any]]) -> str:
    """Which of many labels ``class_chart`` draws; empty if all are drawn."""
    if len(table) <= MOST_LABELS:
        return ""
    return f" The {ENDS} labels that light most and the {ENDS} that light least, of {numbers.count(len(table))}."


@redrawable
def class_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "Which classes light more of the network?",
) -> alt.LayerChart:
    """``class_rows`` as a dot (mean), a thick bar (middle 50 % of the samples) and a thin line (middle 90 %)."""
    look = theme_named(theme)
    shown = [
        {
            **row,
            "words": numbers.percent(row["mean"]),
            "half": f"{numbers.percent(row['q25'])} … {numbers.percent(row['q75'])}",
        }
        for row in (table if len(table) <= MOST_LABELS else [*table[:ENDS], *table[-ENDS:]])
    ]
    scale = alt.Scale(zero=False, padding=12)
    y = alt.Y("label:N", sort=[row["label"] for row in shown], axis=bare_axis(None, labelLimit=110, grid=True))
    axis = alt.Axis(title="active share (blocks that fired)", format=".0%", tickCount=5)
    tooltip = tips("label:N", "words:N mean active share", "half:N middle half", "num:Q|, samples")
    base = alt.Chart(rows(shown)).encode(y=y, tooltip=tooltip)
    wide = base.mark_rule(color=look.link, strokeWidth=1.5).encode(x=alt.X("q05:Q", scale=scale, axis=axis), x2="q95:Q")
    half = base.mark_bar(color=look.link, opacity=0.55, height=9).encode(x=alt.X("q25:Q", scale=scale), x2="q75:Q")
    mean = base.mark_point(filled=True, size=75, color=look.ink, opacity=1).encode(x=alt.X("mean:Q", scale=scale))
    words = ["Dot: mean. Thick: middle half of the samples. Thin: middle 90 %."]
    words += [ends.strip()] if (ends := ends_words(table)) else []
    summary = highest(shown, "mean", lambda row: f"{row['label']}, {row['words']} on average")
    return finish(alt.layer(wide, half, mean), look, title, words, height=max(60, 25 * len(shown)), summary=summary)


def difficulty_points(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Samples with an active share and a loss, and whether the prediction is correct."""
    return [
        {
            "sample": s["sample"],
            "label": s.get("label") or "no label",
            "active_share": s["compute"],
            "loss": s["loss"],
            "verdict": "right" if s.get("prediction") == s.get("label") else "wrong",
            "said": s.get("prediction") or "–",
        }
        for s in samples
        if s.get("compute") is not None and s.get("loss") is not None
    ]


@redrawable
def difficulty_chart(
    points: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "Do difficult samples light more of the network?",
    height: int = 290,
) -> alt.LayerChart:
    """Loss against active share, one mark per sample; a cross marks a wrong prediction."""
    look = theme_named(theme)
    x = alt.X(
        "active_share:Q",
        scale=alt.Scale(zero=False, padding=10),
        axis=alt.Axis(title="active share (blocks that fired)", format=".0%", tickCount=5),
    )
    y = alt.Y(
        "loss:Q",
        scale=alt.Scale(type="sqrt", domainMin=0, nice=True),
        axis=alt.Axis(title="loss (nats, square-root scale)", tickCount=5),
    )
    table = [{**p, "share": numbers.percent(p["active_share"]), "nats": numbers.number(p["loss"])} for p in points]
    chart = (
        alt.Chart(rows(table))
        .mark_point(size=36, strokeWidth=1.7, cursor="pointer")
        .encode(
            x=x,
            y=y,
            shape=alt.Shape(
                "verdict:N", legend=None, scale=alt.Scale(domain=["right", "wrong"], range=["circle", _CROSS])
            ),
            fill=either("datum.verdict === 'right'", look.module, look.ink),
            stroke=either("datum.verdict === 'right'", look.module, look.ink),
            opacity=alt.value(0.45 if len(table) > 200 else 0.75),
            tooltip=tips("sample:Q", "label:N", "said:N prediction", "share:N active share", "nats:N loss (nats)"),
        )
        .add_params(click_selection(SAMPLE_PICK, "sample"))
    )
    words = "Circle: the network was right. Cross: it was wrong."
    chart = alt.layer(chart)
    summary = highest(table, "loss", lambda row: f"sample {row['sample']}, loss {row['nats']}, lights {row['share']}")
    return finish(chart, look, title, words, height=height, summary=summary)


_CROSS = "M-0.9,-0.9L0.9,0.9M-0.9,0.9L0.9,-0.9"


def kept_correlation(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """The correlation that was sealed with a run; none of those with intervals of another kind (``resamples``)."""
    kept: dict[str, Any] | None = (info["findings"].get("lights") or {}).get("correlation")
    return None if kept and "resamples" in kept else kept


def correlation(points: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The correlation of drawn samples: of one label, or of a run sealed without it."""
    pearson = numbers.correlation([p["active_share"] for p in points], [p["loss"] for p in points])
    return pearson and {
        "pearson": pearson["r"],
        "pearson_low": pearson["low"],
        "pearson_high": pearson["high"],
        "num_samples": pearson["num"],
    }


def correlation_words(correlation: Mapping[str, Any] | None, num: int) -> str:
    """The correlation of active share and loss as a sentence, or why there is none.

    Args:
        correlation: {pearson, pearson_low, pearson_high, num_samples}, with Spearman's rank correlation if known.
    """
    if not correlation or correlation.get("pearson") is None or correlation.get("pearson_low") is None:
        return f"{numbers.plural(num, 'sample')}: no correlation can be given (too few, or all alike)."

    def show(kind: str) -> str:
        r, low, high = (numbers.number(correlation[kind + end]) for end in ("", "_low", "_high"))
        return f"{r} (95 % interval {low} … {high})"

    if correlation["pearson_low"] > 0:
        verdict = "Samples with a higher loss light more blocks"
    elif correlation["pearson_high"] < 0:
        verdict = "Samples with a higher loss light fewer blocks"
    else:
        verdict = "Active share says nothing reliable about the loss"
    ranks = f", of ranks (Spearman) {show('spearman')}" if correlation.get("spearman") is not None else ""
    return f"{verdict}: Pearson’s r = {show('pearson')}{ranks}, {numbers.plural(correlation['num_samples'], 'sample')}."


def used_rows(validation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The network and its MLP twins (as large; as large as what it uses): parameters, mean share used, accuracy."""
    twins = [("MLP twin", validation.get("mlp_twin")), ("Small MLP", validation.get("mlp_as_used"))]
    models = [
        ("RayTracing", validation, validation.get("used_share")),
        *((name, twin or {}, 1.0) for name, twin in twins),
    ]
    return [
        {
            "model": name,
            "params": part["params"],
            "used": part["params"] * share,
            "share": share,
            "accuracy": part["accuracy"],
            "loss": part.get("loss"),
        }
        for name, part, share in models
        if share is not None and part.get("params") and part.get("accuracy") is not None
    ]


@redrawable
def used_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "How accurate for how many parameters?",
) -> alt.LayerChart:
    """``used_rows``: outline = all parameters, filled = mean used per sample, accuracy as text above."""
    look = theme_named(theme)
    shown = [
        {
            **row,
            "words": f"{row['model']}: {numbers.percent(row['accuracy'])} accurate, "
            f"uses {numbers.percent(row['share'])} of its parameters",
            "lines": f"{row['model']}: {numbers.percent(row['accuracy'])} accurate,\n"
            f"uses {numbers.percent(row['share'])} of its parameters",
            "uses": numbers.count(row["used"]),
            "has": numbers.count(row["params"]),
            "zero": 0,
        }
        for row in table
    ]
    y = alt.Y("model:N", sort=[row["model"] for row in shown], axis=None, scale=alt.Scale(paddingInner=0.5))
    axis = alt.Axis(title="parameters (frozen convolutions left out)", format="~s", tickCount=4)
    tooltip = tips("model:N", "uses:N used on average", "has:N all")
    base = alt.Chart(rows(shown)).encode(y=y, tooltip=tooltip)
    whole = base.mark_bar(filled=False, stroke=look.identity, strokeWidth=1.5, height=20).encode(
        x=alt.X("params:Q", axis=axis), x2="zero:Q"
    )
    used = base.mark_bar(color=look.module, height=20).encode(x=alt.X("used:Q"), x2="zero:Q")
    # In two lines: one is wider than half of a narrow window.
    words = base.mark_text(
        align="left", dx=1, dy=-32, lineBreak="\n", lineHeight=13, fontSize=look.font_size, color=look.ink
    ).encode(x=alt.value(0), text="lines:N")
    subtitle = "Filled: used by a sample on average. Outline: all it has."
    return finish(
        alt.layer(whole, used, words),
        look,
        title,
        subtitle,
        height=76 * max(1, len(shown)),
        summary=" ".join(row["words"] + "." for row in shown),
    )


def class_block_rows(usage: Mapping[str, Mapping[str, Any]], num_samples: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each label and block: the share of its samples that activated it, from responses of ``/usage`` by label."""
    return [
        {
            "label": label,
            "block": row["name"],
            "layer": row["step"],
            "row": row["module"],
            "share": min(1.0, row["count"] / num_samples[label]),
        }
        for label, answer in usage.items()
        for row in answer["usage"]
        if row["kind"] != "identity" and num_samples.get(label)
    ]


@redrawable
def class_block_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "Which blocks does each class light?",
) -> alt.LayerChart:
    """Heat map label × block, blocks in layer order; neutral scale."""
    look = theme_named(theme)
    blocks = sorted({(row["layer"], row["row"], row["block"]) for row in table})
    place = {name: i + layer for i, (layer, _row, name) in enumerate(blocks)}  # gap before each layer
    shown = [
        {**row, "x": place[row["block"]], "x2": place[row["block"]] + 1, "words": numbers.percent(row["share"])}
        for row in table
    ]
    firsts = {layer: place[name] for layer, row, name in reversed(blocks)}
    x = alt.X(
        "x:Q",
        scale=alt.Scale(nice=False, zero=False, padding=0),
        axis=bare_axis(
            None,
            orient="top",
            values=list(firsts.values()),
            grid=False,
            labelAlign="left",
            labelExpr=axis_labels({v: f"layer {k}" for k, v in firsts.items()}),
        ),
    )
    y = alt.Y("label:N", axis=bare_axis(None, labelLimit=110))
    cells = (
        alt.Chart(rows(shown))
        .mark_rect(strokeWidth=0)
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            color=shade("share:Q", neutral_scale(1, look), "share of its samples that light the block", format=".0%"),
            tooltip=tips("label:N", "block:N", "words:N samples that light it"),
        )
    )
    height = max(60, 22 * len({row["label"] for row in table}))
    summary = highest(shown, "share", lambda row: f"{row['words']} of {row['label']} light {row['block']}")
    return finish(alt.layer(cells), look, title, height=height, summary=summary)


@redrawable
def sharpening_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    step: int | None = None,
    theme: str | Theme = "light",
    title: str | None = "How does the prediction sharpen?",
    height: int = 190,
) -> alt.LayerChart:
    """Confidence of the prediction if the output were read at each step.

    Rows: {step, theta, prediction, confidence, verdict: right | wrong | unknown}. The prediction is labelled where it
    changes.
    """
    look = theme_named(theme)
    shown = [
        {
            **row,
            "named": row["prediction"] if not i or table[i - 1]["prediction"] != row["prediction"] else "",
            "words": numbers.percent(row["confidence"]),
        }
        for i, row in enumerate(table)
    ]
    x = alt.X(
        "step:Q",
        scale=alt.Scale(nice=False, padding=16),
        axis=alt.Axis(title="threshold step (θ falls →)", format="d", tickMinStep=1, grid=False),
    )
    y = alt.Y(
        "confidence:Q",
        scale=alt.Scale(domain=[0, 1.08], nice=False),
        axis=alt.Axis(title="confidence", format=".0%", values=[0, 0.25, 0.5, 0.75, 1]),
    )
    base = alt.Chart(rows(shown)).encode(
        x=x, y=y, tooltip=tips("theta:N threshold", "prediction:N", "words:N confidence", "verdict:N")
    )
    marks = base.mark_point(size=44, strokeWidth=1.7, opacity=1, fill=look.ink, stroke=look.ink).encode(
        shape=alt.Shape(
            "verdict:N",
            legend=None,
            scale=alt.Scale(domain=["right", "unknown", "wrong"], range=["circle", "circle", _CROSS]),
        )
    )
    names = base.mark_text(dy=-12, fontSize=look.font_size, fontWeight=600, color=look.ink).encode(text="named:N")
    layers: list[Any] = [base.mark_line(color=look.link, strokeWidth=1.5), marks, names]
    if step is not None:
        layers.insert(0, alt.Chart(rows([{"step": step}])).mark_rule(color=look.accent, strokeWidth=1.5).encode(x=x))
    words = "What the output would say if it were read at this step. Circle: right; cross: wrong."
    summary = f"At the end: {shown[-1]['prediction']}, {shown[-1]['words']}." if shown else ""
    return finish(alt.layer(*layers), look, title, words, height=height, summary=summary)
