"""Whom does a module serve? The share of each label's tokens that visit it, beside the share of all tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows, titled


@redrawable
def served_chart(
    table: Sequence[Mapping[str, Any]],
    baseline: float,
    *,
    theme: str | Theme = "light",
    title: str | None = "Whom does it serve?",
    most: int = 24,
) -> alt.LayerChart:
    """Draw ``[{label, count, of, share}]``, largest share first; the line is ``baseline``, the share of all tokens."""
    look = theme_named(theme)
    ordered = sorted(table, key=lambda row: (-row["share"], str(row["label"])))
    kept = ordered if len(ordered) <= most else ordered[: most // 2] + ordered[-(most // 2) :]
    shown = [
        {
            "label": str(row["label"]),
            "share": row["share"],
            "all": baseline,
            "words": f"{numbers.percent(row['share'])} of {numbers.plural(row['of'], 'token')}",
        }
        for row in kept
    ]
    x = alt.X(
        "share:Q",
        scale=alt.Scale(zero=True, nice=True),
        axis=alt.Axis(title="share of the label’s tokens", format="%", tickCount=4),
    )
    y = alt.Y(
        "label:N",
        sort=[row["label"] for row in shown],
        axis=alt.Axis(title=None, labelLimit=130, grid=False, ticks=False, domain=False),
    )
    base = alt.Chart(rows(shown))
    tooltip = [alt.Tooltip("label:N"), alt.Tooltip("words:N", title="visit it")]
    stems = base.mark_rule(color=look.grid, strokeWidth=3).encode(x=alt.X("all:Q"), x2="share:Q", y=y)
    points = base.mark_point(filled=True, size=70, color=look.module, opacity=1).encode(
        x=x, y=y, description="words:N", tooltip=tooltip
    )
    line = (
        alt.Chart(rows([{"all": baseline}]))
        .mark_rule(strokeDash=[4, 3], color=look.muted, aria=False)
        .encode(x="all:Q")
    )
    height = max(60, 22 * len(shown))
    chart = alt.layer(line, stems, points).properties(width="container", height=height)
    words = f"Dashed: {numbers.percent(baseline)} of all tokens visit it."
    return finish(titled(chart, look, title, words), look)
