"""FLOPs of a ribbon, summed over its modules; the file stores the FLOPs of a token only where they differ.

Shapes: n tokens, S steps, K slots, M modules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenpaths.engine.base.records import ModuleInfo


def flops_table(modules: Sequence[ModuleInfo], num_steps: int, num_modules: int) -> np.ndarray:
    """(S, M) FLOPs of each module at each step; 0 if a step does not offer it."""
    table = np.zeros((num_steps, num_modules))
    # Modules of one step are written last, so that they win over the shared module of the same id.
    for module in sorted(modules, key=lambda m: m.step is not None):
        table[slice(None) if module.step is None else module.step, module.module] = module.flops_per_token
    return table


def flops_of(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(n,) float32: the FLOPs of the modules of ribbons (n, S, K)."""
    if not table.any():  # as of a log
        return np.zeros(len(ids), dtype=np.float32)
    total = np.zeros(len(ids))
    for step in range(ids.shape[1]):
        for slot in range(ids.shape[2]):
            total += table[step][ids[:, step, slot]]
    return total.astype(np.float32)
