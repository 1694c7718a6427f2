"""Agreement of two runs in one sample: a column a token, a row a step, shaded where the modules differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, between, shade
from tokenpaths.frontend.charts.drawing.palette import DARKER, Theme, neutral_scale, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import as_vectors, finish, rows, tip
from tokenpaths.frontend.charts.flow.token_flow import token_label, visible

TITLE = "Which decisions of this sample differ?"
_FIELDS = ("y", "y2", "step", "apart", "shared", "one", "other")


def sample_agreement_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the decisions: the modules of both runs, and the share of them that both have."""
    return [
        {
            "token": token["token"],
            "partner": token["partner"],
            "text": token.get("text"),
            "step": step,
            "shared": overlap,
            "apart": None if overlap is None else 1 - overlap,
            **_modules(answer, token, step),
        }
        for token in answer["tokens"]
        for step, overlap in enumerate(token["overlap"])
    ]


def sample_agreement_words(answer: Mapping[str, Any]) -> str:
    """How many tokens and decisions of the sample differ, of those that are drawn."""
    known = [[o for o in token["overlap"] if o is not None] for token in answer["tokens"]]
    decisions, apart = sum(map(len, known)), sum(o < 1 for part in known for o in part)
    tokens = sum(any(o < 1 for o in part) for part in known)
    told = (
        f"{numbers.count(apart)} of {numbers.plural(decisions, 'decision')} differ, in {numbers.count(tokens)} of "
        f"{numbers.plural(len(known), 'token')}"
    )
    if len(known) < answer["num_tokens"]:
        told += f" (the first of {numbers.count(answer['num_tokens'])})"
    return f"{told}. A column is a token, a row a step. {DARKER}: more of its modules differ."


def _modules(answer: Mapping[str, Any], token: Mapping[str, Any], step: int) -> dict[str, str]:
    """The modules of one decision in both runs, as 3+7."""
    return {f"modules in {answer[side]}": numbers.ribbon_words([token[f"ribbon_{side}"][step]]) for side in ("a", "b")}


@redrawable(numbers=sample_agreement_rows)
def sample_agreement_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TITLE
) -> alt.LayerChart:
    """Heat map of a response of ``/compare/agreement/sample``."""
    look = theme_named(theme)
    num_steps = len(answer["tokens"][0]["overlap"])
    table, unknown = [], []
    for place, token in enumerate(answer["tokens"]):
        text = visible(token["text"]) if token.get("text") else token_label(token)
        row: dict[str, Any] = {"x": place - 0.5, "x2": place + 0.5, "token": token["token"], "what": text}
        row |= {name: [] for name in _FIELDS}
        for step, overlap in enumerate(token["overlap"]):
            if overlap is None:
                unknown.append({"x": place, "y": step + 0.5})
                continue
            cell: dict[str, Any] = {
                "y": step,
                "y2": step + 1,
                "step": step,
                "apart": round(1 - overlap, 4),
                "shared": numbers.percent(overlap),
            }
            cell |= dict(zip(("one", "other"), _modules(answer, token, step).values(), strict=True))
            for name, value in cell.items():
                row[name].append(value)
        table.append(row)
    num = len(table)
    first = answer["tokens"][0]["token"]
    x = alt.X(
        "x:Q",
        scale=between(-0.5, num - 0.5),
        axis=bare_axis("token", grid=False, tickMinStep=1, labelExpr=f"datum.value + {first}"),
    )
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(domain=[0, num_steps], reverse=True, nice=False),
        axis=bare_axis(
            "step",
            grid=False,
            values=[step + 0.5 for step in range(0, num_steps, max(1, -(-num_steps // 16)))],
            labelExpr="datum.value - 0.5",
        ),
    )
    fields = {"token": "token", "text": "what", "step": "step", "shared": "shared"}
    fields |= {f"modules in {answer['a']}": "one", f"modules in {answer['b']}": "other"}
    cells = (
        alt.Chart(rows(table, "cells"))
        .transform_flatten(list(_FIELDS))
        .mark_rect(invalid="show", tooltip=tip(fields), aria=False)
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            color=shade(
                "apart:Q", neutral_scale(1.0, look, type="sqrt"), "modules that differ", tickCount=2, format="~%"
            ),
        )
    )
    # With a layer of its own for its data: see ``usage.cell_map``.
    marks = (
        alt.Chart(rows(unknown, "unknown"))
        .mark_text(text="?", color=look.muted, fontSize=look.font_size - 2, aria=False)
        .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
    )
    height = max(90, min(14 * num_steps, 420))
    drawn = finish(alt.layer(cells, marks), look, title, sample_agreement_words(answer), height=height)
    return as_vectors(drawn, num * num_steps)
