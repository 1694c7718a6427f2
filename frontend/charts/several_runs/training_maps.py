"""Checkpoints of a training: layer × iteration heat maps of how its modules are loaded, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, shade
from tokenpaths.frontend.charts.drawing.palette import DARKER, Theme, strong_neutral, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import as_vectors, finish, rows, tip

MAPS = {
    "load_entropy": ("load entropy", "1 = every module of the step gets the same, 0 = one gets everything"),
    "max_violation": ("MaxVio", "load of the busiest module / fair share − 1: 0 = even"),
    "dead": ("dead modules", "that no token chose"),
    "kept": ("load kept", "1 − ½ Σ |l − l′|, against the checkpoint before: 1 = the same modules get the same"),
    "saturation": ("choices as at the end", "mean |S ∩ S_last| / K: 1 = all tokens choose as at the last checkpoint"),
}
TITLE = "How is each step loaded over training?"
UNTRAINED = "untrained"


def places_of(training: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Columns in order: the untrained twin where there is one, then the checkpoints; several of one iteration apart."""
    places = []
    if training.get("untrained"):
        places.append({"label": UNTRAINED, "iteration": 0, "run": None, "steps": training["untrained"]["steps"]})
    seen: dict[int, int] = {}
    for point in training["points"]:
        iteration = int(point["iteration"])
        seen[iteration] = seen.get(iteration, 0) + 1
        label = f"{iteration:,}" + (f" ({seen[iteration]})" if seen[iteration] > 1 else "")
        places.append({"label": label, "iteration": iteration, "run": point["run"], "steps": point["steps"]})
    return places


def with_saturation(training: Mapping[str, Any], saturation: Mapping[str, Any]) -> dict[str, Any]:
    """The training with ``saturation`` (a response of ``/saturation``) in the steps of its checkpoints."""
    by_run = {point["run"]: point["by_step"] for point in saturation["points"]}
    points = [
        {
            **point,
            "steps": [
                {**step, "saturation": by_run[point["run"]][step["step"]] if point["run"] in by_run else None}
                for step in point["steps"]
            ],
        }
        for point in training["points"]
    ]
    return {**training, "points": points}


def training_map_rows(training: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of all maps: a row for each checkpoint and step."""
    return [
        {
            "checkpoint": place["label"],
            "run": place["run"] or "untrained twin",
            "step": step["step"],
            **{words: step.get(name) for name, (words, _) in MAPS.items() if name in step},
        }
        for place in places_of(training)
        for step in place["steps"]
    ]


@redrawable(numbers=training_map_rows)
def training_map(
    training: Mapping[str, Any],
    measure: str = "load_entropy",
    *,
    theme: str | Theme = "light",
    chosen: str | None = None,
    title: str | None = TITLE,
    when: str = "iteration",
) -> alt.LayerChart:
    """Heat map of one of ``MAPS``: a column a checkpoint, the untrained twin first, a row a step (layer).

    ``chosen`` is the label of a framed column; ``when`` what its columns number.
    """
    look, places = theme_named(theme), places_of(training)
    words = MAPS[measure][0]
    table = [
        {
            "at": place["label"],
            "step": step["step"],
            "value": step.get(measure),
            "said": numbers.count(step.get(measure)) if measure == "dead" else numbers.number(step.get(measure)),
            "words": f"{place['label']}, step {step['step']}: {words} {numbers.number(step.get(measure))}",
        }
        for place in places
        for step in place["steps"]
        if step.get(measure) is not None
    ]
    labels = [place["label"] for place in places]
    steps = sorted({row["step"] for row in table})
    every = max(1, -(-len(labels) // 8))
    shown = labels[::every] if labels[-1:] == labels[::every][-1:] else [*labels[::every], labels[-1]]
    x = alt.X(
        "at:O",
        sort=labels,
        scale=alt.Scale(domain=labels),
        axis=bare_axis(when, labelAngle=0 if len(shown) < 6 else -40, values=shown, labelOverlap=True),
    )
    y = alt.Y(
        "step:O",
        scale=alt.Scale(domain=steps),
        axis=bare_axis("step", labelAngle=0, values=steps[:: max(1, -(-len(steps) // 24))]),
    )
    highest = max((row["value"] for row in table), default=1.0)
    lowest = min((row["value"] for row in table), default=0.0)
    shares = measure in ("load_entropy", "kept", "saturation")
    # What is near 1 everywhere would be one dark plane on a scale from 0.
    domain = [math.floor(10 * min(lowest, 0.9)) / 10, 1.0] if shares else [0.0, highest or 1.0]
    scale = alt.Scale(domain=domain, range=[look.grid, strong_neutral(look)], interpolate="lab", clamp=True)
    ends: dict[str, Any] = {"format": "d", "tickMinStep": 1} if measure == "dead" else {}
    cells = (
        alt.Chart(rows(table))
        .mark_rect(
            stroke=look.background,
            strokeWidth=0.7 if len(table) <= 1500 else 0,
            tooltip=tip({when: "at", "step": "step", words: "said"}),
        )
        .encode(x=x, y=y, color=shade("value:Q", scale, words, tickCount=3, **ends), description="words:N")
    )
    layers: list[Any] = [cells]
    if chosen in labels:
        layers += [
            alt.Chart(rows([{"at": chosen}]))
            .mark_rect(filled=False, stroke=look.accent, strokeWidth=2.5, aria=False)
            .encode(x=x)
        ]
    height = max(90, min(460, 22 * len(steps)))
    subtitle = [f"{DARKER}: more. {numbers.capital(words)}: {MAPS[measure][1]}."]
    drawn = finish(
        alt.layer(*layers), look, title, subtitle, height=height, summary=training_words(training, measure, when)
    )
    return as_vectors(drawn, len(table))


def training_words(training: Mapping[str, Any], measure: str, when: str = "iteration") -> str:
    """From where to where the measure went, and at which step most: “Load entropy rose from 0.61 to 0.93, most at
    step 3”.
    """
    places = [place for place in places_of(training) if any(step.get(measure) is not None for step in place["steps"])]
    words = MAPS[measure][0]
    head = numbers.capital(words)
    if not places:
        return f"{head} is not known of these checkpoints."
    ends = [_mean(place["steps"], measure) for place in (places[0], places[-1])]
    said = [numbers.count(v) if measure == "dead" else numbers.number(v) for v in ends]
    ends_at = [
        place["label"] if place["label"] == UNTRAINED else f"{when} {place['label']}"
        for place in (places[0], places[-1])
    ]
    if measure == "dead" and not any(step["dead"] for place in places for step in place["steps"]):
        return "At no time is a module dead."
    if len(places) == 1 or said[0] == said[1]:
        return f"{head}: {said[1]} at {ends_at[-1]}."
    way = "rose" if ends[1] > ends[0] else "fell"
    old = {step["step"]: step[measure] for step in places[0]["steps"] if step.get(measure) is not None}
    moved = [
        ((step[measure] - old[step["step"]]) * (1 if way == "rose" else -1), -step["step"])
        for step in places[-1]["steps"]
        if step.get(measure) is not None and step["step"] in old
    ]
    most = f", most at step {-max(moved)[1]}" if len(moved) > 1 else ""
    mean = "" if measure == "dead" else " (means over steps)"
    return f"{head} {way} from {said[0]} ({ends_at[0]}) to {said[1]} ({ends_at[1]}){mean}{most}."


def _mean(steps: Sequence[Mapping[str, Any]], measure: str) -> float:
    values = [float(step[measure]) for step in steps if step.get(measure) is not None]
    return sum(values) if measure == "dead" else sum(values) / len(values)
