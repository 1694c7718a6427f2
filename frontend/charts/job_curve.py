"""Line chart of a quantity over the iterations of a job, with one line per series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import tips
from tokenpaths.frontend.charts.drawing.palette import Theme, mix, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

MOST_POINTS = 60
PALEST = 0.5
"""colour intensity of the first of several lines; the last has 1"""
LINE_PIXELS = 13
"""height of a line label in pixels"""
MOST_NAMES = 28
"""maximum number of line labels; with more lines only every second, third, … is labelled"""
DASHES = ([4, 3], [1, 0], [1, 3], [8, 3])


def curve_rows(curve: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per point: series, x, y. Long series are averaged over groups of neighbours to reduce noise; x is the
    last of each group.
    """
    table = []
    stride = points_each(curve)
    for series in curve.get("series", ()):
        xs, ys = series["x"], series["y"]
        for first in range(0, len(xs), stride):
            part = [y for y in ys[first : first + stride] if y is not None and math.isfinite(y)]
            y = sum(part) / len(part) if part else None
            table.append({"series": str(series.get("name") or ""), "x": xs[min(first + stride, len(xs)) - 1], "y": y})
    return table


def points_each(curve: Mapping[str, Any]) -> int:
    """Number of values averaged per drawn point."""
    longest = max((len(series["x"]) for series in curve.get("series", ())), default=0)
    return max(1, -(-longest // MOST_POINTS))


def parted(name: str) -> tuple[str, str]:
    """Split a series' name at its comma into subject and variant.

    >>> parted("S = 3, with its pixels"), parted("S = 3")
    (('S = 3', 'with its pixels'), ('S = 3', ''))
    """
    first, _, rest = name.partition(", ")
    return first, rest


def name_rows(table: Sequence[Mapping[str, Any]], height: int) -> list[dict[str, Any]]:
    """Positions of the line labels, right of the last point, moved vertically so that none overlap."""
    last: dict[str, Mapping[str, Any]] = {row["series"]: row for row in table if row["y"] is not None}
    values = [row["y"] for row in table if row["y"] is not None]
    if not values:
        return []
    every = -(-len(last) // MOST_NAMES)
    ends = sorted(list(last.values())[::every], key=lambda row: row["y"])
    low, high = min(values), max(values)
    gap = (high - low) * LINE_PIXELS / height
    places: list[float] = []
    for row in ends:
        places.append(max(row["y"], places[-1] + gap) if places else row["y"])
    for place in range(len(places) - 1, -1, -1):  # move down labels that were pushed beyond the top
        ceiling = high if place == len(places) - 1 else places[place + 1] - gap
        places[place] = min(places[place], ceiling)
    return [{**row, "at": at} for row, at in zip(ends, places, strict=True)]


@redrawable(numbers=curve_rows)
def curve_chart(
    curve: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "How does it go?", height: int = 200
) -> alt.Chart | alt.LayerChart:
    """Line chart of ``{"x": name, "y": name, "series": [{"name", "x": [..], "y": [..]}, …]}``.

    Several lines are labelled at their ends and get darker in order (lighter on a dark page); variants (``parted``)
    differ in their dashes.
    """
    look = theme_named(theme)
    table = curve_rows(curve)
    x_name, y_name = str(curve.get("x") or "iteration"), str(curve.get("y") or "value")
    names = list(dict.fromkeys(row["series"] for row in table))
    several = len(names) > 1
    height = max(height, LINE_PIXELS * min(len(names), MOST_NAMES))
    shown = [
        row
        | {
            "of": parted(row["series"])[0],
            "made": parted(row["series"])[1],
            "when": numbers.count(row["x"]),
            "is": numbers.number(row["y"]),
        }
        for row in table
    ]
    last = max((row["x"] for row in table), default=1)
    first = min((row["x"] for row in table), default=0)
    room = 0.28 if several else 0.0
    ticks = alt.Axis(title=x_name, format=",d", tickMinStep=1, grid=False, **_until(first, last, several))
    encoding: dict[str, Any] = {
        "x": alt.X("x:Q", axis=ticks, scale=alt.Scale(nice=False, domain=[first, last + (last - first) * room])),
        "y": alt.Y("y:Q", axis=alt.Axis(title=y_name, tickCount=5), scale=alt.Scale(zero=False)),
        "tooltip": tips(
            *([alt.Tooltip("series:N", title="of")] if several else []), f"when:N {x_name}", f"is:N {y_name}"
        ),
    }
    each = points_each(curve)
    lines = [f"Each point is the mean over {each:,} neighbours."] if each > 1 else []
    marks: dict[str, Any] = {"point": {"size": 18, "filled": True}} if len(table) <= 60 else {}
    if not several:
        marks = {"point": marks["point"] | {"color": look.ink}} if marks else {}
        chart = alt.Chart(rows(shown)).mark_line(color=look.ink, strokeWidth=1.6, **marks).encode(**encoding)
        return finish(chart, look, title, lines, height=height)
    layers, more = _several(shown, table, encoding, marks, height, look)
    return finish(alt.layer(*layers), look, title, lines + more, height=height)


def _several(
    shown: list[dict[str, Any]],
    table: Sequence[Mapping[str, Any]],
    encoding: dict[str, Any],
    marks: Mapping[str, Any],
    height: int,
    look: Theme,
) -> tuple[list[Any], list[str]]:
    """Several lines with their names at the ends, and what their dashes mean."""
    lines = []
    things = list(dict.fromkeys(row["of"] for row in shown))
    colour = alt.Color("of:N", scale=alt.Scale(domain=things, range=inks(len(things), look)), legend=None)
    ways = list(dict.fromkeys(row["made"] for row in shown))
    if len(ways) > 1:
        dashes = alt.Scale(domain=ways, range=[DASHES[place % len(DASHES)] for place in range(len(ways))])
        encoding["strokeDash"] = alt.StrokeDash("made:N", scale=dashes, legend=None)
        lines.append(f"Drawn through: {' and '.join(filter(None, ways))}; dashed: without.")
    drawn = (
        alt.Chart(rows(shown)).mark_line(strokeWidth=1.8, **marks).encode(color=colour, detail="series:N", **encoding)
    )
    first, last = min(row["x"] for row in table), max(row["x"] for row in table)
    beside = last + (last - first) * 0.03
    end_rows = [
        row | {"of": parted(row["series"])[0], "name": _short(row["series"]), "beside": beside}
        for row in name_rows(table, height)
    ]
    ends = alt.Chart(rows(end_rows))
    leaders = ends.mark_rule(strokeWidth=0.8).encode(x="x:Q", x2="beside:Q", y="y:Q", y2="at:Q", color=colour)
    words = ends.mark_text(align="left", dx=3, fontSize=11, font=look.font).encode(
        x="beside:Q", y="at:Q", text="name:N", color=colour
    )
    return [drawn, leaders, words], lines


def inks(count: int, theme: str | Theme) -> list[str]:
    """Colours from pale to full intensity for ``count`` lines in order."""
    look = theme_named(theme)
    steps = [PALEST + (1 - PALEST) * place / max(1, count - 1) for place in range(count)]
    return [mix(look.ink, look.background, step) for step in steps]


def _until(first: float, last: float, several: bool) -> dict[str, Any]:
    """Axis ticks over the range of the lines, not under their labels."""
    if not several or last <= first:
        return {"tickCount": 6}
    step = 10 ** math.floor(math.log10(max(1, (last - first) / 5)))
    step = next((step * by for by in (1, 2, 5, 10) if (last - first) / (step * by) <= 5), step * 10)
    begin = math.ceil(first / step) * step
    return {"values": [begin + place * step for place in range(int((last - begin) // step) + 1)]}


def _short(name: str) -> str:
    what, way = parted(name)
    return f"{what}, with" if way.startswith("with ") else name
