"""Which tokens become harder to predict? The loss of each token of one text, before and after a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, diverging_scale, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, highest, rows, titled
from tokenpaths.frontend.charts.flow.token_flow import visible


def loss_rows(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a token that has a loss in both: its text, both losses, the rise. Empty if the tokens differ."""
    if [token.get("token_id") for token in before] != [token.get("token_id") for token in after]:
        return []
    return [
        {
            "token": one["token"],
            "text": visible(one.get("text")),
            "before": one["loss"],
            "after": other["loss"],
            "rise": other["loss"] - one["loss"],
        }
        for one, other in zip(before, after, strict=True)
        if one.get("loss") is not None and other.get("loss") is not None
    ]


@redrawable
def token_loss_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "Which tokens become harder to predict?",
    height: int = 190,
) -> alt.LayerChart:
    """Bars over the tokens of a text: how much the loss of each rises (up) or falls (down)."""
    look = theme_named(theme)
    shown = [
        dict(row)
        | {
            "zero": 0,
            "was": numbers.number(row["before"]),
            "now": numbers.number(row["after"]),
            "change": ("−" if row["rise"] < 0 else "+") + numbers.number(abs(row["rise"])),
        }
        for row in table
    ]
    most = max([abs(row["rise"]) for row in shown], default=0.0) or 1.0
    x = alt.X(
        "token:Q",
        axis=alt.Axis(title="token of the text", format="d", tickMinStep=1, grid=False, tickCount=6),
        scale=alt.Scale(nice=False, zero=False, padding=8),
    )
    y = alt.Y("rise:Q", axis=alt.Axis(title="rise of the loss (nats)", tickCount=4))
    width = alt.ExprRef(f"max(1, min(14, 0.7 * width / {max(1, len(shown))}))")
    bars = (
        alt.Chart(rows(shown))
        .mark_bar(width=width)
        .encode(
            x=x,
            y=y,
            y2="zero:Q",
            color=alt.Color("rise:Q", scale=diverging_scale(most, look, middle=look.identity), legend=None),
            tooltip=[
                alt.Tooltip("text:N", title="predicted token"),
                alt.Tooltip("token:Q", title="place"),
                alt.Tooltip("was:N", title="loss before"),
                alt.Tooltip("now:N", title="loss after"),
                alt.Tooltip("change:N", title="rise"),
            ],
        )
    )
    zero = alt.Chart(rows([{"rise": 0}])).mark_rule(color=look.muted).encode(y=y)
    chart = alt.layer(bars, zero).properties(width="container", height=height)
    said = highest(shown, "rise", lambda row: f"token {row['token']}, {row['change']} nats")
    return finish(titled(chart, look, title, "Up: harder to predict than before; down: easier.", said=said), look)
