"""Loss, confidence and correctness beside compute, reuse and the number of modules visited.

Samples (or tokens) in the order of the measure are cut into groups of one size; those of one value share their groups
(``analysis.contrast.EqualParts``). Per sample every sample counts; per token all tokens up to a million, else whole
samples drawn by a seed. Intervals take samples as what was drawn.

Shapes: n samples or tokens, N samples, G groups, S steps, M modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from tokenpaths.engine.analysis import paired_runs
from tokenpaths.engine.analysis.contrast import EqualParts, Mean, by_sample, difference, mean_of
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.question import Argument, LabelFilter, Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed_labels
from tokenpaths.engine.store.ask.tables import sample_profiles
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, tokens_of
from tokenpaths.engine.store.ask.topics.work.token_losses import losses
from tokenpaths.engine.store.file.filters import Query, check_choice
from tokenpaths.engine.store.file.pages.profile_pages import Page

MEASURES = ("compute", "reuse", "modules")
OUTCOMES = {"right": (0.0, 1.0), "confidence": (0.0, 1.0), "loss": (-np.inf, np.inf)}
"""outcome → the least and the most that it can be: of a few samples an interval by Student’s t would go beyond"""
GROUPS = 10
FEWEST = 2
"""samples or tokens of a group, below which there are no groups"""


@dataclass(frozen=True)
class Observed:
    """The measure and the outcomes of n samples or tokens; NaN where unknown."""

    key_n: np.ndarray
    outcomes: dict[str, np.ndarray]
    sample_n: np.ndarray
    """index of the sample"""
    num_samples: int
    counted: dict[str, Any]


def _page_outcomes(run: RunFile) -> Iterator[dict[str, Any]]:
    for measure in MEASURES:
        for per in ("sample", "token") if measure != "modules" else ("sample",):
            for label in sealed_labels(run):
                yield {"measure": measure, "per": per, "label": label}


@question(
    "outcomes/{measure}",
    "work_schema.Outcomes",
    tag="runs",
    description="Loss, confidence and correctness beside `compute`, `reuse` or `modules` (different modules at their "
    "steps that any token of the sample visited).\n\nGroups of one size from the least to the most; 95 % intervals by "
    "sample.",
    frames={
        "outcomes": Rows("differences", "Groups with the least and the most beside each other, one row an outcome."),
        "outcome_groups": Rows("groups", "The groups from the least to the most: lowest, value, highest …"),
    },
    sealed=_page_outcomes,
)
def outcomes(
    run: RunFile,
    measure: Annotated[str, Argument()],
    per: Annotated[Literal["sample", "token"], Argument("What is counted")] = "sample",
    groups: Annotated[int, Argument("Groups of one size", ge=2, le=100)] = GROUPS,
    label: LabelFilter = None,
) -> dict[str, Any]:
    """Are samples (or tokens) that get little work easier? Loss, confidence and correctness by groups of a measure.

    ``groups`` from the least to the most of the measure, ``differences`` of the two at the ends, with 95 % intervals.
    ``right`` of a sample: its prediction is its label, of a token: the token predicted to follow it does.

    Raises:
        UserError: there is no such measure, or none per token.
    """
    check_choice(measure, MEASURES, "measure")
    label_id = run.label_id(label)
    if measure == "modules" and per == "token":
        raise UserError("a token visits one module a slot: modules are counted per sample, not per token", field="per")
    observed = _samples(run, measure, label_id) if per == "sample" else _tokens(run, measure, label_id)
    known = np.isfinite(observed.key_n) & np.any([np.isfinite(of) for of in observed.outcomes.values()], axis=0)
    answer = {"run": run.run_id, "measure": measure, "per": per, "counted": observed.counted}
    reason = _nothing(observed, known, measure, per, groups)
    if reason:
        return {**answer, "groups": [], "differences": [], "reason": reason}
    key_n, sample_n = observed.key_n[known], observed.sample_n[known]
    parts = EqualParts(key_n, groups)
    rows: list[dict[str, Any]] = []
    for group in range(groups):
        lowest, value, highest = parts.bounds(group)
        rows.append({"lowest": lowest, "value": value, "highest": highest})
    differences = []
    for outcome, (least, most) in OUTCOMES.items():
        value_n = observed.outcomes[outcome][known]
        share = outcome == "right"
        sums = [by_sample(value_n, parts.weight(g), sample_n, observed.num_samples) for g in range(groups)]
        for row, (total_N, of_N) in zip(rows, sums, strict=True):
            row[outcome] = _shown(mean_of(total_N, of_N, share=share, least=least, most=most))
        apart = difference(*sums[0], *sums[-1], share=share, width=most - least)
        if apart is None:
            continue
        together = paired_runs.spearman(*_pairs(key_n, value_n)) if per == "sample" else None
        differences.append(
            {
                "outcome": outcome,
                "least": rows[0][outcome]["mean"],
                "most": rows[-1][outcome]["mean"],
                "difference": apart.mean,
                "low": apart.low,
                "high": apart.high,
                "correlation": together.r if together else None,
                "correlation_low": together.low if together else None,
                "correlation_high": together.high if together else None,
            }
        )
    return {**answer, "groups": rows, "differences": differences, "reason": None}


def _shown(mean: Mean | None) -> dict[str, float | None] | None:
    return None if mean is None else {"mean": mean.mean, "low": mean.low, "high": mean.high}


def _pairs(key_n: np.ndarray, value_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = np.isfinite(value_n)
    return key_n[known], value_n[known]


def _nothing(observed: Observed, known: np.ndarray, measure: str, per: str, groups: int) -> str | None:
    """Why there is nothing to compare, in words."""
    name = {"modules": "number of visited modules"}.get(measure, measure)
    if not known.any():
        return f"no {per} here has a loss or a prediction beside its {name}"
    if int(known.sum()) < FEWEST * groups:
        return f"{int(known.sum()):,} {per}s are too few for {groups} groups"
    if paired_runs.is_flat(observed.key_n[known]):
        return f"the {name} of every {per} is the same"
    return None


def _samples(run: RunFile, measure: str, label_id: int | None) -> Observed:
    where, parameters = ("true", ()) if label_id is None else ("label_id = ?", (label_id,))
    value = "0.0" if measure == "modules" else f"coalesce({measure}, 'nan')"
    # A sample whose label the model never learnt has a prediction but no loss: it is neither right nor wrong.
    rows = run.arrays(
        Query(
            f"SELECT sample, {value}::DOUBLE AS key, coalesce(loss, 'nan')::DOUBLE AS loss, "
            "coalesce(confidence, 'nan')::DOUBLE AS confidence, num_tokens, "
            "CASE WHEN loss IS NULL OR prediction IS NULL OR label IS NULL THEN 'nan'::DOUBLE "
            f"ELSE (prediction = label)::INTEGER END AS right_one FROM sample WHERE {where} ORDER BY sample",
            parameters,
        )
    )
    num, of_samples = len(rows["sample"]), run.num_samples(None)
    num_tokens = int(rows["num_tokens"].sum())
    key_n = rows["key"]
    counted = {"num_tokens": num_tokens, "of_tokens": num_tokens, "num_samples": num, "of_samples": num, "exact": True}
    if measure == "modules":
        # Of all samples, as their counts lie together: whoever asks with one label asks with others.
        visited = cached(run, "modules visited", lambda: _visited(run, of_samples), lambda values: values.nbytes)
        key_n = visited[rows["sample"]].astype(np.float64)
    if run.row["modality"] == "vision" and finite(run.row["accuracy"]) is None:
        # As on the run's card: the few labels that the model happens to know say nothing of the rest.
        rows["right_one"], rows["loss"] = (np.full(num, np.nan) for _ in range(2))
    known = np.isfinite(key_n)
    if not known.all():  # modules of the drawn samples only
        counted |= {"num_tokens": int(rows["num_tokens"][known].sum()), "num_samples": int(known.sum()), "exact": False}
    return Observed(
        key_n,
        {"right": rows["right_one"], "confidence": rows["confidence"], "loss": rows["loss"]},
        np.arange(num),
        num,
        counted,
    )


def _visited(run: RunFile, num_samples: int) -> np.ndarray:
    """(samples,) different (step, module) pairs that do work and that any token of the sample visited; NaN where the
    sample was not drawn."""
    layout = run.layout
    active_SM = np.zeros((layout.num_steps, layout.num_modules), dtype=bool)
    for step in range(layout.num_steps):
        for module in run.bank.offered(step):
            active_SM[step, module] = run.bank.find(step, module).kind != "identity"
    visited = np.full(num_samples, np.nan, dtype=np.float32)
    if sample_profiles.has_profiles(run):
        active_D = active_SM.reshape(-1)

        def count(page: Page) -> None:
            visited[page.first : page.first + len(page.low_nD)] = (page.low_nD[:, active_D] > 0).sum(axis=1)

        sample_profiles.each_page(run, count)
        return visited
    table = tokens_of(run)
    total = np.zeros(table.num_samples, dtype=np.int64)
    for step in range(layout.num_steps):
        total += (table.chosen_at(step, np.flatnonzero(active_SM[step])) > 0).sum(axis=1)
    visited[table.samples_N] = total
    return visited


def _tokens(run: RunFile, measure: str, label_id: int | None) -> Observed:
    table = tokens_of(run).of_label(label_id)
    nothing, loss_n = np.full(table.num_tokens, np.nan), losses(run, table)
    values_P = table.compute_P if measure == "compute" else table.reuse_P
    return Observed(
        values_P[table.path_n],
        {"right": _right(table, loss_n), "confidence": nothing, "loss": loss_n},
        table.sample_n,
        table.num_samples,
        table.counted,
    )


def _right(table: TokenTable, loss_n: np.ndarray) -> np.ndarray:
    """(n,) 1 where the token predicted to follow does, 0 where another does, NaN where one of both is not known, or
    where the run has losses but none here: what a DiPaCo says of the tokens that chose its path is no prediction."""
    predicted, ids = table.columns.get("predicted_id"), table.columns.get("token_id")
    right_n = np.full(table.num_tokens, np.nan)
    if predicted is None or ids is None or len(ids) < 2:
        return right_n
    place = table.columns["token"]
    follows = (table.sample_n[1:] == table.sample_n[:-1]) & (place[1:] == place[:-1] + 1)
    known = np.flatnonzero(follows & (predicted[:-1] >= 0) & (ids[1:] >= 0))
    right_n[known] = predicted[known] == ids[known + 1]
    counted_n = np.isfinite(loss_n)
    if counted_n.any():
        right_n[~counted_n] = np.nan
    return right_n
