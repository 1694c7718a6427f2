"""Work beside its outcome, means by kind of token, likeness of a path's tokens, kinds of modules by step.

After sections 3.3 and 4.3 and figures 3, 6, 16, 17, 20 of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import signed_ticks, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

OUTCOMES = {"right": "share that is right", "confidence": "mean confidence", "loss": "mean loss (nats)"}
"""outcome → title of its axis"""
AMOUNTS = {
    "compute": ("with the least compute", "with the most"),
    "reuse": ("that reuse modules least", "that reuse most"),
    "modules": ("that visit the fewest modules", "that visit the most"),
}
"""measure → names of the groups at both ends"""
AXES = {"compute": "compute", "reuse": "reuse", "modules": "modules visited"}
LOOKS = {"colour": ("Patches", "in colour"), "word_class": ("Words", "in kind")}
KIND_NAMES = {
    "edge": "busy patches (edges)",
    "flat": "flat patches",
    "border": "at the picture’s border",
    "centre": "in its middle",
    "sentence_end": "ends of sentences",
    "function_word": "function words",
    "ends_in_s": "words in -s",
    "capitalised": "capitalised words",
    "number": "numbers",
    "other": "other words",
}
"""kinds of tokens: API name → display text; others stand as they are"""
GROUPS = {"region": "region", "patch": "kind of patch", "word": "kind of word"}
MEASURE_NAMES = {"compute": "compute", "reuse": "reuse", "loss": "loss"}
RUN, TWIN = "this run", "untrained twin"
MOST_KINDS = 3
FAINT = 0.05
"""likeness beyond chance below which it is surely there, but hardly to be seen"""
LOWEST = -1.0
"""likeness at which points and bars end"""
_ROW = 26
BARS = "Bars: 95 % intervals by sample."
KIND_BARS = f"{BARS} Kinds are named where those of all kinds together leave 0 out."


def unit_of(per: str, modality: str) -> str:
    """What one count is, in the plural."""
    if per == "sample":
        return "images" if modality == "vision" else "texts"
    return "patches" if modality == "vision" else "tokens"


def outcome_words(answer: Mapping[str, Any], outcome: str, unit: str) -> str:
    """“Images that visit the fewest modules are right in 65.2 %, those that visit the most in 38.2 %.”"""
    row = next((row for row in answer["differences"] if row["outcome"] == outcome), None)
    if row is None:
        return ""
    least, most = AMOUNTS[answer["measure"]]
    show = numbers.percent if outcome != "loss" else numbers.number
    first, last = show(row["least"]), show(row["most"])
    name = unit.capitalize()
    if outcome == "right":
        text = f"{name} {least} are right in {first}, those {most} in {last}"
    elif outcome == "confidence":
        text = f"The model is {first} sure of {unit} {least}, {last} of those {most}"
    else:
        text = f"{name} {least} have a loss of {first} nats, those {most} {last}"
    return f"{text}{'' if sure(row) else ': no sure difference'}."


def sure(row: Mapping[str, Any], name: str = "") -> bool:
    """Whether the 95 % interval of a difference leaves 0 out."""
    low, high = row[f"{name}low"], row[f"{name}high"]
    return low is not None and high is not None and (low > 0 or high < 0)


def _interval(row: Mapping[str, Any], outcome: str) -> str:
    if row["low"] is None:
        return "no interval"
    show = numbers.number if outcome == "loss" else numbers.percent
    return f"{show(row['low'])} … {show(row['high'])}"


def outcome_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the groups."""
    return [
        {
            "group": place,
            f"least {AXES[answer['measure']]}": group["lowest"],
            f"most {AXES[answer['measure']]}": group["highest"],
            **{
                f"{name}{end}": group[name][key]
                for name in OUTCOMES
                if group[name] is not None
                for end, key in (("", "mean"), (", 2.5 %", "low"), (", 97.5 %", "high"))
            },
        }
        for place, group in enumerate(answer["groups"], 1)
    ]


@redrawable(numbers=outcome_rows)
def outcome_chart(
    answer: Mapping[str, Any],
    outcome: str = "right",
    *,
    unit: str = "samples",
    theme: str | Theme = "light",
    title: str | None = "",
    height: int = 200,
) -> alt.LayerChart:
    """One outcome of a response of ``/outcomes/{measure}``: groups of one size from the least to the most."""
    look = theme_named(theme)
    show = numbers.number if outcome == "loss" else numbers.percent
    table = [
        {
            "group": place,
            "mean": group[outcome]["mean"],
            "low": group[outcome]["low"],
            "high": group[outcome]["high"],
            "said": show(group[outcome]["mean"]),
            "interval": _interval(group[outcome], outcome),
            "of": f"{numbers.number(group['lowest'])} … {numbers.number(group['highest'])}",
        }
        for place, group in enumerate(answer["groups"], 1)
        if group[outcome] is not None
    ]
    num = len(answer["groups"])
    axis = AXES.get(answer["measure"], answer["measure"])
    x = alt.X(
        "group:Q",
        scale=alt.Scale(domain=[0, num + 1], nice=False, zero=False),
        axis=alt.Axis(
            title=f"{num} equal groups of {unit}, by {axis}",
            values=[1, num],
            labelExpr="datum.value == 1 ? 'least' : 'most'",
            grid=False,
            ticks=False,
        ),
    )
    y = alt.Y(
        "mean:Q",
        scale=alt.Scale(zero=False, padding=12),
        axis=alt.Axis(title=OUTCOMES[outcome], tickCount=5, format="~g" if outcome == "loss" else "~%"),
    )
    base = alt.Chart(rows(table)).encode(x=x)
    spans = base.mark_rule(strokeWidth=2, color=look.link).encode(y=alt.Y("low:Q"), y2="high:Q")
    line = base.mark_line(color=look.link, strokeWidth=1.5, aria=False).encode(y=y)
    dots = base.mark_point(filled=True, size=60, opacity=1, color=look.ink).encode(
        y=y, tooltip=tips(f"said:N {OUTCOMES[outcome]}", "interval:N 95 % interval", f"of:N {axis}")
    )
    words = outcome_words(answer, outcome, unit)
    heading = words.rstrip(".") if title == "" else title
    return finish(alt.layer(spans, line, dots), look, heading, BARS, height=height, summary=words)


def kind_name(kind: str) -> str:
    """The name of a kind of token.

    >>> kind_name("edge"), kind_name("background")
    ('busy patches (edges)', 'background')
    """
    return KIND_NAMES.get(kind, kind)


def kind_words(answer: Mapping[str, Any]) -> str:
    """Which kinds lie surely above and below all tokens, the furthest first.

    Where a kind that is not sure lies further out, the sure one has not the most, or the least: it is surely more.
    """
    name = MEASURE_NAMES.get(answer["measure"], answer["measure"])
    apart = sorted((row for row in answer["kinds"] if row["clear"]), key=lambda row: -row["difference"])
    if not apart:
        return f"No kind of token has surely more or less {name} than all tokens."
    told = [(kind_name(row["kind"]), row["mean"], row["difference"]) for row in apart]
    return numbers.most_and_least(name, told, [row["difference"] for row in answer["kinds"]])


@redrawable
def kind_means_chart(
    answer: Mapping[str, Any],
    twin: Mapping[str, Any] | None = None,
    *,
    theme: str | Theme = "light",
    title: str | None = "",
) -> alt.LayerChart:
    """Mean of each kind of token less that of all, from a response of ``/means/{measure}``.

    ``twin``: the response of the untrained twin's run.
    """
    look = theme_named(theme)
    name = MEASURE_NAMES.get(answer["measure"], answer["measure"])
    names = [kind_name(row["kind"]) for row in answer["kinds"]]
    both = [(RUN, answer["kinds"])] + ([(TWIN, twin["kinds"])] if twin else [])
    table = [
        {
            "whose": whose,
            "kind": kind_name(row["kind"]),
            "by": GROUPS.get(row["by"], row["by"]),
            "difference": row["difference"],
            "low": row["difference_low"],
            "high": row["difference_high"],
            "said": numbers.number(row["mean"]),
            "apart": _signed(row["difference"]),
            "tokens": numbers.count(row["num_tokens"]),
        }
        for whose, kinds in both
        for row in kinds
        if kind_name(row["kind"]) in names
    ]
    y = alt.Y("kind:N", sort=names, axis=alt.Axis(title=None, labelLimit=170, ticks=False))
    less = alt.Axis(title=f"mean {name} minus that of all tokens", tickCount=5, labelExpr=signed_ticks("+~g"))
    x = alt.X("difference:Q", axis=less)
    beside: dict[str, Any] = {"yOffset": alt.YOffset("whose:N", sort=[RUN, TWIN])} if twin else {}
    domain = [RUN, TWIN] if twin else [RUN]
    legend = alt.Legend(title=None, orient="top", symbolSize=80) if twin else None
    colour = alt.Color(
        "whose:N", scale=alt.Scale(domain=domain, range=[look.ink, look.identity][: len(domain)]), legend=legend
    )
    base = alt.Chart(rows(table)).encode(y=y, color=colour, **beside)
    zero = alt.Chart(rows([{"zero": 0}])).mark_rule(color=look.muted, strokeDash=[3, 3]).encode(x="zero:Q")
    spans = base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q"), x2="high:Q")
    dots = base.mark_point(filled=True, size=75, opacity=1).encode(
        x=x, tooltip=tips("kind:N", "by:N", "whose:N", f"said:N mean {name}", "apart:N less all", "tokens:N")
    )
    height = (1.5 if twin else 1) * _ROW * max(2, len(names))
    words = kind_words(answer)
    heading = words.rstrip(".") if title == "" else title
    return finish(alt.layer(zero, spans, dots), look, heading, KIND_BARS, height=height, summary=words)


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + numbers.number(value)


def likeness_words(answer: Mapping[str, Any], *, whole: bool = False) -> str:
    """“Patches of one path are alike in colour: 0.57 (1 = equal); places alone would give 0.01, …”

    ``whole``: each image is one token (``thing_names.whole_images``), so chance is not that of places in it.
    """
    if not answer["looks"]:
        return ""
    row = answer["looks"][0]
    what, how = LOOKS.get(row["look"], ("Tokens", f"in {row['look']}"))
    what, chance = ("Images", "chance alone gives") if whole else (what, "places alone give")
    said = numbers.number(row["likeness"])
    if row["p_value"] is None:
        text = f"{what} of one path are alike {how} by {said} (1 = equal); too few samples to tell that from chance"
    elif row["p_value"] > 0.05:
        # The mean alone would read as a contradiction: 0.234 is above it, but so are many exchanges.
        text = f"{what} of one path are not surely more alike {how} than by chance: {said} (1 = equal), and {chance} "
        known = row["null_low"] is not None and row["null_high"] is not None
        text += (
            f"{numbers.number(row['null_low'])} to {numbers.number(row['null_high'])}"
            if known
            else numbers.number(row["null_mean"])
        )
    else:
        faint = row["likeness"] - row["null_mean"] < FAINT
        way = f"only a trace more alike {how} than by chance" if faint else f"alike {how}"
        # 0.0000401 beside 0.0639 is 0; where the likeness is a trace itself, the chance is told as finely.
        mean = round(row["null_mean"], 3)
        by_chance = numbers.number(row["null_mean"]) if faint else f"{mean:.3f}".replace("-", "−") if mean else "0"
        text = f"{what} of one path are {way}: {said}, where 1 is equal and {chance} {by_chance}"
        if row["low"] is not None and row["low"] <= row["null_mean"]:
            text += (
                "; but samples differ so much that it could be chance "
                f"(95 % {numbers.number(row['low'])} to {numbers.number(row['high'])})"
            )
    if row["untrained"] is not None:
        before, now = (numbers.number(row[name]) for name in ("untrained", "trained"))
        low, high = row.get("untrained_low"), row.get("untrained_high")
        near = before == now or (low is not None and high is not None and low <= row["trained"] <= high)
        way = "about as" if near else "more" if row["untrained"] > row["trained"] else "less"
        text += f"; before training they were {way} alike ({before}, now {now} on the same tokens)"
    return text + "."


def likeness_rows(answer: Mapping[str, Any], offered: Collection[int] | None = None) -> list[dict[str, Any]]:
    """Table of the paths; ``offered``: ids of the run's modules (``drawing.slots``)."""
    return [
        {
            "rank": one["rank"],
            "path": numbers.ribbon_words(one["ribbon"], offered=offered),
            "tokens": one["num_tokens"],
            "samples": one["num_samples"],
            "likeness": one["likeness"],
            "exchanges, 2.5 %": one["null_low"],
            "exchanges, 97.5 %": one["null_high"],
        }
        for one in answer["looks"][0]["paths"]
    ]


@redrawable(
    numbers=lambda answer, offered: {
        "paths": likeness_rows(answer, offered),
        "all paths": [{key: value for key, value in answer["looks"][0].items() if key != "paths"}],
    }
)
def likeness_chart(
    answer: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "",
    height: int = 240,
    offered: Collection[int] | None = None,
    whole: bool = False,
) -> alt.LayerChart:
    """Likeness of the most frequent paths of a response of ``/paths/alikeness``, beside 95 % of its null.

    ``offered``: ids of the run's modules (``drawing.slots``). ``whole``: as in ``likeness_words``.
    """
    look = theme_named(theme)
    row = answer["looks"][0]
    table = [
        {
            "rank": one["rank"],
            # Far below 0 lie paths of a few tokens; the table has their numbers.
            "likeness": max(LOWEST, one["likeness"]),
            "low": max(LOWEST, one["null_low"]),
            "high": max(LOWEST, one["null_high"]),
            "said": numbers.number(one["likeness"]),
            "null": f"{numbers.number(one['null_low'])} … {numbers.number(one['null_high'])}",
            "path": numbers.ribbon_words(one["ribbon"], offered=offered),
            "tokens": numbers.count(one["num_tokens"]),
        }
        for one in row["paths"]
    ]
    x = alt.X(
        "rank:Q",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(title="rank of the path (1 = most frequent)", grid=False, tickCount=6, format="~s"),
    )
    y = alt.Y("likeness:Q", axis=alt.Axis(title="likeness", tickCount=5))
    kinds = {"this path": look.ink, "95 % of exchanges": look.identity}
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=list(kinds), range=list(kinds.values())),
        legend=alt.Legend(title=None, orient="top", symbolSize=80),
    )
    base = alt.Chart(rows(table)).encode(x=x)
    spans = (
        base.transform_calculate(what="'95 % of exchanges'")
        .mark_rule(strokeWidth=5)
        .encode(y=alt.Y("low:Q"), y2="high:Q", color=colour)
    )
    dots = (
        base.transform_calculate(what="'this path'")
        .mark_point(filled=True, size=60, opacity=1)
        .encode(
            y=y, color=colour, tooltip=tips("rank:Q", "said:N likeness", "null:N of exchanges", "path:N", "tokens:N")
        )
    )
    mean = alt.Chart(rows([{"y": row["likeness"]}])).mark_rule(color=look.muted, strokeDash=[5, 3]).encode(y="y:Q")
    words = likeness_words(answer, whole=whole)
    heading = words.rstrip(".") if title == "" else title
    return finish(
        alt.layer(spans, mean, dots), look, heading, "Dashed: all paths together.", height=height, summary=words
    )


def drawn_kinds(shares: Sequence[Mapping[str, Any]]) -> list[str]:
    """The kinds that are drawn: all but the most frequent of two, which says the same; at most three."""
    mean: dict[str, list[float]] = {}
    for row in shares:
        mean.setdefault(row["kind"], []).append(row["share"])
    order = sorted(mean, key=lambda kind: -sum(mean[kind]))
    return order[1:] if len(order) == 2 else order[:MOST_KINDS]


def kind_share_words(answer: Mapping[str, Any]) -> str:
    """“Identity modules take 24 to 26 % of a step's choices, most at step 1.”"""
    kind = drawn_kinds(answer["shares"])[0]
    of_kind = [row for row in answer["shares"] if row["kind"] == kind]
    most, least = max(of_kind, key=lambda row: row["share"]), min(of_kind, key=lambda row: row["share"])
    high, low = (numbers.percent(row["share"]) for row in (most, least))
    if high == low:
        return f"Modules of kind {kind} take {high} of the choices of each step."
    return (
        f"Modules of kind {kind} take most at step {most['step']} ({high} of its choices) "
        f"and least at step {least['step']} ({low})."
    )


def kind_marks(answer: Mapping[str, Any]) -> str:
    """What the marks of ``module_kinds_chart`` are, for its caption."""
    twin = any(row["untrained"] is not None for row in answer["shares"])
    return "Bars: 95 % intervals by sample." + " Dashed: the untrained twin." * twin


@redrawable
def module_kinds_chart(
    answer: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "", height: int = 220
) -> alt.LayerChart:
    """Share of kinds of modules by step, from a response of ``/usage/kinds``; dashed: the untrained twin."""
    look = theme_named(theme)
    kinds = drawn_kinds(answer["shares"])
    inks = [look.ink, look.link, look.accent][: len(kinds)]
    table = [
        {
            **{name: row[name] for name in ("step", "kind", "share", "low", "high", "untrained")},
            "said": numbers.percent(row["share"]),
            "even": numbers.percent(row["even"]),
            "twin": numbers.percent(row["untrained"]) if row["untrained"] is not None else "not traced",
        }
        for row in answer["shares"]
        if row["kind"] in kinds
    ]
    steps = sorted({row["step"] for row in table})
    x = alt.X(
        "step:Q",
        scale=alt.Scale(domain=[steps[0] - 0.3, steps[-1] + 0.3], nice=False, zero=False),
        axis=alt.Axis(title="step", values=steps, format="d", grid=False),
    )
    y = alt.Y("share:Q", scale=alt.Scale(domainMin=0), axis=alt.Axis(title="share of the choices", format="~%"))
    colour = alt.Color(
        "kind:N", scale=alt.Scale(domain=kinds, range=inks), legend=alt.Legend(title=None, orient="top", symbolSize=80)
    )
    base = alt.Chart(rows(table)).encode(x=x, color=colour)
    twin = (
        base.transform_filter("datum.untrained != null")
        .mark_line(strokeDash=[4, 3], opacity=0.7)
        .encode(y="untrained:Q")
    )
    spans = base.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=y)
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(
        y=y, tooltip=tips("step:Q", "kind:N", "said:N share", "even:N if all were even", "twin:N untrained twin")
    )
    words = kind_share_words(answer)
    heading = words.rstrip(".") if title == "" else title
    return finish(alt.layer(twin, spans, line, dots), look, heading, kind_marks(answer), height=height, summary=words)
