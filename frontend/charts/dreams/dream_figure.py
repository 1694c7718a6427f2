"""The figure of a dream: the original beside its dreams, a row for each way that they were made. Pure.

Source of its layout: figures 4, 5 and 14 of Distributed Neural Architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers

WITH = ", with its pixels"


@dataclass(frozen=True)
class Cell:
    """One picture: what it is called, what the model sees in it, how much of the path it takes."""

    name: str
    item: Mapping[str, Any]
    lines: tuple[str, ...]


def cell_of(name: str, item: Mapping[str, Any]) -> Cell:
    """The words below a picture."""
    lines = []
    if item.get("top"):
        lines.append(f"{item['top'][0][0]}, {numbers.percent(item['top'][0][1])}")
    if item.get("matched_choices") is not None:
        lines.append(f"{numbers.percent(item['matched_choices'])} match")
    return Cell(name, item, tuple(lines))


def figure_rows(result: Mapping[str, Any]) -> tuple[Cell | None, dict[str, list[Cell]]]:
    """(the original, rows by their heading): context pairs make two rows whose columns are the same S."""
    original = result.get("original")
    first = cell_of("original", original) if original and original.get("image") else None
    dreams = result.get("dreams") or []
    found: dict[str, list[Cell]] = {}
    pairs = len({bool(dream.get("context")) for dream in dreams}) > 1
    for dream in dreams:
        row = ""
        if pairs:
            row = "the group keeps its original pixels" if dream.get("context") else "nothing of the original is kept"
        name = dream["name"].removesuffix(WITH) if pairs else dream["name"]
        found.setdefault(row, []).append(cell_of(name, dream))
    return first, found


def figure_html(result: Mapping[str, Any], urls: Mapping[str, str]) -> str:
    """The figure as HTML; ``urls`` gives each picture's name its address inside the page.

    Rows of pairs keep their columns, and a narrow page scrolls them; a single row breaks into lines.
    """
    original, found = figure_rows(result)
    together = len(found) > 1
    columns = max((len(row) for row in found.values()), default=0) + (original is not None)
    tracks = "repeat(auto-fill, minmax(min(132px, 44%), 150px))"
    if together:
        tracks = f"repeat({columns}, minmax(92px, 150px))"
    style = f"display:grid;grid-template-columns:{tracks};gap:6px 10px;overflow-x:auto;padding:2px 2px 8px"
    label = "the original and its dreams"
    parts = [f'<div class="tp-dream" tabindex="0" role="group" aria-label="{label}" style="{style}">']
    if original is not None:
        place = f"grid-column:1;grid-row:1 / span {2 * len(found)};align-self:start;padding-top:1.6rem"
        parts.append(_picture(original, urls, place if together else ""))
    for number, (heading, cells) in enumerate(found.items()):
        first = 2 if original is not None else 1
        if together:
            where = f"grid-column:{first} / -1;grid-row:{2 * number + 1};font-size:.85rem;font-weight:600"
            parts.append(f'<div style="{where}">{escape(heading[:1].upper() + heading[1:])}</div>')
        for place, cell in enumerate(cells):
            where = f"grid-column:{first + place};grid-row:{2 * number + 2}" if together else ""
            parts.append(_picture(cell, urls, where, heading))
    return "".join([*parts, "</div>"])


def words_of(cell: Cell, heading: str = "") -> str:
    """A picture in words, for those who do not see it."""
    return f"{', '.join(filter(None, [cell.name, heading]))}: {'; '.join(cell.lines)}".removesuffix(": ")


def _picture(cell: Cell, urls: Mapping[str, str], where: str, heading: str = "") -> str:
    lines = "".join(f"<br>{escape(line)}" for line in cell.lines)
    return (
        f'<figure style="margin:0;{where}"><img src="{escape(urls[cell.item["image"]])}" '
        f'alt="{escape(words_of(cell, heading))}" style="width:100%;display:block;image-rendering:pixelated">'
        f'<figcaption style="font-size:.8rem;line-height:1.3;padding:2px 0 4px"><b>{escape(cell.name)}</b>{lines}'
        "</figcaption></figure>"
    )
