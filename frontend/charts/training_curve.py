"""The curve of a model's own training, from the history that its ``config.json`` keeps (``GET /models/{model}``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows

TRAINING, VALIDATION = "training", "validation"
SETS = {"train_loss": TRAINING, "val_loss": VALIDATION}
PATHS = "lowest and highest path"
Row = dict[str, Any]


def history_of(model: Mapping[str, Any]) -> list[Row]:
    """The history of a response of ``/models/{model}``; empty for a model that keeps none that can be read."""
    training = (model.get("config") or {}).get("training")
    history = training.get("history") if isinstance(training, Mapping) else None
    return [dict(row) for row in history if isinstance(row, Mapping)] if isinstance(history, list) else []


def training_loss_name(model: Mapping[str, Any]) -> str:
    """What the training loss of a response of ``/models/{model}`` is to be called: its labels may not be the data's."""
    training = (model.get("config") or {}).get("training")
    recipe = training.get("recipe") if isinstance(training, Mapping) else None
    recipe = recipe if isinstance(recipe, Mapping) else {}
    augment = recipe.get("augment")
    changes = {
        "smoothed": recipe.get("label_smoothing"),
        "mixed": augment.get("mix") if isinstance(augment, Mapping) else None,
    }
    made = [change for change, amount in changes.items() if isinstance(amount, (int, float)) and amount > 0]
    return f"{TRAINING}, labels {' and '.join(made)}" if made else TRAINING


def curve_rows(history: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows {iteration, set, loss} of both losses, by iteration; what is no number is left out."""
    return [
        {"iteration": row["iteration"], "set": name, "loss": float(row[key])}
        for row in history
        for key, name in SETS.items()
        if _number(row.get("iteration")) and _number(row.get(key))
    ]


def phase_rows(history: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows {phase, perplexity, low, high, paths} of a DiPaCo's outer steps.

    ``perplexity`` is that of held-back documents, each read by its path, with the losses of paths weighted by their
    predictions, or by their shards in a history without those; ``low`` and ``high`` are those of the best and the worst
    path.
    """
    made = []
    for row in history:
        losses, sizes = row.get("stop_loss"), row.get("stop_count", row.get("sizes"))
        if not (_number(row.get("outer")) and isinstance(losses, list) and isinstance(sizes, list)):
            continue
        # A path without held-back documents has no loss.
        known = [(a, b) for a, b in zip(losses, sizes, strict=False) if _number(a) and _number(b) and b > 0]
        if not known:
            continue
        mean = sum(loss * size for loss, size in known) / sum(size for _, size in known)
        values = [loss for loss, _ in known]
        made.append(
            {
                "phase": row["outer"],
                "perplexity": math.exp(mean),
                "low": math.exp(min(values)),
                "high": math.exp(max(values)),
                "paths": len(known),
            }
        )
    return made


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def curve_words(history: Sequence[Mapping[str, Any]]) -> str:
    """“The validation loss fell from 3.01 to 1.55 nats in 2,340 iterations and was still falling at the end.”"""
    table = curve_rows(history)
    curve = [row for row in table if row["set"] == VALIDATION] or table
    if len(curve) < 2:
        return ""
    first, last, lowest = curve[0], curve[-1], min(curve, key=lambda row: row["loss"])
    began, ended = numbers.apart([first["loss"], last["loss"]])
    at = [numbers.count(row["iteration"]) for row in (first, last)]
    if began == ended:
        text = f"The {curve[0]['set']} loss was {began} nats at iteration {at[0]} and at iteration {at[1]}"
    else:
        way = "fell" if last["loss"] < first["loss"] else "rose"
        text = f"The {curve[0]['set']} loss {way} from {began} to {ended} nats, from iteration {at[0]} to {at[1]}"
    if lowest["loss"] == last["loss"]:
        return text + "; it was lowest at the end."
    return (
        text + f"; it was lowest at iteration {numbers.count(lowest['iteration'])} ({numbers.number(lowest['loss'])})."
    )


@redrawable(numbers=curve_rows)
def training_curve_chart(
    history: Sequence[Mapping[str, Any]],
    *,
    training: str = TRAINING,
    theme: str | Theme = "light",
    title: str | None = "",
    height: int = 220,
) -> alt.LayerChart:
    """Loss over training, of both sets; ``training`` names the first one."""
    look = theme_named(theme)
    names = {TRAINING: training, VALIDATION: VALIDATION}
    table = [{**row, "set": names[row["set"]], "said": numbers.number(row["loss"])} for row in curve_rows(history)]
    x = alt.X("iteration:Q", axis=alt.Axis(title="iteration", format=",d", grid=False, tickCount=6))
    y = alt.Y("loss:Q", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(title="loss (nats)", tickCount=5))
    colour = alt.Color(
        "set:N",
        scale=alt.Scale(domain=list(names.values()), range=[look.link, look.ink]),
        legend=alt.Legend(title=None, orient="top", symbolSize=80, labelLimit=0),
    )
    base = alt.Chart(rows(table)).encode(x=x, y=y, color=colour)
    dots = base.mark_point(filled=True, size=45, opacity=1, tooltip=True).encode(
        tooltip=tips("iteration:Q|,d", "set:N", "said:N loss (nats)")
    )
    words = curve_words(history)
    heading = words.rstrip(".") if title == "" else title
    return finish(
        alt.layer(base.mark_line(strokeWidth=2, aria=False), dots),
        look,
        heading,
        "As it was logged while the model was trained.",
        height=height,
        summary=words,
    )


def phase_words(history: Sequence[Mapping[str, Any]]) -> str:
    """“Perplexity fell from 180 after phase 1 to 118 after phase 8; of single paths it lies between 59 and 171.”"""
    table = phase_rows(history)
    if len(table) < 2:
        return ""
    first, last = table[0], table[-1]
    began, ended = numbers.apart([first["perplexity"], last["perplexity"]])
    way = "fell" if last["perplexity"] < first["perplexity"] else "rose"
    text = f"{way} from {began} after phase {first['phase']} to {ended} after phase {last['phase']}"
    if began == ended:
        text = f"is {ended} after phase {first['phase']} and after phase {last['phase']}"
    return (
        f"Perplexity {text}; of single paths "
        f"it lies between {numbers.number(last['low'])} and {numbers.number(last['high'])}."
    )


@redrawable(numbers=phase_rows)
def phase_chart(
    history: Sequence[Mapping[str, Any]], *, theme: str | Theme = "light", title: str | None = "", height: int = 220
) -> alt.LayerChart:
    """Perplexity after each phase of a DiPaCo's training, over all paths, and of the best and the worst path."""
    look = theme_named(theme)
    table = [
        {
            **row,
            "said": numbers.number(row["perplexity"]),
            "range": f"{numbers.number(row['low'])} … {numbers.number(row['high'])}",
        }
        for row in phase_rows(history)
    ]
    phases = [row["phase"] for row in table]
    x = alt.X(
        "phase:Q",
        scale=alt.Scale(zero=False, padding=12),
        axis=alt.Axis(title="phase (outer step)", values=phases, format="d", grid=False),
    )
    y = alt.Y("perplexity:Q", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(title="perplexity", tickCount=5))
    kinds = {"all paths": look.ink, PATHS: look.identity}
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=list(kinds), range=list(kinds.values())),
        legend=alt.Legend(title=None, orient="top", symbolSize=80),
    )
    base = alt.Chart(rows(table)).encode(x=x)
    spans = (
        base.transform_calculate(what=f"'{PATHS}'")
        .mark_rule(strokeWidth=5)
        .encode(y=alt.Y("low:Q"), y2="high:Q", color=colour)
    )
    whole = base.transform_calculate(what="'all paths'").encode(y=y, color=colour)
    dots = whole.mark_point(filled=True, size=60, opacity=1).encode(
        tooltip=tips("phase:Q", "said:N perplexity", f"range:N {PATHS}", "paths:Q")
    )
    words = phase_words(history)
    heading = words.rstrip(".") if title == "" else title
    return finish(
        alt.layer(spans, whole.mark_line(strokeWidth=2, aria=False), dots),
        look,
        heading,
        "On documents held back for stopping, each read by its own path.",
        height=height,
        summary=words,
    )
