"""Which experts work together? N_ij / N_i over all pairs that a token chooses at one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows, titled
from tokenpaths.frontend.charts.families.experts import neutral, neutral_legend

TITLE = "Which experts work together?"


def co_activation_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a cell: of the tokens of ``expert``, the share that chooses ``other`` as well."""
    modules = [int(row["module"]) for row in answer["modules"]]
    return [
        {"expert": i, "other": j, "share": answer["values"][a][b]}
        for a, i in enumerate(modules)
        for b, j in enumerate(modules)
        if i != j
    ]


@redrawable
def co_activation_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TITLE
) -> alt.Chart:
    """Heat map of an answer of ``/co_activation``; experts that work together stand side by side."""
    look, table = theme_named(theme), co_activation_rows(answer)
    order = [str(row["module"]) for row in answer["modules"]]
    for row in table:
        row |= {"i": str(row["expert"]), "j": str(row["other"]), "words": numbers.percent(row["share"])}
    top = max([row["share"] for row in table], default=1.0) or 1.0
    axis = {"ticks": False, "domain": False, "labelOverlap": True}
    chart = (
        alt.Chart(rows(table))
        .mark_rect(stroke=look.grid, strokeWidth=0.5)
        .encode(
            x=alt.X("j:N", sort=order, axis=alt.Axis(orient="top", title="also chosen", labelAngle=-90, **axis)),
            y=alt.Y("i:N", sort=order, axis=alt.Axis(title=f"expert of layer {answer['step']}", **axis)),
            color=alt.Color(
                "share:Q",
                scale=neutral(look, [0, top]),
                legend=neutral_legend(
                    f"share of the row's tokens (by chance: {numbers.percent(answer['baseline'])})", format=".0%"
                ),
            ),
            tooltip=[
                alt.Tooltip("i:N", title="of the tokens of expert"),
                alt.Tooltip("j:N", title="also choose"),
                alt.Tooltip("words:N", title="share"),
            ],
        )
        .properties(width="container", height=max(80, min(520, 18 * len(order))))
    )
    return finish(titled(chart, look, title, co_activation_words(answer)), look)


def co_activation_words(answer: Mapping[str, Any]) -> str:
    """The strongest pair, and what is not drawn."""
    if not answer["pairs"]:
        return "No two experts are chosen together."
    best = answer["pairs"][0]
    words = (
        f"Closest pair: {numbers.percent(best['share'])} of the tokens of expert {best['module']} choose expert "
        f"{best['other']} as well, and {numbers.percent(best['back'])} the other way round; by chance it would be "
        f"{numbers.percent(answer['baseline'])}."
    )
    if answer["more"]:
        words += f" Not drawn: {numbers.plural(answer['more'], 'expert')} with weaker pairs only."
    return words
