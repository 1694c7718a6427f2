"""Distributions of a measure over samples or tokens."""

from __future__ import annotations

import json
from typing import Any

from tokenpaths.engine.analysis.distribution import describe
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.file.filters import check_choice

MEASURES = ("compute", "reuse", "loss", "gate_entropy")
SEALED_BINS = 40
MOST_BINS = 500
LIMITS = {"compute": (0.0, 1.0), "reuse": (0.0, 1.0)}
"""shares keep one axis in every run, so that two histograms can be laid over each other"""


def existing_measures(run: RunFile) -> list[str]:
    """The measures that have at least one value."""
    entropy = any(value is not None for _, value in run.rows(queries.step_entropy(None)))
    absent = set() if entropy else {"gate_entropy"}
    if run.row["loss"] is None:
        absent.add("loss")
    return [measure for measure in MEASURES if measure not in absent]


@sealed("distribution")
def distribution(
    run: RunFile, measure: str, per: str = "sample", bins: int = 40, label: str | None = None
) -> dict[str, Any]:
    """Moments, quantiles and histogram of compute, reuse, loss or gate_entropy per sample or token.

    Raises:
        UserError: there is nothing to describe.
    """
    label_id = run.label_id(label)
    check_choice(measure, MEASURES, "measure")
    check_choice(per, ("sample", "token"), "per")
    if not 1 <= bins <= MOST_BINS:
        raise UserError(f"bins is {bins}, it should be 1 to {MOST_BINS}", field="bins")
    histogram = run.rows(queries.sealed_distribution(measure, bins)) if per == "token" and label is None else []
    if histogram:
        described = json.loads(histogram[0][0])
    else:
        columns = run.arrays(queries.measure_values(measure, per, label_id))
        described = describe(columns["value"], bins, counts=columns["count"], limits=LIMITS.get(measure))
    if not described["num"]:
        raise UserError(
            f"run {run.run_id!r} recorded no {measure} per {per}{' for this label' if label else ''}", field="measure"
        )
    by_label = run.rows(queries.measure_by_label(measure, per))
    return {
        "run": run.run_id,
        "measure": measure,
        "per": per,
        **described,
        "by_label": [{"label": name, "num": num, "mean": finite(mean)} for name, num, mean in by_label],
    }
