"""NMI of paths with token properties beside its null, and module preferences of searched tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, highest, rows, tip

PROPERTIES = {
    "label": "label of the sample",
    "prediction": "prediction for the sample",
    "token_id": "token id",
    "predicted_id": "predicted next token",
    "word_class": "kind of word",
    "sentence_end": "end of a sentence",
    "position": "position in the text",
    "region": "region of the picture",
    "place": "place in the picture",
}
"""properties: API name → display text"""
RUN, TWIN = "this run", "untrained twin"
OVER = {"samples": "whole samples", "sequences": "sequences of samples", "maps": "whole maps of images"}
"""unit of the shuffles: API name → display text"""
NULL = "95 % of shuffles"
MORE, LESS, UNSURE = "more than others", "less than others", "not surely different"
KNOWN, UNKNOWN = "more than chance", "no more than chance"
AXIS = "NMI above the mean of its shuffles"
IF_ALL_ZERO = (-0.01, 0.01)
"""ends of the axis where nothing lies beside 0"""
SHOWN = 14
_ROW = 30


def known(row: Mapping[str, Any]) -> bool:
    """Whether paths tell a property better than its shuffles, when all properties are tested together."""
    return bool(row["clear"])


def twin_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the untrained twin's paths with the same shuffles; None without a twin."""
    if row.get("untrained_nmi") is None:
        return None
    names = ("nmi", "null_mean", "null_low", "null_high", "p_value", "clear")
    return {**row, **{name: row[f"untrained_{name}"] for name in names}}


def _beyond(row: Mapping[str, Any]) -> float:
    return row["nmi"] - row["null_mean"]


def knowledge_words(answer: Mapping[str, Any]) -> str:
    """One sentence: the properties that paths predict, and those that they do not."""
    yes = [PROPERTIES[row["property"]] for row in answer["properties"] if known(row)]
    no = [PROPERTIES[row["property"]] for row in answer["properties"] if not known(row)]
    text = (
        f"Paths predict {numbers.listed(yes)} better than chance"
        if yes
        else "Paths predict none of these better than chance"
    )
    return text + (f", but not {numbers.listed(no)}." if no and yes else ".") + _twin_words(answer)


def _twin_words(answer: Mapping[str, Any]) -> str:
    """Whether the untrained twin's paths predict the same, and whether they tell more of it; empty without a twin.

    Compared is what NMI exceeds the mean of its shuffles by: paths that are rare have a high NMI with everything, and
    so have their shuffles.
    """
    pairs = [(row, twin) for row in answer["properties"] if (twin := twin_of(row)) is not None]
    if not pairs:
        return ""
    own = [PROPERTIES[row["property"]] for row, _ in pairs if known(row)]
    yes = [PROPERTIES[twin["property"]] for _, twin in pairs if known(twin)]
    if not yes:
        return " The untrained model's paths predict none of these."
    extra = [name for name in yes if name not in own]
    same = bool(own) and len(yes) - len(extra) == len(own)
    text = f" The untrained model's paths predict {numbers.listed(['the same', *extra] if same else yes)}."
    gaps = {PROPERTIES[row["property"]]: _beyond(twin) - _beyond(row) for row, twin in pairs}
    both = [name for name in yes if name in own]
    less, more = [name for name in both if gaps[name] < 0], [name for name in both if gaps[name] >= 0]
    if not both:
        return text
    of = "each" if len(both) > 1 else both[0]
    if not less or not more:
        beyond = f"{'less than' if less else 'at least as much as'} this run of {of}"
    else:
        beyond = f"less than this run of {numbers.listed(less)}, and at least as much of {numbers.listed(more)}"
    return f"{text} Beyond what shuffling gives, they tell {beyond}."


def knowledge_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the chart."""
    return [
        {
            "property": PROPERTIES[row["property"]],
            "values": row["values"],
            "NMI": row["nmi"],
            "above shuffles": round(_beyond(row), 12),
            "shuffled, mean": row["null_mean"],
            "shuffled, 2.5 %": row["null_low"],
            "shuffled, 97.5 %": row["null_high"],
            "p": row["p_value"],
            "shuffled over": OVER[row["shuffled"]],
            "tokens": row["num_tokens"],
            **(
                {}
                if (twin := twin_of(row)) is None
                else {
                    "untrained NMI": twin["nmi"],
                    "untrained above shuffles": round(_beyond(twin), 12),
                    "untrained shuffled, mean": twin["null_mean"],
                    "untrained shuffled, 2.5 %": twin["null_low"],
                    "untrained shuffled, 97.5 %": twin["null_high"],
                    "untrained p": twin["p_value"],
                }
            ),
        }
        for row in answer["properties"]
    ]


@redrawable(numbers=knowledge_rows)
def knowledge_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "What do paths know?"
) -> alt.LayerChart:
    """Chart of a response of ``/paths/knowledge``: a dot for what NMI exceeds the mean of its shuffles by, a bar for
    95 % of the shuffles around 0; below it a diamond for the untrained twin's paths, with a bar of their own.

    NMI itself would put what is rare to the right, whatever it tells: paths of one token have a high NMI with
    everything, and so have their shuffles.
    """
    look = theme_named(theme)
    table = _property_table(answer["properties"])
    names = [PROPERTIES[row["property"]] for row in answer["properties"]]
    twins = len(table) > len(names)
    tooltip = tip(
        {
            "property": "name",
            "paths of": "whose",
            "above the shuffles": "above",
            "NMI": "told",
            "95 % of shuffles": "null",
            "p": "p",
            "shuffled over": "over",
        }
    )
    y = alt.Y("name:N", sort=names, axis=alt.Axis(title=None, labelLimit=170, ticks=False))
    beside = {"yOffset": alt.YOffset("whose:N", sort=[RUN, TWIN])} if twins else {}
    # Where each token has a path of its own, every shuffle gives the same number: an axis of zeros has no width.
    flat = not any(row[end] for row in table for end in ("beyond", "low", "high"))
    scale = alt.Scale(domain=list(IF_ALL_ZERO)) if flat else alt.Scale(nice=True)
    x = alt.X("beyond:Q", scale=scale, axis=alt.Axis(title=AXIS, tickCount=5))
    kinds = {KNOWN: look.ink, UNKNOWN: look.muted, NULL: look.identity}
    domain = [kind for kind in kinds if kind == NULL or any(row["what"] == kind for row in table)]
    base = alt.Chart(rows(table))
    # One below the other: names of properties leave too little room for two on a telephone, or in a printed column.
    legend = alt.Legend(title=None, orient="top", symbolSize=90, columns=1)
    colour = alt.Color("what:N", scale=alt.Scale(domain=domain, range=[kinds[kind] for kind in domain]), legend=legend)
    zero = alt.Chart(rows([{"zero": 0}])).mark_rule(color=look.muted, strokeDash=[3, 3]).encode(x="zero:Q")
    # Shuffles often vary little: the tick keeps a short bar visible.
    tick = base.mark_tick(thickness=4, height=14, color=look.identity).encode(x=alt.datum(0), y=y, **beside)
    shapes = alt.Scale(domain=[RUN, TWIN], range=["circle", "diamond"])
    # Below: two legends side by side would leave no room on a narrow screen.
    below = alt.Legend(title=None, orient="bottom", symbolSize=90, symbolFillColor=look.ink, symbolStrokeWidth=0)
    shape = alt.Shape("whose:N", scale=shapes, legend=below)
    dots = base.mark_point(filled=True, size=110, opacity=1, tooltip=tooltip).encode(
        x=x, y=y, color=colour, **beside, **({"shape": shape} if twins else {})
    )
    bar = (
        base.transform_calculate(what=f"'{NULL}'")
        .mark_rule(strokeWidth=12, tooltip=tooltip)
        .encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour, **beside)
    )
    height = (1.6 if twins else 1) * _ROW * max(2, len(names))
    summary = highest(
        [{**row, "beyond": _beyond(row)} for row in answer["properties"]],
        "beyond",
        lambda row: (
            f"{PROPERTIES[row['property']]}, NMI {numbers.number(row['nmi'])} "
            f"against {numbers.number(row['null_mean'])} shuffled"
        ),
    )
    return finish(
        alt.layer(zero, bar, tick, dots), look, title, knowledge_words(answer), height=height, summary=summary
    )


def _property_table(properties: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per property of the run, then one per property of its untrained twin."""
    both = [(RUN, row) for row in properties]
    both += [(TWIN, twin) for row in properties if (twin := twin_of(row)) is not None]
    return [
        {
            "whose": whose,
            "name": PROPERTIES[row["property"]],
            "beyond": round(_beyond(row), 12),
            "low": round(row["null_low"] - row["null_mean"], 12),
            "high": round(row["null_high"] - row["null_mean"], 12),
            "what": KNOWN if known(row) else UNKNOWN,
            "above": numbers.number(round(_beyond(row), 12)),
            "told": numbers.number(row["nmi"]),
            "null": f"{numbers.number(row['null_low'])} – {numbers.number(row['null_high'])}",
            "p": numbers.number(row["p_value"], 2),
            "over": OVER[row["shuffled"]],
        }
        for whose, row in both
    ]


def contrast_words(answer: Mapping[str, Any]) -> str:
    """The module that distinguishes these tokens most reliably, in a sentence."""
    row = next((row for row in answer["modules"] if _sure(row)), None)
    if row is None:
        return (
            answer.get("modules_reason") or "No module is surely chosen more, or less, often than by the other tokens."
        )
    way = "more" if row["delta"] > 0 else "less"
    return (
        f"They choose module {row['module']} at step {row['step']} {way} often than the other tokens: "
        f"{numbers.percent(row['share'])} of them, {numbers.percent(row['share_of_others'])} of the others."
    )


@redrawable(numbers=lambda answer: answer["modules"])
def contrast_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "Which modules do they prefer?"
) -> alt.LayerChart:
    """Chart of ``modules`` of a response of ``/tokens/search``: Δ with its 95 % interval, a rule at 0."""
    look = theme_named(theme)
    table = [
        {
            "name": f"step {row['step']} · module {row['module']}",
            "delta": 100 * row["delta"],
            "low": None if row["low"] is None else 100 * row["low"],
            "high": None if row["high"] is None else 100 * row["high"],
            "what": MORE if _sure(row) and row["delta"] > 0 else LESS if _sure(row) else UNSURE,
            "here": numbers.percent(row["share"]),
            "others": numbers.percent(row["share_of_others"]),
            "is": row["name"],
        }
        for row in answer["modules"][:SHOWN]
    ]
    tooltip = tip({"module": "name", "name": "is", "of these tokens": "here", "of the others": "others"})
    y = alt.Y("name:N", sort=[row["name"] for row in table], axis=alt.Axis(title=None, labelLimit=170, ticks=False))
    x = alt.X("delta:Q", axis=alt.Axis(title="Δ, percentage points: share of these − share of the others", tickCount=5))
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=[MORE, LESS, UNSURE], range=[look.ink, look.link, look.identity]),
        legend=alt.Legend(title=None, orient="top", symbolSize=90, columns=2, columnPadding=10),
    )
    base = alt.Chart(rows(table))
    zero = alt.Chart(rows([{"zero": 0}])).mark_rule(color=look.muted, strokeDash=[3, 3]).encode(x="zero:Q")
    spans = base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour)
    dots = base.mark_point(filled=True, size=90, opacity=1, tooltip=tooltip).encode(x=x, y=y, color=colour)
    return finish(alt.layer(zero, spans, dots), look, title, contrast_words(answer), height=_ROW * max(2, len(table)))


def _sure(row: Mapping[str, Any]) -> bool:
    """Of all modules together: one of many is named."""
    return bool(row["clear"])


def preferred_path(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The path that best distinguishes these tokens.

    It has the largest share · ln(lower end of the lift), its contribution to the divergence; None if no lift is
    surely above 1 among all paths of the run.
    """
    able = [row for row in answer["paths"] if row["clear"] and row["low"] > 1]
    return max(able, key=lambda row: row["share"] * math.log(row["low"]), default=None)


def search_words(answer: Mapping[str, Any], what: str) -> str:
    """The number of matching tokens, and the path that they prefer."""
    matches, counted = answer["found"], answer["counted"]
    are, take = ("is", "it takes") if matches["num_tokens"] == 1 else ("are", "they take")
    text = (
        f"{numbers.plural(matches['num_tokens'], 'token')} ({numbers.percent(matches['share'])}) of "
        f"{numbers.plural(matches['num_samples'], 'sample')} {are} {what}; {take} "
        f"{numbers.plural(answer['num_paths'], 'path')}."
    )
    if not counted["exact"]:
        text += (
            f" Counted on {numbers.count(counted['num_tokens'])} of {numbers.plural(counted['of_tokens'], 'token')}, "
            f"in {numbers.plural(counted['num_samples'], 'whole sample')} drawn by hash: in the run the share lies "
            f"between {numbers.percent(matches['low'])} and {numbers.percent(matches['high'])} (95 %)."
        )
    return text


def preferred_module(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first module in the response that these tokens significantly prefer; None if there is none."""
    return next((row for row in answer["modules"] if _sure(row) and row["delta"] > 0), None)


def modules_first(answer: Mapping[str, Any]) -> bool:
    """Whether a module describes these tokens better than a path.

    Compares the excess of the module's share, in percentage points, with that of the preferred path. With many paths
    each is rare.
    """
    module, path = preferred_module(answer), preferred_path(answer)
    if module is None:
        return False
    return path is None or module["delta"] > path["share"] - path["share_of_all"]


def module_words(row: Mapping[str, Any]) -> str:
    """A sentence about a preferred module."""
    return (
        f"Above all they choose module {row['module']} at step {row['step']}: {numbers.percent(row['share'])} of them, "
        f"{numbers.percent(row['share_of_others'])} of the others."
    )


def preferred_words(answer: Mapping[str, Any]) -> str:
    """“They prefer path 3: 55.0 % of them take it, 27.2 times as often as all tokens (25.6 – 28.8).”"""
    best = preferred_path(answer)
    if best is None:
        return "None of their paths is surely taken more often than by all tokens."
    return (
        f"They prefer the path of rank {best['rank']:,}: {numbers.percent(best['share'])} of them take it, "
        f"{numbers.number(best['lift'])} times as often as all tokens do (95 %: {numbers.number(best['low'])} to "
        f"{numbers.number(best['high'])})."
    )


def span(low: float | None, high: float | None) -> str:
    """An interval: “25.6 – 28.8”."""
    return "–" if low is None or high is None else f"{numbers.number(low)} – {numbers.number(high)}"


def taken_rows(paths: Sequence[Mapping[str, Any]], offered: Collection[int] | None = None) -> list[dict[str, Any]]:
    """Table of the tokens' paths; shares in per cent. ``offered``: ids of the run's modules (``drawing.slots``)."""
    return [
        {
            "rank": row["rank"],
            "path": numbers.ribbon_words(row["ribbon"], offered=offered),
            "tokens": row["count"],
            "share": 100 * row["share"],
            "of all": 100 * row["share_of_all"],
            "lift": row["lift"],
            "95 %": span(row["low"], row["high"]),
        }
        for row in paths
    ]
