"""Mixture of experts: consecutive repetition over tokens, and router saturation over checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import either, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

REPETITION = "Do neighbouring tokens choose the same experts?"
SATURATION = "When did routing settle during training?"


def repetition_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per layer and measure, each with what the same tokens in random order have, and even choices."""
    kinds = [("first choice", "first")]
    if answer["top_k"] > 1:
        kinds.append((f"any of {answer['top_k']}", "any"))
    return [
        {
            "layer": row["step"],
            "what": what,
            "share": row[name],
            "by load": row[f"by_load_{name}"],
            "baseline": row[f"baseline_{name}"],
        }
        for row in answer["steps"]
        for what, name in kinds
        if row[name] is not None
    ]


@redrawable(numbers=repetition_rows)
def repetition_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = REPETITION
) -> alt.LayerChart:
    """Two lines over layers, each with a dashed baseline."""
    look, table = theme_named(theme), repetition_rows(answer)
    for row in table:
        row |= {"words": numbers.percent(row["share"]), "even": numbers.percent(row["baseline"])}
        row |= {"chance": row["by load"], "chance_words": numbers.percent(row["by load"])}
    names = list(dict.fromkeys(row["what"] for row in table))
    last = max([row["layer"] for row in table], default=0)
    x = alt.X(
        "layer:Q",
        axis=alt.Axis(title="layer", format="d", tickMinStep=1, grid=False),
        scale=alt.Scale(domain=[0, max(1, last)], nice=False, padding=8),
    )
    scale = alt.Scale(domain=[0, 1])
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=names, range=[look.ink, look.link][: len(names)]),
        legend=alt.Legend(title=None, orient="top", symbolType="stroke", symbolSize=300),
    )
    base = alt.Chart(rows(table)).encode(x=x, color=colour)
    tooltip = tips(
        "what:N same", "layer:Q", "words:N share", "chance_words:N in random order", "even:N with even choices"
    )
    y = alt.Y("share:Q", scale=scale, axis=alt.Axis(title="share of neighbours", format=".0%", tickCount=5))
    line = base.mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=28, opacity=1)).encode(y=y, tooltip=tooltip)
    chance = base.mark_line(strokeDash=[5, 3], strokeWidth=1.5).encode(y=alt.Y("chance:Q", scale=scale))
    words = "Share of neighbouring tokens that choose the same. Dashed: the same tokens in random order."
    return finish(alt.layer(chance, line), look, title, words, height=240)


def repetition_words(answer: Mapping[str, Any]) -> str:
    """The mean over layers beside tokens in random order, and the layer with the most repetition."""
    why = answer.get("first_missing")
    name, what = ("any", "at least one choice") if why else ("first", "their first choice")
    steps = [row for row in answer["steps"] if row[name] is not None]
    if not steps:
        return "No two neighbouring tokens have known choices."
    share = math.fsum(row[name] for row in steps) / len(steps)
    shuffled = math.fsum(row[f"by_load_{name}"] for row in steps) / len(steps)
    best = max(steps, key=lambda row: (row[name], -row["step"]))
    also = sum(row[name] == best[name] for row in steps) - 1
    others = f", as {numbers.plural(also, 'other')}" if also else ""
    return (
        f"{numbers.percent(share)} of {numbers.plural(answer['num_pairs'], 'neighbouring pair')} share {what}, mean "
        f"over layers; in random order {numbers.percent(shuffled)} would. Steadiest: layer {best['step']} "
        f"({numbers.percent(best[name])}{others})." + (f" First choices are not compared: {why}." if why else "")
    )


def saturation_rows(answer: Mapping[str, Any], step: int | None = None) -> list[dict[str, Any]]:
    """One row per checkpoint: mean over layers, and one layer."""
    return [
        {
            "run": point["run"],
            "iteration": point["iteration"],
            "saturation": point["saturation"],
            "layer": point["by_step"][step] if step is not None and step < len(point["by_step"]) else None,
        }
        for point in answer["points"]
    ]


@redrawable(
    numbers=lambda answer, step: [row | {"by chance": answer["baseline"]} for row in saturation_rows(answer, step)]
)
def saturation_chart(
    answer: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = SATURATION,
    step: int | None = None,
    run: str | None = None,
) -> alt.LayerChart:
    """Share of the last checkpoint's choices that each checkpoint already makes; thin line: the chosen layer."""
    look, table = theme_named(theme), saturation_rows(answer, step)
    for row in table:
        row |= {"words": numbers.percent(row["saturation"]), "on": row["run"] == run}
    x = alt.X(
        "iteration:Q",
        axis=alt.Axis(title="iteration of the training", format=",d", tickCount=6, grid=False),
        scale=alt.Scale(nice=False, padding=14),
    )
    y = alt.Y(
        "saturation:Q",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(title="as in the last checkpoint", format=".0%", tickCount=5),
    )
    base = alt.Chart(rows(table)).encode(x=x, y=y)
    line = base.mark_line(strokeWidth=2.5, color=look.module)
    points = base.mark_point(filled=True, opacity=1).encode(
        color=either("datum.on", look.accent, look.module),
        size=either("datum.on", 130, 60),
        tooltip=tips("run:N", "iteration:Q|,d", "words:N saturation"),
    )
    layers = [line, points]
    if step is not None and any(row["layer"] is not None for row in table):
        layers.insert(0, base.mark_line(strokeWidth=1.5, strokeDash=[2, 2], color=look.link).encode(y="layer:Q"))
    chance = alt.Chart(rows([{"baseline": answer["baseline"]}]))
    layers.append(chance.mark_rule(color=look.muted, strokeDash=[5, 3]).encode(y="baseline:Q"))
    words = "Line: mean over layers. Dashed: by chance." + ("" if step is None else f" Dotted: layer {step}.")
    return finish(alt.layer(*layers), look, title, words, height=240)


def saturation_words(answer: Mapping[str, Any]) -> str:
    """The iteration from which most choices are the final ones."""
    points = answer["points"]
    settled = next((point for point in points if point["saturation"] >= 0.8), points[-1])
    first = points[0]
    return (
        f"{numbers.plural(len(points), 'checkpoint')} of the series “{answer['series']}”. At iteration "
        f"{numbers.count(first['iteration'])}, {numbers.percent(first['saturation'])} of the choices are those of the "
        f"last one; 80 % are reached at iteration {numbers.count(settled['iteration'])}."
    )
