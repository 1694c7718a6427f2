"""Directional Routing: gates by layer and head, specialist heads, PCA of routing vectors, ablations.

After figures 3 to 6 of the Directional Routing paper. An answer of ``/gates`` has the axes layer, head, direction; a
value r in (0, 1) is the share of the direction that is removed from the head's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import (
    ABOUT_WIDTH,
    bare_axis,
    between,
    either,
    haloed,
    label_means,
    names_apart,
    shade,
    tips,
)
from tokenpaths.frontend.charts.drawing.palette import (
    SHARE_FLOOR,
    Theme,
    diverging_scale,
    gradient_legend,
    neutral_scale,
    scale_end,
    theme_named,
)
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import click_selection, finish, rows

TITLE = "Which directions does it switch on?"
GATE_PICK, SAMPLE_PICK = "gate", "sample"
"""names of the point selections; their fields have the same names"""
SHAPES = ("circle", "square", "triangle-up", "cross", "diamond", "triangle-down", "triangle-right", "triangle-left")
WHAT = {
    "normal": "as trained",
    "off": "routing off (every gate 0)",
    "neutral": "neutral (every gate 0.5)",
    "full": "full (every gate 1)",
    "mean gates": "every gate at its mean (the same for all texts)",
}
"""ablation → display name"""


def gate_rows(answer: Mapping[str, Any], minus: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One row per gate: layer, head, direction, r; with ``minus`` also the other r and the difference."""
    layers, heads, directions = (axis["names"] for axis in answer["axes"])
    table = []
    for layer in range(len(layers)):
        for head in range(len(heads)):
            for direction in range(len(directions)):
                r = answer["values"][layer][head][direction]
                row = {"layer": layer, "head": head, "direction": direction, "r": r}
                if minus is not None:
                    row["other"] = minus["values"][layer][head][direction]
                    row["difference"] = (r or 0.0) - (row["other"] or 0.0)
                table.append(row)
    return table


def gate_words(answer: Mapping[str, Any], minus: Mapping[str, Any] | None = None) -> str:
    """The direction that is removed most and the one that is left most, or those that differ most, in a sentence."""
    value = "r" if minus is None else "difference"
    table = [row for row in gate_rows(answer, minus) if row["r"] is not None]
    if not table:
        return "No gate is known."
    least, most = (f(table, key=lambda row: row[value]) for f in (min, max))
    low, high = (_place(row, numbers.number(row[value])) for row in (least, most))
    if minus is None:
        if least[value] == most[value]:
            return f"Every direction is removed by as much: {numbers.number(most[value])}."
        return f"Removed most is {high}, least {low}."
    told = [f"more than in the other is above all {high}"] if most[value] > 0 else []
    told += [f"less {'' if told else 'than in the other is above all '}{low}"] if least[value] < 0 else []
    return f"Removed {', '.join(told)}." if told else "The gates are the same in both."


def _place(row: Mapping[str, Any], told: str) -> str:
    return f"direction {row['direction']} of head {row['head']} in layer {row['layer']} ({told})"


@redrawable(numbers=gate_rows)
def gate_chart(
    answer: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = TITLE,
    minus: Mapping[str, Any] | None = None,
    chosen: str | None = None,
) -> alt.LayerChart:
    """Heat map of a response of ``/gates``: rows are layers, columns heads with their directions side by side.

    Args:
        minus: Another response; colours then show r minus its r, with zero in the middle.
        chosen: ``layer.head.direction`` of the outlined cell.
    """
    look = theme_named(theme)
    num_layers, _num_heads, num_directions = (len(axis["names"]) for axis in answer["axes"])
    table = [
        row
        | {
            "gate": f"{row['layer']}.{row['head']}.{row['direction']}",
            "x": _column(row, num_directions),
            "x2": _column(row, num_directions) + 1,
            "words": numbers.number(row["r"]),
            "against": numbers.number(row.get("other")),
            "more": _signed(row.get("difference")),
        }
        for row in gate_rows(answer, minus)
    ]
    x, y = _gate_axes(answer)
    value = "r" if minus is None else "difference"
    tooltip = tips("layer:O", "head:O", "direction:O", "words:N r")
    if minus is not None:
        tooltip += tips("against:N r of the other", "more:N difference")
    cells = (
        alt.Chart(rows(table))
        .mark_rect(stroke=look.grid, strokeWidth=0.6, cursor="pointer")
        .encode(x=x, x2="x2:Q", y=y, color=_gate_colour(table, value, look), tooltip=tooltip)
        .add_params(click_selection(GATE_PICK, "gate"))
    )
    outlined = alt.Chart(rows(row for row in table if row["gate"] == chosen))
    outline = outlined.mark_rect(fillOpacity=0, stroke=look.accent, strokeWidth=2.5).encode(x=x, x2="x2:Q", y=y)
    words = "Rows: layers. Columns: heads, each with its directions. " + (
        "Darker on a light page: more of the direction is removed."
        if minus is None
        else "Rose: more is removed than in the other; blue: less; page colour: the same."
    )
    summary = gate_words(answer, minus)
    return finish(alt.layer(cells, outline), look, title, words, height=max(90, 30 * num_layers), summary=summary)


def _gate_colour(table: Sequence[Mapping[str, Any]], value: str, look: Theme) -> alt.Color:
    """Neutral for r, diverging for its difference from another response."""
    if value == "r":
        scale = neutral_scale(1, look, end=look.module)
        title, values = "r: share of the direction that is removed", [0, 0.5, 1]
    else:
        most = scale_end((row["difference"] for row in table), SHARE_FLOOR)
        scale = diverging_scale(most, look)
        title, values = "difference of r: lower – equal – higher", [-most, 0, most]
    legend = gradient_legend(title, values=values, format=".2~f", gradientStrokeColor=look.grid, gradientStrokeWidth=1)
    return alt.Color(f"{value}:Q", scale=scale, legend=legend)


def variance_rows(variance: Sequence[Sequence[float]], special: Iterable[tuple[int, int]] = ()) -> list[dict[str, Any]]:
    """Table of the variance heat map."""
    special = set(special)
    return [
        {
            "layer": layer,
            "head": head,
            "variance": value,
            "words": numbers.number(value),
            "specialist": "yes" if (layer, head) in special else "no",
        }
        for layer, row in enumerate(variance)
        for head, value in enumerate(row)
    ]


def variance_words(variance: Sequence[Sequence[float]]) -> str:
    """The head whose gates differ most between domains, beside the middle one, in a sentence."""
    table = sorted(variance_rows(variance), key=lambda row: row["variance"] or 0.0)
    most, middle = table[-1], table[len(table) // 2]
    if not most["variance"]:
        return "No head’s gates differ between domains."
    return (
        f"Head {most['head']} of layer {most['layer']} differs most between domains: variance {most['words']}, "
        f"where the middle head has {middle['words']}."
    )


def _specialists(heads: Iterable[Mapping[str, Any]]) -> set[tuple[int, int]]:
    return {(int(head["layer"]), int(head["head"])) for head in heads}


@redrawable(numbers=lambda variance, specialists: variance_rows(variance, _specialists(specialists)))
def variance_chart(
    variance: Sequence[Sequence[float]],
    specialists: Sequence[Mapping[str, Any]] = (),
    *,
    theme: str | Theme = "light",
    title: str | None = "Which heads treat domains differently?",
) -> alt.LayerChart:
    """Heat map of cross-domain variance by layer and head; specialists are marked with a dot."""
    look = theme_named(theme)
    table = variance_rows(variance, _specialists(specialists))
    most = max([row["variance"] or 0.0 for row in table], default=0.0) or 1.0
    x = alt.X("head:O", axis=bare_axis("head", orient="top", labelAngle=0))
    y = alt.Y("layer:O", axis=bare_axis("layer"))
    base = alt.Chart(rows(table)).encode(x=x, y=y)
    cells = base.mark_rect(stroke=look.grid, strokeWidth=0.7).encode(
        color=shade(
            "variance:Q",
            neutral_scale(most, look, end=look.module),
            "variance of r over domains",
            format=".1~g",
            gradientStrokeColor=look.grid,
            gradientStrokeWidth=1,
        ),
        tooltip=tips("layer:O", "head:O", "words:N variance", "specialist:N specialist"),
    )
    dots = (
        alt.Chart(rows(row for row in table if row["specialist"] == "yes"))
        .mark_circle(size=46, opacity=1, color=look.background, stroke=look.ink, strokeWidth=1)
        .encode(x=x, y=y)
    )
    height = max(90, 30 * len(variance))
    summary = variance_words(variance)
    words = "Dot: specialist, among the quarter of heads that vary most."
    return finish(alt.layer(cells, dots), look, title, words, height=height, summary=summary)


def specialist_rows(share_by_layer: Sequence[float]) -> list[dict[str, Any]]:
    """Table of the bars, and of the line over all layers."""
    even = sum(share_by_layer) / max(1, len(share_by_layer))
    return [{"layer": layer, "share": share, "all layers": even} for layer, share in enumerate(share_by_layer)]


def specialist_words(share_by_layer: Sequence[float]) -> str:
    """The layers with the most specialists among their heads, in a sentence."""
    most = max(share_by_layer)
    if not most:
        return "No head is a specialist."
    layers = [str(layer) for layer, share in enumerate(share_by_layer) if share >= most - 1e-9]
    share = numbers.percent(most)
    if len(layers) == 1:
        return f"Layer {layers[0]} has most: {share} of its heads."
    return f"Layers {numbers.listed(layers)} have most: {share} of their heads each."


@redrawable(numbers=specialist_rows)
def specialist_chart(
    share_by_layer: Sequence[float],
    *,
    theme: str | Theme = "light",
    title: str | None = "In which layers do the specialists sit?",
    height: int = 220,
) -> alt.LayerChart:
    """Bars: share of each layer's heads that are specialists; dashed: over all layers."""
    look = theme_named(theme)
    table = [row | {"words": numbers.percent(row["share"])} for row in specialist_rows(share_by_layer)]
    y = alt.Y(
        "share:Q",
        scale=alt.Scale(domain=[0, max([*share_by_layer, 0.05])], nice=True),
        axis=alt.Axis(title="specialists among its heads", format=".0%", tickCount=4),
    )
    bars = (
        alt.Chart(rows(table))
        .mark_bar(color=look.module, cornerRadiusEnd=2)
        .encode(
            x=alt.X("layer:O", axis=alt.Axis(title="layer", labelAngle=0, ticks=False)),
            y=y,
            tooltip=tips("layer:O", "words:N specialists"),
        )
    )
    line = alt.Chart(rows({"share": row["all layers"]} for row in table[:1])).mark_rule(
        color=look.muted, strokeDash=[5, 3], strokeWidth=1.5
    )
    chart = alt.layer(bars, line.encode(y=y))
    summary = specialist_words(share_by_layer)
    return finish(chart, look, title, "Dashed: as many in every layer.", height=height, summary=summary)


@redrawable
def pca_chart(
    pca: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "Do texts of one domain lie together?",
    chosen: Iterable[str] = (),
    sample: int | None = None,
    height: int = 360,
) -> alt.LayerChart:
    """Scatter of routing vectors on the first two principal components: one point per text, shaped by domain.

    Domain names are at the mean of their points. ``chosen`` domains and the chosen sample are in the accent colour.
    """
    look, chosen = theme_named(theme), set(chosen)
    table = [
        {
            "x": point["x"],
            "y": point["y"],
            "label": str(point["label"]),
            "sample": point["sample"],
            "on": str(point["label"]) in chosen,
            "here": sample is not None and point["sample"] == sample,
        }
        for point in pca["points"]
    ]
    labels = sorted({row["label"] for row in table})
    shares = [*(pca.get("explained") or []), None, None]
    x, y = (
        alt.X("x:Q", scale=alt.Scale(zero=False, padding=14), axis=_component("first", shares[0], look)),
        alt.Y("y:Q", scale=alt.Scale(zero=False, padding=14), axis=_component("second", shares[1], look)),
    )
    shape = alt.Shape(
        "label:N",
        scale=alt.Scale(domain=labels, range=[SHAPES[place % len(SHAPES)] for place in range(len(labels))]),
        legend=alt.Legend(title=None, orient="top", columns=3, symbolSize=70, labelLimit=110),
    )
    points = (
        alt.Chart(rows(sorted(table, key=lambda row: row["on"])))
        .mark_point(filled=False, size=70 if len(table) <= 150 else 36, strokeWidth=1.4, cursor="pointer")
        .encode(
            x=x,
            y=y,
            shape=shape,
            color=either("datum.on", look.accent, look.module),
            opacity=either("datum.on", 0.9, 0.35 if chosen else 0.6),
            tooltip=tips("sample:Q text", "label:N domain"),
        )
        .add_params(click_selection(SAMPLE_PICK, "sample"))
    )
    here = alt.Chart(rows(row for row in table if row["here"])).mark_point(
        shape="circle", size=240, color=look.accent, strokeWidth=2.5, filled=False
    )
    placed = names_apart(list(label_means(table).values()), table, width=ABOUT_WIDTH, height=height)
    names = alt.Chart(rows(placed)).encode(x=x, y=y, text="label:N")
    written = haloed(names, look, look.ink, 4, 0.85, fontSize=look.font_size + 2, fontWeight=700)
    chart = alt.layer(points, here.encode(x=x, y=y), *written)
    words = "One point: one text. Names stand at the middle of their domain."
    summary = f"{numbers.plural(len(table), 'text')} of {numbers.plural(len(labels), 'domain')}."
    return finish(chart, look, title, words, height=height, summary=summary)


def centroid_title(accuracy: Mapping[str, Any]) -> str:
    """``centroid_words`` in one sentence."""
    far = accuracy.get("p_value") is not None and accuracy["p_value"] <= 0.05
    # The mean over domains, as that of shuffled ones is: of one large domain most texts lie nearest by chance.
    share = numbers.percent(accuracy.get("balanced", accuracy["accuracy"]))
    chance = numbers.percent(accuracy["null_mean"])
    return f"{share} of the texts lie nearest to the centre of their own domain (mean over domains), " + (
        f"where shuffled domains give {chance}." if far else f"not surely more than with shuffled domains ({chance})."
    )


def centroid_words(accuracy: Mapping[str, Any]) -> str:
    """Nearest-centroid accuracy as a sentence, compared with shuffled domains."""
    far = accuracy.get("p_value") is not None and accuracy["p_value"] <= 0.05
    best = f", at best {numbers.percent(accuracy['null_max'])}" if accuracy.get("null_max") is not None else ""
    balanced = accuracy.get("balanced", accuracy["accuracy"])
    return (
        f"From the gates alone, {numbers.percent(accuracy['accuracy'])} of the texts are nearest to the centre of "
        f"their own domain, themselves left out. As the mean over domains that is {numbers.percent(balanced)}; with "
        f"the domains shuffled {numbers.percent(accuracy['null_mean'])}{best} "
        f"({numbers.p_words(accuracy.get('p_value'), accuracy.get('shuffles'))}). "
        + ("The gates know the domain." if far else "That is not surely more than chance.")
        + (f" Left out, with one text only: {', '.join(accuracy['left_out'])}." if accuracy.get("left_out") else "")
    )


def ablation_rows(table: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Table of ablations: what was done, and every measured number."""
    result = []
    for row in table:
        what = str(row.get("what") or row.get("name") or "")
        rest = {key: value for key, value in row.items() if key not in ("what", "name")}
        result.append({"what": WHAT.get(what, what)} | rest)
    return result


def ablation_words(table: Iterable[Mapping[str, Any]]) -> str | None:
    """Effect of switching routing off, in a sentence; None if it was not measured."""
    by_name = {str(row.get("what") or row.get("name")): row for row in table}
    normal, off = by_name.get("normal"), by_name.get("off")
    if not normal or not off or normal.get("perplexity") is None or off.get("perplexity") is None:
        return None
    words = (
        f"With routing off, perplexity goes from {numbers.number(normal['perplexity'])} to "
        f"{numbers.number(off['perplexity'])}"
    )
    if normal.get("induction") is not None and off.get("induction") is not None:
        words += (
            f", and repeating a sequence that it has just seen (induction) from "
            f"{numbers.percent(normal['induction'])} right to {numbers.percent(off['induction'])}"
        )
    return words + "."


def _column(row: Mapping[str, Any], num_directions: int) -> float:
    """Left edge of a cell, with a gap between heads."""
    return row["head"] * (num_directions + 0.4) + row["direction"]


def _gate_axes(answer: Mapping[str, Any]) -> tuple[alt.X, alt.Y]:
    _layers, heads, directions = (axis["names"] for axis in answer["axes"])
    count = len(directions)
    middle = {round(head * (count + 0.4) + count / 2, 4): head for head in range(len(heads))}
    words = " : ".join(f"abs(datum.value - {place}) < 0.01 ? '{head}'" for place, head in middle.items()) + " : ''"
    x = alt.X(
        "x:Q",
        scale=between(-0.2, len(heads) * (count + 0.4) - 0.2),
        axis=bare_axis(
            f"head, with its {count} directions side by side",
            orient="top",
            values=list(middle),
            labelExpr=words,
            grid=False,
        ),
    )
    return x, alt.Y("layer:O", axis=bare_axis("layer"))


def _component(which: str, share: float | None, look: Theme) -> alt.Axis:
    variance = f" ({numbers.percent(share)} of the variance)" if share is not None else ""
    return alt.Axis(title=f"{which} component{variance}", tickCount=4, labels=False, ticks=False, gridOpacity=0.6)


def _signed(value: float | None) -> str:
    """“+0.120”, “−0.0340”, “–”."""
    if value is None:
        return "–"
    return ("−" if value < 0 else "+") + numbers.number(abs(value))
