"""Numbers of any number of runs side by side, each with its interval and its difference from the first run.

A difference is told only where the samples can tell it: over the same samples, of numbers on one scale. Means over
samples (loss, accuracy, compute, reuse) are compared pair by pair; numbers that are no means (paths, loads) by random
halves of the samples. Everything but a draw of tokens comes from the sealed summaries.

Shapes: m samples, n tokens, S steps, K slots, M modules, G groups of samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenpaths.engine.analysis import load, path_statistics
from tokenpaths.engine.analysis.contrast import mean_of
from tokenpaths.engine.analysis.paired_runs import (
    FEWEST_SAMPLES,
    NORMAL_95,
    Difference,
    difference,
    half_sample_errors,
    mean_half_width,
    paired_difference,
    paired_share_difference,
)
from tokenpaths.engine.analysis.slope_growth import MOST_TOKENS, WINDOW, thinned, window_fit
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import FIRST_PREDICTION
from tokenpaths.engine.store.ask.arguments import check_opened
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed
from tokenpaths.engine.store.ask.several_runs import MOST_RUNS
from tokenpaths.engine.store.ask.several_runs.sample_matching import Pairing, pair_samples
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.drawn_tokens import draw_groups
from tokenpaths.engine.store.ask.topics.overview import card
from tokenpaths.engine.store.ask.topics.paths import fit, path_histogram
from tokenpaths.engine.store.ask.topics.soft_decisions import finding
from tokenpaths.engine.store.ask.topics.usage import counts_of_step
from tokenpaths.engine.store.file.filters import Query

THINNED = 3
"""thinned runs whose mean is the number at equal tokens"""
DRAWN_TOKENS, DRAWN_CHOICES = 50_000, 4_000_000
"""tokens, and choices of all their steps and slots, that errors are worked out on"""

SIZE = ("num_steps", "num_modules", "top_k", "num_samples", "num_tokens")
OUTCOME = {"loss": "loss", "accuracy": "correct"}
WORK = {"mean_compute": "compute", "mean_reuse": "reuse"}
PATHS = ("num_paths", "effective_paths")
EQUAL = ("equal_paths", "equal_effective_paths", "window_slope")
"""of so many tokens of each run as the smallest has"""
BALANCE = {
    "load_entropy": load.load_entropy,
    "load_cv": load.load_cv,
    "max_violation": load.max_violation,
    "effective_top_k": load.effective_top_k,
    "dead_modules": lambda counts: float((counts == 0).sum()),
}
"""means over steps, but for dead modules, which are summed"""
SCALED_BY_MODULES = ("load_cv", "max_violation", "effective_top_k", "dead_modules")
COUNTED = ("equal_paths", "dead_modules")
"""of the rest without an interval"""
GROUPS = {
    "size": SIZE,
    "outcome": tuple(OUTCOME),
    "work": tuple(WORK),
    "paths": (*PATHS, *EQUAL),
    "balance": tuple(BALANCE),
}
_SAMPLES = """
SELECT first_row, num_tokens, coalesce(compute, 'nan'::DOUBLE) AS compute, coalesce(reuse, 'nan'::DOUBLE) AS reuse,
    coalesce(loss, 'nan'::DOUBLE) AS loss, CASE WHEN loss IS NULL OR prediction IS NULL OR label IS NULL
    THEN 'nan'::DOUBLE ELSE (prediction = label)::DOUBLE END AS correct FROM sample ORDER BY sample
"""


@dataclass
class Numbers:
    """What is known of one run."""

    run: RunFile
    samples: dict[str, np.ndarray]
    """columns of ``_SAMPLES``, and ``num_losses``, the tokens that a text's loss is the mean of, (m,) each"""
    values: dict[str, int | float | None]
    errors: dict[str, int | float | None] = field(default_factory=dict)
    """standard errors of ``values`` that are no means"""
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    """intervals of those that are"""
    untrained: dict[str, int | float | None] = field(default_factory=dict)
    first_prediction: int = 0
    """position of a window from which on tokens have a loss"""


def compare_runs(runs: Sequence[RunFile]) -> dict[str, Any]:
    """Numbers of ``runs``, the first of which the others are compared with; see ``compare_schema.RunsBeside``.

    Raises:
        UserError: fewer than one or more than ``MOST_RUNS`` runs, or one twice.
    """
    if isinstance(runs, (str, RunFile)) or not isinstance(runs, Iterable):
        raise UserError(f"runs is {repr(runs)[:60]}, it should be a list of opened runs", field="runs")
    runs = list(runs)
    for number, run in enumerate(runs):
        check_opened(run, f"runs[{number}]")
    names = [run.run_id for run in runs]
    if not 1 <= len(names) <= MOST_RUNS:
        raise UserError(f"{len(names)} runs were given, 1 to {MOST_RUNS} can stand side by side", field="runs")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{twice[0]!r} was given twice: give each run once", field="runs")
    equal_tokens = most_tokens(runs)
    everyone = [numbers_of_run(run, equal_tokens) for run in runs]
    first = everyone[0]
    pairings = [None, *(_pairing(first.run, other.run) for other in everyone[1:])]
    known = [*GROUPS.items(), ("knowledge", _of_knowledge(everyone))]
    return {
        "runs": [
            {
                **card(one.run),
                "same_samples": pairing is None or pairing.whole,
                "num_common": None if pairing is None else pairing.num,
                "same_tokens": pairing is None or _same_tokens(first, one, pairing),
                "reason": None if pairing is None or pairing.num else _nothing_common(first.run, one.run),
            }
            for one, pairing in zip(everyone, pairings, strict=True)
        ],
        "equal_tokens": equal_tokens,
        "window": list(WINDOW),
        "rows": [
            _row(name, group, everyone, pairings)
            for group, members in known
            for name in members
            if any(one.values.get(name) is not None for one in everyone)
        ],
    }


def numbers_of_run(run: RunFile, equal_tokens: int) -> Numbers:
    """Everything about one run that does not depend on the others but for the number of tokens."""
    row = run.row | {"num_modules": run.num_modules}
    one = Numbers(run, run.arrays(Query(_SAMPLES)), {name: row[name] for name in (*SIZE, *WORK)})
    one.first_prediction = int(finding(run, FIRST_PREDICTION) or 0)
    one.samples["num_losses"] = _losses_of_samples(one) if one.first_prediction else one.samples["num_tokens"]
    counts = counts_of_step(run.rows(queries.sealed_usage(None)), run.bank, run.layout.num_steps)
    one.values |= _balance(counts)
    if run.load_only is not None:
        return one
    told = card(run)
    one.values |= {name: told[name] for name in OUTCOME}
    for name, column in (OUTCOME | WORK).items():
        weights, values = _weighted(one, column)
        if (value := one.values[name]) is None:
            continue
        if name == "accuracy":
            share = mean_of(weights * values, weights, share=True)
            if share is not None and share.low is not None and share.high is not None:
                one.bounds[name] = share.low, share.high
        elif (half := mean_half_width(values, weights)) is not None:
            one.bounds[name] = value - half, value + half
    fitted = fit(run)
    observed, twin = fitted["observed"], fitted["untrained"]
    one.values |= {name: observed[name] for name in PATHS}
    at_equal = at_equal_tokens(run, equal_tokens)
    one.values |= at_equal["values"]
    one.errors |= at_equal["errors"]
    if twin is not None and (rows := run.rows(queries.null_usage("untrained"))):
        one.untrained = {name: twin[name] for name in PATHS}
        one.untrained |= _balance(counts_of_step(rows, run.bank, run.layout.num_steps))
    for attribute, nmi, null_mean, *rest in run.rows(queries.association_rows()):
        # NMI itself grows with the number of paths and of kinds: more of it may be less knowledge.
        of = one.untrained if rest[-1] == "untrained" else one.values
        of[f"knows_{attribute}"] = (nmi - null_mean) / (1 - null_mean) if null_mean < 1 else None
    return one


def _losses_of_samples(one: Numbers) -> np.ndarray:
    """(m,) tokens with a loss. Elsewhere all but a text's last one have it, and nobody has to count."""
    rows = one.run.arrays(
        Query("SELECT sample, count(*) AS num FROM token WHERE loss IS NOT NULL AND NOT isnan(loss) GROUP BY sample")
    )
    counts = np.zeros(len(one.samples["num_tokens"]), dtype=np.int64)
    counts[rows["sample"]] = rows["num"]
    return counts


def _weights(one: Numbers, column: str) -> np.ndarray:
    """(m,) weights of the samples: tokens weigh but for outputs of a whole image."""
    if column == "correct" or (column == "loss" and one.run.row["modality"] == "vision"):
        return np.ones(len(one.samples[column]))
    weights: np.ndarray = one.samples["num_losses" if column == "loss" else "num_tokens"].astype(np.float64)
    return weights


def _weighted(one: Numbers, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights and values of the samples that have the measure."""
    values, weights = one.samples[column], _weights(one, column)
    known = np.isfinite(values)
    return weights[known], values[known]


def _balance(counts: Sequence[np.ndarray]) -> dict[str, float | None]:
    """``BALANCE`` over the steps at which something was counted; None where nothing was."""
    known = [c for c in counts if c.any()]
    if not known:
        return dict.fromkeys(BALANCE)
    return {
        name: float((np.sum if name == "dead_modules" else np.mean)([measure(c) for c in known]))  # type: ignore[no-untyped-call]
        for name, measure in BALANCE.items()
    }


@sealed("at_equal_tokens")
def at_equal_tokens(run: RunFile, num_tokens: int) -> dict[str, Any]:
    """``values`` of ``EQUAL`` of a run thinned to ``num_tokens``, and ``errors`` of these and of ``BALANCE``.

    Sealed, as thinning draws for every path and halves are drawn from all over the run.
    """
    values = dict(zip(EQUAL, _thinned_values(run, num_tokens), strict=True))
    return {"run": run.run_id, "values": values, "errors": _errors_by_halves(run, num_tokens, values)}


def most_tokens(runs: Sequence[RunFile]) -> int:
    """How many tokens each of these runs has at least, up to ``MOST_TOKENS``; 0 where none has tokens."""
    with_tokens = [int(run.row["num_tokens"]) for run in runs if run.load_only is None]
    return min([MOST_TOKENS, *with_tokens]) if with_tokens else 0


def _thinned_values(run: RunFile, num_tokens: int) -> tuple[float | None, ...]:
    """``EQUAL`` of a run thinned to ``num_tokens``: means over ``THINNED`` draws; exact where it has no more."""
    histogram = path_histogram(run, "observed")
    assert histogram is not None, "a sealed run has counts of its own paths"
    total = int(histogram.values @ histogram.paths)
    if num_tokens >= total:
        numbers = [_of_paths(np.repeat(histogram.values, histogram.paths)[::-1])]
    else:
        rng = np.random.default_rng(0)
        numbers = [_of_paths(thinned(histogram, num_tokens / total, rng)) for _ in range(THINNED)]
    return tuple(None if np.isnan(value) else float(value) for value in np.mean(numbers, axis=0))


def _of_paths(counts: np.ndarray) -> np.ndarray:
    """``EQUAL`` of counts in falling order, (3,); NaN for a slope that is not determined."""
    slope = window_fit(counts).slope
    return np.array([len(counts), path_statistics.effective_paths(counts), np.nan if slope is None else slope])


def _errors_by_halves(run: RunFile, equal_tokens: int, equal: Mapping[str, float | None]) -> dict[str, float | None]:
    """Standard errors of ``EQUAL``, whose values are ``equal``, and ``BALANCE``, from random halves of the samples, or
    of a draw of stretches of them; scaled from what was drawn to what the number is of.

    Samples scatter more than their tokens, so where stretches end inside of samples it is scaled by samples. Effective
    paths grow with the tokens, and their error with them: it is taken from the halves as a part of the value.
    """
    names = (*EQUAL, *BALANCE)
    layout = run.layout
    most = min(DRAWN_TOKENS, max(1000, DRAWN_CHOICES // layout.visits))
    samples = run.arrays(Query("SELECT first_row, num_tokens FROM sample ORDER BY sample"))
    group_n, ids_nSK, met = draw_groups(run, samples["first_row"], samples["num_tokens"], most)
    _, path_n = path_statistics.unique_rows(path_statistics.canonical(ids_nSK))
    num_paths, num_groups = int(path_n.max(initial=-1)) + 1, int(group_n.max(initial=-1)) + 1
    cell_SM = np.arange(layout.num_steps)[:, None] * layout.num_modules
    cells = (group_n[:, None, None] * (layout.num_steps * layout.num_modules) + cell_SM + ids_nSK).ravel()
    counts_GSM = np.bincount(cells, minlength=num_groups * layout.num_steps * layout.num_modules)
    counts_GSM = counts_GSM.reshape(num_groups, layout.num_steps, layout.num_modules)
    offered = [run.bank.offered(step) for step in range(layout.num_steps)]

    of_halves: list[float] = []

    def statistics(kept_n: np.ndarray) -> np.ndarray:
        counts = np.bincount(path_n[kept_n], minlength=num_paths)
        kept_SM = counts_GSM[np.unique(group_n[kept_n])].sum(axis=0)
        balance = _balance([kept_SM[step][modules] for step, modules in enumerate(offered)])
        of_paths = _of_paths(np.sort(counts[counts > 0])[::-1])
        of_halves.append(float(of_paths[EQUAL.index("equal_effective_paths")]))
        return np.array([*of_paths, *balance.values()], dtype=np.float64)

    errors = half_sample_errors(group_n, statistics)
    if errors is None:
        return dict.fromkeys(names)
    drawn, whole, part = len(group_n), int(run.row["num_tokens"]), met / len(samples["num_tokens"])
    scales = [np.sqrt(max(drawn / min(equal_tokens, whole), part))] * len(EQUAL)
    scales += [np.sqrt(max(drawn / whole, part))] * len(BALANCE)
    found = dict(zip(names, (errors * scales).tolist(), strict=True))
    found["equal_effective_paths"] *= (equal["equal_effective_paths"] or 0.0) / np.mean(of_halves)
    # The more tokens there are the more paths and the fewer dead modules are met: halves say nothing of the whole.
    found |= dict.fromkeys(COUNTED)
    return {name: None if error is None or not np.isfinite(error) else error for name, error in found.items()}


def _of_knowledge(everyone: Sequence[Numbers]) -> list[str]:
    return sorted({name for one in everyone for name in one.values if name.startswith("knows_")})


def _row(name: str, group: str, everyone: Sequence[Numbers], pairings: Sequence[Pairing | None]) -> dict[str, Any]:
    """One number of all runs."""
    intervals = [_interval(one, name) for one in everyone]
    told = [
        (None, None) if pairing is None else _difference(name, group, everyone[0], other, pairing)
        for other, pairing in zip(everyone, pairings, strict=True)
    ]
    return {
        "name": name,
        "group": group,
        "values": [one.values.get(name) for one in everyone],
        "low": [None if pair is None else pair[0] for pair in intervals],
        "high": [None if pair is None else pair[1] for pair in intervals],
        "untrained": [one.untrained.get(name) for one in everyone],
        "differences": [
            None
            if gap is None
            else {"value": gap.value, "low": gap.low, "high": gap.high, "num": gap.num, "clear": gap.clear}
            for gap, _ in told
        ],
        "reasons": [reason for _, reason in told],
    }


def _interval(one: Numbers, name: str) -> tuple[float, float] | None:
    if name in one.bounds:
        return one.bounds[name]
    value, error = one.values.get(name), one.errors.get(name)
    return None if value is None or error is None else (value - NORMAL_95 * error, value + NORMAL_95 * error)


def _difference(
    name: str, group: str, first: Numbers, other: Numbers, pairing: Pairing
) -> tuple[Difference | None, str | None]:
    """The difference of ``other`` from ``first``, or None and why it cannot be told."""
    value, base = other.values.get(name), first.values.get(name)
    if value is None or base is None or group in ("size", "knowledge") or name in PATHS:
        return None, None
    a, b = first.run.run_id, other.run.run_id
    if not pairing.num:
        return None, _nothing_common(first.run, other.run)
    if name == "loss" and first.run.row["modality"] == "text" and not _same_tokens(first, other, pairing):
        return None, f"{a} and {b} cut the same texts into other tokens, so a loss per token is another number"
    if name == "loss" and first.first_prediction != other.first_prediction:
        places = f"{first.first_prediction} and {other.first_prediction}"
        return None, f"{a} and {b} count losses from positions {places} of a text on, so they are of other tokens"
    if name in OUTCOME or name in WORK:
        gap = _paired(name, first, other, pairing)
        return gap, None if gap else f"{pairing.num} common samples have it; an interval takes {FEWEST_SAMPLES}"
    if not pairing.whole:
        return None, f"only {pairing.num:,} samples of {b} are in {a} too, and this is a number of the whole run"
    modules = [one.run.num_modules for one in (first, other)]
    if name in SCALED_BY_MODULES and modules[0] != modules[1]:
        return None, f"{a} has {modules[0]:,} modules, {b} has {modules[1]:,}: its scale is another"
    errors = [one.errors.get(name) for one in (first, other)]
    if None in errors:
        return None, None if name in COUNTED else "too few samples, or paths in half of them, for an interval"
    return difference(value - base, float(np.hypot(*errors)), int(pairing.num)), None  # type: ignore[arg-type]


def _paired(name: str, first: Numbers, other: Numbers, pairing: Pairing) -> Difference | None:
    """The mean over common samples that have the measure in both runs."""
    column = (OUTCOME | WORK)[name]
    sides = (first, pairing.rows_a), (other, pairing.rows_b)
    values = [one.samples[column][rows] for one, rows in sides]
    weights = [_weights(one, column)[rows] for one, rows in sides]
    known = np.isfinite(values[0]) & np.isfinite(values[1])
    if name == "accuracy":
        return paired_share_difference(values[0][known], values[1][known])
    return paired_difference(values[0][known], weights[0][known], values[1][known], weights[1][known])


def _pairing(first: RunFile, other: RunFile) -> Pairing:
    unlike = first.row["modality"] != other.row["modality"]
    if unlike or first.load_only is not None or other.load_only is not None:
        return Pairing.nothing(first, other)
    return pair_samples(first, other)


def _same_tokens(first: Numbers, other: Numbers, pairing: Pairing) -> bool:
    """Whether the common samples are cut into equally many tokens; pictures are not texts, their patches may differ."""
    lengths = [one.samples["num_tokens"][rows] for one, rows in ((first, pairing.rows_a), (other, pairing.rows_b))]
    return bool(np.array_equal(*lengths))


def _nothing_common(first: RunFile, other: RunFile) -> str:
    a, b = first.run_id, other.run_id
    for run in (first, other):
        if run.load_only is not None:
            return f"{run.run_id} holds counts of tokens by expert and no samples, so there is no interval"
    if first.row["modality"] != other.row["modality"]:
        return f"{a} is of {first.row['modality']}, {b} of {other.row['modality']}"
    if first.row["dataset"] != other.row["dataset"]:
        return f"{a} is over {first.row['dataset']!r}, {b} over {other.row['dataset']!r}"
    return f"{a} and {b} have no sample in common"
