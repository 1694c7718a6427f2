"""Short forms of what nearly every chart writes: tooltips, axes without lines, fixed scales, named groups of points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing.palette import Theme, gradient_legend
from tokenpaths.frontend.charts.drawing.running_text import cut_short


def tips(*fields: str | alt.Tooltip) -> list[alt.Tooltip]:
    """Tooltips, one for each ``field:type|format title``; format and title may be left out: ``"num:Q|, samples"``."""
    return [_tip(field) if isinstance(field, str) else field for field in fields]


def _tip(field: str) -> alt.Tooltip:
    shorthand, _, title = field.partition(" ")
    shorthand, _, number_format = shorthand.partition("|")
    options: dict[str, Any] = {"title": title, "format": number_format}
    return alt.Tooltip(shorthand, **{name: value for name, value in options.items() if value})


def either(test: Any, value: Any, other: Any) -> Any:
    """``value`` for marks that pass ``test`` (an expression or a selection), ``other`` for the rest."""
    return alt.when(test).then(alt.value(value)).otherwise(alt.value(other))


def bare_axis(title: str | None, **options: Any) -> alt.Axis:
    """An axis without line and ticks."""
    return alt.Axis(title=title, domain=False, ticks=False, **options)


def shade(field: str, scale: alt.Scale, title: str, **legend: Any) -> alt.Color:
    """A colour by a number, with the gradient of its scale as legend."""
    return alt.Color(field, scale=scale, legend=gradient_legend(title, **legend))


def signed_ticks(form: str, zero: str = "0") -> str:
    """Labels of ticks of differences in a d3 format with a sign, which 0 has none of.

    >>> signed_ticks("+.2~p", "0%")
    "datum.value === 0 ? '0%' : format(datum.value, '+.2~p')"
    """
    return f"datum.value === 0 ? '{zero}' : format(datum.value, '{form}')"


def between(low: float, high: float) -> alt.Scale:
    """A scale from ``low`` to ``high`` exactly."""
    return alt.Scale(domain=[low, high], nice=False, zero=False)


def haloed(text: alt.Chart, look: Theme, ink: str, halo: float, halo_opacity: float = 1, **font: Any) -> list[Any]:
    """``text`` as a text mark in the colour ``ink``, above a halo of this width in the colour of the page."""
    below = {**font, "stroke": look.background, "strokeWidth": halo, "color": look.background}
    below |= {"strokeOpacity": halo_opacity, "fillOpacity": halo_opacity}
    return [text.mark_text(**below), text.mark_text(**font, color=ink)]


def label_means(table: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The mean position (``x``, ``y``) of the points of each label, by label."""
    points: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in table:
        points[row["label"]].append(row)
    return {
        label: {"label": label, **{axis: sum(row[axis] for row in members) / len(members) for axis in "xy"}}
        for label, members in points.items()
    }


ABOUT_WIDTH = 440
"""pixels of a map beside something; on a wider one names have more room than they need"""
FEW_POINTS = 60
"""points of a map that no name is written over"""
NAME_LETTERS = 24
"""of a name on a map; Vega takes what a longer one needs from the width of the plot, which may leave nothing of it"""


def names_apart(
    names: Sequence[Mapping[str, Any]],
    table: Sequence[Mapping[str, Any]],
    *,
    width: float,
    height: float,
    letter: float = 7.5,
    line: float = 17.0,
) -> list[dict[str, Any]]:
    """``names`` (``label``, ``x``, ``y``) moved up or down as little as keeps one from being written over another, and
    over a point where there are few. Long ones are cut short.

    Args:
        table: All points that are drawn, which set the scales.
        width, height: Of the chart in pixels, about.
        letter, line: Width of a letter and height of a line in pixels.
    """
    spans = {axis: (max(row[axis] for row in table) - min(row[axis] for row in table)) or 1.0 for axis in "xy"}
    across, up = spans["x"] / width, spans["y"] / height
    # A point is a name without letters; among many one is written over some wherever it stands.
    placed: list[dict[str, Any]] = [{**row, "label": ""} for row in table] if len(table) <= FEW_POINTS else []
    for name in sorted(names, key=lambda row: -row["y"]):
        name = {**name, "label": cut_short(name["label"], NAME_LETTERS)}

        def free(y: float, name: Mapping[str, Any] = name) -> bool:
            return all(
                abs(y - other["y"]) >= line * up * 0.999
                or abs(name["x"] - other["x"]) >= (len(name["label"]) + len(other["label"])) / 2 * letter * across
                for other in placed
            )

        edges = [name["y"], *(other["y"] + side * line * up for other in placed for side in (-1, 1))]
        y = min((y for y in edges if free(y)), key=lambda y: abs(y - name["y"]), default=name["y"])
        placed.append({**name, "y": y})
    return [row for row in placed if row["label"]]
