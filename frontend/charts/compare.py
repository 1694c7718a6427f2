"""Charts of ``/compare`` and ``/series``: scatter of paired samples, load of both runs by step, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import between, either
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import as_vectors, click_selection, finish, rows, tip
from tokenpaths.frontend.charts.several_runs.run_labels import without_middle

SAMPLE_PICK = "sample"
"""name of the selection of ``pair_chart``; its field is the sample's number in the first run"""
MEASURES = {"reuse": "reuse", "compute": "compute", "skip": "skip (1 − compute)", "loss": "loss (nats)"}
SUMMARY = {
    "num_samples": "samples",
    "num_tokens": "tokens",
    "num_paths": "different paths",
    "effective_paths": "effective paths, exp H",
    "mean_compute": "compute, mean over tokens",
    "mean_reuse": "reuse, mean over tokens",
    "loss": "loss (nats)",
    "accuracy": "accuracy",
    "effective_top_k": "effective top-k, mean over steps",
    "max_violation": "MaxVio, mean over steps",
    "load_entropy": "load entropy, mean over steps",
}
"""display names of the summary's rows"""
_COUNTS = ("num_samples", "num_tokens", "num_paths")


def correlation_of(answer: Mapping[str, Any], measure: str | None = None) -> Mapping[str, Any]:
    """The row of a measure in a response of ``/compare``; by default that of the requested measure."""
    return next(row for row in answer["correlations"] if row["measure"] == (measure or answer["measure"]))


def coefficient_words(interval: Mapping[str, float] | None) -> str:
    """“0.412 (0.301 … 0.513)”."""
    if interval is None:
        return "–"
    r, low, high = (numbers.number(interval[key]) for key in ("r", "low", "high"))
    return f"{r} ({low} … {high})"


def pair_words(answer: Mapping[str, Any], names: tuple[str, str]) -> str:
    """The scatter in a sentence: how well one run predicts the other, with the statistics behind it."""
    row = correlation_of(answer)
    verdict = pair_verdict(answer, names)
    return f"{verdict}." if row["pearson"] is None else f"{verdict}: {pair_statistics(answer)}"


def pair_verdict(answer: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Whether the two runs agree per sample, in words and no more than the interval says; without a full stop."""
    row = correlation_of(answer)
    measure, pearson = row["measure"], row["pearson"]
    if pearson is None:
        return f"No correlation of {measure} can be given: {row['reason']}"
    if pearson["low"] <= 0 <= pearson["high"]:
        return (
            f"{measure.capitalize()} of a sample in {names[0]} is not significantly related to {measure} in {names[1]}"
        )
    size = abs(pearson["r"])
    how = "hardly" if size < 0.1 else "weakly" if size < 0.3 else "moderately" if size < 0.6 else "strongly"
    way = "more" if pearson["r"] > 0 else "less"
    return f"Samples with more {measure} in {names[0]} {how} tend to {way} of it in {names[1]}"


def pair_statistics(answer: Mapping[str, Any]) -> str:
    """Both coefficients with their intervals."""
    row = correlation_of(answer)
    return (
        f"Pearson’s r = {coefficient_words(row['pearson'])}, Spearman’s {coefficient_words(row['spearman'])}, 95 % "
        f"intervals, {numbers.plural(row['num'], 'sample')}."
    )


def mean_words(answer: Mapping[str, Any], names: tuple[str, str]) -> str:
    """The means of both runs: over samples, of which each counts once however many tokens it has."""
    row = correlation_of(answer)
    if row["mean_a"] is None or row["mean_b"] is None:
        return ""
    first, second = numbers.apart([row["mean_a"], row["mean_b"]])
    return f"Mean {row['measure']} per sample: {first} in {names[0]}, {second} in {names[1]}."


@redrawable
def pair_chart(
    answer: Mapping[str, Any],
    *,
    names: tuple[str, str] = ("a", "b"),
    theme: str | Theme = "light",
    chosen: str | None = None,
    title: str | None = "Do the two runs agree per sample?",
    height: int = 380,
) -> alt.LayerChart:
    """Scatter of the ``points`` of a response of ``/compare``: one point per sample, with the dashed diagonal.

    The ``names`` of the runs label the axes; samples of the ``chosen`` label are in the accent colour.
    """
    look, measure = theme_named(theme), str(answer["measure"])
    table = _pair_table(answer, chosen)
    values = [row[side] for row in table for side in ("a", "b")] or [0.0, 1.0]
    low, high = min(values), max(values)
    room = 0.04 * (high - low) or 0.05
    scale = between(low - room, high + room)
    name = MEASURES.get(measure, measure)
    x = alt.X("a:Q", scale=scale, axis=alt.Axis(title=_axis(name, names[0]), tickCount=5, titleLimit=420))
    y = alt.Y("b:Q", scale=scale, axis=alt.Axis(title=_axis(name, names[1]), tickCount=5, titleLimit=height))
    diagonal = (
        alt.Chart(rows([{"a": low - room, "b": low - room}, {"a": high + room, "b": high + room}]))
        .mark_line(color=look.muted, strokeDash=[5, 3], strokeWidth=1.5, clip=True, aria=False)
        .encode(x=x, y=y)
    )
    paint = either("datum.on", look.accent, look.module)
    points = (
        alt.Chart(rows(sorted(table, key=lambda row: row["on"])))
        .mark_point(
            filled=True,
            size=34 if len(table) <= 500 else 22,
            opacity=0.75 if len(table) <= 200 else 0.5,
            cursor="pointer",
            tooltip=tip(
                {
                    "sample": "sample",
                    "label": "label",
                    f"in {_plain(names[0])}": "one",
                    f"in {_plain(names[1])}": "other",
                }
            ),
        )
        .encode(x=x, y=y, color=paint, description="words:N")
        .add_params(click_selection(SAMPLE_PICK, "sample"))
    )
    subtitle = ["One point: one sample. Dashed: equal in both.", pair_words(answer, names)]
    return as_vectors(finish(alt.layer(diagonal, points), look, title, subtitle, height=height), len(table))


def _pair_table(answer: Mapping[str, Any], chosen: str | None) -> list[dict[str, Any]]:
    return [
        {
            "sample": row["sample"],
            "a": row["a"],
            "b": row["b"],
            "on": chosen is not None and row["label"] == chosen,
            "one": numbers.number(row["a"]),
            "other": numbers.number(row["b"]),
            "label": row["label"] or "no label",
            "words": f"sample {row['sample']}: {numbers.number(row['a'])} and {numbers.number(row['b'])}",
        }
        for row in answer["points"]
    ]


def _axis(measure: str, name: str) -> str:
    return f"{measure} in {without_middle(name, 34)}"


def _plain(name: str) -> str:
    """A name escaped for a Vega expression."""
    return name.replace("\\", "").replace("'", "’")


def load_rows(answer: Mapping[str, Any], names: tuple[str, str]) -> list[dict[str, Any]]:
    """Values of each step in both runs; None if the run does not have the step."""
    return [
        {
            "step": row["step"],
            f"load entropy, {names[0]}": row.get("load_entropy_a"),
            f"load entropy, {names[1]}": row.get("load_entropy_b"),
            f"effective top-k, {names[0]}": row.get("effective_top_k_a"),
            f"effective top-k, {names[1]}": row.get("effective_top_k_b"),
            "difference of the loads": row.get("difference"),
        }
        for row in answer["flow"]["loads"]
    ]


def load_words(answer: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Which run balances the load over its modules better, and the step with the largest difference."""
    steps = [row for row in answer["flow"]["loads"] if row.get("difference") is not None]
    if not steps:
        return "The runs have no step in common."
    means = [sum(row[f"load_entropy_{side}"] for row in steps) / len(steps) for side in "ab"]
    most = max(steps, key=lambda row: row["difference"])
    first, second = (numbers.number(mean) for mean in means)
    if first == second:
        even = f"Both load their modules equally evenly (load entropy {first})."
    else:
        more = names[0] if means[0] > means[1] else names[1]
        even = f"{more} spreads tokens more evenly (mean load entropy {first} in {names[0]}, {second} in {names[1]})."
    if most["difference"] < 5e-4:
        return even
    return even + (
        f" They differ most at step {most['step']}: {numbers.percent(most['difference'])} of the choices would have to "
        "move for one load, sorted by size, to become the other."
    )


@redrawable(numbers=load_rows)
def load_chart(
    answer: Mapping[str, Any],
    *,
    names: tuple[str, str] = ("a", "b"),
    theme: str | Theme = "light",
    title: str | None = "How evenly does each step load its modules?",
) -> alt.LayerChart:
    """Load entropy of each step in both runs: 1 = all modules get the same, 0 = one gets everything."""
    look = theme_named(theme)
    table = [
        {
            "step": row["step"],
            "value": row[f"load_entropy_{side}"],
            "run": name,
            "said": numbers.number(row[f"load_entropy_{side}"]),
            "top": numbers.number(row[f"effective_top_k_{side}"]),
        }
        for row in answer["flow"]["loads"]
        for side, name in zip("ab", names, strict=True)
        if row.get(f"load_entropy_{side}") is not None
    ]
    spans = [
        {"step": row["step"], "low": row["load_entropy_a"], "high": row["load_entropy_b"]}
        for row in answer["flow"]["loads"]
        if row.get("difference") is not None
    ]
    last = max((row["step"] for row in table), default=1)
    x = alt.X(
        "step:Q",
        scale=alt.Scale(domain=[-0.3, last + 0.3], nice=False),
        axis=alt.Axis(title="step", format="d", tickMinStep=1, grid=False),
    )
    y = alt.Y("value:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(title="load entropy, 1 = even", tickCount=5))
    between = (
        alt.Chart(rows(spans))
        .mark_rule(color=look.identity, strokeWidth=2, aria=False)
        .encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    )
    marks = (
        alt.Chart(rows(table))
        .mark_point(
            size=90,
            strokeWidth=2,
            opacity=1,
            tooltip=tip({"step": "step", "run": "run", "load entropy": "said", "effective top-k": "top"}),
        )
        .encode(
            x=x,
            y=y,
            stroke=alt.value(look.module),
            fill=alt.condition(alt.datum.run == names[1], alt.value(look.module), alt.value(look.background)),
            shape=alt.Shape(
                "run:N",
                scale=alt.Scale(domain=list(names), range=["circle", "diamond"]),
                legend=alt.Legend(title=None, orient="bottom", labelLimit=260, direction="vertical"),
            ),
        )
    )
    return finish(alt.layer(between, marks), look, title, load_words(answer, names), height=240)


def _said(name: str, value: float | None) -> str:
    if name in _COUNTS:
        return numbers.count(value)
    return numbers.percent(value) if name == "accuracy" else numbers.number(value)


def training_rows(training: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the checkpoints, one row each."""
    return [
        {
            "iteration": row["iteration"],
            "run": row["run"],
            **{words: row[name] for name, words in SUMMARY.items() if row.get(name) is not None},
        }
        for row in training["points"]
    ]


@redrawable(numbers=training_rows)
def training_chart(
    training: Mapping[str, Any],
    measure: str = "mean_reuse",
    *,
    theme: str | Theme = "light",
    chosen: Sequence[str] = (),
    title: str | None = "How did it change over training?",
) -> alt.LayerChart:
    """Line chart of one quantity of a response of ``/series`` over training iterations; ``chosen`` runs in the accent
    colour.
    """
    look = theme_named(theme)
    table = [
        {
            "iteration": row["iteration"],
            "value": row[measure],
            "run": row["run"],
            "on": row["run"] in chosen,
            "said": _said(measure, row[measure]),
        }
        for row in training["points"]
        if row.get(measure) is not None
    ]
    x = alt.X(
        "iteration:Q",
        scale=alt.Scale(zero=False, padding=12, nice=False),  # rounded, the axis would begin before iteration 0
        axis=alt.Axis(title="iteration", format=",d", grid=False, tickCount=6, tickMinStep=1),
    )
    values = [row["value"] for row in table] or [0.0]
    scale = alt.Scale(zero=False, padding=10)
    if max(values) - min(values) <= 1e-9 * max(1.0, abs(max(values))):  # all values equal: pad the axis
        room = 0.1 * abs(values[0]) or 1.0
        scale = alt.Scale(zero=False, domain=[values[0] - room, values[0] + room])
    y = alt.Y("value:Q", scale=scale, axis=alt.Axis(title=SUMMARY[measure], tickCount=5))
    base = alt.Chart(rows(table)).encode(x=x, y=y)
    line = base.mark_line(color=look.link, strokeWidth=2, aria=False)
    marks = base.mark_point(
        filled=True, size=80, opacity=1, tooltip=tip({"run": "run", "iteration": "iteration", SUMMARY[measure]: "said"})
    ).encode(color=either("datum.on", look.accent, look.module))
    chart = alt.layer(line, marks)
    summary = f"{numbers.plural(len(training['points']), 'checkpoint')}."
    return finish(chart, look, title, "One point: one checkpoint of the training.", height=240, summary=summary)
