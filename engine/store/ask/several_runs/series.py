"""Series of checkpoints: the training a run belongs to, numbers of each checkpoint, and how weights are related."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tokenpaths.engine.analysis import load
from tokenpaths.engine.base.errors import NoSuchThing
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.run_series import place_of
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.ask.topics.paths import fit
from tokenpaths.engine.store.ask.topics.usage import counts_of_step

UNTRAINED = "-untrained"
"""suffix of the model names of untrained twins"""
Relation = Literal["same weights", "one training", "one name", "other weights", "untrained", "two models"]
LOADS = ("effective_top_k", "max_violation", "load_entropy")
"""of ``load.balance``"""


def series_of(run: RunFile) -> tuple[str, int] | None:
    """(name, iteration) of the training that the run is a checkpoint of; None: it belongs to none."""
    place = place_of(run)
    return None if place is None else (place["name"], place["iteration"])


def no_series(run_id: str) -> NoSuchThing:
    """The error for a run that belongs to no series."""
    return NoSuchThing(
        f"run {run_id!r} belongs to no series of checkpoints: record them under one series name, or put runs into "
        "one with `tokenpaths series`, to see routing settle",
        field="run",
    )


def relation_of(a: RunFile, b: RunFile) -> Relation:
    """What is known of the weights of two runs: their hashes, their series, the names of their models.

    ``one name``: at least one hash is unknown, as of imported logs; ``other weights``: one name and two hashes.
    """
    hashes = [run.row["checkpoint_sha256"] for run in (a, b)]
    if hashes[0] and hashes[0] == hashes[1]:
        return "same weights"
    series = [series_of(run) for run in (a, b)]
    if None not in series and series[0][0] == series[1][0]:  # type: ignore[index]
        return "one training"
    models = [str(run.row["model"]) for run in (a, b)]
    if models[0] == models[1]:
        return "other weights" if all(hashes) else "one name"
    trained = [model.removesuffix(UNTRAINED) for model in models]
    return "untrained" if trained[0] == trained[1] else "two models"


def relation_note(a: RunFile, b: RunFile) -> str | None:
    """What to keep in mind where modules are compared by their numbers; None for equal weights or one training."""
    model = str(a.row["model"])
    apart = "The loads by step do not depend on the numbers of modules."
    return {
        "same weights": None,
        "one training": None,
        "one name": f"Both are named {model}, so modules of equal numbers are taken as the same; no hash of the "
        "weights was recorded that could show it.",
        "other weights": f"These are two sets of weights named {model}: as checkpoints of one training module 3 is "
        f"the same module in both, trained apart it is not, and a difference may be one of numbers alone. {apart}",
        "untrained": "One of the two has fresh weights: what its module 3 does has nothing to do with module 3 of the "
        f"other, so a difference may be one of numbers alone. {apart}",
        "two models": f"These are two models, {model} and {b.row['model']}: module 3 of one need not do what module 3 "
        f"of the other does, so a difference may be one of numbers alone. {apart}",
    }[relation_of(a, b)]


def same_numbering(a: RunFile, b: RunFile) -> bool:
    """Whether modules of equal numbers are the same modules, as far as is known."""
    return relation_of(a, b) in ("same weights", "one training", "one name")


def numbers_of(run: RunFile) -> dict[str, float | int | None]:
    """One number per measure for a whole run; load measures are means over steps."""
    counts = counts_of_step(run.rows(queries.sealed_usage(None)), run.bank, run.layout.num_steps)
    return {
        **{name: run.row[name] for name in ("num_samples", "num_tokens", "num_paths")},
        "effective_paths": None if run.load_only is not None else fit(run)["observed"]["effective_paths"],
        **{name: finite(run.row[name]) for name in ("mean_compute", "mean_reuse", "loss", "accuracy")},
        **mean_loads(counts),
    }


def mean_loads(counts: Sequence[np.ndarray]) -> dict[str, float | None]:
    """Measures of load, means over the steps at which something was counted, None where nothing was; ``counts`` holds
    the tokens of each module, step by step."""
    told = [load.balance(c) for c in counts if c.any()]
    return {name: float(np.mean([row[name] for row in told])) if told else None for name in LOADS}


def untrained_numbers(run: RunFile) -> dict[str, float | int | None]:
    """The same numbers of the untrained twin that was traced beside a run, as far as they are stored; empty without."""
    if run.load_only is not None:
        return {}
    twin, rows = fit(run)["untrained"], run.rows(queries.null_usage("untrained"))
    if twin is None or not rows:
        return {}
    counts = counts_of_step(rows, run.bank, run.layout.num_steps)
    return {name: twin[name] for name in ("num_tokens", "num_paths", "effective_paths")} | mean_loads(counts)


def over_training(checkpoints: Sequence[RunFile], run_id: str) -> dict[str, Any]:
    """Numbers of each checkpoint of a training, in order of iteration; for the runs of one series.

    ``untrained`` has those of the first untrained twin that was traced beside a checkpoint; None where there is none,
    or where the first checkpoint is of iteration 0.

    Raises:
        NoSuchThing: the runs belong to no series.
    """
    placed = [(series_of(run), run) for run in checkpoints]
    if not placed or any(place is None for place, _ in placed):
        raise no_series(run_id)
    ordered = sorted(placed, key=lambda row: (row[0][1], row[1].run_id))  # type: ignore[index]
    points: list[dict[str, Any]] = []
    before: list[np.ndarray] = []
    for place, run in ordered:
        counts = counts_of_step(run.rows(queries.sealed_usage(None)), run.bank, run.layout.num_steps)
        steps = loads_by_step(counts, before)
        points.append({"run": run.run_id, "iteration": place[1], **numbers_of(run), "steps": steps})  # type: ignore[index]
        before = counts
    return {
        "run": run_id,
        "series": ordered[0][0][0],  # type: ignore[index]
        "untrained": _untrained([run for _, run in ordered]) if points[0]["iteration"] else None,
        "points": points,
    }


def _untrained(runs: Sequence[RunFile]) -> dict[str, Any] | None:
    for run in runs:
        if numbers := untrained_numbers(run):
            counts = counts_of_step(run.rows(queries.null_usage("untrained")), run.bank, run.layout.num_steps)
            told = [c.tolist() for c in counts]
            return {"beside": run.run_id, **numbers, "steps": loads_by_step(counts, []), "counts": told}
    return None


def loads_by_step(counts: Sequence[np.ndarray], before: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Measures of load of each step, and ``kept``: 1 − ½ Σ |l − l′| of the loads l as shares of the step's choices and
    l′ of the checkpoint before; None for the first one and where it has other modules. A step at which nothing was
    counted has None.
    """
    same = [len(c) for c in counts] == [len(c) for c in before]
    return [
        {
            "step": step,
            **load.balance(c),
            "dead": int((c == 0).sum()) if c.any() else None,
            "kept": load.load_overlap(c, before[step]) if same else None,
        }
        for step, c in enumerate(counts)
    ]
