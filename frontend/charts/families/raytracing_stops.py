"""RayTracing: the threshold steps at which samples stopped, and what a sample says at one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import either, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, highest, rows
from tokenpaths.frontend.charts.families.raytracing_network import Network


def fired_rows(counts: Sequence[int], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Number of samples that stopped at each threshold step; ``counts[n]`` stopped after n steps, so at step n − 1.

    The last row, of step None, counts samples in which no block ever fired.
    """
    total = sum(counts) or 1
    table = [
        {
            "step": n - 1 if n else None,
            "theta": names[n - 1] if 0 < n <= len(names) else "never",
            "samples": count,
            "share": count / total,
        }
        for n, count in enumerate(counts)
        if count
    ]
    return sorted(table, key=lambda row: row["step"] is None)


def never_words(table: Sequence[Mapping[str, Any]]) -> str:
    """In how many samples no block ever fired; empty if there are none."""
    never = sum(row["samples"] for row in table if row["step"] is None)
    return f" In {numbers.plural(never, 'sample')} no block ever fired: not drawn." if never else ""


@redrawable
def fired_chart(
    table: Sequence[Mapping[str, Any]],
    *,
    chosen: int | None = None,
    theme: str | Theme = "light",
    title: str | None = "When does the output fire?",
    height: int = 110,
) -> alt.LayerChart:
    """Samples by the threshold step at which they stopped (``fired_rows``); the ``chosen`` bar in the accent colour.

    Samples in which no block ever fired have no step: they are counted beside the bars.
    """
    look = theme_named(theme)
    shown = [
        {
            **row,
            "lo": row["step"] - 0.42,
            "hi": row["step"] + 0.42,
            "zero": 0,
            "on": row["step"] == chosen,
            "words": numbers.percent(row["share"]),
        }
        for row in table
        if row["step"] is not None
    ]
    x = alt.X(
        "lo:Q",
        scale=alt.Scale(nice=False, zero=False, padding=8),
        axis=alt.Axis(title="threshold step", format="d", tickMinStep=1, grid=False),
    )
    bars = (
        alt.Chart(rows(shown))
        .mark_bar()
        .encode(
            x=x,
            x2="hi:Q",
            y=alt.Y("samples:Q", axis=alt.Axis(title="samples", tickCount=3, format="~s")),
            y2="zero:Q",
            color=either("datum.on", look.accent, look.module),
            tooltip=tips("step:Q", "theta:N threshold", "samples:Q|,", "words:N share"),
        )
    )
    words = ["Samples by the step at which enough signal reached the output."]
    words += [never.strip()] if (never := never_words(table)) else []
    summary = highest(shown, "samples", lambda row: f"step {row['step']}, {numbers.plural(row['samples'], 'sample')}")
    return finish(alt.layer(bars), look, title, words, height=height, summary=summary)


def step_words(
    network: Network,
    curve: Sequence[Mapping[str, Any]],
    step: int,
    last: int,
    names: Sequence[str],
    config: Mapping[str, Any],
    sample: Mapping[str, Any],
) -> str:
    """State at this step, and the current or later prediction."""
    row, total = curve[step], network.num_blocks
    prediction = (
        f"“{sample['prediction']}” ({numbers.percent(sample.get('confidence'))})" if sample.get("prediction") else ""
    )
    says = f" and says {prediction}" if prediction else ""
    place, lit = (f" (step {step} of {last})" if last else ""), round(row["lit"] * total)
    words = [
        f"At {names[step]}{place}, {numbers.plural(lit, 'block')} of {numbers.count(total)} "
        f"{'is' if lit == 1 else 'are'} lit, "
        f"{numbers.count(round(row['lit_so_far'] * total))} so far; "
        f"{numbers.percent(row['used'])} of the parameters have been used."
    ]
    cap = int((config.get("controls") or {}).get("theta_steps") or config["theta_steps"])
    if not curve[-1]["lit_so_far"]:
        words = [f"No block fired at any threshold: the output is read without them{says}."]
    elif step < last:
        words.append(
            f"The output is still silent. It fires at step {last}{', and says ' + prediction if prediction else ''}."
        )
    else:
        ended = "The last threshold is reached: the output is read" if last == cap - 1 else "Now the output fires"
        words.append(f"{ended}{says}.")
    if sample.get("label") is not None and sample.get("prediction") and sample.get("loss") is not None:
        right = sample["prediction"] == sample["label"]
        words.append("That is right." if right else f"That is wrong: it is “{sample['label']}”.")
    return " ".join(words)
