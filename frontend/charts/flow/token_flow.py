"""Heat map of one sample: rows are tokens, columns steps, cells the chosen module.

After figures 9 (left), 18 and 19 of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, either, tips
from tokenpaths.frontend.charts.drawing.ink import ink_encoding, ink_fields, ink_words, path_ink, with_neutral_legend
from tokenpaths.frontend.charts.drawing.palette import LIGHT, Theme, gradient_legend, ink_on, neutral_scale, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.running_text import cut_short, with_signs
from tokenpaths.frontend.charts.drawing.slots import DROPPED, NOT_RECORDED, SIGNS, SKIPPED, Idle, idle, known
from tokenpaths.frontend.charts.drawing.theme import click_selection, finish, rows
from tokenpaths.frontend.charts.patches import step_colour

TITLE = "Which module did each token take at each step?"
TOKEN_PICK = "token"
MOST_ROWS = 40
Shade = Literal["path", "module", "weight", "overlap"]
UNTAKEN: Mapping[Idle | None, str] = {DROPPED: "none: dropped at this step", NOT_RECORDED: NOT_RECORDED}
LEGENDS = {"weight": "largest weight", "overlap": "share of modules that the token before took too"}


def visible(text: str | None) -> str:
    """A token as a label: whitespace and what is not seen made visible, long ones truncated."""
    if text is None:
        return ""
    shown = text.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍")
    shown = with_signs(shown)
    shown = shown.replace(" ", "·") if not shown.strip() else shown
    return cut_short(shown, 14)


def token_label(token: Mapping[str, Any]) -> str:
    """``12 the`` for a text, ``r3 c5`` for a patch."""
    if token.get("row") is not None and token.get("col") is not None:
        return f"r{token['row']} c{token['col']}"
    return f"{token['token']} {visible(token.get('text'))}".strip()


def token_rows(sample: Mapping[str, Any], offered: Collection[int] | None = None) -> list[dict[str, Any]]:
    """Table of the tokens; ``offered``: ids of the run's modules (``drawing.slots``)."""
    return [
        {
            "token": t["token"],
            "what": token_label(t),
            "rank": t["rank"],
            "cdf": t["cdf"],
            "cdf_middle": t["cdf_middle"],
            "path_tokens": t["path_tokens"],
            "path": numbers.ribbon_words(t["ribbon"], offered=offered),
            "compute": t["compute"],
            "reuse": t["reuse"],
            "loss": t.get("loss"),
            "flops": t.get("flops"),
            "region": t.get("region"),
        }
        for t in sample.get("tokens") or []
    ]


def _tables(
    sample: Mapping[str, Any],
    first: int,
    most: int,
    identities: Collection[int],
    offered: Collection[int] | None,
    shade: Shade,
    weighted: bool,
) -> dict[str, list[dict[str, Any]]]:
    """The cells that are drawn, and all tokens."""
    names = ["token", "label", "step", "modules", *(["weight"] if weighted else []), "overlap"]
    cells = _cells(sample, _window(sample, first, most), shade, (identities, offered), None, LIGHT)
    return {"cells": [{name: row[name] for name in names} for row in cells], "tokens": token_rows(sample, offered)}


@redrawable(numbers=_tables)
def token_flow_chart(
    sample: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    first: int = 0,
    most: int = MOST_ROWS,
    chosen: int | None = None,
    identities: Collection[int] = (),
    offered: Collection[int] | None = None,
    shade: Shade = "path",
    weighted: bool = True,
    title: str | None = TITLE,
) -> alt.LayerChart:
    """Heat map of tokens ``first … first+most−1`` of a response of ``/samples/{sample}``.

    Cell: the modules of the token at the step; colour: the ink of its whole path, so a row has one colour, or with the
    shade ``module`` that of its module (``patches.step_colour``). A cell of identity modules alone (a skipped step) is
    neutral grey; ids that are not ``offered`` stand for decisions that nobody recorded (``drawing.slots``). If every
    token has its own path the ink is meaningless; the cell then names only the first module, coloured by that module's
    ``weight`` or, in runs without known weights (``weighted`` is false), by ``overlap``: the share of its modules that
    the previous token took too.
    """
    look = theme_named(theme)
    tokens = _window(sample, first, most)
    weighted = weighted and any(token["weights"] for token in tokens)
    if shade == "weight" and not weighted:
        shade = "overlap"
    table = _cells(sample, tokens, shade, (identities, offered), chosen, look)
    num_steps = max((len(t["ribbon"]) for t in tokens), default=1)
    wide = max((len(row["mark"]) for row in table), default=1)
    order = [row["label"] for row in table if row["step"] == 0]
    x = alt.X("step:O", axis=bare_axis("step", orient="top", labelAngle=0, labelOverlap=True))
    y = alt.Y(
        "label:N",
        sort=order,
        scale=alt.Scale(paddingInner=0.08),
        axis=bare_axis(None, labelLimit=110, labelPadding=6, labelFontSize=look.font_size),
    )
    strength = [f"weight:Q|.3f {LEGENDS['weight']}"] if weighted else []
    strength = [f"overlap:Q|.0% {LEGENDS['overlap']}"] if shade == "overlap" else strength
    cells = (
        alt.Chart(rows(table))
        .mark_rect(cursor="pointer", strokeWidth=2)
        .encode(
            x=x,
            y=y,
            fill=_fill(table, shade, look),
            stroke=either("datum.on", look.accent, None),
            tooltip=tips(
                "label:N token", "step:O", "modules:N module", *strength, "rank:N rank of its path", "many:N its path"
            ),
        )
        .add_params(click_selection(TOKEN_PICK, "token"))
    )
    greys = (
        alt.Chart(rows(row for row in table if row["skipped"]))
        .mark_rect(color=look.identity, cursor="pointer")
        .encode(x=x, y=y, tooltip=tips("label:N token", "step:O", "modules:N module"))
    )
    words = (
        alt.Chart(rows(table))
        .mark_text(fontSize=look.font_size - (1 if wide > 2 else 0), font=look.font, clip=True)
        .encode(x=x, y=y, text="mark:N", color=_ink(table, shade, look))
        .transform_filter(f"width / {num_steps} > {6.2 * wide:.0f}")
    )
    subtitle = _subtitle(len(tokens), len(sample.get("tokens") or []), shade)
    # An empty layer would be a picture without a description to screen readers.
    chart = alt.layer(cells, *([greys] if any(row["skipped"] for row in table) else []), words)
    chart = with_neutral_legend(chart, table, look) if shade == "path" else chart
    return finish(chart, look, title, subtitle, height=max(60, 21 * max(1, len(tokens))))


def _window(sample: Mapping[str, Any], first: int, most: int) -> list[Mapping[str, Any]]:
    return [token for token in sample.get("tokens") or [] if first <= token["token"] < first + most]


def _cells(
    sample: Mapping[str, Any],
    tokens: Sequence[Mapping[str, Any]],
    shade: Shade,
    ids: tuple[Collection[int], Collection[int] | None],
    chosen: int | None,
    look: Theme,
) -> list[dict[str, Any]]:
    """One row per token and step; ``ids``: those of identity modules, and of all that are offered."""
    offered = ids[1]
    before = {token["token"] + 1: known(token["ribbon"], offered) for token in sample.get("tokens") or []}
    table = []
    for token in tokens:
        path_colour, ribbon = path_ink(token, look).colour, known(token["ribbon"], offered)
        for step, modules in enumerate(token["ribbon"]):
            why = idle(modules, *ids)
            names = UNTAKEN[why] if why in UNTAKEN else "+".join(map(str, modules))
            colour = step_colour(modules, look, *ids) if shade == "module" else path_colour
            table.append(
                {
                    "token": token["token"],
                    "label": token_label(token),
                    "step": step,
                    **ink_fields(token),
                    "many": ink_words(token),
                    "fill": colour,
                    "mark": SIGNS[why] if why is not None else str(modules[0]) if shade in LEGENDS else names,
                    "modules": names,
                    "weight": max(token["weights"][step], default=0.0) if token["weights"] else None,
                    "overlap": overlap(ribbon[step], before.get(token["token"], [])[step : step + 1]),
                    "skipped": why == SKIPPED,
                    "ink": ink_on(look.identity if why == SKIPPED else colour),
                    "rank": numbers.count(token["rank"]),
                    "on": token["token"] == chosen,
                }
            )
    return table


def _subtitle(num: int, total: int, shade: Shade) -> str:
    cell = {
        "path": "module taken, colour: how many tokens take the token’s whole path; grey: the step was skipped",
        "module": "module taken, and its colour; grey with “skip”: the step was skipped",
        "weight": "the module with the largest weight; darker on a light page: a larger weight",
        "overlap": "one of its modules; darker on a light page: shares more of them with the token before",
    }[shade]
    return f"{numbers.plural(num, 'token')} of {numbers.count(total)}; cell: {cell}."


def overlap(modules: Sequence[int], before: Sequence[Sequence[int]]) -> float:
    """Share of a token's modules at a step that the previous token took at the same step; 0 for the first token."""
    return len(set(modules) & set(before[0])) / len(modules) if before and modules else 0.0


def _most(table: Sequence[Mapping[str, Any]], shade: Shade) -> float:
    return 1.0 if shade == "overlap" else max([row["weight"] or 0.0 for row in table], default=1.0) or 1.0


def _fill(table: Sequence[Mapping[str, Any]], shade: Shade, look: Theme) -> alt.Fill:
    if shade == "path":
        return ink_encoding(alt.Fill, look, legend=any(row["taken"] == "scale" for row in table))
    if shade == "module":
        return alt.Fill("fill:N", scale=None)
    legend = gradient_legend(LEGENDS[shade], titleLimit=400)
    scale = neutral_scale(_most(table, shade), look)
    return alt.Fill(f"{shade}:Q", scale=scale, legend=legend)


def _ink(table: Sequence[Mapping[str, Any]], shade: Shade, look: Theme) -> Any:
    if shade not in LEGENDS:
        return alt.Color("ink:N", scale=None)
    strong = f"datum.{shade} > {0.5 * _most(table, shade):.6g}"
    return either(strong, look.background, look.ink)
