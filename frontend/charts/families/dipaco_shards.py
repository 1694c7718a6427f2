"""DiPaCo: documents through levels to paths, labels by path, and modules that paths share.

Paths are rows of an answer of ``/paths`` ({rank, ribbon, count, cdf, …}) with one module per level. ``by_label`` maps
each label to its rows; without labels it is {"": rows}.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, between, either, haloed, shade, tips
from tokenpaths.frontend.charts.drawing.ink import ink_encoding, ink_fields, with_neutral_legend
from tokenpaths.frontend.charts.drawing.palette import Theme, ink_on, neutral_scale, strong_neutral, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import axis_labels, finish, highest, hover_selection, rows
from tokenpaths.frontend.charts.families.dipaco_tree_layout import Bar, modules_of, path_name, tree_bars

TREE = "Which way do documents go?"
RANK_PICK = "rank"
MOST_PATHS = 40
MOST_LABELS = 12
MOST_OFF = 7.0
"""half a line: labels of a column that stand further off the middle of their bars are joined to them"""
Paths = list[dict[str, Any]]


def ways(labels: Sequence[Mapping[str, Any]], paths: Paths, paths_of: Callable[[str], Paths]) -> dict[str, Paths]:
    """Rows of paths for each label, the largest labels first, and one for the tokens of all that is left.

    Args:
        labels: Rows of ``labels`` of a run.
        paths: Rows of all documents.
        paths_of: Asks for the rows of one label.
    """
    sizes = [(-row["num_tokens"], row["label"]) for row in labels if row["label"] is not None]
    if not sizes:
        return {"all documents": paths}
    names = [label for _size, label in sorted(sizes)]
    shown = names if len(names) <= MOST_LABELS else names[: MOST_LABELS - 1]
    by_label = {label: paths_of(label) for label in shown}
    left = {path["rank"]: path["count"] for path in paths}
    for rows_of_label in by_label.values():
        for path in rows_of_label:
            if path["rank"] in left:
                left[path["rank"]] -= path["count"]
    if any(count > 0 for count in left.values()):
        others = [f"{len(names) - len(shown)} others"] * (len(names) > len(shown))
        others += ["no label"] * any(row["label"] is None for row in labels)
        by_label[", ".join(others) or "others"] = [
            {**path, "count": left[path["rank"]]} for path in paths if left[path["rank"]] > 0
        ]
    return by_label


def hidden_words(answer: Mapping[str, Any]) -> str:
    """How many of the paths of an answer of ``/paths`` are too rare to be drawn; empty if none is."""
    hidden = answer["num_paths"] - len(drawn := answer["paths"][:MOST_PATHS])
    if hidden <= 0:
        return ""
    share = (answer["num_tokens"] - sum(path["count"] for path in drawn)) / answer["num_tokens"]
    return f" Not drawn: {numbers.plural(hidden, 'rarer path')} with {numbers.percent(share)} of the tokens."


def busiest_words(answer: Mapping[str, Any]) -> str:
    """The path that most tokens take, and how many paths half of them take, of an answer of ``/paths``."""
    paths = sorted(answer["paths"], key=lambda path: (-path["share"], path["rank"]))
    name, share = path_name(modules_of(paths[0])), numbers.percent(paths[0]["share"])
    text = f"Path {name} takes {share} of the tokens"
    running = accumulate(path["share"] for path in paths)
    half = next((place for place, total in enumerate(running, 1) if total >= 0.5), 1)
    if half == 1:
        return f"{text}."
    return f"{text}; half of them go along {half} of {numbers.plural(answer['num_paths'], 'path')}."


def tree_rows(by_label: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Table of the bands."""
    _bars, bands = tree_bars(by_label)
    return [{key: band[key] for key in ("from", "to", "tokens", "share")} for band in bands]


def shard_rows(by_label: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Table of the bars: tokens of each label, module (level.module) and path."""
    bars, _bands = tree_bars(by_label)
    last = max((bar.column for bar in bars), default=1)
    total = sum(bar.tokens for bar in bars if bar.column == last) or 1.0
    return [
        {
            "what": "documents" if not bar.column else "path" if bar.column == last else f"level {bar.column - 1}",
            "name": bar.name,
            "tokens": bar.tokens,
            "share": bar.tokens / total,
        }
        for bar in bars
    ]


@redrawable(numbers=lambda by_label: {"bands": tree_rows(by_label), "bars": shard_rows(by_label)})
def tree_chart(
    by_label: Mapping[str, Sequence[Mapping[str, Any]]],
    inks: Mapping[tuple[int, ...], Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = TREE,
) -> alt.LayerChart:
    """Columns of bars joined by bands. Paths have their ink; ``inks`` are their rows of ``/paths`` by modules."""
    look = theme_named(theme)
    bars, bands = tree_bars(by_label)
    last = max((bar.column for bar in bars), default=1)
    largest = max((sum(bar.column == c for bar in bars) for c in range(last + 1)), default=1)
    height = float(min(760, max(260, 23 * largest)))
    heads = ["documents", *(f"level {level}" for level in range(last - 1)), "paths"]
    x = alt.X(
        "x:Q",
        scale=between(-0.08, last + 0.68),
        axis=bare_axis(
            None,
            orient="top",
            values=list(range(last + 1)),
            labelExpr=f"{heads}[datum.value]",
            grid=False,
            labelAlign="left",
            labelOffset=-8,
            labelFontWeight=600,
            labelOverlap=False,
            labelFlush=False,
        ),
    )
    y = alt.Y("y:Q", scale=between(1.0, 0.0), axis=None)
    layers = [_bands(bands, look, x, y), *_bars(bars, inks, last, look, x, y, height)]
    words = ["Height of a bar and width of a band: share of the tokens. A path’s bar is its shard."]
    ends = [vars(bar) for bar in bars if bar.column == last]
    summary = highest(ends, "tokens", lambda bar: f"path {bar['name']}, {numbers.plural(bar['tokens'], 'token')}")
    return finish(alt.layer(*layers), look, title, words, height=height, summary=summary)


def _bands(bands: Sequence[Mapping[str, Any]], look: Theme, x: alt.X, y: alt.Y) -> alt.Chart:
    table = [
        {
            "band": f"{b['from']}>{b['to']}",
            "x": b["column"] + 0.06 + 0.94 * at,
            "y": b[end],
            "y2": b[end] + b["width"],
            "source": b["source"],
            "target": b["target"],
            "tokens": numbers.count(b["tokens"]),
            "share": numbers.percent(b["share"]),
        }
        for b in bands
        for at, end in ((0.0, "y0"), (0.35, "y0"), (0.65, "y1"), (1.0, "y1"))
    ]
    hover = hover_selection("hover_band", "band")
    return (
        alt.Chart(rows(table))
        .mark_area(interpolate="basis", strokeWidth=0.4)
        .encode(
            x=x,
            y=y,
            y2="y2:Q",
            detail="band:N",
            color=either(hover, look.accent, look.link),
            opacity=either(hover, 0.75, 0.32),
            tooltip=tips("source:N from", "target:N to", "tokens:N", "share:N share of tokens"),
        )
        .add_params(hover)
    )


def _bars(
    bars: Sequence[Bar],
    inks: Mapping[tuple[int, ...], Mapping[str, Any]],
    last: int,
    look: Theme,
    x: alt.X,
    y: alt.Y,
    height: float,
) -> list[alt.Chart]:
    total = sum(bar.tokens for bar in bars if bar.column == last) or 1.0
    by_name = {path_name(modules): ink_fields(path) for modules, path in inks.items()}
    table = []
    for bar in bars:
        share = numbers.percent(bar.tokens / total, 2)
        shown = f"{bar.name}: {share}" if bar.column == last else bar.name
        table.append(
            {
                "x": bar.column,
                "x2": bar.column + 0.06,
                "y": bar.top,
                "y2": bar.bottom,
                "name": bar.name,
                "words": shown,
                "what": ["documents", "path"][bar.column == last] if bar.column in (0, last) else "module",
                "tokens": numbers.count(bar.tokens),
                "share": share,
                **(by_name[bar.name] if bar.column == last else {}),
                "path": bar.column == last,
            }
        )
    tooltip = tips("what:N", "name:N", "tokens:N", "share:N share of tokens")
    base = {"x": x, "x2": "x2:Q", "y": y, "y2": "y2:Q", "tooltip": tooltip}
    plain = alt.Chart(rows(row for row in table if not row["path"])).mark_rect(color=look.module).encode(**base)
    drawn = [row for row in table if row["path"]]
    paths = alt.Chart(rows(drawn)).mark_rect().encode(**base, color=ink_encoding(alt.Color, look))
    paths = with_neutral_legend(paths, drawn, look)
    return [plain, paths, *_bar_labels(bars, [row["words"] for row in table], look, x, y, height)]


def _bar_labels(
    bars: Sequence[Bar], words: Sequence[str], look: Theme, x: alt.X, y: alt.Y, height: float
) -> list[alt.Chart]:
    """A label beside each bar; in a column where some had to move, lines join labels and bars."""
    places = apart(bars, height)
    middles = [(bar.top + bar.bottom) / 2 for bar in bars]
    moved = {
        bar.column
        for bar, at, middle in zip(bars, places, middles, strict=True)
        if abs(at - middle) * height > MOST_OFF
    }
    written = [
        {"x": bar.column + (0.145 if bar.column in moved else 0.085), "y": at, "words": text}
        for bar, at, text in zip(bars, places, words, strict=True)
    ]
    corners = ((0.064, False), (0.078, False), (0.124, True), (0.138, True))
    leaders = [
        {"bar": bar.key, "x": bar.column + right, "y": at if end else middle, "place": place}
        for bar, at, middle in zip(bars, places, middles, strict=True)
        if bar.column in moved
        for place, (right, end) in enumerate(corners)
    ]
    text = alt.Chart(rows(written)).encode(x=x, y=y, text="words:N")
    font: dict[str, Any] = {"align": "left", "baseline": "middle", "fontSize": look.font_size, "limit": 110}
    layers = haloed(text, look, look.ink, 3, 0.75, **font)
    if not leaders:
        return layers
    line = alt.Chart(rows(leaders)).mark_line(color=look.muted, strokeWidth=1, aria=False)
    return [line.encode(x=x, y=y, detail="bar:N", order="place:Q"), *layers]


def apart(bars: Sequence[Bar], height: float, line: float = 13.5) -> list[float]:
    """Label positions of the bars: the middle of the bar, or as near as labels of a column that do not overlap can be.

    Neighbours that would overlap become a block, whose labels are moved by the same distance on average (pool adjacent
    violators): pushed up from the bottom only, a label stood beside a bar far above its own.
    """
    least, places = line / height, [0.0] * len(bars)
    for column in {bar.column for bar in bars}:
        members = [i for i, bar in enumerate(bars) if bar.column == column]
        blocks: list[tuple[float, int]] = []  # where the first label of a block would be without those above it; size
        for place, i in enumerate(members):
            at, size = (bars[i].top + bars[i].bottom) / 2 - place * least, 1
            while blocks and blocks[-1][0] > at:
                before, many = blocks.pop()
                at, size = (before * many + at * size) / (many + size), many + size
            blocks.append((at, size))
        last = 1 - least / 2 - (len(members) - 1) * least
        starts = [max(min(at, last), least / 2) for at, size in blocks for _ in range(size)]
        for place, (i, start) in enumerate(zip(members, starts, strict=True)):
            places[i] = start + place * least
    return places


def label_path_rows(
    by_label: Mapping[str, Sequence[Mapping[str, Any]]], paths: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """For each label and each of ``paths``: the share of the label's tokens that take it."""
    table = []
    for label, label_paths in by_label.items():
        total = sum(path["count"] for path in label_paths) or 1
        counts = {modules_of(path): path["count"] for path in label_paths}
        for path in paths:
            count = counts.get(modules_of(path), 0)
            table.append({"label": label, "path": path_name(modules_of(path)), "tokens": count, "share": count / total})
    return table


@redrawable
def label_path_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "Which labels take which path?",
) -> alt.LayerChart:
    """``label_path_rows`` as a heat map; a row sums to 100 %. Neutral scale: the CDF scale is for paths only."""
    look = theme_named(theme)
    names = list(dict.fromkeys(row["path"] for row in table))
    labels = list(dict.fromkeys(row["label"] for row in table))
    most = max((row["share"] for row in table), default=1) or 1
    full = strong_neutral(look)
    shown = [
        {
            **row,
            "words": f"{100 * row['share']:.0f}",
            "full": numbers.percent(row["share"]),
            "on": row["share"] > 0.5 * most,
        }
        for row in table
    ]
    x = alt.X(
        "path:O",
        sort=names,
        axis=bare_axis("path (module of each level)", orient="top", labelAngle=-90 if len(names) > 8 else 0),
    )
    y = alt.Y("label:N", sort=labels, axis=bare_axis(None, labelLimit=110))
    base = alt.Chart(rows(shown)).encode(
        x=x, y=y, tooltip=tips("label:N", "path:N", "full:N share of label’s tokens", "tokens:Q|,")
    )
    cells = base.mark_rect(stroke=look.background, strokeWidth=1.5).encode(
        color=shade("share:Q", neutral_scale(most, look), "share of the label’s tokens", format=".0%")
    )
    roomy = alt.ExprRef(f"width / {max(1, len(names))} > 23 ? 1 : 0")
    text = base.mark_text(fontSize=look.font_size, opacity=roomy).encode(
        text="words:N", color=either("datum.on", ink_on(full), look.ink)
    )
    chart = alt.layer(cells, text)
    summary = highest(shown, "share", lambda row: f"{row['full']} of {row['label']} take path {row['path']}")
    return finish(
        chart, look, title, "In per cent of the label’s tokens.", height=max(70, 30 * len(labels)), summary=summary
    )


def sharing_rows(paths: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each path and level: its module, and how many of these paths share that module."""
    users: dict[tuple[int, int], int] = defaultdict(int)
    for path in paths:
        for level, module in enumerate(modules_of(path)):
            users[level, module] += 1
    total = sum(path["count"] for path in paths) or 1
    return [
        {
            "rank": path["rank"],
            "path": path_name(modules_of(path)),
            "level": level,
            "module": module,
            "sharers": users[level, module] - 1,
            "tokens": path["count"],
            "share": path["count"] / total,
        }
        for path in paths
        for level, module in enumerate(modules_of(path))
    ]


@redrawable
def sharing_chart(
    table: Sequence[Mapping[str, Any]],
    levels: Sequence[int],
    *,
    theme: str | Theme = "light",
    title: str | None = "Which paths share which module?",
) -> alt.LayerChart:
    """Matrix path × module, modules grouped by level (``levels``: how many each has); dot area: tokens of the path.

    Hovering a dot highlights its column: all paths that train this module together.
    """
    look = theme_named(theme)
    first = [sum(levels[:level]) + level for level in range(len(levels))]  # empty column between levels
    names = list(dict.fromkeys(row["path"] for row in table))
    columns = {first[level] + m: str(m) for level, size in enumerate(levels) for m in range(size)}
    shown = [
        {
            **row,
            "x": first[row["level"]] + row["module"],
            "node": f"level {row['level']} module {row['module']}",
            "words": numbers.percent(row["share"]),
        }
        for row in table
    ]
    end = max(columns, default=0)
    x = alt.X(
        "x:Q",
        scale=between(-0.6, end + 0.6),
        axis=bare_axis(
            None, orient="top", values=list(columns), labelExpr=axis_labels(columns), grid=False, labelOverlap=False
        ),
    )
    y = alt.Y("path:N", sort=names, axis=bare_axis("path", grid=True, labelLimit=90))
    joins = (
        alt.Chart(rows(shown))
        .mark_line(color=look.link, opacity=0.5, strokeWidth=1.2)
        .encode(x=x, y=y, detail="path:N")
    )
    heads = [{"x": first[level] + (size - 1) / 2, "words": f"level {level}"} for level, size in enumerate(levels)]
    words = (
        alt.Chart(rows(heads))
        .mark_text(fontSize=look.font_size, fontWeight=600, color=look.ink)
        .encode(x=x, y=alt.value(-26), text="words:N")
    )
    chart = alt.layer(joins, _sharing_dots(shown, look).encode(x=x, y=y), words).resolve_scale(size="independent")
    subtitle = "One row: one path. Dots in one column share one module."
    summary = highest(shown, "tokens", lambda row: f"path {row['path']}, {row['words']} of the tokens")
    return finish(chart, look, title, subtitle, height=max(80, 24 * len(names)), summary=summary)


def _sharing_dots(table: Sequence[Mapping[str, Any]], look: Theme) -> alt.Chart:
    hover = hover_selection("hover_node", "node")
    most = max((row["tokens"] for row in table), default=1) or 1
    size = alt.Size("tokens:Q", scale=alt.Scale(domain=[0, most], range=[12, 260]), legend=None)
    return (
        alt.Chart(rows(table))
        .mark_circle(opacity=1)
        .encode(
            size=size,
            color=either(hover, look.accent, look.module),
            tooltip=tips(
                "path:N", "node:N uses", "sharers:Q other paths that share it", "words:N path’s share of tokens"
            ),
        )
        .add_params(hover)
    )
