"""How close the decisions of each step were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

TITLE = "How many decisions were close?"


def margin_words(answer: Mapping[str, Any]) -> str:
    """The steps with the most and the fewest close decisions, in a sentence."""
    known = [row for row in answer["steps"] if row["num"]]
    if not known:
        return ""
    most, least = (pick(known, key=lambda row: row["close"]) for pick in (max, min))
    text = f"At step {most['step']} {numbers.percent(most['close'])} of the decisions were close"
    if len(known) > 1 and most["step"] != least["step"]:
        text += f", at step {least['step']} {numbers.percent(least['close'])}"
    return f"{text}: the runner-up was less than {answer['close']:g} behind, in probability."


@redrawable
def margin_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TITLE
) -> alt.LayerChart:
    """Bars: the share of close decisions of each step of a response of ``/margins``."""
    look = theme_named(theme)
    table = [
        {
            "step": row["step"],
            "close": row["close"],
            "words": numbers.percent(row["close"]),
            "median": numbers.number(row["median"]),
            "num": numbers.count(row["num"]),
        }
        for row in answer["steps"]
        if row["num"]
    ]
    base = alt.Chart(rows(table)).encode(
        x=alt.X("step:O", axis=bare_axis("step", labelAngle=0, labelOverlap=True)),
        y=alt.Y(
            "close:Q",
            scale=alt.Scale(domain=[0, max([row["close"] for row in table], default=0) * 1.15 or 1]),
            axis=bare_axis("share of decisions that were close", format=".0%", tickCount=4),
        ),
    )
    tooltip = tips("step:O", "words:N close", "median:N median margin", "num:N decisions")
    bars = base.mark_bar(color=look.ink).encode(tooltip=tooltip)
    layers = [bars]
    if len(table) <= 16:
        layers.append(base.mark_text(dy=-7, color=look.ink, fontSize=look.font_size - 1).encode(text="words:N"))
    return finish(alt.layer(*layers), look, title, margin_words(answer), height=200)
