"""How does it go? A quantity over the iterations of a long job, one line a series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt

from frontend.charts import numbers
from frontend.charts.frame import finish, rows, titled
from frontend.charts.palette import Theme, theme_named

MOST_POINTS = 60
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4])


def curve_rows(curve: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a point: series, x, y. Of long series means of equally many neighbours, so that noise does not hide them;
    x is the last of them."""
    found = []
    stride = points_each(curve)
    for series in curve.get("series", ()):
        xs, ys = series["x"], series["y"]
        for first in range(0, len(xs), stride):
            part = [y for y in ys[first : first + stride] if y is not None and math.isfinite(y)]
            y = sum(part) / len(part) if part else None
            found.append({"series": str(series.get("name") or ""), "x": xs[min(first + stride, len(xs)) - 1], "y": y})
    return found


def points_each(curve: Mapping[str, Any]) -> int:
    """How many values of a series are drawn as one point."""
    longest = max((len(series["x"]) for series in curve.get("series", ())), default=0)
    return max(1, -(-longest // MOST_POINTS))


def curve_chart(
    curve: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "How does it go?", height: int = 200
) -> alt.Chart:
    """Lines of ``{"x": name, "y": name, "series": [{"name", "x": [..], "y": [..]}, …]}``; told apart by dashes."""
    look = theme_named(theme)
    table = curve_rows(curve)
    x_name, y_name = str(curve.get("x") or "iteration"), str(curve.get("y") or "value")
    shown = [row | {"at": numbers.count(row["x"]), "is": numbers.number(row["y"])} for row in table]
    names = list(dict.fromkeys(row["series"] for row in table))
    several = len(names) > 1
    encoding: dict[str, Any] = {
        "x": alt.X("x:Q", axis=alt.Axis(title=x_name, format=",d", tickMinStep=1, tickCount=6, grid=False),
                   scale=alt.Scale(nice=False)),
        "y": alt.Y("y:Q", axis=alt.Axis(title=y_name, tickCount=5), scale=alt.Scale(zero=False)),
        "tooltip": [*([alt.Tooltip("series:N", title="of")] if several else []),
                    alt.Tooltip("at:N", title=x_name), alt.Tooltip("is:N", title=y_name)],
    }  # fmt: skip
    if several:
        dashes = [DASHES[place % len(DASHES)] for place in range(len(names))]
        encoding["strokeDash"] = alt.StrokeDash(
            "series:N", scale=alt.Scale(domain=names, range=dashes), legend=alt.Legend(title=None, orient="top")
        )
    marks = {"point": {"size": 18, "filled": True, "color": look.accent}} if len(table) <= 60 else {}
    chart = alt.Chart(rows(shown)).mark_line(color=look.accent, strokeWidth=1.6, **marks).encode(**encoding)
    chart = chart.properties(width="container", height=height)
    each = points_each(curve)
    means = f"Each point is the mean over {each:,} neighbours." if each > 1 else None
    return finish(titled(chart, look, title, means), look)
