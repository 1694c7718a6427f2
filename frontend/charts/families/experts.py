"""Mixture of experts: choices of single tokens, specialisation on domains and words, co-activation.

A layer is a step, an expert one of its modules. The colour scale is neutral: viridis is for path CDFs only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, either, shade, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, neutral_scale, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.slots import DROPPED, NOT_RECORDED, SIGNS, idle, known
from tokenpaths.frontend.charts.drawing.theme import finish, rows
from tokenpaths.frontend.charts.flow.token_flow import visible

TOKENS = "Which experts does each token choose?"
DOMAINS = "Which experts does each domain prefer?"
WORDS = "Which words is each expert chosen for?"
OTHER_COLUMN = "other"
TOGETHER = "Which experts work together?"


def token_labels(tokens: Sequence[Mapping[str, Any]]) -> list[str]:
    """Row label of each token: position and text, or vocabulary id, or patch position."""
    labels = []
    for token in tokens:
        if token.get("row") is not None:
            labels.append(f"r{token['row']} c{token['col']}")
            continue
        name = visible(token.get("text")) if token.get("text") else ""
        if not name and token.get("token_id") is not None:
            name = f"#{token['token_id']}"
        labels.append(f"{token['token']} {name}".strip())
    return labels


def known_choices(answer: Mapping[str, Any], offered: Collection[int] | None) -> dict[str, Any]:
    """A response of ``/samples/{sample}/experts`` without what stands for unknown decisions: these have no modules."""
    tokens = []
    for token in answer["tokens"]:
        (modules,) = known([token["modules"]], offered)
        tokens.append({**token, "modules": modules, "weights": token["weights"] if modules else []})
    return {**answer, "tokens": tokens}


def slice_rows(answer: Mapping[str, Any], least: float = 0.0) -> list[dict[str, Any]]:
    """One row per choice: token, expert (or “other”), weight; experts with less than ``least`` of the tokens are
    merged.
    """
    tokens = answer["tokens"]
    counts: dict[int, int] = defaultdict(int)
    for token in tokens:
        for module in token["modules"]:
            counts[int(module)] += 1
    small = {module for module, count in counts.items() if count / max(1, len(tokens)) < least}
    small = small if len(small) > 1 else set()
    table = []
    for label, token in zip(token_labels(tokens), tokens, strict=True):
        merged: list[float] = []
        for slot, (module, weight) in enumerate(zip(token["modules"], token["weights"], strict=True)):
            if module in small:
                merged.append(weight)
                continue
            table.append(
                {
                    "token": token["token"],
                    "label": label,
                    "expert": str(module),
                    "weight": weight,
                    "slot": slot,
                    "choices": 1,
                }
            )
        if merged:
            table.append(
                {
                    "token": token["token"],
                    "label": label,
                    "expert": OTHER_COLUMN,
                    "weight": sum(merged),
                    "slot": None,
                    "choices": len(merged),
                }
            )
    return table


@redrawable(numbers=lambda answer, least, offered: slice_rows(known_choices(answer, offered), least))
def slice_chart(
    answer: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = TOKENS,
    least: float = 0.0,
    chosen: int | None = None,
    offered: Collection[int] | None = None,
) -> alt.LayerChart:
    """Heat map of a response of ``/samples/{sample}/experts``: rows tokens, columns experts, darkness weight.

    ``least``: experts chosen by a smaller share of these tokens are merged into the last column, “other”.
    ``offered``: ids of the run's modules (``drawing.slots``).
    """
    look, lines = theme_named(theme), _slice_sentences(answer, least, offered)
    without = _without_choice(answer, offered)
    table = slice_rows(known_choices(answer, offered), least)
    for row in table:
        row["words"] = numbers.number(row["weight"])
        row["name"] = f"expert {row['expert']}" if row["slot"] is not None else f"{row['choices']} of the other experts"
        row["on"] = row["token"] == chosen
    experts = sorted({row["expert"] for row in table}, key=lambda e: (e == OTHER_COLUMN, int(e) if e.isdigit() else 0))
    named = [row["weight"] for row in table if row["slot"] is not None]
    x = alt.X(
        "expert:N",
        sort=experts,
        axis=bare_axis(f"expert of layer {answer['step']}", orient="top", labelAngle=-90, labelOverlap=True),
    )
    y = alt.Y(
        "label:N",
        sort=token_labels(answer["tokens"]),
        scale=alt.Scale(domain=token_labels(answer["tokens"])),
        axis=bare_axis(None, labelLimit=120, labelFontSize=look.font_size),
    )
    tooltip = tips("label:N token", "name:N chose", "words:N weight")
    base = alt.Chart(rows(table)).encode(x=x, y=y, tooltip=tooltip)
    stroke = either("datum.on", look.accent, look.link)
    cells = (
        base.transform_filter("datum.slot !== null")
        .mark_rect(strokeWidth=1)
        .encode(
            color=shade(
                "weight:Q",
                neutral_scale(max(named, default=1.0) or 1.0, look, clamp=True),
                "weight of the choice",
                format=".2~f",
            ),
            stroke=stroke,
        )
    )
    rest = (
        base.transform_filter("datum.slot === null")
        .mark_text(color=look.muted, fontSize=look.font_size - 1)
        .encode(text="choices:Q")
    )
    layers = [cells, rest]
    if without:
        signs = alt.Chart(rows(without)).mark_text(color=look.muted, align="left", dx=4, aria=False)
        layers.append(signs.encode(x=alt.value(0), y=y, text="said:N"))
    height = max(60, 19 * len(answer["tokens"]))
    return finish(alt.layer(*layers), look, title, lines, height=height)


def _without_choice(answer: Mapping[str, Any], offered: Collection[int] | None) -> list[dict[str, Any]]:
    """A row for each token that chose no expert here, or of which none is known."""
    tokens = answer["tokens"]
    reasons = [idle(token["modules"], (), offered) for token in tokens]
    return [
        {"label": label, "said": f"{SIGNS[why]} {why}"}
        for label, why in zip(token_labels(tokens), reasons, strict=True)
        if why is not None
    ]


def slice_words(answer: Mapping[str, Any], least: float, offered: Collection[int] | None = None) -> str:
    """Number of experts that these tokens use, how many are merged, and how many choices are not known."""
    return " ".join(_slice_sentences(answer, least, offered))


def _slice_sentences(answer: Mapping[str, Any], least: float, offered: Collection[int] | None) -> list[str]:
    reasons = [idle(token["modules"], (), offered) for token in answer["tokens"]]
    answer = known_choices(answer, offered)
    used = {module for token in answer["tokens"] for module in token["modules"]}
    shown = {row["expert"] for row in slice_rows(answer, least) if row["slot"] is not None}
    use = "uses" if len(answer["tokens"]) == 1 else "use"
    sentences = [
        f"{numbers.plural(len(answer['tokens']), 'token')} {use} {numbers.count(len(used))} of the "
        f"{numbers.plural(answer['num_modules'], 'expert')} of layer {answer['step']}. Darker on a light page: larger "
        "weight."
    ]
    if dropped := reasons.count(DROPPED):
        sentences.append(f"{numbers.count(dropped)} of them {'was' if dropped == 1 else 'were'} dropped here.")
    if unknown := reasons.count(NOT_RECORDED):
        sentences.append(f"What {numbers.count(unknown)} of them chose is not recorded.")
    if len(shown) < len(used):
        sentences.append(
            f"Last column: how many of a token's choices fall on the other {len(used) - len(shown)} experts, each "
            f"chosen by fewer than {numbers.percent(least)} of these tokens."
        )
    return sentences


def domain_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per expert and label: share of the label's tokens, of all other labels', and its ratio to the uniform
    share."""
    tokens = sum(domain["num_tokens"] for domain in answer["domains"])
    return [
        {
            "expert": int(row["module"]),
            "label": preference["label"],
            "share": preference["share"],
            "elsewhere": (row["count"] - preference["count"]) / max(1, tokens - preference["of"]),
            "times": preference["share"] / answer["baseline"],
            "count": preference["count"],
            "of": preference["of"],
        }
        for row in answer["modules"]
        for preference in row["prefers"]
    ]


@redrawable(numbers=domain_rows)
def domain_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = DOMAINS, most: int = 12
) -> alt.LayerChart:
    """Heat map: rows are the most specialised experts, columns labels, cell N_{i,D}/N_D."""
    look = theme_named(theme)
    shown = [domain["label"] for domain in answer["domains"]][:most]
    table = [row for row in domain_rows(answer) if row["label"] in shown]
    for row in table:
        row |= {"words": numbers.percent(row["share"], 2), "than": f"{numbers.number(row['times'], 2)} ×"}
        row["others"] = numbers.percent(row["elsewhere"], 2)
    top = max([row["share"] for row in table], default=1.0) or 1.0
    order = _by_number(answer["modules"])
    for row in table:
        row["name"] = str(row["expert"])
    x = alt.X(
        "label:N",
        sort=shown,
        axis=bare_axis(None, orient="top", labelAngle=0 if len(shown) <= 6 else -35, labelLimit=110),
    )
    y = alt.Y("name:N", sort=order, axis=bare_axis(f"expert of layer {answer['step']}"))
    base = alt.Chart(rows(table)).encode(x=x, y=y)
    cells = base.mark_rect(stroke=look.grid, strokeWidth=0.7).encode(
        color=shade(
            "share:Q",
            neutral_scale(top, look, clamp=True),
            f"share of the label's tokens (even: {numbers.percent(answer['baseline'])})",
            format=".0%",
        ),
        tooltip=tips(
            "name:N expert", "label:N", "words:N share", "others:N of all other labels", "than:N of the even share"
        ),
    )
    paper = look.background
    words = base.mark_text(fontSize=look.font_size - 1).encode(
        text="words:N", color=either(f"datum.share > {0.5 * top:.6g}", paper, look.ink)
    )
    words = words.transform_filter(f"width / {max(1, len(shown))} > 44")
    line = f"Share of a label's tokens that choose the expert; even routing: {numbers.percent(answer['baseline'])}."
    return finish(alt.layer(cells, words), look, title, line, height=max(60, 20 * len(order)))


def _by_number(experts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows in the order of their numbers: charts that stand side by side choose experts by what each is about, and the
    same expert would stand elsewhere in each."""
    return [str(number) for number in sorted(int(row["module"]) for row in experts)]


def domain_words(answer: Mapping[str, Any]) -> str:
    """The most specialised expert in a sentence."""
    table = domain_rows(answer)
    if not table:
        return "No expert got a token with a label."
    best = max(table, key=lambda row: (row["share"] - row["elsewhere"], -row["expert"]))
    gets = f"expert {best['expert']} gets {numbers.percent(best['share'])} of the tokens of “{best['label']}”"
    if len(answer["domains"]) < 2:
        return f"There is one label: {gets}; even routing would give it {numbers.percent(answer['baseline'])}."
    return f"Most one-sided: {gets}, and {numbers.percent(best['elsewhere'])} of all others."


def word_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per expert and word: its rank, N_{x,i}, N_x and their ratio."""
    return [
        {
            "expert": int(row["module"]),
            "place": place + 1,
            "word": preference["text"] if preference.get("text") else f"#{preference['token_id']}",
            "token_id": preference["token_id"],
            "share": preference["share"],
            "count": preference["count"],
            "of": preference["of"],
        }
        for row in answer["modules"]
        for place, preference in enumerate(row["prefers"])
    ]


@redrawable(numbers=word_rows)
def word_chart(answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = WORDS) -> alt.LayerChart:
    """Strongest words of each expert (rows); darkness: share of the word's occurrences that choose the expert."""
    look, table = theme_named(theme), word_rows(answer)
    for row in table:
        row |= {"name": str(row["expert"]), "shown": visible(row["word"]), "words": numbers.percent(row["share"])}
        row["seen"] = f"{numbers.count(row['count'])} of {numbers.count(row['of'])}"
    order = _by_number(row for row in answer["modules"] if row["prefers"])
    columns = max([row["place"] for row in table], default=1)
    wide = max([len(row["shown"]) for row in table], default=1)
    x = alt.X("place:O", axis=bare_axis("strongest words, from the left", orient="top", labels=False))
    y = alt.Y("name:N", sort=order, axis=bare_axis(f"expert of layer {answer['step']}"))
    base = alt.Chart(rows(table)).encode(
        x=x,
        y=y,
        tooltip=tips("name:N expert", "shown:N word", "words:N share of its occurrences", "seen:N occurrences"),
    )
    cells = base.mark_rect(stroke=look.background, strokeWidth=2).encode(
        color=shade(
            "share:Q",
            neutral_scale(1, look, clamp=True),
            f"share of the word's occurrences (even: {numbers.percent(answer['baseline'])})",
            format=".0%",
            values=[0, 0.5, 1],
        )
    )
    words = base.mark_text(fontSize=look.font_size, clip=True).encode(
        text="shown:N", color=either("datum.share > 0.5", look.background, look.ink)
    )
    words = words.transform_filter(f"width / {columns} > {5.5 * min(wide, 8):.0f}")
    what = {"next": "next word", "predicted": "predicted word"}.get(answer["of"], "word")
    line = f"Each cell: a {what} and how often it goes to the expert; seen ≥ {answer['least']} times."
    return finish(alt.layer(cells, words), look, title, line, height=max(60, 24 * len(order)))


def co_activation_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per cell: of the tokens of ``expert``, the share that also chooses ``other``."""
    modules = [int(row["module"]) for row in answer["modules"]]
    return [
        {"expert": i, "other": j, "share": answer["values"][a][b]}
        for a, i in enumerate(modules)
        for b, j in enumerate(modules)
        if i != j
    ]


@redrawable(numbers=co_activation_rows)
def co_activation_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TOGETHER
) -> alt.Chart:
    """Heat map of a response of ``/co_activation``; experts chosen together are adjacent."""
    look, table = theme_named(theme), co_activation_rows(answer)
    order = [str(row["module"]) for row in answer["modules"]]
    for row in table:
        row |= {"i": str(row["expert"]), "j": str(row["other"]), "words": numbers.percent(row["share"])}
    top = max([row["share"] for row in table], default=1.0) or 1.0
    axis: dict[str, Any] = {"ticks": False, "domain": False, "labelOverlap": True}
    chart = (
        alt.Chart(rows(table))
        .mark_rect(stroke=look.grid, strokeWidth=0.5)
        .encode(
            x=alt.X("j:N", sort=order, axis=alt.Axis(orient="top", title="also chosen", labelAngle=-90, **axis)),
            y=alt.Y("i:N", sort=order, axis=alt.Axis(title=f"expert of layer {answer['step']}", **axis)),
            color=shade(
                "share:Q",
                neutral_scale(top, look, clamp=True),
                f"share of the row's tokens (equal loads: {numbers.percent(answer['baseline'])})",
                format=".0%",
            ),
            tooltip=tips("i:N of the tokens of expert", "j:N also choose", "words:N share"),
        )
    )
    return finish(chart, look, title, co_activation_words(answer), height=max(80, min(520, 18 * len(order))))


def co_activation_words(answer: Mapping[str, Any]) -> str:
    """The strongest pair, and the number of experts left out."""
    if not answer["pairs"]:
        return "No two experts are chosen together."
    best = answer["pairs"][0]
    words = (
        f"Closest pair: {numbers.percent(best['share'])} of the tokens of expert {best['module']} choose expert "
        f"{best['other']} as well (by their loads {numbers.percent(best['by_load'])}), and "
        f"{numbers.percent(best['back'])} the other way round ({numbers.percent(best['back_by_load'])})."
    )
    if answer["more"]:
        words += f" Not drawn: {numbers.plural(answer['more'], 'expert')} with weaker pairs only."
    return words
