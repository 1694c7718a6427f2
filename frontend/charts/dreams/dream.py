"""Did the dream take the path, and what does the model see in it? Bars beside where it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows, titled

TITLE = "Does it take the paths?"
TOP_TITLE = "What does the model see in it?"


def match_rows(dreams: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a dream: shares of choices and of tokens that match, at the end and at the start."""
    return [
        {
            "dream": dream["name"],
            "choices": dream["matched_choices"],
            "tokens": dream["matched_tokens"],
            "choices at the start": dream["at_start"]["matched_choices"],
            "tokens at the start": dream["at_start"]["matched_tokens"],
            "objective": dream["objective"],
        }
        for dream in dreams
        if dream.get("matched_choices") is not None
    ]


def top_rows(dreams: Sequence[Mapping[str, Any]], original: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One row for each of the likeliest classes of each picture, the original first."""
    shown = [{"name": "original", "top": original["top"]}] if original else []
    return [
        {"picture": item["name"], "place": place, "class": name, "probability": share}
        for item in [*shown, *dreams]
        for place, (name, share) in enumerate(item.get("top") or [], 1)
    ]


@redrawable
def match_chart(
    dreams: Sequence[Mapping[str, Any]], *, theme: str | Theme = "light", title: str | None = TITLE
) -> alt.LayerChart:
    """A bar for the share of matched choices of each dream; a tick where the noise that it began as stood."""
    look = theme_named(theme)
    table = [
        row
        | {
            "is": numbers.percent(row["choices"]),
            "was": numbers.percent(row["choices at the start"]),
            "whole": numbers.percent(row["tokens"]),
        }
        for row in match_rows(dreams)
    ]
    names = [row["dream"] for row in table]
    tooltip = [
        alt.Tooltip("dream:N", title="dream"),
        alt.Tooltip("is:N", title="choices that match"),
        alt.Tooltip("was:N", title="at the start"),
        alt.Tooltip("whole:N", title="tokens of which all match"),
    ]
    y = alt.Y("dream:N", sort=names, axis=alt.Axis(title=None, labelLimit=170))
    axis = alt.Axis(title="share of the wanted choices", format="%", tickCount=5, grid=False)
    x = alt.X("choices:Q", axis=axis, scale=alt.Scale(domain=[0, 1]))
    bars = alt.Chart(rows(table)).mark_bar(color=look.module, height=12).encode(x=x, y=y, tooltip=tooltip)
    ticks = (
        alt.Chart(rows(table))
        .mark_tick(color=look.ink, thickness=2, size=16)
        .encode(x=alt.X("choices at the start:Q"), y=y, tooltip=tooltip)
    )
    chart = alt.layer(bars, ticks).properties(width="container", height=alt.Step(24))
    words = ["Bar: choices of the dream that are the original's.", "Tick: those of the noise that it began as."]
    return finish(titled(chart, look, title, words), look)


@redrawable
def top_chart(
    dreams: Sequence[Mapping[str, Any]],
    original: Mapping[str, Any] | None = None,
    *,
    theme: str | Theme = "light",
    title: str | None = TOP_TITLE,
) -> alt.Chart:
    """The five likeliest classes of each picture, side by side by their probability."""
    look = theme_named(theme)
    table = [row | {"is": numbers.percent(row["probability"])} for row in top_rows(dreams, original)]
    names = list(dict.fromkeys(row["picture"] for row in table))
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("picture:N", sort=names, axis=alt.Axis(title=None, labelLimit=170)),
        x=alt.X("place:O", axis=alt.Axis(title="place", orient="top", labelAngle=0)),
    )
    tiles = base.mark_rect(color=look.module).encode(
        opacity=alt.Opacity("probability:Q", scale=alt.Scale(domain=[0, 1], range=[0.04, 0.4]), legend=None),
        tooltip=[alt.Tooltip("picture:N"), alt.Tooltip("class:N"), alt.Tooltip("is:N", title="probability")],
    )
    words = (
        base.transform_calculate(line="[datum['class'], datum['is']]")
        .mark_text(color=look.ink, fontSize=10, lineBreak="\n", limit=110)
        .encode(text="line:N")
    )
    chart = alt.layer(tiles, words).properties(width="container", height=alt.Step(34))
    lines = ["Likeliest classes with their probability;", "the stronger the tile, the likelier."]
    return finish(titled(chart, look, title, lines), look)
