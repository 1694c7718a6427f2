"""Charts of edited routes: changed flows, answers and token losses, and the importance of modules from a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, between, shade, signed_ticks, tips
from tokenpaths.frontend.charts.drawing.palette import (
    NATS_FLOOR,
    SHARE_FLOOR,
    Theme,
    diverging_scale,
    neutral_scale,
    scale_end,
    theme_named,
    with_floor,
)
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import click_selection, finish, highest, rows
from tokenpaths.frontend.charts.flow.token_flow import visible

CELL_PICK = "node"
"""name of the selection of ``importance_chart``; its fields are step and module"""
EVERY = "all"


@redrawable
def flow_difference_chart(
    effect: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "Where do tokens go instead?",
    most_links: int = 40,
) -> alt.LayerChart:
    """Flow chart of the links that changed most in a response of ``/effect``: rose gained tokens, blue lost them."""
    look = theme_named(theme)
    links = sorted((row for row in effect["links"] if row["change"]), key=lambda row: -abs(row["change"]))[:most_links]
    steps = sorted({row["step"] for row in links} | {row["step"] + 1 for row in links}) or [0, 1]
    modules = sorted({row["source"] for row in links} | {row["target"] for row in links})
    line = {module: place for place, module in enumerate(modules)}
    most = scale_end((row["change"] for row in links), SHARE_FLOOR)
    height = max(130, min(460, 22 * max(1, len(modules)) + 20))
    shown = _changed_links(links, line, most)
    x = alt.X(
        "x:Q",
        scale=between(steps[0] - 0.15, steps[-1] + 0.15),
        axis=bare_axis("step", orient="top", values=steps, format="d", grid=False),
    )
    y = alt.Y(
        "y:Q",
        scale=between(len(modules) - 0.5, -0.5),
        axis=bare_axis("module", values=list(range(len(modules))), labelExpr=f"{modules}[datum.value]", grid=True),
    )
    drawn = (
        alt.Chart(rows(shown))
        .mark_rule(strokeCap="round", opacity=0.85)
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            color=shade(
                "change:Q",
                diverging_scale(most, look, middle=look.identity),
                "change, share of tokens",
                labelExpr=signed_ticks("+.2~p", "0%"),
                values=[-most, 0, most],
            ),
            strokeWidth=alt.StrokeWidth("width:Q", scale=None),
            description="words:N",
            tooltip=tips("from:N from", "to:N to", "was:N tokens before", "now:N tokens after"),
        )
    )
    dots = (
        alt.Chart(rows([{"x": s, "y": line[m]} for s in steps for m in modules]))
        .mark_circle(size=26, color=look.muted, opacity=0.6, aria=False)
        .encode(x=x, y=y)
    )
    words = with_floor("Rose: more tokens go this way than before; blue: fewer. Width: by how much.", most)
    summary = f"Most: {shown[-1]['words']}." if shown else ""
    return finish(alt.layer(drawn, dots), look, title, words, height=height, summary=summary)


def _changed_links(links: Sequence[Mapping[str, Any]], line: Mapping[int, int], most: float) -> list[dict[str, Any]]:
    """One row per link, the largest change last (drawn above the others); ``line`` holds the row of each module."""
    return [
        {
            "x": row["step"],
            "x2": row["step"] + 1,
            "y": line[row["source"]],
            "y2": line[row["target"]],
            "change": row["change"],
            "width": 1 + 9 * abs(row["change"]) / most,
            "from": f"module {row['source']} at step {row['step']}",
            "to": f"module {row['target']}",
            "was": numbers.percent(row["before"]),
            "now": numbers.percent(row["after"]),
            "words": f"module {row['source']} at step {row['step']} to module {row['target']}: "
            f"{numbers.percent(row['before'])} before, {numbers.percent(row['after'])} after",
        }
        for row in sorted(links, key=lambda row: abs(row["change"]))
    ]


def answer_words(answer: str) -> str:
    """A predicted token with a visible leading space, or visible if it is only a space."""
    seen = answer.replace("\n", "⏎")
    bare = seen.strip(" ")
    return seen.replace(bare, "\0").replace(" ", "␣").replace("\0", bare) if bare else seen.replace(" ", "␣") or "∅"


def answer_rows(top5: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per token among the five likeliest before or after; None if it is not among them."""
    before = {row["name"]: row["probability"] for row in top5["before"]}
    after = {row["name"]: row["probability"] for row in top5["after"]}
    names = sorted({*before, *after}, key=lambda name: -max(before.get(name, 0), after.get(name, 0)))
    return [{"answer": name, "before": before.get(name), "after": after.get(name)} for name in names]


def answers_caption(top5: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What the marks mean, and why some answers have only one."""
    table = answer_rows(top5)
    missing = [
        f"without a {mark}: not among the {len(top5[when])} likeliest {when}"
        for mark, when in (("circle", "before"), ("diamond", "after"))
        if any(row[when] is None for row in table)
    ]
    return "; ".join(["Circle: before", "diamond: after", *missing]) + "."


@redrawable(numbers=answer_rows)
def answers_chart(
    top5: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    theme: str | Theme = "light",
    title: str | None = "What does the model answer instead?",
) -> alt.LayerChart:
    """Probability of each likely prediction before (hollow) and after (filled)."""
    look = theme_named(theme)
    table = answer_rows(top5)
    shown = [
        {
            "answer": answer_words(row["answer"]),
            "when": when,
            "probability": row[when],
            "said": numbers.percent(row[when]),
        }
        for row in table
        for when in ("before", "after")
        if row[when] is not None
    ]
    order = list(dict.fromkeys(row["answer"] for row in shown))
    y = alt.Y("answer:N", sort=order, axis=bare_axis(None, labelLimit=150))
    axis = alt.Axis(title="probability", format="%", tickCount=5)
    x = alt.X("probability:Q", scale=alt.Scale(domainMin=0), axis=axis)
    base = alt.Chart(rows(shown))
    spans = [
        {"answer": answer_words(row["answer"]), "a": row["before"], "b": row["after"]}
        for row in table
        if None not in (row["before"], row["after"])
    ]
    bars = (
        alt.Chart(rows(spans))
        .mark_rule(color=look.identity, strokeWidth=2, aria=False)
        .encode(y=y, x=alt.X("a:Q"), x2="b:Q")
    )
    marks = base.mark_point(size=95, strokeWidth=2).encode(
        x=x,
        y=y,
        stroke=alt.value(look.module),
        fill=alt.condition("datum.when == 'after'", alt.value(look.module), alt.value(look.background)),
        shape=alt.Shape(
            "when:N",
            scale=alt.Scale(domain=["before", "after"], range=["circle", "diamond"]),
            legend=alt.Legend(title=None, orient="bottom"),
        ),
        tooltip=tips("answer:N", "when:N when", "said:N probability"),
    )
    chart = alt.layer(bars, marks)
    likely = table[:1]
    summary = "".join(
        f"Likeliest: {answer_words(row['answer'])}, {numbers.percent(row['before'])} before, "
        f"{numbers.percent(row['after'])} after."
        for row in likely
    )
    return finish(chart, look, title, answers_caption(top5), height=max(90, 24 * len(order)), summary=summary)


MEASURES = {
    "loss_change": ("change of loss (nats)", "Rose: the loss rises when the module is banned; blue: it falls."),
    "kl": ("KL of the answers (nats)", "Stronger colour: the answers change more when the module is banned."),
    "paths_changed_after": ("tokens whose path changed later", "Stronger colour: more tokens go another way later."),
}


DOES = {
    "loss_change": "raises the loss most",
    "kl": "changes the answers most",
    "paths_changed_after": "sends most tokens another way later",
}
"""what the module with the highest number does when it is banned: measure → display text"""


def importance_words(table: Sequence[Mapping[str, Any]], measure: str) -> str:
    """The module whose ban does most, of those at one step and of those at every step.

    A rise of the loss counts where it would be one of all bans together (Bonferroni). Empty where no ban has a number
    above 0, as where none raises the loss.
    """
    known = [row for row in table if row.get("module") is not None and (row.get(measure) or 0) > 0]
    tried = sum(row.get("module") is not None and row.get(measure) is not None for row in table)
    sure = NormalDist().inv_cdf(1 - 0.025 / max(1, tried))
    told: list[str] = []
    does = DOES[measure]
    for every in (False, True):
        of = [row for row in known if (row["step"] is None) == every]
        where = "every step" if every else "one step"
        above = [row for row in of if measure != "loss_change" or row[measure] > sure * (row.get("loss_error") or 0)]
        if of and not above:
            told.append(f"banned at {where}, no module surely raises the loss")
        if not above:
            continue
        best = max(above, key=lambda row: row[measure])
        others = sum(row[measure] == best[measure] for row in above) - 1
        at = "" if every else f" at step {best['step']}"
        as_much = f", as {'does' if others == 1 else 'do'} {numbers.plural(others, 'other')}" * bool(others)
        told.append(
            f"banned at {where}, module {best['module']}{at} {does} "
            f"({_signed(best[measure], measure)}{_error(best, measure)}{as_much})"
        )
        does = "does"
    return f"{numbers.capital('; '.join(told))}." if told else ""


@redrawable
def importance_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    measure: str = "loss_change",
    theme: str | Theme = "light",
    title: str | None = "What is each module good for?",
) -> alt.LayerChart:
    """Heat map of a sweep, step × module; last column: banned at every step. Diverging scale, zero in the middle."""
    look = theme_named(theme)
    single = [row for row in table if row.get("module") is not None]
    steps = [str(step) for step in sorted({row["step"] for row in single if row["step"] is not None})]
    steps += ["every step"] if any(row["step"] is None for row in single) else []
    modules = sorted({row["module"] for row in single})
    name, words = MEASURES[measure]
    floor, unit = (SHARE_FLOOR, "percentage point") if measure == "paths_changed_after" else (NATS_FLOOR, "nats")
    errors = (row.get("loss_error") for row in single) if measure == "loss_change" else ()
    most = scale_end((row.get(measure) for row in single), floor, errors)
    words = with_floor(words, most, floor, unit)
    shown = [
        {
            "at": "every step" if row["step"] is None else str(row["step"]),
            "module": row["module"],
            "step": EVERY if row["step"] is None else row["step"],
            "value": row[measure],
            "said": _signed(row[measure], measure) + _error(row, measure),
            "name": row["name"],
            "problem": row.get("problem") or "",
            "words": f"{row['name']}, {'every step' if row['step'] is None else 'step ' + str(row['step'])}: "
            f"{_signed(row[measure], measure)}",
        }
        for row in single
    ]
    x = alt.X("at:N", sort=steps, axis=bare_axis("banned at step", orient="top", labelAngle=0))
    y = alt.Y("module:N", sort=modules, axis=bare_axis("module", labelOverlap=True))
    signed = measure == "loss_change"
    scale = diverging_scale(most, look) if signed else neutral_scale(most, look, end=look.module)
    cells = (
        alt.Chart(rows(shown))
        .mark_rect(stroke=look.grid, strokeWidth=0.7, cursor="pointer", invalid="show")
        .encode(
            x=x,
            y=y,
            color=alt.condition(
                "isValid(datum.value)", shade("value:Q", scale, name, tickCount=5), alt.value(look.identity)
            ),
            description="words:N",
            tooltip=tips("name:N module", "at:N banned at step", f"said:N {name}", "problem:N refused"),
        )
        .add_params(click_selection(CELL_PICK, "step", "module"))
    )
    height = max(90, min(640, 21 * max(1, len(modules))))
    summary = highest(shown, "value", lambda row: row["words"])
    return finish(alt.layer(cells), look, title, words, height=height, summary=summary)


def _signed(value: float | None, measure: str) -> str:
    if value is None:
        return "–"
    if measure == "paths_changed_after":
        return numbers.percent(value)
    return ("−" if value < 0 else "+" if measure == "loss_change" else "") + numbers.number(abs(value))


def _error(row: Mapping[str, Any], measure: str) -> str:
    error = row.get("loss_error")
    return f" ± {numbers.number(error, 2)}" if measure == "loss_change" and error else ""


@redrawable
def share_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    measure: str = "loss_change",
    theme: str | Theme = "light",
    title: str | None = "What if the busiest modules were gone?",
) -> alt.LayerChart:
    """A measure against the share of each step's modules that is banned: most used, least used, at random."""
    look = theme_named(theme)
    measured = [row for row in table if row.get("share") and row.get(measure) is not None]
    names = {"top": "most used", "bottom": "least used", "random": "drawn at random"}
    shown = [
        {
            "share": row["share"],
            "value": row[measure],
            "which": names[row["which"]],
            "said": _signed(row[measure], measure) + _error(row, measure),
            "part": numbers.percent(row["share"]),
        }
        for row in measured
    ]
    ticks = sorted({row["share"] for row in shown})
    axis = alt.Axis(title="share of each step’s modules banned", format="%", grid=False, values=ticks)
    x = alt.X("share:Q", axis=axis)
    y = alt.Y("value:Q", axis=alt.Axis(title=MEASURES[measure][0], tickCount=5))
    shape = alt.Shape(
        "which:N",
        scale=alt.Scale(domain=list(names.values()), range=["triangle-up", "circle", "cross"]),
        legend=alt.Legend(title="banned", orient="bottom"),
    )
    base = alt.Chart(rows(shown)).encode(x=x, y=y, detail="which:N")
    lines = base.mark_line(color=look.link, strokeWidth=1.5, aria=False)
    marks = base.mark_point(size=80, filled=True, color=look.module, opacity=1).encode(
        shape=shape, tooltip=tips("which:N banned", "part:N share", f"said:N {MEASURES[measure][0]}")
    )
    summary = highest(shown, "value", lambda row: f"{row['part']} banned, {row['which']}: {row['said']}")
    words = "One point: that share of every step’s modules is banned."
    return finish(alt.layer(lines, marks), look, title, words, height=260, summary=summary)


def loss_rows(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per token with a loss in both: its text, both losses, the increase. Empty if the tokens differ."""
    if [token.get("token_id") for token in before] != [token.get("token_id") for token in after]:
        return []
    return [
        {
            "token": old["token"],
            "text": visible(old.get("text")),
            "before": old["loss"],
            "after": new["loss"],
            "rise": new["loss"] - old["loss"],
        }
        for old, new in zip(before, after, strict=True)
        if old.get("loss") is not None and new.get("loss") is not None
    ]


@redrawable
def token_loss_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    theme: str | Theme = "light",
    title: str | None = "Which tokens become harder to predict?",
    height: int = 190,
) -> alt.LayerChart:
    """Bar chart of the change of each token's loss."""
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
    most = scale_end((row["rise"] for row in shown), NATS_FLOOR)
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
            tooltip=tips(
                "text:N predicted token", "token:Q place", "was:N loss before", "now:N loss after", "change:N rise"
            ),
        )
    )
    zero = alt.Chart(rows([{"rise": 0}])).mark_rule(color=look.muted).encode(y=y)
    chart = alt.layer(bars, zero)
    summary = highest(shown, "rise", lambda row: f"token {row['token']}, {row['change']} nats")
    return finish(
        chart,
        look,
        title,
        with_floor("Up: harder to predict than before; down: easier.", most, NATS_FLOOR, "nats"),
        height=height,
        summary=summary,
    )
