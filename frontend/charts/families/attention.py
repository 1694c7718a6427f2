"""To whom a patch attends, step by step, on the grid of its image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import between, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

TITLE = "To which patches does it attend?"


def attention_rows(
    shares: Sequence[Mapping[int, float]], tokens: Sequence[Mapping[str, Any]], token: int
) -> list[dict[str, Any]]:
    """Table of the grids: to whom ``token`` attends at each step, where its share is known."""
    return [
        {"token": token, "step": step, "attends to": one["token"], "row": one["row"], "col": one["col"], "share": share}
        for step, of_step in enumerate(shares)
        for one in tokens
        if (share := of_step.get(int(one["token"]))) is not None
    ]


@redrawable(numbers=attention_rows)
def attention_chart(
    shares: Sequence[Mapping[int, float]],
    tokens: Sequence[Mapping[str, Any]],
    token: int,
    *,
    theme: str | Theme = "light",
    title: str | None = TITLE,
) -> alt.LayerChart:
    """One grid of patches a step: the more ink, the larger the share of the attention of ``token``.

    Args:
        shares: Of each step, token → share.
        tokens: The patches of the image, with ``row`` and ``col``.
    """
    look = theme_named(theme)
    high, wide = (1 + max(int(one[name]) for one in tokens) for name in ("row", "col"))
    most = max((share for of_step in shares for share in of_step.values()), default=1.0)
    table = [
        {
            "left": step * (wide + 1) + int(one["col"]),
            "right": step * (wide + 1) + int(one["col"]) + 1,
            "top": int(one["row"]),
            "bottom": int(one["row"]) + 1,
            "ink": of_step.get(int(one["token"]), 0.0) / most,
            "patch": f"r{one['row']} c{one['col']}",
            "step": step,
            "share": numbers.percent(of_step[int(one["token"])]) if int(one["token"]) in of_step else "under 1 %",
        }
        for step, of_step in enumerate(shares)
        for one in tokens
    ]
    x = alt.X("left:Q", axis=None, scale=between(-0.2, len(shares) * (wide + 1) - 0.8))
    y = alt.Y("top:Q", axis=None, scale=between(high + 0.2, -1.6))
    cells = (
        alt.Chart(rows(table))
        .mark_rect(color=look.ink, stroke=look.grid, strokeWidth=0.5)
        .encode(
            x=x,
            x2="right:Q",
            y=y,
            y2="bottom:Q",
            fillOpacity=alt.FillOpacity("ink:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None),
            tooltip=tips("step:Q", "patch:N", "share:N of its attention"),
        )
    )
    own = [row for row, one in zip(table, [*tokens] * len(shares), strict=True) if int(one["token"]) == token]
    frame = (
        alt.Chart(rows(own))
        .mark_rect(filled=False, stroke=look.accent, strokeWidth=2, aria=False)
        .encode(x=x, x2="right:Q", y=y, y2="bottom:Q")
    )
    names = (
        alt.Chart(
            rows([{"left": step * (wide + 1) + wide / 2, "top": -0.8, "name": step} for step in range(len(shares))])
        )
        .mark_text(color=look.muted, fontSize=look.font_size - 1, aria=False)
        .encode(x=x, y=y, text="name:N")
    )
    words = f"One grid a step; the more ink, the larger the share, up to {numbers.percent(most)}. Framed: itself."
    return finish(
        alt.layer(cells, frame, names), look, title, words, height=max(70, 340 * high // (len(shares) * (wide + 1)))
    )
