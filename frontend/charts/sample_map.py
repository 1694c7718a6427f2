"""Scatter of samples in two dimensions (PCA or t-SNE of their path profiles)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import ABOUT_WIDTH, either, haloed, label_means, names_apart, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, group_colours, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.running_text import cut_short, tamed
from tokenpaths.frontend.charts.drawing.theme import as_vectors, click_selection, finish, rows

TITLE = "Which samples take similar routes?"
SAMPLE_PICK = "sample"
_STAR = "M0,-1.43L0.34,-0.47L1.37,-0.44L0.55,0.18L0.85,1.16L0,0.57L-0.85,1.16L-0.55,0.18L-1.37,-0.44L-0.34,-0.47Z"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-left", _STAR)
"""one per label if there are enough, each with a colour of its own (``palette.GROUPS``)"""
NO_LABEL = "no label"


def map_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the points."""
    names = ("sample", "label", "prediction", "x", "y", "compute", "reuse", "source")
    return [{name: row.get(name) for name in names} for row in answer["points"]]


def map_words(answer: Mapping[str, Any]) -> str:
    """What is drawn, and the share of variance that the plane explains."""
    shown, total = int(answer["num_samples"]), int(answer["of_samples"])
    samples = (
        numbers.plural(shown, "sample")
        if shown == total
        else (f"{numbers.count(shown)} of {numbers.plural(total, 'sample')}, an even draw")
    )
    if answer.get("explained"):
        first, second = answer["explained"][:2]
        share = f"The plane shows {numbers.percent(first + second)} of what makes them different."
    else:
        share = "Neighbours are kept near each other; distances between clusters, and the axes, mean nothing."
    return f"One point: one sample. Near ones load the same modules at the same steps. {samples}. {share}"


def nearest_words(answer: Mapping[str, Any]) -> str:
    """Whether samples with near routes share their label, in a sentence; empty where that cannot be told."""
    row = answer.get("nearest")
    if row is None:
        return ""
    share, chance = numbers.percent(row["share"]), numbers.percent(row["by_chance"])
    text = f"The sample with the nearest routes has the same label for {share} of the samples"
    if row["p_value"] > 0.05:
        return f"{text}, not surely more than by chance ({chance})."
    return f"{text}, where chance gives {chance}."


@redrawable(numbers=map_rows)
def sample_map_chart(
    answer: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    chosen: str | None = None,
    sample: int | None = None,
    names: Mapping[str, str] | None = None,
    title: str | None = TITLE,
    height: int = 520,
) -> alt.LayerChart:
    """Scatter of a response of ``/map`` or of the artifact of a map job.

    Up to eight labels have a shape, a colour and a name at the mean of their samples. The ``chosen`` label is in the
    accent colour and the rest grey; the chosen ``sample`` gets a ring. ``names``: the user's own by thing
    (``sample:5``).
    """
    look = theme_named(theme)
    labels = [label for label, _ in Counter(row.get("label") for row in answer["points"]).most_common() if label]
    few = 1 < len(labels) <= len(SHAPES)
    table = _points_table(answer, chosen, sample, names or {})
    shares = list(answer.get("explained") or [])
    x, y = (
        alt.X("x:Q", scale=alt.Scale(zero=False, padding=18), axis=_axis("first", shares[:1], look)),
        alt.Y("y:Q", scale=alt.Scale(zero=False, padding=18), axis=_axis("second", shares[1:2], look)),
    )
    points = _points(table, labels if few else [], chosen, look).encode(x=x, y=y)
    ring = alt.Chart(rows(row for row in table if row["here"])).mark_point(
        shape="circle", size=300, color=look.accent, strokeWidth=2.5, filled=False, aria=False
    )
    layers = [points, ring.encode(x=x, y=y)]
    if few or chosen is not None:
        layers += _names(table, labels if few else [str(chosen)], look, x, y, height)
    words = " ".join(filter(None, [nearest_words(answer), map_words(answer)]))
    if chosen is not None:  # a saved picture has no chip beside it
        words += f" In colour: label {tamed(chosen)}."
    return as_vectors(finish(alt.layer(*layers), look, title, words, height=height), len(table))


def _points_table(
    answer: Mapping[str, Any], chosen: str | None, sample: int | None, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row per sample; ``on``: of the chosen label, ``here``: the chosen sample."""
    return [
        {
            "sample": row["sample"],
            "name": names.get(f"sample:{row['sample']}", f"{row['sample']:,}"),
            "x": row["x"],
            "y": row["y"],
            "label": row.get("label") or NO_LABEL,
            "on": chosen is not None and row.get("label") == chosen,
            "here": row["sample"] == sample,
            "image": row.get("thumbnail") or "",
            "text": _short(row.get("snippet") or row.get("source") or ""),
            "words": f"sample {row['sample']}, {row.get('label') or NO_LABEL}",
        }
        for row in answer["points"]
    ]


def _points(table: Sequence[Mapping[str, Any]], labels: list[str], chosen: str | None, look: Theme) -> alt.Chart:
    """One point per sample; ``labels`` (empty: too many) have a shape and, unless one is chosen, a colour each."""
    tooltip = tips("name:N sample", "label:N")
    if any(row["image"] for row in table):
        tooltip.append(alt.Tooltip("image:N"))  # Vega shows a tooltip field of this name as an image
    if any(row["text"] for row in table):
        tooltip.append(alt.Tooltip("text:N", title="sample is"))
    quiet = 0.35 if chosen is not None else 0.8
    domain = [*labels, NO_LABEL]
    legend = alt.Legend(
        title=None,
        orient="top",
        columns=4,
        symbolSize=130,
        symbolOpacity=1,
        symbolStrokeWidth=0,
        labelLimit=110,
        values=labels,
    )
    plain: Any = alt.value(look.module)
    if labels and chosen is None:
        scale = alt.Scale(domain=domain, range=[*group_colours(len(labels), look), look.identity])
        plain = alt.Fill("label:N", scale=scale, legend=legend)
    points = (
        alt.Chart(rows(sorted(table, key=lambda row: row["on"])))
        .mark_point(filled=True, size=72 if len(table) <= 400 else 34, strokeWidth=0.5, cursor="pointer")
        .encode(
            tooltip=tooltip,
            description="words:N",
            stroke=alt.value(look.background),
            fill=alt.when("datum.on").then(alt.value(look.accent)).otherwise(plain),
            opacity=either("datum.on", 0.95, quiet),
        )
        .add_params(click_selection(SAMPLE_PICK, "sample"))
    )
    if not labels:
        return points
    shapes = alt.Scale(domain=domain, range=[*SHAPES[: len(labels)], "wedge"])
    return points.encode(shape=alt.Shape("label:N", scale=shapes, legend=legend))


def _names(
    table: list[dict[str, Any]], labels: list[str], look: Theme, x: alt.X, y: alt.Y, height: int
) -> list[alt.Chart]:
    """The name of each label at the mean position of its samples."""
    means = label_means(table)
    placed = names_apart([means[label] for label in labels if label in means], table, width=ABOUT_WIDTH, height=height)
    base = alt.Chart(rows(placed)).encode(x=x, y=y, text="label:N")
    return haloed(base, look, look.ink, 4, 0.8, fontSize=look.font_size + 1, fontWeight=700, aria=False)


def _axis(which: str, share: list[float], look: Theme) -> alt.Axis:
    """Axis of a principal component; hidden for t-SNE, whose coordinates have no meaning."""
    if not share:
        return alt.Axis(title=None, labels=False, ticks=False, grid=False, domain=True, domainColor=look.grid)
    return alt.Axis(
        title=f"{which} component, {numbers.percent(share[0])} of the variance", tickCount=5, titleLimit=380
    )


def _short(text: str) -> str:
    """A snippet shortened to one line."""
    return cut_short(" ".join(tamed(text).split()), 90)
