"""Mixture of experts: utilisation quantiles and dead experts of each layer (a layer is a step)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import either, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import click_selection, finish, highest, rows

LOAD = "How evenly does each layer share its work?"
DEAD = "How many experts does nobody choose?"
DEAD_OF_LABEL = "How many experts does no token of the label choose?"
LAYER_PICK = "layer"
"""name of the selection of ``load_band_chart``, and of its field"""


def load_rows(usage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per layer: quantiles of utilisation over its experts, and load statistics."""
    cells: dict[int, list[float]] = defaultdict(list)
    for cell in usage["usage"]:
        cells[int(cell["step"])].append(float(cell["utilisation"] or 0.0))
    table = []
    for step in usage["steps"]:
        load = sorted(cells[int(step["step"])])
        table.append(
            {
                "layer": int(step["step"]),
                "experts": len(load),
                "dead": len(step["dead"]),
                "dead_share": len(step["dead"]) / max(1, len(load)),
                "low": numbers.quantile(load, 0.1),
                "middle": numbers.quantile(load, 0.5),
                "high": numbers.quantile(load, 0.9),
                "highest": load[-1] if load else 0.0,
                "MaxVio": step["max_violation"],
                "load_entropy": step["load_entropy"],
            }
        )
    return table


@redrawable(numbers=load_rows)
def load_band_chart(
    usage: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = LOAD, chosen: int | None = None
) -> alt.LayerChart:
    """Utilisation by layer: the middle 80 % of experts as a bar, the median as a tick, the busiest as a point, and a
    line at the fair share of 1. Below: ``dead_chart``.
    """
    look, table = theme_named(theme), load_rows(usage)
    for row in table:
        row |= {f"{name}_words": numbers.number(row[name]) for name in ("low", "middle", "high", "highest")}
        row["on"] = row["layer"] == chosen
    x = _layer_axis(len(table))
    scale = alt.Scale(type="sqrt", domain=[0, max([row["highest"] for row in table], default=1.0) or 1.0], nice=True)
    title_y = "utilisation (1 = fair share; square-root scale)"
    base = alt.Chart(rows(table)).encode(x=x, tooltip=_load_tooltip())
    paint = either("datum.on", look.accent, look.module)
    bars = (
        base.mark_bar(cornerRadius=2, cursor="pointer")
        .encode(
            y=alt.Y("low:Q", scale=scale, axis=alt.Axis(title=title_y, tickCount=5)),
            y2="high:Q",
            color=either("datum.on", look.accent, look.link),
            opacity=alt.value(0.75),
        )
        .add_params(click_selection(LAYER_PICK, "layer"))
    )
    median = base.mark_tick(thickness=2, orient="horizontal", color=look.ink, bandSize=8).encode(y="middle:Q")
    busiest = base.mark_point(filled=True, size=26, opacity=1, cursor="pointer").encode(y="highest:Q", color=paint)
    fair = alt.Chart(rows([{"fair": 1}])).mark_rule(color=look.muted, strokeDash=[5, 3]).encode(y="fair:Q")
    words = "Bar: the middle 80 % of a layer's experts; tick: the median; point: the busiest. Dashed: fair share."
    summary = highest(table, "highest", lambda row: f"layer {row['layer']}, {row['highest_words']} times a fair share")
    return finish(alt.layer(bars, median, busiest, fair), look, title, words, height=240, summary=summary)


@redrawable(numbers=load_rows)
def dead_chart(
    usage: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = DEAD, chosen: int | None = None
) -> alt.Chart:
    """Bar chart of experts per layer that no token chose."""
    look, table = theme_named(theme), load_rows(usage)
    for row in table:
        row |= {"words": f"{row['dead']} of {row['experts']}", "on": row["layer"] == chosen}
        row |= {f"{name}_words": numbers.number(row[name]) for name in ("low", "middle", "high", "highest")}
    most = max([row["dead"] for row in table], default=0)
    chart = (
        alt.Chart(rows(table))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=_layer_axis(len(table)),
            y=alt.Y(
                "dead:Q",
                scale=alt.Scale(domain=[0, max(1, most)], nice=True),
                axis=alt.Axis(title="without tokens", format="d", tickMinStep=1, tickCount=min(4, max(1, most))),
            ),
            color=either("datum.on", look.accent, look.module),
            tooltip=tips("layer:O", "words:N without tokens"),
        )
    )
    summary = highest(table, "dead", lambda row: f"layer {row['layer']}, {row['words']}")
    return finish(chart, look, title, "Experts without tokens.", height=110, summary=summary)


def _layer_axis(count: int) -> alt.X:
    every = max(1, -(-count // 16))
    return alt.X(
        "layer:O", axis=alt.Axis(title="layer", labelAngle=0, ticks=False, values=list(range(0, count, every)))
    )


def _load_tooltip() -> list[alt.Tooltip]:
    return tips(
        "layer:O",
        "highest_words:N busiest",
        "high_words:N 90 % below",
        "middle_words:N median",
        "low_words:N 10 % below",
        "dead:Q experts without tokens",
    )


def load_words(usage: Mapping[str, Any], label: str | None = None) -> str:
    """The least balanced layer, and the number of dead experts, in two sentences; with a ``label``, of its tokens."""
    table = [row for row in load_rows(usage) if row["MaxVio"] is not None]
    if not table:
        return "No choice is known."
    worst = max(table, key=lambda row: row["highest"])
    total, dead = sum(row["experts"] for row in table), sum(row["dead"] for row in table)
    first = (
        f"Least even: layer {worst['layer']}, its busiest expert gets {numbers.number(worst['highest'])} times a fair "
        f"share (MaxVio {numbers.number(worst['MaxVio'])})."
    )
    if not dead:
        return first + (" No expert is dead." if label is None else f" Each expert gets a token of label “{label}”.")
    layers = sum(row["dead"] > 0 for row in table)
    share = numbers.percent(dead / total)
    whose = "Dead" if label is None else f"Without a token of label “{label}”"
    return (
        first + f" {whose}: {numbers.count(dead)} of {numbers.plural(total, 'expert')} ({share}), in "
        f"{numbers.plural(layers, 'layer')}."
    )
