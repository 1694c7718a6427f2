"""Directional Routing: what heads, gates and single directions are worth, from the artifacts of ``gates`` jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, shade, signed_ticks, tips
from tokenpaths.frontend.charts.drawing.palette import (
    NATS_FLOOR,
    Theme,
    diverging_scale,
    group_colours,
    scale_end,
    theme_named,
    with_floor,
)
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, highest, rows
from tokenpaths.frontend.charts.effects import answer_words

MOST_BARS = 12
"""directions with a bar of their own"""
WITHOUT = {"off": "routing off", "neutral": "every gate 0.5"}
CONDITIONS = WITHOUT | {"full": "every gate 1"}
"""short names of conditions; the others have their own"""


def head_rows(scan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per knocked-out head: rise of the loss, its interval, and whether it clearly differs from 0."""
    return [
        row | {"said": _with_interval(row), "told": "yes" if row["clear"] else "no"} for row in scan.get("heads") or ()
    ]


def head_words(scan: Mapping[str, Any]) -> str:
    """What the heat map shows, in a sentence."""
    heads = scan.get("heads") or []
    if not heads:
        return "No head has been knocked out yet."
    sure = [row for row in heads if row["clear"]]
    if not sure:
        return "No head clearly changes the loss"
    worst = max(sure, key=lambda row: row["rise"])
    way = "rises" if worst["rise"] > 0 else "falls"
    worst = worst if worst["rise"] > 0 else min(sure, key=lambda row: row["rise"])
    return (
        f"The loss {way} most without {_place(worst)}, by {numbers.number(abs(worst['rise']))} nats; {len(sure)} of "
        f"{numbers.plural(len(heads), 'head')} clearly change{'s' * (len(sure) == 1)} the loss"
    )


@redrawable(numbers=head_rows)
def head_chart(
    scan: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "Which heads does it need?"
) -> alt.LayerChart:
    """Heat map of the rise of the loss by layer and knocked-out head; a dot marks those that clearly differ from 0."""
    look, table = theme_named(theme), head_rows(scan)
    # Not to the noise of the widest interval: one noisy head would pale all others, and the dots say what is certain.
    most = scale_end((row["rise"] for row in table), NATS_FLOOR)
    x = alt.X("head:O", axis=bare_axis("head", orient="top", labelAngle=0))
    base = alt.Chart(rows(table)).encode(x=x, y=alt.Y("layer:O", axis=bare_axis("layer")))
    cells = base.mark_rect(stroke=look.grid, strokeWidth=0.7).encode(
        color=shade(
            "rise:Q",
            diverging_scale(most, look),
            "rise of loss (nats)",
            labelExpr=signed_ticks("+.2~f"),
            values=[-most, 0, most],
        ),
        tooltip=tips("layer:O", "head:O", "said:N rise of loss (nats)", "told:N clearly different from 0"),
    )
    dots = (
        alt.Chart(rows(row for row in table if row["clear"]))
        .mark_circle(size=46, opacity=1, color=look.background, stroke=look.ink, strokeWidth=1)
        .encode(x=x, y=alt.Y("layer:O"))
    )
    words = with_floor("Rose: the loss rises without this head; blue: it falls.", most, NATS_FLOOR, "nats")
    words += " Dot: clearly different from 0, all heads judged together."
    summary = highest(table, "rise", lambda row: f"{_place(row)}, {row['said']} nats")
    height = max(90, 30 * len({row["layer"] for row in table}))
    return finish(alt.layer(cells, dots), look, title, words, height=height, summary=summary)


def uniform_words(scan: Mapping[str, Any]) -> str:
    """Whether one value for all gates does as well as the trained routers, in a sentence."""
    uniform = scan.get("uniform") or []
    if not uniform:
        return "No value for all gates has been tried yet."
    best = min(uniform, key=lambda row: row["rise"])
    which = f"the best of {len(uniform)} values" if len(uniform) > 1 else "the only one that was tried"
    how = f"{which}, {best['value']:g},"
    if best["clear"] and best["rise"] > 0:
        return f"One value for all gates is worse than the routers: {how} costs {numbers.number(best['rise'])} nats"
    if best["clear"]:
        return f"One value for all gates beats the routers: {how} saves {numbers.number(-best['rise'])} nats"
    return f"One value for all gates may do as well as the routers: {how} does not clearly differ from them"


@redrawable(numbers=lambda scan: [row | {"as trained": scan["trained"]["loss"]} for row in scan["uniform"]])
def uniform_chart(
    scan: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "Would one value for all gates do?",
    height: int = 240,
) -> alt.LayerChart:
    """Line of the loss with every gate at one value, with the band of its interval; dashed: the trained model."""
    look, trained = theme_named(theme), scan["trained"]["loss"]
    table = [
        row
        | {
            "bottom": trained + (row["rise"] if row["low"] is None else row["low"]),
            "top": trained + (row["rise"] if row["high"] is None else row["high"]),
            "said": _with_interval(row),
            "was": numbers.number(row["loss"], 4),
        }
        for row in scan["uniform"]
    ]
    x = alt.X(
        "value:Q", axis=alt.Axis(title="every gate at", format=".1f", grid=False, values=[0, 0.2, 0.4, 0.6, 0.8, 1])
    )
    y = alt.Y("loss:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title="loss (nats)", tickCount=5))
    base = alt.Chart(rows(table)).encode(x=x)
    band = base.mark_area(color=look.link, opacity=0.3).encode(y=alt.Y("bottom:Q"), y2="top:Q")
    line = base.mark_line(color=look.module, strokeWidth=2, point=alt.OverlayMarkDef(size=34, color=look.module))
    drawn = line.encode(y=y, tooltip=tips("value:Q every gate", "was:N loss (nats)", "said:N above as trained (nats)"))
    rule = alt.Chart(rows([{"loss": trained, "words": "as trained"}]))
    flat = rule.mark_rule(color=look.muted, strokeDash=[5, 3], strokeWidth=1.5).encode(y=alt.Y("loss:Q"))
    name = rule.mark_text(align="right", dy=9, dx=-4, color=look.muted, fontSize=look.font_size).encode(
        y=alt.Y("loss:Q"), x=alt.value(alt.ExprRef("width")), text="words:N"
    )
    words = "Band: 95 % interval of the difference to the trained model. Dashed: as trained."
    summary = highest(table, "loss", lambda row: f"every gate {row['value']:g}, {row['was']} nats")
    return finish(alt.layer(band, flat, name, drawn), look, title, words, height=height, summary=summary)


def position_words(scan: Mapping[str, Any]) -> str:
    """Whether the gain over routing off falls or grows with position, in a sentence."""
    trend = (scan.get("trend") or {}).get("off")
    measured = [row["off"]["rise"] for row in scan.get("positions") or () if (row.get("off") or {}).get("rise")]
    if trend is None:
        if not measured:
            return "The gain by position has not been measured yet."
        return f"Routing is worth {numbers.number(measured[0])} nats at the first position; too few texts for a trend"
    early, late = trend["early"], trend["late"]
    ends = (
        f"routing is worth {numbers.number(early['rise'])} nats at {_group(early)} and "
        f"{numbers.number(late['rise'])} at {_group(late)}"
    )
    if trend["low"] > 0:
        return f"The gain falls with position: {ends}"
    if trend["high"] < 0:
        return f"The gain grows with position: {ends}"
    return f"The gain does not clearly change with position: {ends}"


def position_rows(scan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per group of positions and way of going without routing."""
    return [
        {
            "positions": _span(row),
            "against": words,
            "gain": row[name]["rise"],
            "low": row[name]["low"],
            "high": row[name]["high"],
            "said": _with_interval(row[name]),
            "loss as trained": row["loss"],
            "texts": row["num_texts"],
            "predictions": row["num_targets"],
        }
        for row in scan.get("positions") or ()
        for name, words in WITHOUT.items()
        if (row.get(name) or {}).get("rise") is not None
    ]


@redrawable(numbers=position_rows)
def position_chart(
    scan: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "Where in a text does routing help?",
    height: int = 240,
) -> alt.LayerChart:
    """Lines of the gain over routing off and over neutral gates by position in the window, with intervals."""
    look, table = theme_named(theme), position_rows(scan)
    names = [name for name in WITHOUT.values() if any(row["against"] == name for row in table)]
    order = list(dict.fromkeys(row["positions"] for row in table))
    shown = [row | {"low": row["low"] or row["gain"], "high": row["high"] or row["gain"]} for row in table]
    colour = alt.Color(
        "against:N",
        scale=alt.Scale(domain=names, range=group_colours(len(names), look)),
        legend=alt.Legend(
            title="compared with", orient="top", symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=2.5
        ),
    )
    axis = bare_axis("position in its window (tokens)", labelAngle=0, grid=False, labelOverlap=True)
    base = alt.Chart(rows(shown)).encode(x=alt.X("positions:O", sort=order, axis=axis), color=colour)
    y = alt.Y("gain:Q", axis=alt.Axis(title="gain of routing (nats)", tickCount=5))
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q"), y2="high:Q")
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=34)).encode(
        y=y,
        strokeDash=alt.StrokeDash("against:N", scale=alt.Scale(domain=names, range=[[1, 0], [6, 3]]), legend=None),
        tooltip=tips("positions:N position", "against:N compared with", "said:N gain (nats)", "texts:Q texts"),
    )
    zero = alt.Chart(rows([{"gain": 0}])).mark_rule(color=look.muted).encode(y=alt.Y("gain:Q"))
    words = "Up: the trained routers predict better. Band: 95 % interval over texts."
    summary = highest(table, "gain", lambda row: f"position {row['positions']} against {row['against']}, {row['said']}")
    return finish(alt.layer(band, zero, lines), look, title, words, height=height, summary=summary)


def direction_words(word: Mapping[str, Any]) -> str:
    """What the removals do to the logit of the word, in a sentence."""
    total, name = word["logit"]["removed"], f"“{answer_words(word['word'])}”"
    most = max(word["directions"], key=lambda row: row["logit"] if total >= 0 else -row["logit"])
    what = f"adds {numbers.number(total)} to" if total >= 0 else f"takes {numbers.number(-total)} from"
    one = ("+" if most["logit"] >= 0 else "−") + numbers.number(abs(most["logit"]))
    where = f"{_place(most)}, direction {most['direction']}"
    return f"What the gates remove {what} the logit of {name}; the largest part is {where} ({one})"


def direction_rows(word: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per direction, the largest part first."""
    return sorted((dict(row) for row in word["directions"]), key=lambda row: -abs(row["logit"]))


@redrawable(numbers=direction_rows)
def direction_chart(
    word: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "Which directions speak for the word?"
) -> alt.LayerChart:
    """Bars of what the removal of each direction adds to the word's logit: the largest, then all others together."""
    look, table = theme_named(theme), direction_rows(word)
    shown = [
        {
            "name": f"layer {row['layer']}, head {row['head']}, direction {row['direction']}",
            "logit": row["logit"],
            "gate": numbers.number(row["gate"]),
        }
        for row in table[:MOST_BARS]
    ]
    if rest := table[MOST_BARS:]:
        others = f"the other {len(rest)} together"
        shown.append({"name": others, "logit": sum(row["logit"] for row in rest), "gate": "–"})
    for row in shown:
        row |= {"said": _signed(row["logit"]), "zero": 0}
    most = scale_end((row["logit"] for row in shown), NATS_FLOOR)
    y = alt.Y("name:N", sort=[row["name"] for row in shown], axis=bare_axis(None, labelLimit=220))
    axis = alt.Axis(title="added to the logit by the removal", tickCount=5)
    bars = (
        alt.Chart(rows(shown))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X("logit:Q", axis=axis),
            x2="zero:Q",
            y=y,
            color=alt.Color("logit:Q", scale=diverging_scale(most, look, middle=look.identity), legend=None),
            tooltip=tips("name:N", "said:N added to the logit", "gate:N r"),
        )
    )
    zero = alt.Chart(rows([{"logit": 0}])).mark_rule(color=look.muted).encode(x=alt.X("logit:Q"))
    words = "Right: removing the direction raises the logit of the word; left: it lowers it."
    summary = highest(shown, "logit", lambda row: f"{row['name']}, {row['said']}")
    return finish(alt.layer(bars, zero), look, title, words, height=24 * len(shown) + 8, summary=summary)


def condition_rows(word: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per condition: probability and rank of the word, and the likeliest word there."""
    return [
        {
            "gates": CONDITIONS.get(row["name"], row["name"]),
            "probability": row["probability"],
            "rank of the word": row["rank"],
            "likeliest": answer_words(row["best"]),
            "its probability": row["best_probability"],
        }
        for row in word["conditions"]
    ]


def condition_words(word: Mapping[str, Any]) -> str:
    """Probability of the word as trained and with routing off, in a sentence."""
    chance = {row["name"]: numbers.percent(row["probability"]) for row in word["conditions"]}
    name = f"“{answer_words(word['word'])}”"
    return f"{name} has a probability of {chance['as trained']} as trained and of {chance['off']} with routing off"


@redrawable(numbers=condition_rows)
def condition_chart(
    word: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "How likely is the word without it?"
) -> alt.LayerChart:
    """Bars of the word's probability under each condition; the trained model's darker."""
    look, table = theme_named(theme), condition_rows(word)
    shown = [
        row
        | {
            "said": f"{numbers.percent(row['probability'])}, rank {numbers.count(row['rank of the word'])}",
            "own": place == 0,
        }
        for place, row in enumerate(table)
    ]
    most = max((row["probability"] for row in table), default=1.0) or 1.0
    y = alt.Y("gates:N", sort=[row["gates"] for row in shown], axis=bare_axis(None, labelLimit=120))
    # Room behind the longest bar for its words, where there are no shares to be read.
    options: dict[str, Any] = {"tickCount": 4} if most < 0.5 else {"values": [0, 0.25, 0.5, 0.75, 1]}
    axis = alt.Axis(title="probability of the word", format="~%", labelOverlap=True, **options)
    x = alt.X("probability:Q", scale=alt.Scale(domain=[0, 1.9 * most], nice=False), axis=axis)
    base = alt.Chart(rows(shown)).encode(y=y)
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=x,
        color=alt.condition("datum.own", alt.value(look.module), alt.value(look.link)),
        tooltip=tips("gates:N", "said:N probability", "likeliest:N likeliest word"),
    )
    names = base.mark_text(align="left", dx=5, color=look.ink, fontSize=look.font_size).encode(x=x, text="said:N")
    summary = highest(shown, "probability", lambda row: f"{row['gates']}, {row['said']}")
    words = "Rank 1: the likeliest of all words."
    return finish(alt.layer(bars, names), look, title, words, height=26 * len(shown) + 8, summary=summary)


def _place(row: Mapping[str, Any]) -> str:
    return f"layer {row['layer']}, head {row['head']}"


def _span(row: Mapping[str, Any]) -> str:
    return f"{row['first']}" if row["first"] == row["last"] else f"{row['first']}–{row['last']}"


def _group(row: Mapping[str, Any]) -> str:
    return f"position{'' if row['first'] == row['last'] else 's'} {_span(row)}"


def _signed(value: float) -> str:
    return ("−" if value < 0 else "+") + numbers.number(abs(value))


def _with_interval(row: Mapping[str, Any]) -> str:
    """“+0.120 (+0.100 to +0.140)”."""
    if row["low"] is None:
        return _signed(row["rise"])
    return f"{_signed(row['rise'])} ({_signed(row['low'])} to {_signed(row['high'])})"
