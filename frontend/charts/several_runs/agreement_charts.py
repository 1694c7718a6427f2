"""Agreement of two runs: which decisions about the same tokens are the same, by step, position, margin and label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

STEPS = "At which steps do they differ?"
TOGETHER = "How far do tokens go together?"
POSITIONS = "Where in a text do they differ?"
MARGINS = "Were the different decisions close ones?"
LABELS = "Which labels differ most?"
AXIS = "decisions with the same modules"
BARS = "Bars: 95 % intervals by sample."
MOST_LABELS = 30


def agreement_words(answer: Mapping[str, Any], names: tuple[str, str]) -> str:
    """How many decisions and tokens are the same in both."""
    overall = answer["overall"]
    told = f"{numbers.percent(overall['sets']['share'])} of the decisions are the same in {names[0]} and {names[1]}"
    if len(answer["steps"]) > 1:
        told += f", and {numbers.percent(overall['tokens']['share'])} of the tokens take the same modules at every step"
    if overall["chance"] is None:
        return f"{told}."
    chance = f"two runs with these loads that know nothing of each other share {numbers.percent(overall['chance'])}"
    if overall["overlap"]["mean"] == overall["sets"]["share"]:  # one module a decision
        return f"{told}; {chance}."
    return f"{told}. Of the modules of a decision {numbers.percent(overall['overlap']['mean'])} are shared; {chance}."


def interval_words(share: Mapping[str, Any]) -> str:
    """Both ends of the interval of a share."""
    if share["low"] is None:
        return "no interval"
    return f"{numbers.percent(share['low'])} to {numbers.percent(share['high'])}"


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the answer with its share spread out, and in words."""
    share = row["sets"]
    plain = {name: value for name, value in row.items() if name != "sets"}
    return plain | {
        "same": share["share"],
        "low": share["low"],
        "high": share["high"],
        "said": numbers.percent(share["share"]),
        "interval": interval_words(share),
        "num": numbers.count(row["decisions"]),
    }


def _table(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Without what is there to be read in the picture."""
    return [{name: value for name, value in row.items() if name not in ("said", "interval", "num")} for row in table]


def step_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the steps."""
    return _table([_flat(row) for row in answer["steps"] if row["sets"]])


def step_words(answer: Mapping[str, Any]) -> str:
    """The steps with least and most agreement."""
    known = [row for row in answer["steps"] if row["sets"]]
    least, most = (pick(known, key=lambda row: row["sets"]["share"]) for pick in (min, max))
    low, high = (numbers.percent(row["sets"]["share"]) for row in (least, most))
    if len(known) == 1 or low == high:
        return f"{low} of the decisions are the same at {'this step' if len(known) == 1 else 'every step'}."
    return f"At step {least['step']}, {low} of the decisions are the same; at step {most['step']}, {high}."


@redrawable(numbers=step_rows)
def agreement_steps_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = STEPS
) -> alt.LayerChart:
    """Share of the decisions that are the same at each step, of a response of ``/compare/agreement``."""
    look = theme_named(theme)
    table = [_flat(row) for row in answer["steps"] if row["sets"]]
    x = alt.X("step:O", axis=bare_axis("step", labelAngle=0, labelOverlap=True))
    return _shares(table, x, look, title, step_words(answer), "step:O")


def _shares(
    table: Sequence[Mapping[str, Any]], x: alt.X, look: Theme, title: str | None, words: str, told: str
) -> alt.LayerChart:
    """Shares as points with their intervals, in a row."""
    known = [row for row in table if row["low"] is not None]
    y = alt.Y("same:Q", scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(title=AXIS, tickCount=5, format="~%"))
    base = alt.Chart(rows(table)).encode(x=x)
    spans = alt.Chart(rows(known)).mark_rule(strokeWidth=2, color=look.link).encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    line = base.mark_line(color=look.link, strokeWidth=1.5, aria=False).encode(y=y)
    dots = base.mark_point(filled=True, size=60, opacity=1, color=look.ink).encode(
        y=y, tooltip=tips(told, "said:N the same", "interval:N 95 % interval", "num:N decisions")
    )
    subtitle = [words, BARS] if known else words
    return finish(alt.layer(spans, line, dots), look, title, subtitle, height=220)


def together_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the steps: tokens that took the same modules up to there."""
    left, num = answer["tokens"]["num"], answer["tokens"]["num"]
    table = []
    for row, leave in zip(answer["steps"], answer["tokens"]["first_different"], strict=True):
        left -= leave
        table.append({"step": row["step"], "together": left / num, "tokens": left, "leave": leave})
    return table


def together_words(answer: Mapping[str, Any]) -> str:
    """Until when half of the tokens go together, or how many do until the end."""
    table = together_rows(answer)
    end = f"{numbers.percent(table[-1]['together'])} of the tokens take the same modules at every step"
    half = next((row for row in table if row["together"] < 0.5), None)
    if half is None or half is table[-1]:
        return f"{end}."
    return f"After step {half['step']} fewer than half are still together; {end}."


@redrawable(numbers=together_rows)
def agreement_together_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TOGETHER
) -> alt.LayerChart:
    """Share of the tokens that took the same modules at all steps so far, of a response of ``/compare/agreement``."""
    look = theme_named(theme)
    table = [
        row
        | {
            "said": numbers.percent(row["together"]),
            "num": numbers.count(row["tokens"]),
            "new": numbers.count(row["leave"]),
        }
        for row in together_rows(answer)
    ]
    base = alt.Chart(rows(table)).encode(
        x=alt.X("step:O", axis=bare_axis("after step", labelAngle=0, labelOverlap=True)),
        y=alt.Y(
            "together:Q",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(title="tokens on the same path so far", tickCount=5, format="~%"),
        ),
    )
    tooltip = tips("step:O", "said:N still together", "num:N tokens", "new:N differ here first")
    bars = base.mark_bar(color=look.ink).encode(tooltip=tooltip)
    return finish(alt.layer(bars), look, title, together_words(answer), height=220)


def position_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the positions."""
    return _table(_positions(answer))


def _positions(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_flat(row) | {"at": _between(row["first"], row["last"])} for row in answer["positions"]]


def _between(first: int, last: int | None) -> str:
    if last is None:
        return f"{first:,}+"
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


def position_words(answer: Mapping[str, Any]) -> str:
    """Agreement at both ends of the texts."""
    first, last = answer["positions"][0], answer["positions"][-1]
    shares = [numbers.percent(row["sets"]["share"]) for row in (first, last)]
    if first is last:
        return f"At position {_between(first['first'], first['last'])}, {shares[0]} of the decisions are the same."
    return (
        f"At position {_between(first['first'], first['last'])}, {shares[0]} of the decisions are the same; at "
        f"{_between(last['first'], last['last'])}, {shares[1]}."
    )


@redrawable(numbers=position_rows)
def agreement_positions_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = POSITIONS
) -> alt.LayerChart:
    """Share of the decisions that are the same by position in the text, of a response of ``/compare/agreement``."""
    look = theme_named(theme)
    table = _positions(answer)
    order = [row["at"] for row in table]
    x = alt.X("at:O", sort=order, axis=bare_axis("position in the text", labelAngle=0, labelOverlap=True))
    return _shares(table, x, look, title, position_words(answer), "at:O position")


def margin_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the margins, and of all decisions how many there are the different ones."""
    apart = sum(row["decisions"] * (1 - row["sets"]) for row in answer["margins"])
    return [
        {
            "low": row["low"],
            "high": row["high"],
            "decisions": row["decisions"],
            "same": row["sets"],
            "different": row["decisions"] * (1 - row["sets"]) / apart if apart else 0.0,
        }
        for row in answer["margins"]
    ]


def margin_words(answer: Mapping[str, Any]) -> str:
    """Agreement of the closest and of the surest decisions."""
    table = margin_rows(answer)
    first, last = table[0], table[-1]
    told = f"Of the decisions with a margin below {first['high']:g}, {numbers.percent(first['same'])} are the same"
    if first is last:
        return f"{told}."
    return f"{told}; from {last['low']:g} on, {numbers.percent(last['same'])}."


@redrawable(numbers=margin_rows)
def agreement_margins_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = MARGINS
) -> alt.LayerChart:
    """Share of the decisions that are the same by their margin in the first run, of ``/compare/agreement``."""
    look = theme_named(theme)
    table = [
        row
        | {
            "margin": f"{row['low']:g}–{row['high']:g}",
            "said": numbers.percent(row["same"]),
            "part": numbers.percent(row["different"]),
            "num": numbers.count(row["decisions"]),
        }
        for row in margin_rows(answer)
    ]
    order = [row["margin"] for row in table]
    base = alt.Chart(rows(table)).encode(
        x=alt.X("margin:O", sort=order, axis=bare_axis("margin of the decision", labelAngle=0, labelOverlap=True)),
        y=alt.Y("same:Q", scale=alt.Scale(domain=[0, 1.08]), axis=bare_axis(AXIS, format="~%", values=[0, 0.5, 1])),
    )
    tooltip = tips("margin:N", "said:N the same", "part:N of all different decisions", "num:N decisions")
    bars = base.mark_bar(color=look.ink).encode(tooltip=tooltip)
    text = base.mark_text(dy=-7, color=look.ink, fontSize=look.font_size - 1).encode(text="said:N")
    return finish(alt.layer(bars, text), look, title, margin_words(answer), height=200)


def label_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the labels, and of all together."""
    overall = {name: answer["overall"][name] for name in ("decisions", "sets")}
    every = {"label": "all together", "samples": answer["counted"]["num_samples"]} | overall
    return _table([_flat(row) for row in (*answer["labels"], every)])


def label_words(answer: Mapping[str, Any]) -> str:
    """The label with least agreement, and how to read the picture."""
    first = answer["labels"][0]
    hidden = len(answer["labels"]) - MOST_LABELS
    more = f" {hidden} labels that agree no less are not drawn." if hidden > 0 else ""
    share = numbers.percent(first["sets"]["share"])
    span = "" if first["sets"]["low"] is None else f" ({interval_words(first['sets'])})"
    return f"Least: {first['label']}, {share}{span}. Dashed: all together. {BARS}{more}"


@redrawable(numbers=label_rows)
def agreement_labels_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = LABELS
) -> alt.LayerChart:
    """Share of the decisions that are the same by label, of ``/compare/agreement``; the ``MOST_LABELS`` that differ
    most. Dashed: all labels."""
    look = theme_named(theme)
    table = [_flat(row) for row in answer["labels"][:MOST_LABELS]]
    order = [row["label"] for row in table]
    scale = alt.Scale(zero=False, padding=14)
    x = alt.X("same:Q", scale=scale, axis=alt.Axis(title=AXIS, tickCount=5, format="~%"))
    y = alt.Y("label:N", sort=order, axis=bare_axis(None, labelLimit=120, grid=True))
    points = (
        alt.Chart(rows(table))
        .mark_point(filled=True, size=70, color=look.module, opacity=1)
        .encode(x=x, y=y, tooltip=tips("label:N", "said:N the same", "interval:N 95 % interval", "samples:Q|, samples"))
    )
    layers = [points]
    if known := [row for row in table if row["low"] is not None]:
        bars = alt.Chart(rows(known)).mark_rule(color=look.module)
        layers.insert(0, bars.encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y))
    mean = alt.Chart(rows([{"same": answer["overall"]["sets"]["share"]}]))
    layers.insert(0, mean.mark_rule(color=look.muted, strokeDash=[5, 3]).encode(x=x))
    return finish(alt.layer(*layers), look, title, label_words(answer), height=max(60, 19 * len(table)))
