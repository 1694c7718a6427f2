"""Compute and reuse of a single ribbon.

Shapes: n ribbons, S steps, K slots, M modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from tokenpaths.engine.base.records import NOT_OFFERED_KIND, UNRECORDED_KIND, UNUSED_KIND, ModuleInfo

NOTHING = -1
"""unit of a module that does no work, of an unused slot, and of a pair (step, module) that does not exist"""


UNKNOWN = -2
"""unit of a module that stands for a decision that is not known: it counts neither as work nor as rest"""


def module_units(
    modules: Sequence[ModuleInfo], num_steps: int, num_modules: int
) -> tuple[Bool[np.ndarray, "S M"], Int[np.ndarray, "S M"]]:
    """Which modules each step offers, and which set of parameters stands behind each of them.

    Returns ``available`` and ``units``: a module with ``step=None`` is the same unit at every step,
    a module of one step is a unit of its own; identity modules and unused slots have unit ``NOTHING``, those of
    unknown decisions ``UNKNOWN``. A row of the kind ``NOT_OFFERED_KIND`` takes a module out of its step.
    """
    available = np.zeros((num_steps, num_modules), dtype=bool)
    units = np.full((num_steps, num_modules), NOTHING, dtype=np.int64)
    # Modules of one step are written last, so that they win over the shared module of the same id.
    for module in sorted(modules, key=lambda m: m.step is not None):
        steps = slice(None) if module.step is None else module.step
        available[steps, module.module] = module.kind != NOT_OFFERED_KIND
        number = module.module if module.step is None else (module.step + 1) * num_modules + module.module
        idle = {"identity": NOTHING, UNUSED_KIND: NOTHING, NOT_OFFERED_KIND: NOTHING, UNRECORDED_KIND: UNKNOWN}
        units[steps, module.module] = idle.get(module.kind, number)
    return available, units


def _visited_units(module_ids: Integer[np.ndarray, "n S K"], units: Int[np.ndarray, "S M"]) -> Int[np.ndarray, "n V"]:
    """Unit of every visit, V = S·K."""
    num_ribbons, num_steps, top_k = module_ids.shape
    steps_S1 = np.arange(num_steps)[:, None]
    visited: np.ndarray = units[steps_S1, module_ids].reshape(num_ribbons, num_steps * top_k)
    return visited


@dataclass(frozen=True)
class Work:
    """The counts that compute and reuse of ribbons are made of, (n,) each."""

    active: np.ndarray
    """slots whose module does work"""
    known: np.ndarray
    """slots whose decision is known"""
    distinct: np.ndarray
    """modules among the active ones, each once"""

    @classmethod
    def of(cls, module_ids: Integer[np.ndarray, "n S K"], units: Int[np.ndarray, "S M"]) -> Work:
        visited_nV = np.sort(_visited_units(module_ids, units), axis=1)
        active_nV = visited_nV >= 0
        first_nV = np.ones_like(active_nV)
        first_nV[:, 1:] = visited_nV[:, 1:] != visited_nV[:, :-1]
        counted = (active_nV, visited_nV != UNKNOWN, first_nV & active_nV)
        return cls(*(flags.sum(axis=1, dtype=np.int32) for flags in counted))

    @property
    def compute(self) -> Float[np.ndarray, " n"]:
        """active slots / known slots, 1 where none is known."""
        share: np.ndarray = np.where(self.known == 0, 1.0, self.active / np.maximum(self.known, 1))
        return share

    @property
    def reuse(self) -> Float[np.ndarray, " n"]:
        """1 − distinct modules / active slots, 0 where none is active."""
        share: np.ndarray = np.where(self.active == 0, 0.0, 1.0 - self.distinct / np.maximum(self.active, 1))
        return share


def compute(module_ids: Integer[np.ndarray, "n S K"], units: Int[np.ndarray, "S M"]) -> Float[np.ndarray, " n"]:
    """compute = active slots / known slots (S·K where all are known), in [0, 1]; 1 = never skipped.

    Identity modules and unused slots are not active.
    """
    return Work.of(module_ids, units).compute


def reuse(module_ids: Integer[np.ndarray, "n S K"], units: Int[np.ndarray, "S M"]) -> Float[np.ndarray, " n"]:
    """reuse = 1 − distinct active modules / active visits, in [0, 1).

    A ribbon without any active visit reuses nothing: 0.
    """
    return Work.of(module_ids, units).reuse


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
