"""Series of checkpoints: the training that a run belongs to, and one row of numbers for each checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import NoSuchThing
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.ask.topics.paths import fit
from tokenpaths.engine.store.ask.topics.usage import usage


def series_of(run: RunFile) -> tuple[str, int] | None:
    """(name, iteration) of the training that the run is a checkpoint of; None: it belongs to none."""
    series = json.loads(run.row["config"]).get("series")
    if not isinstance(series, dict):
        return None
    name, iteration = series.get("name"), series.get("iteration")
    return (name, iteration) if isinstance(name, str) and isinstance(iteration, int) else None


def no_series(run_id: str) -> NoSuchThing:
    """The error for a run that belongs to no series."""
    return NoSuchThing(
        f"run {run_id!r} belongs to no series of checkpoints: record them under one series name to see routing settle",
        field="run",
    )


def numbers_of(run: RunFile) -> dict[str, float | int | None]:
    """One number per measure for a whole run; load measures are means over steps."""
    observed = fit(run)["observed"]
    steps = usage(run)["steps"]
    return {
        **{name: run.row[name] for name in ("num_samples", "num_tokens", "num_paths")},
        "effective_paths": observed["effective_paths"],
        **{name: finite(run.row[name]) for name in ("mean_compute", "mean_reuse", "loss", "accuracy")},
        **{
            name: float(np.mean([step[name] for step in steps]))
            for name in ("effective_top_k", "max_violation", "load_entropy")
        },
    }


def over_training(checkpoints: Sequence[RunFile], run_id: str) -> dict[str, Any]:
    """Numbers of each checkpoint of a training, in order of iteration; for the runs of one series.

    Raises:
        NoSuchThing: the runs belong to no series.
    """
    placed = [(series_of(run), run) for run in checkpoints]
    if not placed or any(place is None for place, _ in placed):
        raise no_series(run_id)
    ordered = sorted(placed, key=lambda row: (row[0][1], row[1].run_id))  # type: ignore[index]
    return {
        "run": run_id,
        "series": ordered[0][0][0],  # type: ignore[index]
        "points": [
            {"run": run.run_id, "iteration": place[1], **numbers_of(run)}  # type: ignore[index]
            for place, run in ordered
        ],
    }
