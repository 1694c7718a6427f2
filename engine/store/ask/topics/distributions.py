"""Distributions of a measure (compute, reuse, loss, gate entropy) over samples or tokens; margins of decisions by step.

Shapes: n tokens, S steps, K slots, M modules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np

from tokenpaths.engine.analysis import paired_runs
from tokenpaths.engine.analysis.contrast import group_means
from tokenpaths.engine.analysis.distribution import describe
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.question import Argument, LabelFilter, Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed_labels
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.ask.tables.drawn_tokens import draw_tokens
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.file.filters import check_choice
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS, decode_margins

MEASURES = ("compute", "reuse", "loss", "gate_entropy")
SEALED_BINS = 40
MOST_BINS = 500
LIMITS = {"compute": (0.0, 1.0), "reuse": (0.0, 1.0)}
"""fixed axes for shares, so that histograms of different runs can be compared"""


def existing_measures(run: RunFile) -> list[str]:
    """The measures that have at least one value."""
    entropy = any(value is not None for _, value in run.rows(queries.step_entropy(None)))
    absent = set() if entropy else {"gate_entropy"}
    if run.row["loss"] is None:
        absent.add("loss")
    return [measure for measure in MEASURES if measure not in absent]


def _page_distributions(run: RunFile) -> Iterator[dict[str, Any]]:
    """Arguments asked by the page: every measure, for the whole run and for the labels with the most tokens."""
    for measure in existing_measures(run):
        for per in ("sample", "token"):
            # Compute and reuse are counted by path, loss and gate entropy by level: no answer holds all tokens.
            for label in sealed_labels(run):
                yield {"measure": measure, "per": per, "bins": SEALED_BINS, "label": label}


@question(
    "distributions/{measure}",
    "sample_schema.Distribution",
    tag="runs",
    description="How `compute`, `reuse`, `loss` or `gate_entropy` is distributed, over all and by label.",
    frames={
        "distribution": Rows("bins", "The bars of a histogram: lo, hi, count; mean and quantiles are in ``attrs``."),
        "by_label": Rows("by_label", "The mean of a measure for each label with its 95 % interval by sample."),
    },
    sealed=_page_distributions,
)
def distribution(
    run: RunFile,
    measure: Annotated[str, Argument()],
    per: Annotated[Literal["sample", "token"], Argument("What is counted")] = "sample",
    bins: Annotated[int, Argument("Bars of the histogram", ge=1, le=MOST_BINS)] = SEALED_BINS,
    label: LabelFilter = None,
) -> dict[str, Any]:
    """Moments, quantiles and histogram of compute, reuse, loss or gate_entropy per sample or token.

    Raises:
        UserError: there is nothing to describe.
    """
    label_id = run.label_id(label)
    check_choice(measure, MEASURES, "measure")
    histogram = run.rows(queries.sealed_distribution(measure, bins)) if per == "token" and label is None else []
    if histogram:
        described = json.loads(histogram[0][0])
    else:
        columns = _values(run, measure, per, label_id)
        described = describe(columns["value"], bins, counts=columns["count"], limits=LIMITS.get(measure))
    if not described["num"]:
        raise UserError(
            f"run {run.run_id!r} recorded no {measure} per {per}{' for this label' if label else ''}", field="measure"
        )
    return {
        "run": run.run_id,
        "measure": measure,
        "per": per,
        **described,
        "by_label": cached(run, f"{measure} by label per {per}", lambda: _by_label(run, measure, per), _row_bytes),
    }


def _by_label(run: RunFile, measure: str, per: str) -> list[dict[str, Any]]:
    """Means with intervals over samples; no intervals of the tokens' loss and gate entropy, whose sums by sample a run
    does not keep."""
    rows = [
        {"label": name, "num": num, "mean": finite(mean), "low": None, "high": None, "clear": False}
        for name, num, mean in run.rows(queries.measure_by_label(measure, per))
    ]
    if len(rows) < 2 or (per == "token" and measure not in ("compute", "reuse")):
        return rows
    columns = run.arrays(queries.measure_of_labelled(measure))
    if paired_runs.is_flat(columns["value"]):
        return rows
    weight_N = columns["num_tokens"] if per == "token" else np.ones(len(columns["value"]))
    numbers = {name: number for number, name, _, _ in run.labels}
    means = group_means(columns["value"], weight_N, columns["label_id"], max(numbers.values()) + 1)
    low_G, high_G = means.low, means.high
    if measure in ("compute", "reuse"):  # shares: of a few samples an interval by Student's t would go beyond 0 and 1
        low_G, high_G = np.maximum(low_G, 0.0), np.minimum(high_G, 1.0)
    for row in rows:
        at = numbers[row["label"]]
        row |= {"low": finite(low_G[at]), "high": finite(high_G[at]), "clear": bool(means.clear[at])}
    return rows


def _row_bytes(rows: list[dict[str, Any]]) -> int:
    return 500 * len(rows)


def _values(run: RunFile, measure: str, per: str, label_id: int | None) -> dict[str, np.ndarray]:
    """``queries.measure_values``; where all paths have one value, as of a log without costs, no token is looked at."""
    of_paths = per == "token" and measure in ("compute", "reuse")
    if of_paths and label_id is not None:
        every = cached(run, f"values of {measure}", lambda: _values(run, measure, per, None), _bytes)
        if len(every["value"]) == 1:
            (num_tokens,) = [tokens for number, _, _, tokens in run.labels if number == label_id]
            return {"value": every["value"], "count": np.array([num_tokens])}
    return run.arrays(queries.measure_values(measure, per, label_id))


def _bytes(columns: dict[str, np.ndarray]) -> int:
    return sum(values.nbytes for values in columns.values())


CLOSE = 0.05
"""margin below which a decision counts as close, by default"""
MARGIN_EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
MARGIN_QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}
NO_SCORES = "this run holds no scores of what was not chosen, so how close its decisions were is not known"
NO_RUNNER_UP = {
    "moe": f"{NO_SCORES}: a log of ids and weights cannot tell; trace the model, or import the scores of its routers",
    "directional": "in this family no module is chosen before another: each head removes as much of each direction as "
    "its own gate says, so there is no runner-up and no margin",
    "raytracing": "in this family no module is chosen before another: each block is active where enough signal reaches "
    "it, so there is no runner-up and no margin",
    "hmodel": "in this family no module is chosen before another: each layer sends to each of the others as much as a "
    "weight of their own says, so there is no runner-up and no margin",
    "dipaco": "a DiPaCo router scores whole paths, once for a document, and not the modules of a step, so a step has "
    "no margin of its own",
}
"""why there are no margins, by family; ``NO_SCORES`` of others"""


@question(
    "margins",
    "sample_schema.Margins",
    tag="runs",
    description="How close were the decisions of each step? Margins (the score of the last chosen module less that of "
    "the next one, in probability), the share of close decisions, and the most frequent pairs of winner and runner-up."
    "\n\nOf large runs on tokens drawn by a seed. Runs without scores say so in `reason`.",
    frames={
        "margins": Rows("steps", "A row for each step: num, mean, median, q10, q90, and close, a share."),
        "margin_pairs": Rows("pairs", "A row for each pair: step, winner, runner_up, count, share of all decisions."),
    },
    sealed=lambda run: [{}] if MARGIN_COLUMNS[0] in run.token_columns else [],
)
def margins(
    run: RunFile,
    *,
    label: LabelFilter = None,
    close: Annotated[int | float, Argument("Decisions with a smaller margin are close", ge=0, le=1)] = CLOSE,
    each: Annotated[int, Argument("Most pairs of a step", ge=1, le=100)] = 5,
) -> dict[str, Any]:
    """Margins of each step: quantiles, a histogram, the share below ``close``, and pairs (winner → runner-up).

    The winner is the chosen module of the smallest weight. Shares are of the decisions whose margin is known.
    """
    head = {"run": run.run_id, "label": label, "close": float(close), "edges": list(MARGIN_EDGES)}
    label_id = run.label_id(label)
    if MARGIN_COLUMNS[0] not in run.token_columns:
        return {
            **head,
            "counted": None,
            "steps": [],
            "pairs": [],
            "reason": NO_RUNNER_UP.get(run.row["family"], NO_SCORES),
        }
    drawn = draw_tokens(run, None, label_id, extra=MARGIN_COLUMNS)
    margin_nS = decode_margins(joined_blobs(drawn.extra[MARGIN_COLUMNS[0]], "<u2", run.layout.num_steps))
    runner_nS = joined_blobs(drawn.extra[MARGIN_COLUMNS[1]], run.layout.id_dtype, run.layout.num_steps)
    used = run.bank.used(drawn.ids_nSK).sum(axis=2)
    last = np.maximum(used - 1, 0)[:, :, None]
    winner_nS = np.take_along_axis(drawn.ids_nSK, last, axis=2)[:, :, 0]
    steps, pairs = [], []
    for step in range(run.layout.num_steps):
        known = ~np.isnan(margin_nS[:, step]) & (used[:, step] > 0)
        values = margin_nS[known, step]
        steps.append({"step": step, **_margin_row(values, float(close))})
        pairs += _margin_pairs(run, step, winner_nS[known, step], runner_nS[known, step], values, float(close), each)
    reason = None if any(row["num"] for row in steps) else "no decision of these tokens has a known margin"
    return {**head, "counted": drawn.counted, "steps": steps, "pairs": pairs, "reason": reason}


def joined_blobs(blobs: np.ndarray, dtype: str | np.dtype, num_steps: int) -> np.ndarray:
    """(n, S) numbers of one blob a token."""
    return np.frombuffer(b"".join(blobs.tolist()), dtype=dtype).reshape(-1, num_steps)


def _margin_row(values: np.ndarray, close: float) -> dict[str, Any]:
    if not len(values):
        none: dict[str, Any] = dict.fromkeys(("mean", *MARGIN_QUANTILES, "close"))
        return {"num": 0, **none, "counts": [0] * (len(MARGIN_EDGES) - 1)}
    return {
        "num": len(values),
        "mean": float(values.mean()),
        **{name: float(np.quantile(values, q)) for name, q in MARGIN_QUANTILES.items()},
        "close": float((values < close).mean()),
        "counts": np.histogram(values, MARGIN_EDGES)[0].tolist(),
    }


def _margin_pairs(
    run: RunFile, step: int, winner: np.ndarray, runner: np.ndarray, values: np.ndarray, close: float, each: int
) -> list[dict[str, Any]]:
    """The most frequent (winner → runner-up) of a step; ties by their ids."""
    keys = winner.astype(np.int64) * run.layout.num_modules + runner
    kinds, of_kind, counts = np.unique(keys, return_inverse=True, return_counts=True)
    tight = np.bincount(of_kind, values < close, len(kinds))
    sums = np.bincount(of_kind, values, len(kinds))
    rows = []
    for place in np.lexsort((kinds, -counts))[:each].tolist():
        first, second = divmod(int(kinds[place]), run.layout.num_modules)
        rows.append(
            {
                "step": step,
                "winner": first,
                "winner_name": run.bank.find(step, first).name,
                "runner_up": second,
                "runner_up_name": run.bank.find(step, second).name,
                "count": int(counts[place]),
                "share": float(counts[place] / len(values)),
                "mean": float(sums[place] / counts[place]),
                "close": float(tight[place] / counts[place]),
            }
        )
    return rows
