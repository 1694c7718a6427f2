"""Rank–frequency chart of paths with its null models, and the fitted power law as text and as a table.

After figure 1c, d of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, either, tips
from tokenpaths.frontend.charts.drawing.ink import ink_encoding, ink_fields, with_neutral_legend
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows
from tokenpaths.frontend.charts.drawing.thing_names import bare

TITLE = "Which paths exist, and how often is each taken?"
RANK_PICK = "rank"
MOST_WHOLE = 1e6
"""largest rank that an axis writes in full"""
OBSERVED, FITTED, UNTRAINED, INDEPENDENT = "this run", "least-squares line", "untrained twin", "independent steps"
LAW = "power law"
WHO = {"observed": "this run", "untrained": "untrained twin", "independent": "independent steps"}


@redrawable
def rank_frequency_chart(
    fit: Mapping[str, Any],
    *,
    law: Mapping[str, Any] | None = None,
    theme: str | Theme = "light",
    chosen: Iterable[int] = (),
    names: Mapping[str, str] | None = None,
    fitted: bool = True,
    title: str | None = TITLE,
    height: int = 380,
) -> alt.LayerChart:
    """Rank–frequency chart of a response of ``/paths/fit`` ({observed, untrained | null, independent | null}).

    Each is {num_paths, num_tokens, slope, r2, points: [{rank, count, share, cdf?}]}. ``law`` is the response of
    ``/paths/law`` ({observed: {curve: [{rank, share}]}}), or only its part for the run.
    ``chosen`` ranks get a ring in the accent colour. ``names`` are display names by thing (``drawing.thing_names``),
    for tooltips. ``fitted``: with the least-squares line. Points are coloured by CDF if the response has it.
    """
    look, observed = theme_named(theme), fit["observed"]
    parts = [fit[key] for key in ("observed", "untrained", "independent") if fit.get(key)]
    points = [point for part in parts for point in part["points"] if point["share"] > 0]
    ranks = _rank_ticks([p["rank"] for p in points])
    x = alt.X(
        "rank:Q",
        scale=alt.Scale(type="log", nice=False, padding=8),
        # Eight decades of whole numbers would overlap.
        axis=bare_axis(
            "rank of the path (1 = most frequent)", values=ranks, format="," if ranks[-1] <= MOST_WHOLE else "~s"
        ),
    )
    y = alt.Y(
        "share:Q",
        scale=_share_scale([p["share"] for p in points]),
        axis=bare_axis("share of tokens on it", values=_share_ticks([p["share"] for p in points]), format=".3~p"),
    )
    laws = law if law and "observed" in law else {"observed": law}
    curve = (laws.get("observed") or {}).get("curve") or []
    line = fitted_line(observed) if fitted else []
    kinds = [OBSERVED] + [FITTED] * bool(line) + [LAW] * bool(curve)
    kinds += [UNTRAINED] * bool(fit.get("untrained")) + [INDEPENDENT] * bool(fit.get("independent"))
    layers = [_nulls(fit, look, x, y, kinds)]
    if line:
        layers.append(_fitted(line, FITTED, look, x, y, kinds))
    layers = [_points_legend(look), *layers, _points(observed, look, x, y, set(chosen), names)]
    if curve:  # drawn above the points it fits
        layers.append(_fitted(curve, LAW, look, x, y, kinds))
    words = [fit_words("This run", observed)]
    words += [
        fit_words(name.capitalize(), fit[key])
        for name, key in ((UNTRAINED, "untrained"), (INDEPENDENT, "independent"))
        if fit.get(key)
    ]
    return finish(alt.layer(*layers).resolve_scale(shape="independent"), look, title, words, height=height)


def with_one_null(fit: Mapping[str, Any]) -> dict[str, Any]:
    """A response of ``/paths/fit`` with the null that tells most: the untrained twin, or without one independent steps.

    >>> with_one_null({"observed": 1, "untrained": 2, "independent": 3})
    {'observed': 1, 'untrained': 2, 'independent': None}
    """
    return {**fit, "independent": None if fit.get("untrained") else fit.get("independent")}


def fit_words(name: str, fit: Mapping[str, Any]) -> str:
    """One line: “This run: 3,772 paths over 96,000 tokens, log–log slope −1.24.”"""
    slope = fit.get("slope")
    tail = (
        "too few paths to fit a slope"
        if slope is None or not math.isfinite(slope)
        else f"log–log slope {numbers.number(slope).replace('-', '−')}"
    )
    return (
        f"{name}: {numbers.plural(fit['num_paths'], 'path')} over {numbers.plural(fit['num_tokens'], 'token')}, {tail}."
    )


def fitted_line(fit: Mapping[str, Any]) -> list[dict[str, float]]:
    """Both ends of the least-squares line.

    The API gives the slope; the line passes through the mean of the points in log–log space. As the points are
    log-spaced samples, that mean is an approximation of the fitted one.
    """
    points = [p for p in fit.get("points") or [] if p["count"] > 0]
    slope = fit.get("slope")
    if len(points) < 2 or slope is None or not math.isfinite(slope):
        return []
    if (intercept := fit.get("intercept")) is None:
        # mean of log rank and log share over *all* ranks: each point represents the ranks around it
        edges = [p["rank"] for p in points] + [fit["num_paths"] + 1]
        weights = [max(1, after - before) for before, after in zip(edges, edges[1:], strict=False)]
        total = sum(weights)
        log_x = sum(w * math.log10(p["rank"]) for w, p in zip(weights, points, strict=True)) / total
        log_y = sum(w * math.log10(p["share"]) for w, p in zip(weights, points, strict=True)) / total
        intercept = log_y - slope * log_x
    floor = math.log10(min(p["share"] for p in points)) - 0.3
    ends = []
    for rank in (points[0]["rank"], points[-1]["rank"]):
        log_rank = math.log10(rank)
        if slope < 0 and intercept + slope * log_rank < floor:
            log_rank = (floor - intercept) / slope
        ends.append({"rank": 10**log_rank, "share": 10 ** (intercept + slope * log_rank)})
    return ends


def _nulls(fit: Mapping[str, Any], look: Theme, x: alt.X, y: alt.Y, names: list[str]) -> alt.Chart:
    table = [
        {"rank": p["rank"], "share": p["share"], "what": name}
        for name, key in ((UNTRAINED, "untrained"), (INDEPENDENT, "independent"))
        if fit.get(key)
        for p in fit[key]["points"]
        if p["share"] > 0
    ]
    return (
        alt.Chart(rows(table))
        .mark_line(strokeWidth=2, interpolate="linear", clip=True)
        .encode(
            x=x,
            y=y,
            color=_colours(names, look),
            strokeDash=_dashes(names),
            tooltip=tips("what:N null", "rank:Q|,", "share:Q|.3~p"),
        )
    )


def _fitted(
    line: Iterable[Mapping[str, float]], name: str, look: Theme, x: alt.X, y: alt.Y, names: list[str]
) -> alt.Chart:
    return (
        alt.Chart(rows({"rank": end["rank"], "share": end["share"], "what": name} for end in line))
        .mark_line(strokeWidth=1.5, clip=True)
        .encode(x=x, y=y, color=_colours(names, look), strokeDash=_dashes(names))
    )


def _points(
    fit: Mapping[str, Any], look: Theme, x: alt.X, y: alt.Y, chosen: set[int], names: Mapping[str, str] | None
) -> alt.Chart:
    points = [p for p in fit["points"] if p["count"] > 0]
    has_ink = bool(points) and all(p.get("path_tokens") is not None for p in points)
    table = [
        {
            "rank": p["rank"],
            "share": p["share"],
            "count": numbers.count(p["count"]),
            "percent": numbers.percent(p["share"]),
            "on": p["rank"] in chosen,
            "name": bare(names, f"path:{p['rank']}") or "–",
            **(ink_fields(p) if has_ink else {}),
        }
        for p in points
    ]
    pick = alt.selection_point(name=RANK_PICK, fields=["rank"], on="click", clear=False, empty=False, nearest=True)
    fill = ink_encoding(alt.Fill, look) if has_ink else alt.value(look.ink)
    drawn = (
        alt.Chart(rows(table))
        .mark_point(filled=True, opacity=1, cursor="pointer")
        .encode(
            x=x,
            y=y,
            fill=fill,
            size=either("datum.on", 190, 64),
            stroke=either("datum.on", look.accent, look.background),
            strokeWidth=either("datum.on", 3, 0.6),
            tooltip=tips("rank:Q|, rank", "name:N path", "count:N tokens", "percent:N share of tokens"),
        )
        .add_params(pick)
    )
    return with_neutral_legend(drawn, table, look)


def _points_legend(look: Theme) -> alt.Chart:
    """An empty chart that only adds the legend of the points.

    Placed where no point can be, since shares fall with rank; next to the legend of the lines it would be cut off in a
    narrow chart.
    """
    legend = alt.Legend(
        title=None,
        orient="top-right",
        symbolType="circle",
        symbolFillColor=look.ink,
        symbolStrokeColor=look.ink,
        symbolSize=64,
        symbolStrokeWidth=0,
        padding=4,
    )
    return (
        alt.Chart(rows([{"what": OBSERVED}]))
        .mark_point(filled=True, opacity=1, size=0, color=look.ink)
        .encode(shape=alt.Shape("what:N", scale=alt.Scale(domain=[OBSERVED], range=["circle"]), legend=legend))
    )


def _colours(names: list[str], look: Theme) -> alt.Color:
    paint = {FITTED: look.ink, LAW: look.accent, UNTRAINED: look.muted, INDEPENDENT: look.identity}
    shown = [name for name in names if name != OBSERVED]
    return alt.Color(
        "what:N",
        scale=alt.Scale(domain=shown, range=[paint[name] for name in shown]),
        legend=alt.Legend(
            title=None,
            orient="top",
            direction="horizontal",
            symbolType="stroke",
            columns=2,  # fits on a phone screen
            labelLimit=200,
            symbolSize=300,
        ),
    )


def _dashes(names: list[str]) -> alt.StrokeDash:
    paint: dict[str, list[float]] = {FITTED: [6, 4], LAW: [1, 0], UNTRAINED: [1, 0], INDEPENDENT: [1, 0]}
    shown = [name for name in names if name != OBSERVED]
    return alt.StrokeDash("what:N", scale=alt.Scale(domain=shown, range=[paint[name] for name in shown]))


def _share_scale(values: list[float]) -> alt.Scale:
    """Logarithmic over the range of ``values``; of equal ones over their decade, whose ends would lie on each other."""
    scale = alt.Scale(type="log", nice=False, padding=10)
    if not values or min(values) < max(values):
        return scale
    decades = _decades(values)
    scale.domain = decades if len(decades) > 1 else [decades[0] / 10, decades[0] * 10]
    return scale


def _share_ticks(values: list[float]) -> list[float]:
    """Powers of ten; where fewer than two lie among ``values`` also 2 and 5 of each, or their ends: a single tick would
    say nothing of the scale.

    >>> _share_ticks([0.001, 0.5]), _share_ticks([0.02, 0.6]), _share_ticks([0.31, 0.34])
    ([0.001, 0.01, 0.1, 1.0], [0.02, 0.05, 0.1, 0.2, 0.5], [0.31, 0.34])
    """
    decades = _decades(values)
    if not values or min(values) == max(values):
        return decades
    low, high = min(values), max(values)
    if sum(low <= tick <= high for tick in decades) > 1:
        return decades
    exact = [float(f"{times}e{math.floor(math.log10(tick))}") for tick in decades for times in (1, 2, 5)]
    ticks = [tick for tick in exact if low <= tick <= high]
    return ticks if len(ticks) > 1 else [low, high]


def _decades(values: list[float]) -> list[float]:
    """Powers of ten over the range of ``values``; more tick labels would overlap."""
    if not values:
        return [1]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [float(f"1e{power}") for power in range(low, high + 1)]


def _rank_ticks(ranks: list[float]) -> list[float]:
    """Powers of ten; of few paths also 2 and 5 of each, and of the fewest all ranks: 1 alone would say nothing.

    >>> _rank_ticks([1, 4]), _rank_ticks([1, 8]), _rank_ticks([1, 77]), _rank_ticks([1, 500])
    ([1, 2, 3, 4], [1, 2, 3, 5, 8], [1, 2, 5, 10, 20, 50], [1.0, 10.0, 100.0, 1000.0])
    """
    last = int(max(ranks, default=1))
    if last <= 5:
        return list(range(1, last + 1))
    if last < 10:
        return [1, 2, 3, 5, *([last] if last > 6 else [])]
    return [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= last] if last < 100 else _decades(ranks)


def path_rows(paths: Iterable[Mapping[str, Any]], offered: Collection[int] | None = None) -> list[dict[str, Any]]:
    """Table of paths, ribbons on one line; ``offered``: ids of the run's modules (``drawing.slots``)."""
    return [
        {
            "rank": p["rank"],
            "path": numbers.ribbon_words(p["ribbon"], offered=offered),
            "tokens": p["count"],
            "share": p["share"],
            "cdf": p["cdf"],
            "compute": p["compute"],
            "reuse": p["reuse"],
            "label": p.get("top_label"),
            "label_share": p.get("top_label_share"),
        }
        for p in paths
    ]


def count_words(fit: Mapping[str, Any]) -> str:
    """How many paths there are, beside those of independent steps, and how much the most frequent one holds."""
    observed, independent = fit["observed"], fit.get("independent")
    if observed["num_tokens"] == 1:
        return "One token takes one path."
    tokens, paths = numbers.count(observed["num_tokens"]), numbers.plural(observed["num_paths"], "path")
    if observed["num_paths"] == observed["num_tokens"]:
        return f"Each of the {tokens} tokens takes a path of its own."
    text = f"{tokens} tokens take {paths}"
    if independent and independent["num_tokens"] == observed["num_tokens"]:
        text += f", {numbers.count(independent['num_paths'])} if steps were independent"
    first = observed["points"][0]
    # Points are thinned out, so a tie is not counted: its middle is half of what all of its paths hold.
    tied = round(2 * first["cdf_middle"] / first["share"])
    who = "the most frequent one has" if tied < 2 else f"the {numbers.count(tied)} most frequent have"
    return f"{text}; {who} {numbers.percent(first['share'])} {'of the tokens' if tied < 2 else 'of the tokens each'}."


def law_words(law: Mapping[str, Any], draws: int = 100) -> str:
    """The power law fitted to the run's path counts, its goodness of fit by ``draws`` simulated data sets, and whether
    a lognormal fits better.
    """
    if law.get("alpha") is None:
        return f"No power law is fitted: {law.get('reason') or 'it was not asked for'}."
    alpha = f"α = {numbers.number(law['alpha'])} ± {numbers.number(law['alpha_error'], 2)}"
    words = (
        f"Power law by maximum likelihood: {alpha}, for the {numbers.count(law['num_tail'])} of "
        f"{numbers.plural(law['num_paths'], 'path')} taken by at least {numbers.plural(law['x_min'], 'token')}."
    )
    if (p := law.get("p_value")) is not None:
        verdict = {
            False: "the counts are not a pure power law",
            True: "a power law is plausible",
            None: "whether a power law holds is open",
        }[_holds(p, draws)]
        words += f" Goodness of fit: {verdict} ({numbers.p_words(p, draws, 'simulations')})."
    return words + _beside_words(law.get("lognormal"))


def _holds(p: float, draws: int) -> bool | None:
    """Whether p is above 0.1; None where it lies closer to it than two standard errors of the share of simulations."""
    share = max(0.0, (p * (1 + draws) - 1) / draws)
    return None if abs(share - 0.1) < 1.96 * math.sqrt(share * (1 - share) / draws) else p > 0.1


def _beside_words(beside: Mapping[str, Any] | None) -> str:
    if not beside:
        return ""
    p = "p < 0.001" if beside["p_value"] < 0.001 else f"p = {numbers.number(beside['p_value'], 2)}"
    ratio = f"likelihood ratio {numbers.number(beside['ratio']).replace('-', '−')}, {p}"
    if beside["p_value"] > 0.1:
        return f" A lognormal fits about as well ({ratio})."
    return f" A lognormal fits {'worse' if beside['ratio'] > 0 else 'better'} ({ratio})."


def verdict_words(law: Mapping[str, Any], draws: int = 100) -> str:
    """Verdict on the law: “A pure power law does not fit (p ≤ 0.01, none of 100 simulations); a lognormal fits better.”

    ``draws``: simulated data sets; p is never below 1 / (1 + draws), whatever the data.
    """
    if law.get("alpha") is None:
        return f"No power law is fitted: {law.get('reason') or 'it was not asked for'}."
    p, beside = law.get("p_value"), law.get("lognormal")
    if p is None:
        text = "A power law is fitted; whether it holds is still being worked out"
    else:
        words = numbers.p_words(p, draws, "simulations")
        holds = _holds(p, draws)
        text = f"A pure power law {'is plausible' if holds else 'does not fit'} ({words})"
        if holds is None:
            text = f"Whether a pure power law fits is open ({words}: too few to tell it from 0.1)"
    if not beside:
        return text + "."
    if beside["p_value"] > 0.1:
        return f"{text}; a lognormal fits about as well."
    if p is not None and _holds(p, draws) and beside["ratio"] < 0:
        return f"{text}, but a lognormal fits better."
    return f"{text}; a lognormal fits {'worse' if beside['ratio'] > 0 else 'better'}."


def law_rows(fit: Mapping[str, Any], laws: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row each for the run, its twin and the null: slope, exponent, lower cutoff, goodness of fit."""
    table, draws = [], laws.get("draws") or 100
    for key, who in WHO.items():
        curve, law = fit.get(key), laws.get(key)
        if not curve:
            continue
        law = law or {}
        beside, p = law.get("lognormal"), law.get("p_value")
        fitted = law.get("alpha") is not None
        error = numbers.number(law["alpha_error"], 2) if fitted else ""
        table.append(
            {
                "whose": who,
                "paths": numbers.count(curve["num_paths"]),
                "slope": numbers.number(curve.get("slope")),
                "α": f"{numbers.number(law['alpha'])} ± {error}" if fitted else "–",
                "p": "–" if p is None else numbers.p_number(p, draws),
                "lognormal": numbers.number(beside["ratio"]) if beside else "–",
                "x_min": numbers.count(law.get("x_min")),
                "tail": numbers.count(law.get("num_tail")),
                "verdict": verdict_words(law, draws),
            }
        )
    return table
