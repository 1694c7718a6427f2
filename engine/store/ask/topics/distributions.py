"""Distributions of a measure (compute, reuse, loss, gate entropy) over samples or tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from tokenpaths.engine.analysis.distribution import describe
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.question import Argument, LabelFilter, Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.file.filters import check_choice

MEASURES = ("compute", "reuse", "loss", "gate_entropy")
SEALED_BINS = 40
MOST_SEALED_LABELS = 16
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
    labels = sorted(run.labels, key=lambda row: (-row[3], row[1]))[:MOST_SEALED_LABELS]
    for measure in existing_measures(run):
        for per in ("sample", "token"):
            # Compute and reuse are counted by path, loss and gate entropy by level: no answer holds all tokens.
            for label in (None, *(row[1] for row in labels)):
                yield {"measure": measure, "per": per, "bins": SEALED_BINS, "label": label}


@question(
    "distributions/{measure}",
    "sample_schema.Distribution",
    tag="runs",
    description="How `compute`, `reuse`, `loss` or `gate_entropy` is distributed, over all and by label.",
    frames={
        "distribution": Rows("bins", "The bars of a histogram: lo, hi, count; mean and quantiles are in ``attrs``."),
        "by_label": Rows("by_label", "The mean of a measure for each label: label, num, mean."),
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
