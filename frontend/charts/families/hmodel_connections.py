"""H-Model: the connection graph unrolled over iterations, and distances between labels.

After figure 4 of the H-Model paper. A response of ``/edges`` has the axes iteration (0 = the inputs send), source
(hidden layers, then inputs) and target (hidden layers, then outputs). Only possible connections are drawn: inputs send
once, hidden layers from iteration 1 on, and in the last iteration only outputs receive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, between, either, tips
from tokenpaths.frontend.charts.drawing.palette import (
    SHARE_FLOOR,
    Theme,
    diverging_scale,
    neutral_scale,
    scale_end,
    theme_named,
)
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, highest, hover_selection, rows

TITLE = "Which layers talk to each other?"
LEAST = 0.02
"""weaker connections are counted but not drawn"""


def connection_rows(answer: Mapping[str, Any], minus: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One row per possible connection: iteration, from, to, c; with ``minus`` also its c and the difference."""
    iterations, sources, targets = (axis["names"] for axis in answer["axes"])
    hidden = sum(1 for name in sources if name in targets)
    plain = hidden in (len(sources), len(targets))  # no name marks an input or output: every connection is possible
    table = []
    for i, iteration in enumerate(iterations):
        for s, source in enumerate(sources):
            for t, target in enumerate(targets):
                c = answer["values"][i][s][t]
                open_ = (s >= hidden) if i == 0 else (s < hidden and (i < len(iterations) - 1 or t >= hidden))
                if not (open_ or plain) or c is None:
                    continue
                row = {"iteration": iteration, "from": source, "to": target, "c": float(c)}
                if minus is not None:
                    row["other"] = float(minus["values"][i][s][t] or 0.0)
                    row["difference"] = row["c"] - row["other"]
                table.append(row)
    return table


@redrawable(numbers=connection_rows)
def graph_chart(
    answer: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = TITLE,
    minus: Mapping[str, Any] | None = None,
    most: float | None = None,
    compact: bool = False,
) -> alt.LayerChart:
    """Graph of a response of ``/edges``: columns are iterations, rows layers, line width and opacity = c.

    Args:
        minus: Another response; lines are then as wide as the stronger c and coloured by the difference.
        most: Difference at both ends of the colour scale, so that several charts share one scale.
        compact: For small multiples: smaller, row and column names abbreviated to their first letters.
    """
    look = theme_named(theme)
    place = _Places(answer, 27 if compact else 46)
    table = connection_rows(answer, minus)
    drawn = [row for row in table if _strength(row) >= LEAST]
    x = alt.X("x:Q", scale=between(*place.domain), axis=_columns(place, compact))
    y = alt.Y("y:Q", scale=between(place.height, 0), axis=_rows(place, compact))
    if minus is not None and most is None:
        most = scale_end((row["difference"] for row in table), SHARE_FLOOR)
    layers = [
        _collected(place, look, x, y),
        _lines(drawn, place, look, x, y, most, compact),
        _circles(table, place, look, x, y, compact, hover=most is None),
    ]
    width = "width and opacity: strength c of the connection" if minus is None else "width: the stronger of the two c"
    words = [f"Columns: iterations. Rows: layers. Line {width}, 0 to 1. Hollow: nothing reached the layer."]
    summary = highest(
        table,
        "c",
        lambda row: f"{row['from']} to {row['to']} at iteration {row['iteration']}, {numbers.number(row['c'])}",
    )
    return finish(alt.layer(*layers), look, title, words + hidden_words(table), height=place.height, summary=summary)


def hidden_words(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line with the number of connections too weak to be drawn; empty if there are none."""
    weak = sum(1 for row in table if _strength(row) < LEAST)
    if not weak:
        return []
    return [f"Not drawn: {numbers.plural(weak, 'connection')} weaker than {LEAST:g}."]


def _strength(row: Mapping[str, Any]) -> float:
    """c, or the larger of both: a connection that only the other has is a difference too."""
    return max(row["c"], row.get("other", 0.0))


def distance_rows(separation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the distance heat map."""
    labels = list(separation["labels"])
    return [
        {
            "one": first,
            "other": second,
            "distance": separation["matrix"][i][j],
            "words": numbers.number(separation["matrix"][i][j], 2),
        }
        for i, first in enumerate(labels)
        for j, second in enumerate(labels)
    ]


@redrawable(numbers=distance_rows)
def distance_chart(
    separation: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "How far apart are the connections of two labels?",
) -> alt.LayerChart:
    """Heat map of the mean distance between inputs of two labels; the diagonal is within a label."""
    look = theme_named(theme)
    labels, matrix = list(separation["labels"]), separation["matrix"]
    table = distance_rows(separation)
    values = [row["distance"] for row in table if row["distance"] is not None] or [0.0]
    low, high = min(values), max(values)
    x = alt.X("one:N", sort=labels, axis=bare_axis(None, orient="top", labelAngle=-35))
    y = alt.Y("other:N", sort=labels, axis=bare_axis(None, labelLimit=110))
    scale = neutral_scale(high or 1, look, end=look.module, nice=False)
    base = alt.Chart(rows(table)).encode(x=x, y=y)
    cells = base.mark_rect(stroke=look.grid, strokeWidth=0.7).encode(
        color=alt.Color("distance:Q", scale=scale, legend=None),
        tooltip=tips("one:N", "other:N", "words:N mean distance"),
    )
    strong = 0.55 * (high or 1)
    words = base.mark_text(fontSize=look.font_size - 1).encode(
        text="words:N", color=either(f"datum.distance > {strong:.6g}", look.background, look.ink)
    )
    words_below = f"Mean distance of c between two inputs, from {numbers.number(low)} to {numbers.number(high)} (0–1)."
    return finish(alt.layer(cells, words), look, title, words_below, height=32 * max(2, len(matrix)))


@dataclass(frozen=True)
class LabelDistance:
    """A label and how far its mean connections are."""

    label: str
    distance: float


def label_distances(own: Mapping[str, Any], means: Mapping[str, Mapping[str, Any]]) -> list[LabelDistance]:
    """Labels by the distance of their mean connections from those of one input, the nearest first.

    Args:
        own: Response of ``/edges`` for a sample.
        means: Responses of ``/edges`` by label, of a run of the same model.
    """
    found = []
    for label, mean in means.items():
        apart = [row["difference"] ** 2 for row in connection_rows(own, mean)]
        found.append(LabelDistance(label, math.sqrt(sum(apart) / len(apart)) if apart else 0.0))
    return sorted(found, key=lambda row: row.distance)


def separation_words(separation: Mapping[str, Any], what: str = "label") -> str:
    """The ratio of between- to within-label distance as a sentence, compared with its permutation null."""
    if separation.get("ratio") is None:
        return f"Inputs of one {what} all have the same connections, so their distance has no scale to compare with."
    p = separation.get("p_value")
    verdict = "" if p is not None and p <= 0.05 and separation["ratio"] > 1 else " That is not surely more than chance."
    if p is None:
        verdict = " Whether that is more than chance is not known."
    return (
        f"Connections of two inputs of different {what}s are {numbers.number(separation['ratio'])} times as far apart "
        f"as those of two inputs of one {what} (mean distance {numbers.number(separation['between'])} against "
        f"{numbers.number(separation['within'])}). With the {what}s shuffled it is "
        f"{numbers.number(separation['null_mean'])} ± {numbers.number(separation['null_std'], 2)} "
        f"times ({numbers.p_words(separation.get('p_value'), separation.get('shuffles'))}).{verdict}"
    )


def nearest_words(accuracy: float, what: str, count: int) -> str:
    """Accuracy of predicting the label from the connections alone."""
    return (
        f"From its connections alone {numbers.percent(accuracy)} of inputs are nearest to the mean of their own "
        f"{what}; guessing among {count} would be right {numbers.percent(1 / count)} of the time."
    )


def stability_words(stability: float) -> str:
    """How much c varies between inputs."""
    return (
        f"Stability {numbers.number(stability)}: 1 means that every input gets exactly the same connections, 0.75 that "
        "they change as much as they can."
    )


def self_share_words(share: float, num_targets: int) -> str:
    """How much layers send to themselves, compared with equal connections."""
    own, even = numbers.percent(share), numbers.percent(1 / num_targets)
    than = "as much as" if own == even else "more than" if share > 1 / num_targets else "less than"
    return (
        f"Of all that hidden layers send, {own} goes back to the same layer, {than} the {even} that it would be if all "
        "connections were equal."
    )


class _Places:
    """Positions of layers: a row for each input, hidden layer and output, a column for each iteration."""

    def __init__(self, answer: Mapping[str, Any], gap: int) -> None:
        self.iterations, sources, targets = (list(axis["names"]) for axis in answer["axes"])
        inputs = [name for name in sources if name not in targets]
        self.outputs = [name for name in targets if name not in sources]
        self.hidden = [name for name in sources if name in targets]
        names = [*inputs, *self.hidden, *self.outputs]
        self.y = {name: gap * (place + 0.5) for place, name in enumerate(names)}
        self.last = len(self.iterations)
        self.height = gap * max(1, len(names))
        self.domain = [-0.22, self.last + 0.22]
        self.column = {name: place for place, name in enumerate(self.iterations)}


def _columns(place: _Places, compact: bool) -> alt.Axis:
    names = {0: "in"} | {column: str(column) for column in range(1, place.last)} | {place.last: "out"}
    words = " : ".join(f"datum.value === {column} ? '{name}'" for column, name in names.items()) + " : ''"
    return bare_axis(
        None if compact else "iteration",
        orient="top",
        values=list(names),
        labelExpr=words,
        grid=True,
        labelPadding=2,
        titlePadding=2,
        labelFlush=False,
    )


def _rows(place: _Places, compact: bool) -> alt.Axis:
    names = {round(y, 2): (short(name) if compact else name) for name, y in place.y.items()}
    words = " : ".join(f"datum.value === {y} ? '{_quoted(name)}'" for y, name in names.items()) + " : ''"
    return bare_axis(
        None, values=list(names), labelExpr=words, grid=False, labelLimit=64 if compact else 118, labelOverlap=False
    )


def short(name: str) -> str:
    """“transformer 3” → “T3”; “text input” → “text”; “next-token output” → “next”."""
    words = name.split()
    if words and words[-1].isdigit() and len(words) > 1:
        return words[0][:1].upper() + words[-1]
    return words[0].split("-")[0] if words else name


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")


def _collected(place: _Places, look: Theme, x: alt.X, y: alt.Y) -> alt.Chart:
    """Outputs accumulate what they receive: a dashed line from the first arrival to the end."""
    table = [{"x": 1, "x2": place.last, "y": place.y[name]} for name in place.outputs]
    dashes = alt.Chart(rows(table)).mark_rule(color=look.identity, strokeDash=[2, 3], strokeWidth=1.5)
    return dashes.encode(x=x, x2="x2:Q", y=y)


def _lines(
    drawn: Sequence[Mapping[str, Any]],
    place: _Places,
    look: Theme,
    x: alt.X,
    y: alt.Y,
    most: float | None,
    compact: bool,
) -> alt.Chart:
    table = []
    for row in drawn:
        column = place.column[row["iteration"]]
        line = {
            "x": column,
            "x2": column + 1,
            "y": place.y[row["from"]],
            "y2": place.y[row["to"]],
            "c": row["c"],
            "strength": _strength(row),
            "words": numbers.number(row["c"]),
            "source": f"{row['from']}, iteration {column}" if column else row["from"],
            "target": row["to"] if row["to"] in place.outputs else f"{row['to']}, iteration {column + 1}",
            "start": f"{column}|{row['from']}",
            "end": f"{column + 1}|{row['to']}",
        }
        if "difference" in row:
            line |= {
                "difference": row["difference"],
                "against": numbers.number(row["other"]),
                "more": _signed(row["difference"]),
            }
        table.append(line)
    tooltip = tips("source:N from", "target:N to", "words:N c")
    strength = alt.Scale(domain=[0, 1], range=[0, 6 if compact else 9], clamp=True)
    chart = alt.Chart(rows(sorted(table, key=lambda line: abs(line.get("difference", line["c"])))))
    chart = chart.mark_rule(strokeCap="butt").encode(
        x=x, x2="x2:Q", y=y, y2="y2:Q", strokeWidth=alt.StrokeWidth("strength:Q", scale=strength, legend=None)
    )
    if most is not None:
        scale = diverging_scale(max(most, SHARE_FLOOR), look, middle=look.grid)
        tooltip += tips("against:N c of the other", "more:N difference")
        return chart.encode(color=alt.Color("difference:Q", scale=scale, legend=None), tooltip=tooltip)
    over = "hover_layer.node && (hover_layer.node[0] === datum.start || hover_layer.node[0] === datum.end)"
    return chart.encode(
        color=either(over, look.accent, look.link),
        opacity=alt.Opacity("c:Q", scale=alt.Scale(domain=[0, 1], range=[0.04, 0.9], clamp=True), legend=None),
        tooltip=tooltip,
    )


def _circles(
    table: Sequence[Mapping[str, Any]], place: _Places, look: Theme, x: alt.X, y: alt.Y, compact: bool, hover: bool
) -> alt.Chart:
    """Layers at every iteration in which they run; hollow if nothing reached them."""
    got: dict[tuple[str, int], float] = {}
    sends: set[tuple[str, int]] = set()
    for row in (row for row in table if row["c"] >= LEAST):
        column = place.column[row["iteration"]]
        sends.add((row["from"], column))
        end = (row["to"], place.last if row["to"] in place.outputs else column + 1)
        got[end] = got.get(end, 0.0) + row["c"]
    stands = [(name, column) for name in place.hidden for column in range(1, place.last)]
    stands += [(name, 0) for name in place.y if name not in place.hidden and name not in place.outputs]
    stands += [(name, place.last) for name in place.outputs]
    circles = [
        {
            "node": f"{column}|{name}",
            "x": column,
            "y": place.y[name],
            "name": name,
            "when": "before the first iteration"
            if column == 0
            else "at the end"
            if column == place.last
            else f"iteration {column}",
            "got": numbers.number(got[name, column]) if (name, column) in got else "nothing",
            "on": (name, column) in got or (name, column) in sends,
        }
        for name, column in sorted({*stands, *sends})
    ]
    chart = alt.Chart(rows(circles)).mark_circle(
        size=60 if compact else 190, opacity=1, strokeWidth=1.5, stroke=look.module
    )
    chart = chart.encode(
        x=x,
        y=y,
        color=either("datum.on", look.module, look.background),
        tooltip=tips("name:N layer", "when:N when", "got:N sum of c that it receives"),
    )
    if not hover:
        return chart
    over = hover_selection("hover_layer", "node")
    return chart.add_params(over)


def _signed(value: float) -> str:
    """“+0.120”, “−0.0340”."""
    return ("−" if value < 0 else "+") + numbers.number(abs(value))
