"""Load over time and by label, counted by step and module: of runs that were made of counts; by label of any run.

Shapes: T times, B bins of neighbouring times, S steps, M modules of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from tokenpaths.engine.analysis import load
from tokenpaths.engine.store.ask.question import Argument, LabelFilter, StepNumber, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.topics.usage import counts_of_step
from tokenpaths.engine.store.file.filters import Query

MOST_CELLS = 400_000
"""counts in one answer: fewer bins of many modules"""
MOST_LABELS = 60
BINS, MAP_BINS = 200, 60
NO_TIME = "this run was made of tokens, which have no time"
TIMELESS = "its counts are sums over the whole time"
Bins = Annotated[int, Argument("Most bins of neighbouring times", ge=1, le=2000)]


def balance(counts: np.ndarray) -> dict[str, Any]:
    """The numbers of ``load_schema.Balance``."""
    return {
        "choices": int(counts.sum()),
        **load.balance(counts),
        "dead": int((counts == 0).sum()) if counts.any() else None,
    }


@question(
    "load",
    "load_schema.LoadOverTime",
    tag="runs",
    description="Load of every module of one step over time: tokens of each module in bins of neighbouring times, and "
    "their balance.",
    rows="bins",
    of_counts=True,
)
def load_over_time(run: RunFile, step: StepNumber, bins: Bins = BINS, label: LabelFilter = None) -> dict[str, Any]:
    """Load of every module of one step over time, of all or of one label."""
    run.check_step(step)
    offered = run.bank.offered(step)
    first_last, counts_BSM = _binned(run, [step], min(bins, max(1, MOST_CELLS // len(offered))), run.label_id(label))
    return {
        **_head(run, first_last),
        "step": step,
        "modules": offered,
        "bins": [
            {"first": first, "last": last, **balance(counts), "counts": counts.tolist()}
            for (first, last), counts in zip(first_last.bins, counts_BSM[:, 0, offered], strict=True)
        ],
    }


@question(
    "load/balance",
    "load_schema.BalanceOverTime",
    tag="runs",
    description="Balance of every step over time: load entropy, MaxVio, effective top-k and dead modules.",
    rows="balance",
    of_counts=True,
)
def balance_over_time(run: RunFile, bins: Bins = MAP_BINS, label: LabelFilter = None) -> dict[str, Any]:
    """Balance of every step over time, of all or of one label."""
    steps = range(run.layout.num_steps)
    cells = run.layout.num_steps * run.layout.num_modules
    first_last, counts_BSM = _binned(run, steps, min(bins, max(1, 40 * MOST_CELLS // cells)), run.label_id(label))
    rows = [
        {"step": step, "first": first, "last": last, **balance(counts_SM[step, run.bank.offered(step)])}
        for (first, last), counts_SM in zip(first_last.bins, counts_BSM, strict=True)
        for step in steps
    ]
    return {**_head(run, first_last), "balance": rows}


class _Times:
    """The times of a run, and the bins of neighbours."""

    def __init__(self, times: np.ndarray, bins: int) -> None:
        self.num = len(times)
        parts = np.array_split(times, min(bins, len(times))) if len(times) else []
        self.bins = [(int(part[0]), int(part[-1])) for part in parts]
        self.firsts = np.array([first for first, _ in self.bins], dtype=np.int64)


def _head(run: RunFile, times: _Times) -> dict[str, Any]:
    about = run.load_only
    reason = None if times.bins else NO_TIME if about is None else TIMELESS
    return {
        "run": run.run_id,
        "axis": about["axis"] or None if about else None,
        "num_times": times.num,
        "reason": reason,
    }


def _binned(run: RunFile, steps: Sequence[int], bins: int, label_id: int | None) -> tuple[_Times, np.ndarray]:
    """The bins, and counts (B, len(steps), M) of all tokens or of a label."""
    shape = (len(steps), run.layout.num_modules)
    if run.load_only is None:
        return _Times(np.empty(0, np.int64), bins), np.zeros((0, *shape), np.int64)
    listed = run.arrays(Query("SELECT DISTINCT time FROM load WHERE time IS NOT NULL ORDER BY time"))["time"]
    times = _Times(listed.astype(np.int64), bins)
    counts = np.zeros((len(times.bins), *shape), dtype=np.int64)
    if not times.num:
        return times, counts
    of_label, parameters = ("", ()) if label_id is None else (" AND label_id = ?", (label_id,))
    rows = run.arrays(
        Query(
            "SELECT step, time, module, count FROM load WHERE time IS NOT NULL AND step >= ? AND step <= ?" + of_label,
            (steps[0], steps[-1], *parameters),
        )
    )
    place = np.searchsorted(times.firsts, rows["time"].astype(np.int64), side="right") - 1
    np.add.at(counts, (place, rows["step"] - steps[0], rows["module"]), rows["count"])
    return times, counts


@question(
    "load/labels",
    "load_schema.LoadByLabel",
    tag="runs",
    description="Load of every module of one step by each label (domain), and how far it is from that of all tokens.",
    rows="labels",
    of_counts=True,
)
def load_by_label(run: RunFile, step: StepNumber) -> dict[str, Any]:
    """Load of every module of one step by each label, the one that differs most from all tokens first."""
    run.check_step(step)
    offered = run.bank.offered(step)
    everything = counts_of_step(run.rows(queries.sealed_usage(None)), run.bank, run.layout.num_steps)[step]
    names = {label_id: name for label_id, name, _, _ in run.labels if name is not None}
    counts = {label_id: np.zeros(run.layout.num_modules, dtype=np.int64) for label_id in names}
    for label_id, module, count in run.rows(queries.label_usage(step)):
        if label_id in counts:
            counts[label_id][module] = count
    rows = [
        {
            "label": names[label_id],
            **balance(of_M[offered]),
            "overlap": load.load_overlap(of_M[offered], everything),
            "counts": of_M[offered].tolist(),
        }
        for label_id, of_M in counts.items()
    ]
    rows.sort(key=lambda row: (row["overlap"] is None, row["overlap"], row["label"]))
    return {
        "run": run.run_id,
        "step": step,
        "modules": offered,
        "all": everything.tolist(),
        "labels": rows[:MOST_LABELS],
        "num_labels": len(rows),
        "reason": None if rows else "this run has no labels",
    }
