"""Load of runs that were made of counts: experts × time of one layer, and each domain beside all tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, between, shade
from tokenpaths.frontend.charts.drawing.palette import DARKER, Theme, neutral_scale, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import MOST_VECTORS, as_vectors, finish, rows, tip
from tokenpaths.frontend.charts.usage import height_of, module_axis

TIME = "When is each expert busy?"
DOMAINS = "Which domains load which experts?"
_LISTS = ["expert", "y", "y2", "load", "utilisation", "tokens", "words"]
MOST_TICKS = 8
ALL = "all tokens"


def is_load_only(run: Mapping[str, Any]) -> bool:
    """Whether a run, or its card, holds counts and no tokens."""
    return run.get("kind") == "load"


def _utilisation(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count * len(counts) / total if total else 0.0 for count in counts]


def _columns(parts: Sequence[tuple[str, Sequence[int]]], modules: Sequence[int], named: bool) -> list[dict[str, Any]]:
    """A row for each part (its words, the counts of its experts) with a list for each of ``_LISTS``."""
    table = []
    for place, (what, counts) in enumerate(parts):
        loads = _utilisation(counts)
        row: dict[str, Any] = {"what": what, "x": place - 0.5, "x2": place + 0.5}
        row |= {"expert": list(modules), "y": list(range(len(modules))), "y2": list(range(1, len(modules) + 1))}
        row |= {"load": [round(load, 4) for load in loads], "utilisation": [numbers.number(load) for load in loads]}
        row["tokens"] = [numbers.count(count) for count in counts]
        if named:
            pairs = zip(modules, row["utilisation"], strict=True)
            row["words"] = [f"{what}: expert {expert}, {load} times a fair share" for expert, load in pairs]
        table.append(row)
    return table


def _heat_map(
    parts: Sequence[tuple[str, Sequence[int]]],
    modules: Sequence[int],
    look: Theme,
    labels: Sequence[str],
    across: str,
    title: str | None,
    summary: str,
) -> alt.LayerChart:
    """Utilisation of each expert (a row) in each part (a column, ``labels`` below)."""
    named = len(parts) * len(modules) <= MOST_VECTORS
    lists = _LISTS if named else _LISTS[:-1]
    table = _columns(parts, modules, named)
    height = height_of(len(modules))
    ticks = list(range(0, len(labels), max(1, -(-len(labels) // MOST_TICKS))))
    x = alt.X(
        "x:Q",
        scale=between(-0.5, len(parts) - 0.5),
        axis=bare_axis(across, grid=False, values=ticks, labelExpr=f"{list(labels)}[datum.value]", labelOverlap=True),
    )
    y = module_axis(modules, look, "expert")
    most = max((max(row["load"]) for row in table), default=1.0) or 1.0
    cells = (
        alt.Chart(rows(table, "cells"))
        .transform_flatten([*lists])
        .mark_rect(
            invalid="show", tooltip=tip({across: "what"} | {name: name for name in ("expert", "utilisation", "tokens")})
        )
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            color=shade("load:Q", neutral_scale(most, look, type="sqrt"), "utilisation (1 = fair share)", tickCount=4),
            **({"description": "words:N"} if named else {}),
        )
    )
    dead = [
        {"x": (len(parts) - 1) / 2, "y": place + 0.5, "words": f"expert {expert}: never chosen"}
        for place, expert in enumerate(modules)
        if not any(counts[place] for _, counts in parts)
    ]
    # With a layer of its own for its data: Altair would move the data of a single layer to the top, where the page
    # sends them as a table, which holds no lists.
    crosses = (
        alt.Chart(rows(dead, "dead"))
        .mark_text(text="× never", color=look.accent, fontSize=look.font_size - 1)
        .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), description="words:N")
    )
    words = [f"{DARKER}: more tokens than a fair share of that time or domain."]
    drawn = finish(alt.layer(cells, crosses), look, title, words, height=height, summary=summary)
    return as_vectors(drawn, len(parts) * len(modules))


def _cell_rows(
    parts: Sequence[tuple[Mapping[str, Any], Sequence[int]]], modules: Sequence[int]
) -> list[dict[str, Any]]:
    """One row per part (its columns, and the counts of its experts) and expert."""
    return [
        {**columns, "expert": expert, "tokens": count, "utilisation": load}
        for columns, counts in parts
        for expert, count, load in zip(modules, counts, _utilisation(counts), strict=True)
    ]


def time_rows(load: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the cells of a response of ``/load``."""
    parts = [({"first": one["first"], "last": one["last"]}, one["counts"]) for one in load["bins"]]
    return _cell_rows(parts, load["modules"])


def label_rows(load: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the cells of a response of ``/load/labels``."""
    parts = [({"label": row["label"]}, row["counts"]) for row in load["labels"]]
    return _cell_rows([*parts, ({"label": ALL}, load["all"])], load["modules"])


@redrawable(numbers=time_rows)
def load_time_chart(
    load: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TIME
) -> alt.LayerChart:
    """Heat map of a response of ``/load``: a column a time (or neighbouring times), a row an expert of one layer."""
    bins = load["bins"]
    parts = [(bin_words(one, load["axis"]), one["counts"]) for one in bins]
    labels = [f"{one['first']:,}" for one in bins]
    return _heat_map(
        parts, load["modules"], theme_named(theme), labels, str(load["axis"]), title, load_time_words(load)
    )


@redrawable(numbers=label_rows)
def label_load_chart(
    load: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = DOMAINS
) -> alt.LayerChart:
    """Heat map of a response of ``/load/labels``: a column a domain, the least usual first, and all tokens last."""
    parts = [(row["label"], row["counts"]) for row in load["labels"]] + [(ALL, load["all"])]
    labels = [name for name, _ in parts]
    return _heat_map(parts, load["modules"], theme_named(theme), labels, "domain", title, label_load_words(load))


def bin_words(one: Mapping[str, Any], axis: str | None) -> str:
    """The time of a bin: “iteration 100”, “iterations 100 to 190”."""
    if one["first"] == one["last"]:
        return f"{axis} {one['first']:,}"
    return f"{axis}s {one['first']:,} to {one['last']:,}"


def load_time_words(load: Mapping[str, Any]) -> str:
    """Which expert's share of the choices changed most between the first and the last time that counted anything."""
    bins = [one for one in load["bins"] if one["choices"]]
    if len(bins) < 2:
        return "Everything was counted at one time." if bins else "Nothing was counted."
    ends = [[count / one["choices"] for count in one["counts"]] for one in (bins[0], bins[-1])]
    place = max(range(len(load["modules"])), key=lambda at: abs(ends[1][at] - ends[0][at]))
    before, after = (numbers.percent(end[place]) for end in ends)
    if before == after:
        return f"No expert's share of the choices changed between {bin_words(bins[0], load['axis'])} and the end."
    way, first = "rose" if ends[1][place] > ends[0][place] else "fell", bin_words(bins[0], load["axis"])
    return (
        f"Expert {load['modules'][place]} {way} most: from {before} of the choices ({first}) "
        f"to {after} ({bin_words(bins[-1], load['axis'])})."
    )


def label_load_words(load: Mapping[str, Any]) -> str:
    """The domain whose load is the least like that of all tokens."""
    known = [row for row in load["labels"] if row["overlap"] is not None]
    if not known:
        return "No domain was counted."
    row = known[0]
    share = [count / row["choices"] for count in row["counts"]]
    every = [count / max(1, sum(load["all"])) for count in load["all"]]
    place = max(range(len(share)), key=lambda at: share[at] - every[at])
    if row["overlap"] >= 1 - 5e-4:
        return "Every domain loads the experts as all tokens do."
    return (
        f"“{row['label']}” is least like all tokens: {numbers.percent(1 - row['overlap'])} of its choices go to other "
        f"experts. Expert {load['modules'][place]} gets the most more: {numbers.percent(share[place])} of its choices, "
        f"where all tokens have {numbers.percent(every[place])}."
    )
