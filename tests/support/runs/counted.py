"""Runs of counts, and the same numbers counted by hand from the plain list of what was counted."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

from tokenpaths.engine.adapters.expert_runs import Series
from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts
from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts

STEPS, EXPERTS, TIMES = 3, 8, 12


def make_counts(seed: int = 0, *, domains: bool = False, top_k: int | None = 2) -> ExpertCounts:
    """Counts of 12 iterations; expert 7 is dead, expert 0 gets more and more, iteration 50 counted nothing."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(0, 20, (TIMES, STEPS, EXPERTS)).astype(np.int64)
    parts[:, :, 0] += 10 * np.arange(TIMES)[:, None]
    parts[:, :, 7], parts[5] = 0, 0
    parts[:, :, 1] += (parts.sum(axis=2) % 2).astype(np.int64)
    layers = tuple(f"layer {2 * step}" for step in range(STEPS))
    if domains:
        names = tuple("code" if place % 3 else "prose" for place in range(TIMES))
        return ExpertCounts(layers, parts, domains=names, top_k=top_k)
    return ExpertCounts(layers, parts, times=tuple(range(0, 10 * TIMES, 10)), axis="iteration", top_k=top_k)


def make_load_run(
    runs_dir: Path, run_id: str, seed: int = 0, *, series: Series | None = None, **options: object
) -> Path:
    """A run of ``make_counts``."""
    counts = make_counts(seed, **options)  # type: ignore[arg-type]
    return import_counts(counts, Path("counts.json"), runs_dir, run_id, series=series)


def by_hand(choices: Counter[int], experts: int = EXPERTS) -> dict[str, float]:
    """The balance of one step, from the number of choices of each expert; written without numpy."""
    total = sum(choices.values())
    shares = [choices[expert] / total for expert in range(experts)]
    squares, powers = sum(share**2 for share in shares), sum(share**3 for share in shares)
    return {
        "choices": total,
        "load_entropy": -sum(share * math.log(share) for share in shares if share) / math.log(experts),
        "max_violation": max(shares) * experts - 1,
        "effective_top_k": squares**1.5 / powers,
        "dead": sum(not share for share in shares),
    }
