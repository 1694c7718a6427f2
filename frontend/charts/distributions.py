"""Histograms, means by label, and skip against reuse.

After figures 6, 7, 11 and 12 of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, either, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import click_selection, finish, highest, rows
from tokenpaths.frontend.charts.work import BARS

BIN_PICK = "bin"
MEASURES = {
    "compute": ("compute", "1 = never skipped"),
    "reuse": ("reuse", "0 = no module twice"),
    "loss": ("loss", "nats"),
    "gate_entropy": ("gate entropy", "nats"),
}
"""measure → its name, and its unit or the meaning of its extreme"""


SKIP_AND_REUSE = "Do samples that skip more also reuse more?"
NARROWEST = 1e-6
"""range of shares below which they are all one"""


@redrawable
def histogram_chart(
    distribution: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "",
    chosen: tuple[float, float] | None = None,
    height: int = 240,
) -> alt.LayerChart:
    """Histogram from a response of ``/distributions/{measure}``; dashed line: mean. A click selects a bin."""
    look = theme_named(theme)
    measure, per = str(distribution["measure"]), str(distribution.get("per") or "sample")
    name, unit = MEASURES.get(measure, (measure, ""))
    bins = list(enumerate(distribution["bins"]))
    filled = [index for index, b in bins if b["count"]] or [index for index, _b in bins]
    # leave out empty bins at the ends, which would only make the others narrower
    bins = bins[filled[0] : filled[-1] + 1] if filled else []
    table = [
        {
            "lo": b["lo"],
            "hi": _hi(b),
            "count": b["count"],
            "bin": index,
            "zero": 0,
            "range": f"{numbers.number(b['lo'])} … {numbers.number(b['hi'])}",
            "on": chosen is not None and abs(b["lo"] - chosen[0]) < 1e-9 and abs(b["hi"] - chosen[1]) < 1e-9,
        }
        for index, b in bins
    ]
    x = alt.X(
        "lo:Q",
        scale=alt.Scale(zero=False, nice=False, padding=6),
        axis=alt.Axis(title=f"{name} per {per} ({unit})" if unit else f"{name} per {per}", grid=False, tickCount=6),
    )
    y = alt.Y("count:Q", axis=alt.Axis(title=f"{per}s", tickCount=4, format="~s"))
    bars = (
        alt.Chart(rows(table))
        .mark_bar(binSpacing=1, cursor="pointer", stroke=look.background, strokeWidth=0.6)
        .encode(
            x=x,
            x2="hi:Q",
            y=y,
            y2="zero:Q",
            color=either("datum.on", look.accent, look.module),
            tooltip=tips(f"range:N {name}", f"count:Q|, {per}s"),
        )
        .add_params(click_selection(BIN_PICK, "bin"))
    )
    layers = [bars]
    if distribution.get("mean") is not None:
        mean = alt.Chart(rows([{"lo": distribution["mean"]}]))
        layers.append(mean.mark_rule(color=look.ink, strokeDash=[5, 3], strokeWidth=1.5).encode(x=x))
    heading = f"How is {name} spread over {per}s?" if title == "" else title
    return finish(alt.layer(*layers), look, heading, distribution_words(distribution), height=height)


def distribution_words(distribution: Mapping[str, Any]) -> str:
    """“10,000 samples: mean 0.752 ± 0.031 (standard deviation), median 0.750; 1st to 99th percentile 0.66 to 0.83.”

    Of fewer than a hundred both ends are told: one of them is more than 1 %. How many lie between two percentiles
    is not: they fall between values, and of 102 samples 98 lie there, where many are equal all may.
    """
    per = str(distribution.get("per") or "sample")
    if not distribution.get("num"):
        return f"No {per} has this measure here."
    many = distribution["num"] >= 100
    low, high = (numbers.number(distribution.get(key)) for key in (("q01", "q99") if many else ("min", "max")))
    show = {key: numbers.number(distribution.get(key)) for key in ("mean", "std", "median")}
    return (
        f"{numbers.plural(distribution['num'], per)}: mean {show['mean']} ± {show['std']} (standard "
        "deviation), "
        f"median {show['median']}; {'1st to 99th percentile' if many else 'all lie from'} {low} to {high}."
    )


def mean_rows(distribution: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the means of labels, and of the line over all."""
    return [{**row, "mean of all": distribution["mean"]} for row in distribution["by_label"]]


def label_words(distribution: Mapping[str, Any]) -> str:
    """Which labels surely have more and less than all others; empty where no interval is known.

    Where a label that is not sure, as one of a single sample, lies further out, the sure one has not the most.
    """
    name = MEASURES[str(distribution["measure"])][0]
    known = [row for row in distribution["by_label"] if row.get("low") is not None]
    if not known:
        return ""
    apart = sorted((row for row in known if row["clear"]), key=lambda row: (-row["mean"], str(row["label"])))
    labelled = [row for row in distribution["by_label"] if row["mean"] is not None and row["label"] is not None]
    # Not of all samples: those without a label are not among what a label is compared with.
    mean = sum(row["num"] * row["mean"] for row in labelled) / max(1, sum(row["num"] for row in labelled))
    told = [(str(row["label"]), row["mean"], row["mean"] - mean) for row in apart]
    means = [row["mean"] - mean for row in labelled]
    return numbers.most_and_least(name, told, means) or f"No label has surely more or less {name} than the others."


def _interval_words(row: Mapping[str, Any]) -> str:
    if row.get("low") is None:
        return ""
    return f" ({numbers.number(row['low'])} to {numbers.number(row['high'])})"


@redrawable(numbers=mean_rows)
def label_chart(
    distribution: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = "", most: int = 30
) -> alt.LayerChart:
    """The mean of a measure per label, sorted; labels are named, not coloured. At most ``most``: both ends.

    ``distribution`` is that of the whole run: its mean is the dashed line.
    """
    look = theme_named(theme)
    per = str(distribution.get("per") or "sample")
    name, _unit = MEASURES.get(str(distribution["measure"]), (str(distribution["measure"]), ""))
    labels = sorted(
        (row for row in distribution.get("by_label") or [] if row.get("mean") is not None),
        key=lambda row: (-row["mean"], str(row["label"])),
    )
    shown = labels if len(labels) <= most else labels[: most // 2] + labels[-(most // 2) :]
    table = [
        {
            "label": str(row["label"]),
            "mean": row["mean"],
            "low": row.get("low"),
            "high": row.get("high"),
            "num": row["num"],
            "words": numbers.number(row["mean"]) + _interval_words(row),
        }
        for row in shown
    ]
    order = [row["label"] for row in table]
    scale = alt.Scale(zero=False, padding=14)
    x = alt.X("mean:Q", scale=scale, axis=alt.Axis(title=f"mean {name}", tickCount=5))
    y = alt.Y("label:N", sort=order, axis=bare_axis(None, labelLimit=120, grid=True))
    points = (
        alt.Chart(rows(table))
        .mark_point(filled=True, size=70, color=look.module, opacity=1)
        .encode(x=x, y=y, tooltip=tips("label:N", f"words:N mean {name}", f"num:Q|, {per}s"))
    )
    layers = [points]
    if known := [row for row in table if row["low"] is not None]:
        bars = alt.Chart(rows(known))
        layers.insert(0, bars.mark_rule(color=look.module).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y))
    if distribution.get("mean") is not None:
        layers.insert(
            0,
            alt.Chart(rows([{"mean": distribution["mean"]}]))
            .mark_rule(color=look.muted, strokeDash=[5, 3])
            .encode(x=x),
        )
    hidden = len(labels) - len(shown)
    subtitle = (
        "Dashed: mean over all."
        + (" Bars: 95 % intervals by sample." if known else "")
        + (f" The {hidden} labels in the middle are in the table below." if hidden else "")
    )
    summary = highest(table, "mean", lambda row: f"{row['label']}, mean {name} {row['words']}")
    heading = f"Which labels get more {name}?" if title == "" else title
    return finish(alt.layer(*layers), look, heading, subtitle, height=max(60, 19 * len(table)), summary=summary)


def skip_rows(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Samples with a compute and a reuse; skip is 1 − compute."""
    return [
        {"sample": s["sample"], "label": s.get("label"), "skip": 1 - s["compute"], "reuse": s["reuse"]}
        for s in samples
        if s.get("compute") is not None and s.get("reuse") is not None
    ]


def skip_reuse_rows(samples: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The tables behind the chart: samples, and quarters of them."""
    groups = [
        {
            "skip": row["skip"],
            **{key: row["reuse"][key] for key in ("mean", "low", "high")},
            "chance": row["chance_reuse"],
        }
        for row in answer["groups"]
    ]
    return {"samples": skip_rows(samples), "quarters": groups}


@redrawable(numbers=skip_reuse_rows)
def skip_reuse_chart(
    samples: Sequence[Mapping[str, Any]],
    answer: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = SKIP_AND_REUSE,
    height: int = 300,
) -> alt.LayerChart:
    """Scatter of skip (1 − compute) against reuse, one point a sample, beside what chance gives.

    ``answer``: a response of ``/skip_and_reuse``, with means of quarters of the samples and what chance gives these.
    """
    look = theme_named(theme)
    tables = skip_reuse_rows(samples, answer)
    table = [row | {"label": row["label"] or "no label"} for row in tables["samples"]]
    scales = {name: _share_scale([row[name] for row in table]) for name in ("skip", "reuse")}
    x = alt.X("skip:Q", scale=scales["skip"], axis=alt.Axis(title="skip (1 − compute)", tickCount=5, format="~%"))
    y_axis = alt.Axis(title="reuse (share of visits)", tickCount=5, format="~%")
    kinds = {"one sample": look.link, "a quarter’s mean": look.ink}
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=list(kinds), range=list(kinds.values())),
        legend=alt.Legend(title=None, orient="top", symbolType="circle", symbolSize=80, symbolOpacity=1),
    )

    def part(name: str, data: Sequence[Mapping[str, Any]]) -> alt.Chart:
        return alt.Chart(rows(data)).transform_calculate(what=f"'{name}'").encode(x=x)

    def reuse(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", scale=scales["reuse"], axis=y_axis)

    one, mean, chance = *kinds, "by chance"
    points = (
        part(one, table)
        .mark_point(filled=True, size=26, opacity=0.4 if len(table) > 200 else 0.6, cursor="pointer")
        .encode(y=reuse("reuse"), color=colour, tooltip=tips("sample:Q", "label:N", "skip:Q|.3~f", "reuse:Q|.3~f"))
        .add_params(click_selection("sample", "sample"))
    )
    groups = [
        row
        | {
            "said": numbers.percent(row["mean"]),
            "skipped": numbers.percent(row["skip"]),
            "dealt": numbers.percent(row["chance"]),
        }
        for row in tables["quarters"]
    ]
    tooltip = tips("skipped:N mean skip", "said:N mean reuse", "dealt:N by chance")
    dash = alt.StrokeDash(
        "line:N",  # of a name of its own: legends of one field are made one, with the symbol of the first
        scale=alt.Scale(domain=[chance], range=[[5, 3]]),
        legend=alt.Legend(
            title=None,
            orient="top",
            symbolType="stroke",
            symbolSize=300,
            symbolStrokeWidth=2,
            symbolStrokeColor=look.muted,
        ),
    )
    by_chance = (
        part(chance, groups)
        .transform_calculate(line=f"'{chance}'")
        .mark_line(strokeWidth=2, color=look.muted, aria=False)
        .encode(y=reuse("chance"), strokeDash=dash)
    )
    quarters = part(mean, groups)
    spans = quarters.mark_rule(strokeWidth=2).encode(y=reuse("low"), y2="high:Q", color=colour)
    dots = quarters.mark_point(filled=True, size=80, opacity=1).encode(y=reuse("mean"), color=colour, tooltip=tooltip)
    chart = alt.layer(points, by_chance, spans, dots)
    words = f"{SKIP_AND_REUSE} {skip_reuse_words(answer)}" if title is None else skip_reuse_words(answer)
    return finish(chart, look, title, BARS, height=height, summary=words)


def _share_scale(shares: Sequence[float]) -> alt.Scale:
    """The scale of shares in [0, 1]; around one that all have, Vega's own would be of width 0 with a single tick."""
    scale = alt.Scale(zero=False, padding=10)
    if shares and max(shares) - min(shares) < NARROWEST:
        scale.domain = [max(0.0, min(shares) - 0.1), min(1.0, max(shares) + 0.1)]
    return scale


def skip_reuse_words(answer: Mapping[str, Any]) -> str:
    """What a response of ``/skip_and_reuse`` says, as sentences, or why it says nothing."""
    if answer["reason"]:
        return f"{numbers.capital(answer['reason'])}."
    least, most = answer["groups"][0], answer["groups"][-1]
    seen = {1: "more", -1: "less", 0: "neither more nor less for certain"}[_side(answer["seen"])]
    pairs = {
        1: "Of two steps that both use a module, samples that skip more use the same one more often",
        -1: "Of two steps that both use a module, samples that skip more use the same one less often",
        0: "Whether two steps use the same module does not depend on skip for certain",
    }[_side(answer["pairs"]) if answer["pairs"] else 0]
    skips, reuses, chances = (
        [numbers.percent(value, 2) for value in values]
        for values in (
            (least["skip"], most["skip"]),
            (least["reuse"]["mean"], most["reuse"]["mean"]),
            (least["chance_reuse"], most["chance_reuse"]),
        )
    )
    return (
        f"Samples that skip more reuse {seen}: {reuses[0]} of visits repeat a module in the quarter that skips least "
        f"({skips[0]}), {reuses[1]} in the quarter that skips most ({skips[1]}). "
        f"By chance it would be {chances[0]} and {chances[1]}. {pairs}."
    )


def skip_reuse_statistics(answer: Mapping[str, Any]) -> str:
    """Correlation, slopes and excess of a response of ``/skip_and_reuse``, with their intervals."""

    def given(found: Mapping[str, Any], name: str, scale: float = 1.0) -> str:
        value, low, high = (None if found[key] is None else scale * found[key] for key in (name, "low", "high"))
        interval = "" if low is None else f" (95 % interval {numbers.number(low)} … {numbers.number(high)})"
        return f"{numbers.number(value)}{interval}"

    parts = [f"{numbers.plural(answer['num_samples'], 'sample')}."]
    if answer["pearson"]:
        parts.append(f"Pearson’s r of skip and reuse: {given(answer['pearson'], 'r')}.")
    parts += [
        "By chance: each token keeps how many modules it uses at each step, and chooses each as often as all tokens "
        "that use as many there. Whoever visits fewer modules can meet fewer of them again, so reuse falls with skip "
        "by chance alone.",
        f"For ten of 100 slots skipped more, reuse changes by {given(answer['seen'], 'slope', 10)} of 100 visits, "
        f"by chance by {given(answer['by_chance'], 'slope', 10)}; "
        f"the difference is {given(answer['beyond'], 'slope', 10)}. It falls with skip also where skip has nothing to "
        "do with it: fewer visits come back less often.",
        f"Over all samples, reuse less that by chance is {given(answer['excess'], 'mean', 100)} of 100 visits.",
    ]
    if answer["pairs"]:
        parts.insert(
            -1,
            f"{numbers.percent(answer['pairs']['share'], 2)} of the pairs of visits at two steps are of one module; "
            f"for ten of 100 slots skipped more that changes by {given(answer['pairs'], 'slope', 10)} of 100 pairs, "
            "beside all tokens at the same steps.",
        )
    if not answer["counted"]["exact"]:
        parts.append(
            f"Worked out on {numbers.count(answer['counted']['num_tokens'])} of "
            f"{numbers.plural(answer['counted']['of_tokens'], 'token')}, drawn by hash."
        )
    return " ".join(parts)


def _side(slope: Mapping[str, Any]) -> int:
    """1 where the interval lies above 0, −1 where it lies below, 0 where it holds 0."""
    if slope["low"] is None:
        return 0
    return int(slope["low"] > 0) - int(slope["high"] < 0)


def _hi(row: Mapping[str, Any]) -> float:
    """Upper edge of a bin; a bin of zero width (all values equal) is still drawn."""
    return row["hi"] if row["hi"] > row["lo"] else row["lo"] + max(1e-6, abs(row["lo"]) * 1e-3)


def bin_rows(distribution: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the bins."""
    return [
        {"from": b["lo"], "to": b["hi"], str(distribution.get("per") or "sample") + "s": b["count"]}
        for b in distribution["bins"]
    ]
