"""Slopes of the rank–frequency curve against the number of tokens, for a run and its null models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows
from tokenpaths.frontend.charts.paths import WHO

ALIKE = 0.05
"""difference of slopes that is called none: about twice that between draws of the same run"""
TITLE = "How steep is the curve, and does the number of tokens make it so?"


@redrawable
def slope_growth_chart(
    slopes: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TITLE, height: int = 240
) -> alt.LayerChart:
    """Lines of a response of ``/paths/slopes``: one for each kind and way of fitting, with a band of one deviation."""
    look = theme_named(theme)
    ways = {"slope": "all ranks", "window_slope": window_words(slopes)}
    table = [
        {
            "tokens": point["num_tokens"],
            "line": f"{name}, {way}",
            "slope": point[field],
            "low": point[field] - (point[f"{field.removesuffix('_slope')}_std"] or 0.0),
            "high": point[field] + (point[f"{field.removesuffix('_slope')}_std"] or 0.0),
        }
        for kind, name in WHO.items()
        for point in slopes.get(kind) or []
        for field, way in ways.items()
        if point[field] is not None
    ]
    paint = {"observed": look.ink, "untrained": look.muted, "independent": look.identity}
    dashes = {"slope": [4, 4], "window_slope": [1, 0]}
    shown = {
        f"{WHO[kind]}, {ways[way]}": (paint[kind], dashes[way]) for kind in WHO for way in ways if slopes.get(kind)
    }
    legend = alt.Legend(
        title=None, orient="top", direction="vertical", symbolType="stroke", labelLimit=280, symbolSize=300
    )
    drawn = {row["line"] for row in table}
    shown = {line: look_of for line, look_of in shown.items() if line in drawn} or shown
    domain, (colours, strokes) = list(shown), zip(*shown.values(), strict=True)
    sizes = sorted({row["tokens"] for row in table})
    axis = bare_axis("tokens", values=sizes if len(sizes) < 5 else [*sizes[:-2:2], sizes[-1]], format=".3~s")
    encoded = alt.Chart(rows(table)).encode(
        x=alt.X("tokens:Q", scale=alt.Scale(type="log", nice=False, padding=8), axis=axis),
        color=alt.Color("line:N", scale=alt.Scale(domain=domain, range=list(colours)), legend=legend),
        strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(domain=domain, range=list(strokes)), legend=legend),
    )
    y = alt.Y("slope:Q", scale=alt.Scale(zero=False), axis=bare_axis("log–log slope", format=".2~f"))
    lines = encoded.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=30)).encode(
        y=y, tooltip=tips("line:N", "tokens:Q|,", "slope:Q|.2f", "low:Q|.2f", "high:Q|.2f")
    )
    bars = encoded.mark_rule(strokeWidth=1).encode(y=alt.Y("low:Q"), y2="high:Q", strokeDash=alt.value([1, 0]))
    return finish(alt.layer(bars, lines), look, title, [slope_words(slopes)], height=height)


def window_words(slopes: Mapping[str, Any]) -> str:
    """“ranks 10–1,000”."""
    first, last = slopes["window"]
    return f"ranks {numbers.count(first)}–{numbers.count(last)}"


def slope_words(slopes: Mapping[str, Any]) -> str:
    """“At 96,000 tokens each, ranks 10–1,000: this run −0.92, untrained twin −0.35, independent steps −0.41.”"""
    last = {name: slopes[kind][-1] for kind, name in WHO.items() if slopes.get(kind)}
    tokens = numbers.count(next(iter(last.values()))["num_tokens"])
    values = [
        f"{name} {numbers.number(point['window_slope']).replace('-', '−')}"
        for name, point in last.items()
        if point["window_slope"] is not None
    ]
    if not values:
        return f"At {tokens} tokens there are too few paths for a slope over {window_words(slopes)}."
    return f"{_beside(last)}At {tokens} tokens each, {window_words(slopes)}: {', '.join(values)}. Lower is steeper."


def _beside(last: Mapping[str, Mapping[str, Any]]) -> str:
    """The answer in words: how this run's slope stands to those of its twin and null, where all have one."""
    own = (last.get(WHO["observed"]) or {}).get("window_slope")
    words = []
    for kind in ("independent", "untrained"):
        other = (last.get(WHO[kind]) or {}).get("window_slope")
        if own is not None and other is not None:
            less = own - other
            how = "as steep as" if abs(less) < ALIKE else "steeper than" if less < 0 else "flatter than"
            words.append(f"{how} {'its ' if kind == 'untrained' else ''}{WHO[kind]}")
    return f"The curve is {' and '.join(words)}. " if words else ""
