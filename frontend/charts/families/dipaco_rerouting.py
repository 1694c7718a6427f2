"""DiPaCo: perplexity by rerouting interval, and the path of each chunk of a document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import between, either, haloed, tips
from tokenpaths.frontend.charts.drawing.ink import ink_encoding, ink_fields, path_ink, with_neutral_legend
from tokenpaths.frontend.charts.drawing.palette import Theme, ink_on, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows
from tokenpaths.frontend.charts.families.dipaco_tree_layout import modules_of, path_name

BESIDE = {
    "dense": "dense path",
    "flat": "flat mixture",
    "kmeans": "k-means",
    "product": "product k-means",
    "discriminative": "discriminative",
    "dipaco-2x2": "DiPaCo 2×2",
    "dipaco-4x4": "DiPaCo 4×4",
}
"""models that a checkpoint's validation may list next to its own → display names"""


def perplexity_of(value: Any) -> float | None:
    """A perplexity given as a number or as {"perplexity": …}; None for anything else."""
    if isinstance(value, Mapping):
        value = value.get("perplexity")
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if usable else None


def rerouting_rows(validation: Mapping[str, Any], own: str = "") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Perplexity by W (None: once per document, first), and that of the models in ``beside`` except ``own``.

    Both are empty if nothing was measured; invalid values are left out.
    """
    intervals, beside = validation.get("rerouting"), validation.get("beside")
    by_w = [
        {
            "W": int(row["every"]) if row.get("every") else None,
            "perplexity": perplexity_of(row),
            "switched": row.get("switched"),
            "paths_per_document": row.get("paths_per_sequence"),
        }
        for row in (intervals if isinstance(intervals, list) else [])
        if isinstance(row, Mapping) and perplexity_of(row) is not None
    ]
    if not by_w and perplexity_of(validation) is not None:
        by_w = [{"W": None, "perplexity": perplexity_of(validation), "switched": None, "paths_per_document": 1}]
    by_w.sort(key=lambda row: -(row["W"] or math.inf))
    others = beside if isinstance(beside, Mapping) else {}
    baselines = [
        {"model": name, "perplexity": perplexity_of(others.get(key))}
        for key, name in BESIDE.items()
        if key != own and perplexity_of(others.get(key)) is not None
    ]
    return by_w, sorted(baselines, key=lambda row: row["perplexity"])


@redrawable
def rerouting_chart(
    by_w: Sequence[Mapping[str, Any]],
    baselines: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "Does it help to choose the path again along the way?",
    height: int = 270,
) -> alt.LayerChart:
    """Perplexity (lower is better) by rerouting interval, with baselines as labelled rules."""
    look = theme_named(theme)
    often = [_often(row["W"]) for row in by_w] or [_often(None)]
    values = [row["perplexity"] for row in (*by_w, *baselines)]
    words = numbers.apart(values)
    points = [
        {
            "often": _often(r["W"]),
            "perplexity": r["perplexity"],
            "words": summary,
            "chosen": _often(r["W"]).replace("|", " "),
        }
        for r, summary in zip(by_w, words, strict=False)
    ]
    lines = [
        {**row, "words": f"{row['model']} {summary}"}
        for row, summary in zip(baselines, words[len(by_w) :], strict=True)
    ]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = max(1e-6, 0.12 * (high - low)) if high > low else max(0.1, 0.05 * high)
    scale = between(low - room, high + room)
    _spread(lines, (high - low + 2 * room) / height * 15)
    y = alt.Y("perplexity:Q", scale=scale, axis=alt.Axis(title="perplexity (lower is better)", tickCount=5))
    x = alt.X(
        "often:O",
        sort=often,
        scale=alt.Scale(domain=often, paddingOuter=0.3),
        axis=alt.Axis(
            title="path chosen anew", labelAngle=0, labelLimit=80, grid=False, labelExpr="split(datum.label, '|')"
        ),
    )
    base = alt.Chart(rows(points)).encode(x=x, y=y, tooltip=tips("chosen:N path chosen", "words:N perplexity"))
    rules = (
        alt.Chart(rows(lines))
        .mark_rule(color=look.identity, strokeDash=[5, 3], strokeWidth=1.5)
        .encode(y=y, tooltip=tips("model:N", "perplexity:Q|.4~g"))
    )
    named = alt.Chart(rows(lines)).encode(
        x=alt.value(alt.ExprRef("width - 4")), y=alt.Y("at:Q", scale=scale), text="words:N"
    )
    font: dict[str, Any] = {"align": "right", "baseline": "bottom", "fontSize": look.font_size}
    layers = [
        rules,
        *haloed(named, look, look.muted, 3, **font),
        base.mark_line(color=look.ink, strokeWidth=2.2),
        base.mark_point(filled=True, size=75, color=look.ink, opacity=1),
        base.mark_text(dy=16, fontSize=look.font_size, fontWeight=600, color=look.ink).encode(text="words:N"),
    ]
    summary = "Perplexity: " + "; ".join(f"path chosen {row['chosen']}, {row['words']}" for row in points) + "."
    subtitle = "Line: this model. Dashed: models that choose once, or not at all."
    return finish(alt.layer(*layers), look, title, subtitle, height=height, summary=summary if points else "")


def _often(w: int | None) -> str:
    return "once per|document" if w is None else f"every {w}|tokens"


def _spread(lines: list[dict[str, Any]], least: float) -> None:
    """Label positions of the rules, ascending and at least ``least`` apart, so that labels do not overlap."""
    at = -math.inf
    for line in sorted(lines, key=lambda row: row["perplexity"]):
        at = max(line["perplexity"], at + least)
        line["at"] = at


@dataclass(frozen=True)
class Chunk:
    """A segment of a document between two router decisions."""

    first: int
    """tokens first … end−1"""
    end: int
    rank: int | None
    """of its path in the run; None if no token of the run takes it"""
    path: Mapping[str, Any]
    """the row of its path, for its ink: ``cdf``, ``cdf_middle``, ``path_tokens``"""
    modules: tuple[int, ...]
    loss: float | None
    """mean over the tokens with a target, nats"""


def decisions(num_tokens: int, prefix: int, every: int | None, context: int) -> list[int]:
    """First token of each segment with one router decision, with the router's own arithmetic, window by window.

    Position t predicts token t+1 and belongs to decision max(0, t + 1 − prefix) // W of its window.
    """
    starts = []
    for window in range(0, num_tokens, context):
        starts.append(window)
        if every:
            inside = range(prefix + every - 1, min(context, num_tokens - window), every)
            starts += [window + position for position in inside]
    return starts


def chunks(tokens: Sequence[Mapping[str, Any]], starts: Iterable[int] = ()) -> list[Chunk]:
    """Split a document at each router decision and wherever the path changes."""
    cuts, groups = set(starts), list[list[Mapping[str, Any]]]()
    for token in tokens:
        if not groups or token["token"] in cuts or modules_of(token) != modules_of(groups[-1][-1]):
            groups.append([])
        groups[-1].append(token)
    result = []
    for part in groups:
        losses = [token["loss"] for token in part if token.get("loss") is not None]
        result.append(
            Chunk(
                part[0]["token"],
                part[-1]["token"] + 1,
                part[0]["rank"],
                {name: part[0][name] for name in ("cdf", "cdf_middle", "path_tokens")},
                modules_of(part[0]),
                sum(losses) / len(losses) if losses else None,
            )
        )
    return result


def chunk_rows(parts: Sequence[Chunk]) -> list[dict[str, Any]]:
    """Table of the strip's chunks."""
    return [
        {
            "first token": part.first,
            "last token": part.end - 1,
            "path": path_name(part.modules),
            "rank": part.rank,
            "CDF": part.path["cdf"],
            "mean loss (nats)": part.loss,
        }
        for part in parts
    ]


@redrawable(numbers=chunk_rows)
def strip_chart(
    parts: Sequence[Chunk],
    *,
    theme: str | Theme = "light",
    title: str | None = "Which path reads which part of the document?",
    height: int = 46,
) -> alt.LayerChart:
    """A document as a strip of chunks, coloured and labelled by path."""
    look = theme_named(theme)
    length = parts[-1].end if parts else 1
    table = [
        {
            "first": part.first,
            "end": part.end,
            "name": path_name(part.modules),
            **ink_fields(part.path),
            "rank": part.rank,
            "middle": (part.first + part.end) / 2,
            "ink": ink_on(path_ink(part.path, look).colour),
            "words": f"{part.first:,} … {part.end - 1:,}",
            "loss": numbers.number(part.loss),
            "y": 0,
            "y2": 1,
            "share": (part.end - part.first) / length,
        }
        for part in parts
    ]
    scale = between(0, length)
    x = alt.X("first:Q", scale=scale, axis=alt.Axis(title="token", format="~s", tickCount=8, grid=False))
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, 1]), axis=None)
    tooltip = tips("name:N path", "words:N tokens", "rank:Q", "loss:N mean loss (nats)")
    base = alt.Chart(rows(table))
    cells = base.mark_rect(stroke=look.background, strokeWidth=1.5).encode(
        x=x, x2="end:Q", y=y, y2="y2:Q", color=ink_encoding(alt.Color, look), tooltip=tooltip
    )
    longest = max((len(str(row["name"])) for row in table), default=1)
    roomy = f"datum.share * width > {7 * longest + 3}"  # leave out a label that does not fit its chunk
    names = base.mark_text(fontSize=look.font_size, fontWeight=600, baseline="middle").encode(
        x=alt.X("middle:Q", scale=scale),
        y=alt.value(height / 2),
        text="name:N",
        color=alt.Color("ink:N", scale=None),
        tooltip=tooltip,
        opacity=either(roomy, 1, 0),
    )
    chart = with_neutral_legend(alt.layer(cells, names).resolve_scale(color="independent"), table, look)
    words = "One piece: the tokens between two decisions of the router."
    summary = f"{numbers.plural(len(table), 'piece')}, {numbers.plural(len({row['name'] for row in table}), 'path')}."
    return finish(chart, look, title, words, height=height, summary=summary)
