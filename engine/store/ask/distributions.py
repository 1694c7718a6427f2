"""Distributions of a measure over samples or tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.analysis.distribution import describe
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask import queries
from tokenpaths.engine.store.ask.excerpts import finite
from tokenpaths.engine.store.file.filters import check_choice

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

MEASURES = ("compute", "reuse", "loss", "gate_entropy")
SEALED_BINS = 40
MOST_BINS = 500
LIMITS = {"compute": (0.0, 1.0), "reuse": (0.0, 1.0)}
"""shares keep one axis in every run, so that two histograms can be laid over each other"""


def existing_measures(run: Run) -> list[str]:
    """The measures that have at least one value."""
    entropy = any(value is not None for _, value in run.rows(queries.step_entropy(None)))
    absent = set() if entropy else {"gate_entropy"}
    if run.row["loss"] is None:
        absent.add("loss")
    return [measure for measure in MEASURES if measure not in absent]


def distribution_of(
    run: Run, measure: str, per: str, bins: int, label: str | None, label_id: int | None
) -> dict[str, Any]:
    """The answer of ``Run.distribution``; UserError when there is nothing to describe."""
    check_choice(measure, MEASURES, "measure")
    check_choice(per, ("sample", "token"), "per")
    if not 1 <= bins <= MOST_BINS:
        raise UserError(f"bins is {bins}, it should be 1 to {MOST_BINS}", field="bins")
    levels = run.row["schema_version"] >= 6
    sealed = run.rows(queries.sealed_distribution(measure, bins)) if per == "token" and label is None else []
    if sealed:
        described = json.loads(sealed[0][0])
    else:
        columns = run.arrays(queries.measure_values(measure, per, label_id, in_samples=run.paged, levels=levels))
        described = describe(columns["value"], bins, counts=columns["count"], limits=LIMITS.get(measure))
    if not described["num"]:
        raise UserError(
            f"run {run.run_id!r} recorded no {measure} per {per}{' for this label' if label else ''}", field="measure"
        )
    by_label = run.rows(queries.measure_by_label(measure, per, in_samples=run.paged, levels=levels))
    return {
        "run": run.run_id,
        "measure": measure,
        "per": per,
        **described,
        "by_label": [{"label": name, "num": num, "mean": finite(mean)} for name, num, mean in by_label],
    }
