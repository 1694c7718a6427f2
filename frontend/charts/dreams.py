"""Charts and HTML figure of a finished dream: matched choices, likeliest classes, pictures beside their original.

The layout of the figure follows figures 4, 5 and 14 of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

MATCHES = {
    "choices": (
        "Does it take the paths?",
        "share of the wanted choices",
        "choices of the dream that are the original's",
    ),
    "path": ("Does it take the path?", "share of the wanted choices", "choices of the dream that are the path's"),
    "module": ("Does it take the module?", "share of the tokens", "tokens of the dream that take the module"),
}
"""``target.of`` of a dream that wants choices → title, axis, and what a bar is"""
TOP_TITLE = "What does the model see in it?"
WITH = ", with its pixels"


def match_rows(dreams: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per dream: shares of matched choices and tokens, at the end and at the start."""
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
    """One row per likely class and image, the original first."""
    shown = [{"name": "original", "top": original["top"]}] if original else []
    return [
        {"picture": item["name"], "place": place, "class": name, "probability": share}
        for item in [*shown, *dreams]
        for place, (name, share) in enumerate(item.get("top") or [], 1)
    ]


@redrawable(numbers=match_rows)
def match_chart(
    dreams: Sequence[Mapping[str, Any]], *, of: str = "choices", theme: str | Theme = "light", title: str | None = ""
) -> alt.LayerChart:
    """Bar chart of the share of matched choices of each dream; a tick marks the share of the initial noise.

    ``of``: what the dream was asked for, ``target.of`` of its request.
    """
    look = theme_named(theme)
    question, share, bar = MATCHES.get(of, MATCHES["choices"])
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
    tooltip = tips(
        "dream:N dream", "is:N choices that match", "was:N at the start", "whole:N tokens of which all match"
    )
    y = alt.Y("dream:N", sort=names, axis=alt.Axis(title=None, labelLimit=170))
    axis = alt.Axis(title=share, format="%", tickCount=5, grid=False)
    x = alt.X("choices:Q", axis=axis, scale=alt.Scale(domain=[0, 1]))
    bars = alt.Chart(rows(table)).mark_bar(color=look.module, height=12).encode(x=x, y=y, tooltip=tooltip)
    ticks = (
        alt.Chart(rows(table))
        .mark_tick(color=look.ink, thickness=2, size=16)
        .encode(x=alt.X("choices at the start:Q"), y=y, tooltip=tooltip)
    )
    words = [f"Bar: {bar}.", "Tick: those of the noise that it began as."]
    heading = question if title == "" else title
    return finish(alt.layer(bars, ticks), look, heading, words, height=alt.Step(24))


@redrawable(numbers=top_rows)
def top_chart(
    dreams: Sequence[Mapping[str, Any]],
    original: Mapping[str, Any] | None = None,
    *,
    theme: str | Theme = "light",
    title: str | None = TOP_TITLE,
) -> alt.Chart:
    """Bar chart of the five likeliest classes of each image, side by side."""
    look = theme_named(theme)
    table = [row | {"is": numbers.percent(row["probability"])} for row in top_rows(dreams, original)]
    names = list(dict.fromkeys(row["picture"] for row in table))
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("picture:N", sort=names, axis=alt.Axis(title=None, labelLimit=170)),
        x=alt.X("place:O", axis=alt.Axis(title="place", orient="top", labelAngle=0)),
    )
    tiles = base.mark_rect(color=look.module).encode(
        opacity=alt.Opacity("probability:Q", scale=alt.Scale(domain=[0, 1], range=[0.04, 0.4]), legend=None),
        tooltip=tips("picture:N", "class:N", "is:N probability"),
    )
    words = (
        base.transform_calculate(line="[datum['class'], datum['is']]")
        .mark_text(color=look.ink, fontSize=10, lineBreak="\n", limit=110)
        .encode(text="line:N")
    )
    lines = ["Likeliest classes with their probability;", "the stronger the tile, the likelier."]
    return finish(alt.layer(tiles, words), look, title, lines, height=alt.Step(34))


@dataclass(frozen=True)
class Cell:
    """One image with its name, the predicted class, and the share of the path that it matches."""

    name: str
    item: Mapping[str, Any]
    lines: tuple[str, ...]


def cell_of(name: str, item: Mapping[str, Any]) -> Cell:
    """The cell with the caption of an image."""
    lines = []
    if item.get("top"):
        lines.append(f"{item['top'][0][0]}, {numbers.percent(item['top'][0][1])}")
    if item.get("matched_choices") is not None:
        lines.append(f"{numbers.percent(item['matched_choices'])} match")
    return Cell(name, item, tuple(lines))


def figure_rows(result: Mapping[str, Any]) -> tuple[Cell | None, dict[str, list[Cell]]]:
    """(the original, rows by their heading): context pairs make two rows whose columns have the same S."""
    original = result.get("original")
    first = cell_of("original", original) if original and original.get("image") else None
    dreams = result.get("dreams") or []
    rows_by_heading: dict[str, list[Cell]] = {}
    pairs = len({bool(dream.get("context")) for dream in dreams}) > 1
    for dream in dreams:
        row = ""
        if pairs:
            row = "the group keeps its original pixels" if dream.get("context") else "nothing of the original is kept"
        name = dream["name"].removesuffix(WITH) if pairs else dream["name"]
        rows_by_heading.setdefault(row, []).append(cell_of(name, dream))
    return first, rows_by_heading


def figure_html(result: Mapping[str, Any], urls: Mapping[str, str]) -> str:
    """The figure as HTML; ``urls`` maps image names to their URLs inside the page.

    Rows of pairs keep their columns and scroll on a narrow page; a single row wraps.
    """
    original, rows_by_heading = figure_rows(result)
    together = len(rows_by_heading) > 1
    columns = max((len(row) for row in rows_by_heading.values()), default=0) + (original is not None)
    tracks = "repeat(auto-fill, minmax(min(132px, 44%), 150px))"
    if together:
        tracks = f"repeat({columns}, minmax(92px, 150px))"
    style = f"display:grid;grid-template-columns:{tracks};gap:6px 10px;overflow-x:auto;padding:2px 2px 8px"
    label = "the original and its dreams"
    parts = [f'<div class="tp-dream" tabindex="0" role="group" aria-label="{label}" style="{style}">']
    if original is not None:
        place = f"grid-column:1;grid-row:1 / span {2 * len(rows_by_heading)};align-self:start;padding-top:1.6rem"
        parts.append(_picture(original, urls, place if together else ""))
    for number, (heading, cells) in enumerate(rows_by_heading.items()):
        first = 2 if original is not None else 1
        if together:
            where = f"grid-column:{first} / -1;grid-row:{2 * number + 1};font-size:.85rem;font-weight:600"
            parts.append(f'<div style="{where}">{escape(numbers.capital(heading))}</div>')
        for column, cell in enumerate(cells, first):
            where = f"grid-column:{column};grid-row:{2 * number + 2}" if together else ""
            parts.append(_picture(cell, urls, where, heading))
    return "".join([*parts, "</div>"])


def words_of(cell: Cell, heading: str = "") -> str:
    """Alternative text of an image."""
    return f"{', '.join(filter(None, [cell.name, heading]))}: {'; '.join(cell.lines)}".removesuffix(": ")


def _picture(cell: Cell, urls: Mapping[str, str], where: str, heading: str = "") -> str:
    lines = "".join(f"<br>{escape(line)}" for line in cell.lines)
    return (
        f'<figure style="margin:0;{where}"><img src="{escape(urls[cell.item["image"]])}" '
        f'alt="{escape(words_of(cell, heading))}" style="width:100%;display:block;image-rendering:pixelated">'
        f'<figcaption style="font-size:.8rem;line-height:1.3;padding:2px 0 4px"><b>{escape(cell.name)}</b>{lines}'
        "</figcaption></figure>"
    )
