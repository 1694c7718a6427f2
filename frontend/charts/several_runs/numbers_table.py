"""The numbers of several runs: a sentence, a table whose rows are grouped, and one chart a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, either
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, rows, tip
from tokenpaths.frontend.charts.load_over_time import is_load_only

GROUPS = {
    "size": "Size",
    "outcome": "How good is it?",
    "work": "How much work?",
    "paths": "Paths",
    "balance": "Balance of load, means over steps",
    "knowledge": "What paths know beyond chance: adjusted NMI with …",
}
WORDS = {
    "num_steps": ("steps", "Routing decisions in the life of a token."),
    "num_modules": ("modules", "That a router chooses from."),
    "top_k": ("modules chosen at a step", "k of top-k."),
    "num_samples": ("samples", "Images or texts."),
    "num_tokens": ("tokens", "Patches of images, tokens of texts."),
    "loss": ("loss (nats)", "Mean cross-entropy of the right answer; lower is better."),
    "accuracy": ("accuracy", "Share of samples whose prediction is their label."),
    "mean_compute": (
        "compute per token",
        "Active slots / all slots of a token: 1 = nothing was skipped. Mean over tokens.",
    ),
    "mean_reuse": ("reuse per token", "1 − distinct modules / visits on a token’s path. Mean over tokens."),
    "num_paths": ("different paths", "Grows with the number of tokens."),
    "effective_paths": ("effective paths", "exp H of the paths’ shares. Grows with the number of tokens."),
    "equal_paths": ("different paths, equal tokens", "Of as many tokens of each run as the smallest has."),
    "equal_effective_paths": ("effective paths, equal tokens", "exp H, of as many tokens as the smallest run has."),
    "window_slope": (
        "slope of rank–frequency",
        "Least squares of log frequency on log rank, ranks 10 to 1,000, of as many tokens as the smallest run has. "
        "Lower is steeper: fewer paths hold more.",
    ),
    "load_entropy": ("load entropy", "H(c/Σc)/ln M of the tokens c of each module: 1 = even, 0 = one gets all."),
    "load_cv": ("CV of loads", "Standard deviation / mean of the modules’ tokens: 0 = even."),
    "max_violation": ("MaxVio", "Load of the busiest module / fair share − 1: 0 = even, M − 1 = one gets all."),
    "effective_top_k": ("effective top-k", "(Σ c²)^1.5 / Σ c³: 1 = one module takes all, √M = even."),
    "dead_modules": (
        "cells without a token",
        "Of steps × modules, those that no token chose: the sum over steps, no mean. A module that none chose at any "
        "step is dead.",
    ),
}
_COUNTS = ("num_paths", "num_tokens", "num_samples", "num_steps", "num_modules", "top_k", "equal_paths", "dead_modules")
_EFFECTIVE = ("effective_paths", "equal_effective_paths")
_MANY = (*_EFFECTIVE, *_COUNTS)
"""numbers whose words are of many things: “effective paths”"""
_FIRST = ("loss", "accuracy", "mean_compute", "mean_reuse", "load_entropy", "equal_effective_paths", "max_violation")
GAP_COLUMNS = {"": "value", ", 2.5 %": "low", ", 97.5 %": "high"}
KNOWS = "(NMI − its mean over shuffles) / (1 − that mean): 0 as by chance, 1 where the path tells the property."
MOST_SAID = 3
TITLE = "How do the runs compare?"
STYLE = """<style>
.tp-runs { overflow: auto; max-height: 64rem; border: 1px solid color-mix(in srgb, currentColor 18%, transparent);
  border-radius: .5rem; font-size: .875rem; }
.tp-runs table { border-collapse: collapse; width: 100%; margin: 0; }
.tp-runs caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.tp-runs th, .tp-runs td { padding: .28rem .65rem; text-align: right; vertical-align: top; border: 0;
  border-bottom: 1px solid color-mix(in srgb, currentColor 12%, transparent); font-weight: 400;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tp-runs th[scope=row], .tp-runs th[scope=rowgroup], .tp-runs thead th:first-child { text-align: left; }
.tp-runs thead th { font-weight: 600; }
.tp-runs th[scope=rowgroup] { font-weight: 600; padding-top: .8rem; }
.tp-runs th[scope=row], .tp-runs thead th:first-child { position: sticky; left: 0;
  background: PAGE; }
.tp-runs abbr { text-decoration: underline dotted; text-underline-offset: .2em; cursor: help; }
.tp-runs small { display: block; opacity: .78; font-size: .78rem; }
.tp-runs strong { font-weight: 700; }
.tp-runs td.tp-words { white-space: normal; min-width: 8rem; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  .tp-runs th, .tp-runs td { padding-inline: .4rem; }
  .tp-runs th[scope=row] { min-width: 6.4rem; max-width: 7.4rem; white-space: normal; }
  .tp-runs thead th:not(:first-child), .tp-runs small { white-space: normal; overflow-wrap: anywhere; min-width: 5rem; }
  .tp-runs td.tp-words { min-width: 5rem; }
}
</style>"""


OWN_NUMBERS = "The numbers below are each run’s own; how sure a difference between them is cannot be told."
"""where no samples are common: what is drawn beneath says which run has more"""


def name_words(name: str) -> str:
    """The words for a number: “load entropy”; of what paths know “label”."""
    return WORDS[name][0] if name in WORDS else name.removeprefix("knows_").replace("_", " ")


def value_words(name: str, value: float | None) -> str:
    """A number as the table has it.

    Effective paths stand below the different ones and are no more than those: 4,096 would be 4,100 in three digits.
    """
    if name in _COUNTS or (name in _EFFECTIVE and value is not None and value >= 1000):
        return numbers.count(value)
    return numbers.percent(value) if name == "accuracy" else numbers.number(value)


def signed(name: str, value: float) -> str:
    """A difference with its sign; shares in percentage points."""
    size = f"{numbers.number(100 * abs(value))} points" if name == "accuracy" else numbers.number(abs(value))
    return ("+" if value > 0 else "−" if value < 0 else "±") + size


def interval_words(name: str, gap: Mapping[str, Any]) -> str:
    """“+0.12 (+0.05 … +0.19)”."""
    value, low, high = (signed(name, gap[key]) for key in ("value", "low", "high"))
    return f"{value} ({low} … {high})"


def clear_rows(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Rows in which a run differs clearly from the first: what people ask for first, then the clearest."""

    def strength(row: Mapping[str, Any]) -> float:
        gaps = [gap for gap in row["differences"] if gap and gap["clear"]]
        return max(abs(gap["value"]) / ((gap["high"] - gap["low"]) or 1e-12) for gap in gaps)

    found = [row for row in answer["rows"] if any(gap and gap["clear"] for gap in row["differences"])]
    return sorted(
        found, key=lambda row: (_FIRST.index(row["name"]) if row["name"] in _FIRST else len(_FIRST), -strength(row))
    )


def runs_words(answer: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """What the runs have in common, and what differs most, in words."""
    runs = answer["runs"]
    first, others = runs[0], runs[1:]
    if not others and is_load_only(first):
        return f"One run of counts, of {first['dataset']}."
    if not others:
        return f"One run: {numbers.plural(first['num_tokens'], 'token')} of {first['dataset']}."
    if all(map(is_load_only, runs)):
        return f"Runs of counts have no samples to compare. {OWN_NUMBERS}"
    if is_load_only(first):
        return (
            f"{labels[first['run']]} is a run of counts: it has no samples that others could be compared on. "
            f"{OWN_NUMBERS}"
        )
    same = sum(run["same_samples"] for run in others)
    if same == len(others):
        over = f"All {len(runs)} runs are over the same {numbers.plural(first['num_samples'], 'sample')}."
        over = over.replace("All 2 runs", "Both runs")
    else:
        over = _samples_words(first, others, labels)
    said = [_extreme_words(row, runs, labels) for row in clear_rows(answer)[:MOST_SAID]]
    if said:
        return f"{over} Compared with {labels[first['run']]}: {'; '.join(said)}."
    told = any(gap for row in answer["rows"] for gap in row["differences"])
    if told:
        return f"{over} No number differs clearly from {labels[first['run']]}: every 95 % interval includes zero."
    return f"{over} {OWN_NUMBERS}"


def _samples_words(first: Mapping[str, Any], others: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """How many samples of the first run the others have, where some have not the same."""
    whose = f"the {numbers.plural(first['num_samples'], 'sample')} of {labels[first['run']]}"
    apart = [run for run in others if not run["same_samples"]]
    if len(others) == 1:
        (run,) = apart
        return (
            f"{labels[run['run']]} has {numbers.count(run['num_common']) if run['num_common'] else 'none'} of {whose}."
        )
    some = [f"{labels[run['run']]} has {run['num_common']:,} of them" for run in apart if run["num_common"]]
    none = [labels[run["run"]] for run in apart if not run["num_common"]]
    if none:
        some.append(f"{_some(none)} {'has' if len(none) == 1 else 'have'} none")
    same = len(others) - len(apart)
    how_many = "None" if not same else f"{same:,}"
    verb = "is" if same <= 1 else "are"
    return f"{how_many} of the {len(others):,} other runs {verb} over exactly {whose}; {', '.join(some)}."


def _extreme_words(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """The run that differs most in one number: “loss is higher in B (2.31 instead of 1.90)”.

    The difference is of samples that both have; where the numbers of the whole runs do not show it, it is told itself.
    """
    gaps = [(abs(gap["value"]), place) for place, gap in enumerate(row["differences"]) if gap and gap["clear"]]
    place = max(gaps)[1]
    gap, name = row["differences"][place], row["name"]
    own, first = row["values"][place], row["values"][0]
    told = [value_words(name, value) for value in (own, first)]
    shown = None not in (own, first) and told[0] != told[1] and (own > first) == (gap["value"] > 0)
    said = f"{told[0]} instead of {told[1]}" if shown else f"{interval_words(name, gap)} on the samples of both"
    alike = sum((row["differences"][i]["value"] > 0) == (gap["value"] > 0) for _, i in gaps)
    among = f", most of {alike} runs" if alike > 1 else ""
    way = "higher" if gap["value"] > 0 else "lower"
    where = labels[runs[place]["run"]]
    return f"{name_words(name)} {_is(name)} {way} in {where} ({said}{among})"


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) if more else numbers.listed(names)


def what_cannot_be_told(answer: Mapping[str, Any]) -> list[str]:
    """Each reason why differences are missing, once, with the numbers that it is about."""
    about: dict[str, list[str]] = {}
    for row in answer["rows"]:
        for reason in row["reasons"]:
            if reason is not None and name_words(row["name"]) not in about.setdefault(reason, []):
                about[reason].append(name_words(row["name"]))
    every = max((len(names) for names in about.values()), default=0)
    return [
        reason + ("." if len(names) == every and every > 4 else f" ({_some(names, 5)}).")
        for reason, names in about.items()
    ]


def difference_rows(answer: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every difference that can be told, with its interval."""
    return [
        {
            "number": name_words(row["name"]),
            "run": labels[run["run"]],
            "difference (95 %)": interval_words(row["name"], gap),
            "clear": "yes" if gap["clear"] else "no",
            "samples": gap["num"],
        }
        for row in answer["rows"]
        for run, gap in zip(answer["runs"], row["differences"], strict=True)
        if gap is not None
    ]


def runs_table_html(answer: Mapping[str, Any], labels: Mapping[str, str], theme: str | Theme = "light") -> str:
    """The table: a column a run, rows in groups, ▲ and ▼ where a run differs clearly from the first."""
    style = STYLE.replace("PAGE", theme_named(theme).background)
    runs = answer["runs"]
    heads = "".join(
        f'<th scope="col" title="{escape(run["run"], quote=True)}">{escape(labels[run["run"]])}'
        + (" <small>the others are compared with it</small>" if not place and len(runs) > 1 else "")
        + "</th>"
        for place, run in enumerate(runs)
    )
    facts = {
        "model": [str(run["model"]) for run in runs],
        "data": [f"{run['dataset']}" + (f", {run['split']}" if run["split"] else "") for run in runs],
    }
    if any(run.get("series") for run in runs):
        facts["training"] = [
            f"{place['name']}, iteration {place['iteration']:,}" if (place := run.get("series")) else "–"
            for run in runs
        ]
    body = "".join(
        f'<tr><th scope="row">{name}</th>' + "".join(f'<td class="tp-words">{escape(v)}</td>' for v in values) + "</tr>"
        for name, values in facts.items()
    )
    for group, title in GROUPS.items():
        members = [row for row in answer["rows"] if row["group"] == group]
        if members:
            body += f'<tr><th scope="rowgroup" colspan="{len(runs) + 1}">{escape(title)}</th></tr>'
            body += "".join(_row_html(row, labels[runs[0]["run"]]) for row in members)
    return (
        f'{style}<div class="tp-runs" role="region" tabindex="0" aria-label="Runs in numbers"><table><caption>Runs in '
        f'numbers</caption><thead><tr><th scope="col">number</th>{heads}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _row_html(row: Mapping[str, Any], first: str) -> str:
    name = row["name"]
    words, told = WORDS.get(name, (name_words(name), KNOWS))
    cells = [
        _cell_html(name, value, gap, untrained, first)
        for value, gap, untrained in zip(row["values"], row["differences"], row["untrained"], strict=True)
    ]
    head = f'<abbr title="{escape(told, quote=True)}">{escape(words)}</abbr>'
    return f'<tr><th scope="row">{head}</th>{"".join(cells)}</tr>'


def _cell_html(
    name: str, value: float | None, gap: Mapping[str, Any] | None, untrained: float | None, first: str
) -> str:
    words = escape(value_words(name, value))
    if gap is not None and gap["clear"]:
        mark, way = ("▲", "higher") if gap["value"] > 0 else ("▼", "lower")
        told = escape(f"clearly {way} than {first}: {interval_words(name, gap)}", quote=True)
        words = f'<strong title="{told}"><span role="img" aria-label="{told}">{mark}</span> {words}</strong>'
    more = "" if untrained is None else f"<small>{escape(f'untrained {value_words(name, untrained)}')}</small>"
    return f"<td>{words}{more}</td>"


def number_title(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """What the chart of one number shows, as a sentence: “Loss is lowest in B: 1.90”.

    Where several runs have the best value and fewer the other end, that is told.
    """
    name = row["name"]
    known = [(value, run) for value, run in zip(row["values"], runs, strict=True) if value is not None]
    words = f"{numbers.capital(name_words(name))} {_is(name)}"
    low, high = (f(known, key=lambda pair: pair[0]) for f in (min, max))
    if low[0] == high[0]:
        return f"{words} {value_words(name, low[0])} in all"
    ends = [("lowest", *low), ("highest", *high)] if name == "loss" else [("highest", *high), ("lowest", *low)]
    way, value, _run = min(ends, key=lambda end: sum(other == end[1] for other, _run in known))
    where = _some([labels[run["run"]] for other, run in known if other == value])
    return f"{words} {way} in {where}: {value_words(name, value)}"


def _is(name: str) -> str:
    """The verb behind the words for a number: “effective paths are”."""
    return "are" if name in _MANY else "is"


def number_rows(
    row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Table of one number: its value and 95 % interval in each run, and the difference from the first."""
    places = zip(runs, row["values"], row["low"], row["high"], row["differences"], strict=True)
    return [
        {
            "run": labels[run["run"]],
            name_words(row["name"]): value,
            "2.5 %": low,
            "97.5 %": high,
            **{f"difference{end}": gap[key] if gap else None for end, key in GAP_COLUMNS.items()},
            "clear": None if gap is None else "yes" if gap["clear"] else "no",
        }
        for run, value, low, high, gap in places
        if value is not None
    ]


@redrawable(numbers=number_rows)
def number_chart(
    row: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    *,
    labels: Mapping[str, str],
    theme: str | Theme = "light",
    title: str | None = TITLE,
) -> alt.LayerChart:
    """One number of all runs with its 95 % intervals; dashed: the first run, if it has the number. Grey: not clearly
    other.
    """
    look, name = theme_named(theme), row["name"]
    places = zip(runs, row["values"], row["low"], row["high"], row["differences"], strict=True)
    table = [
        {
            "run": labels[run["run"]],
            "value": value,
            "low": value if low is None else low,
            "high": value if high is None else high,
            "clear": place == 0 or bool(gap and gap["clear"]),
            "said": value_words(name, value),
            "by": "–" if gap is None else interval_words(name, gap),
            "words": f"{labels[run['run']]}: {value_words(name, value)}",
        }
        for place, (run, value, low, high, gap) in enumerate(places)
        if value is not None
    ]
    y = alt.Y(
        "run:N",
        sort=[labels[run["run"]] for run in runs],
        axis=bare_axis(None, labelLimit=150, grid=False, labelPadding=6),
    )
    scale = alt.Scale(zero=False, padding=14, nice=False)
    # A scale without width would have the one tick 0.000000.
    ends = {row[end] for row in table for end in ("low", "value", "high")}
    one: dict[str, Any] = {"values": [*ends], "labelExpr": f"'{table[0]['said']}'"} if len(ends) == 1 else {}
    axis = alt.Axis(title=name_words(name), tickCount=4, grid=True, **one)
    x = alt.X("value:Q", scale=scale, axis=axis)
    base = alt.Chart(rows(table)).encode(y=y)
    paint = either("datum.clear", look.module, look.identity)
    bars = base.mark_rule(strokeWidth=2.5, aria=False).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", color=paint)
    tooltip = tip({"run": "run", name_words(name): "said", "difference (95 %)": "by"})
    points = base.mark_point(filled=True, size=75, opacity=1, tooltip=tooltip).encode(
        x=x, color=paint, description="words:N"
    )
    height = 26 * max(2, len(table)) + 8
    if row["values"][0] is None:
        words = f"Bars: 95 % intervals. {labels[runs[0]['run']]}, the first run, does not have this number."
        return finish(alt.layer(bars, points), look, title, words, height=height)
    first = (
        alt.Chart(rows(table[:1]))
        .mark_rule(strokeDash=[4, 3], color=look.muted, aria=False)
        .encode(x=alt.X("value:Q", scale=scale))
    )
    words = "Bars: 95 % intervals. Dashed: the first run. Grey: not clearly other."
    return finish(alt.layer(first, bars, points), look, title, words, height=height)
