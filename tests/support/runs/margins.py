"""Margins and runners-up of made runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.support.runs.arrays import RunArrays


def with_margins(made: RunArrays, unknown: float = 0.1, seed: int = 0) -> RunArrays:
    """``made`` with margins and runners-up that no token chose; some margins are unknown."""
    rng = np.random.default_rng(seed)
    modules = sorted({m.module for m in made.modules if m.kind != "unused"})
    batches = []
    for batch in made.batches:
        shape = batch.module_ids.shape[:2]
        margin = rng.beta(0.6, 4, shape)
        margin[rng.random(shape) < unknown] = np.nan
        runner_up = np.zeros(shape, dtype=np.int64)
        for token, step in np.ndindex(shape):
            rest = [m for m in modules if m not in batch.module_ids[token, step]]
            runner_up[token, step] = rng.choice(rest[:3])
        batches.append(replace(batch, margin=margin, runner_up=runner_up))
    return replace(made, info=replace(made.info, scores=True), batches=batches)
