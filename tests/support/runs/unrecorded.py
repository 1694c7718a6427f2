"""Runs whose source lacks some decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.support.runs.arrays import RunArrays
from tokenpaths.engine.base.records import UNRECORDED_KIND, UNUSED_KIND, ModuleInfo


def with_unrecorded(made: RunArrays, share: float = 0.3, seed: int = 0, *, first_step: int = 0) -> RunArrays:
    """``made`` with about ``share`` of its decisions unknown, from ``first_step`` on: all K slots hold stand-ins.

    Those of unused slots stay the last modules.
    """
    rng = np.random.default_rng(seed)
    info = made.info
    first = min((m.module for m in made.modules if m.kind == UNUSED_KIND), default=info.num_modules)
    modules = [m if m.module < first else replace(m, module=m.module + info.top_k) for m in made.modules]
    modules += [
        ModuleInfo(step, first + slot, "not recorded", UNRECORDED_KIND, 0, 0)
        for step in range(info.num_steps)
        for slot in range(info.top_k)
    ]
    batches = []
    for batch in made.batches:
        ids, weights = batch.module_ids.copy(), batch.weights.copy()
        ids[ids >= first] += info.top_k
        lacking = rng.random(ids.shape[:2]) < share
        lacking[:, :first_step] = False
        ids[lacking], weights[lacking] = first + np.arange(info.top_k), 0.0
        batches.append(replace(batch, module_ids=ids, weights=weights))
    info = replace(info, num_modules=info.num_modules + info.top_k)
    return replace(made, info=info, modules=modules, batches=batches, twin=None)
