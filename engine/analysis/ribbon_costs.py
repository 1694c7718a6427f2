"""Compute and reuse of ribbons, and the reuse that chance would give them.

Shapes: n ribbons, S steps, K slots, M modules, U units, C = K + 1 numbers of active slots, p patterns of these.
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
_MOST_CELLS = 2**20
"""numbers that are multiplied at a time"""


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


def chance_reuse(
    module_ids: Integer[np.ndarray, "n S K"], counts: Int[np.ndarray, " n"], units: Int[np.ndarray, "S M"]
) -> Float[np.ndarray, " n"]:
    """Expected reuse of ribbons that ``counts`` tokens take each, if steps were independent of each other.

    A token keeps how many of its slots are active at each step, c_s; at that step it visits unit u with the share
    q_s(u | c_s) of the tokens that have as many active there. So distinct modules are Σ_u (1 − Π_s (1 − q_s(u | c_s)))
    in the mean; what dealing the choices of a step anew among those tokens gives, for many tokens. 0 where nothing is
    active.
    """
    num_ribbons, num_steps, top_k = module_ids.shape
    numbers, code_SM = np.unique(units, return_inverse=True)
    code_SM = code_SM.reshape(units.shape)
    works_U = numbers >= 0
    missed_SCU = np.ones((num_steps, top_k + 1, len(numbers)))
    active_nS = np.empty((num_ribbons, num_steps), dtype=np.int64)
    for step in range(num_steps):
        code_nK = np.sort(code_SM[step][module_ids[:, step]], axis=1)
        first_nK = np.ones(code_nK.shape, dtype=bool)
        first_nK[:, 1:] = code_nK[:, 1:] != code_nK[:, :-1]
        active_n = works_U[code_nK].sum(axis=1)
        active_nS[:, step] = active_n
        cell_nK = active_n[:, None] * len(numbers) + code_nK
        weights = np.broadcast_to(counts[:, None], cell_nK.shape)[first_nK]
        visits_CU = np.bincount(cell_nK[first_nK], weights, (top_k + 1) * len(numbers)).reshape(top_k + 1, -1)
        tokens_C = np.bincount(active_n, counts, top_k + 1)
        missed_SCU[step] = 1.0 - visits_CU / np.maximum(tokens_C, 1)[:, None]
    missed_SCU[:, :, ~works_U] = 1.0
    patterns, of_n = np.unique(active_nS, axis=0, return_inverse=True)
    reuse_p = np.zeros(len(patterns))
    most = max(1, _MOST_CELLS // len(numbers))
    for first in range(0, len(patterns), most):
        pattern_pS = patterns[first : first + most]
        never_pU = np.ones((len(pattern_pS), len(numbers)))
        for step in range(num_steps):
            never_pU *= missed_SCU[step, pattern_pS[:, step]]
        visits_p = pattern_pS.sum(axis=1)
        distinct_p = (1.0 - never_pU).sum(axis=1)
        reuse_p[first : first + most] = np.where(visits_p == 0, 0.0, 1.0 - distinct_p / np.maximum(visits_p, 1))
    shares: np.ndarray = reuse_p[of_n.reshape(-1)]
    return shares


def repeated_pairs(
    module_ids: Integer[np.ndarray, "n S K"], counts: Int[np.ndarray, " n"], units: Int[np.ndarray, "S M"]
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"], float]:
    """Pairs of visits of each ribbon at different steps; how many more of them are of one module than expected; and
    the share of all tokens' pairs that are.

    Expected is, for each pair of steps, the share of all tokens' pairs there. A token that skips has fewer pairs, but
    where skipping has nothing to do with the rest, as large a share of them repeats: reuse, a share of visits, would
    fall with skip even then, by more the more a model comes back to its modules.
    """
    num_ribbons, num_steps, top_k = module_ids.shape
    visited_nSK = _visited_units(module_ids, units).reshape(module_ids.shape)
    active_Sn = np.ascontiguousarray((visited_nSK >= 0).sum(axis=2, dtype=np.int16).T)
    # A column of its own for each slot of a step, and two numbers for what is not active: those never equal each other.
    first_SKn = np.ascontiguousarray(visited_nSK.transpose(1, 2, 0).astype(np.int32))
    second_SKn = np.where(first_SKn < 0, NOTHING, first_SKn)
    first_SKn[first_SKn < 0] = UNKNOWN
    slots = [(k, other) for k in range(top_k) for other in range(top_k)]
    pairs_n, more_n, same, every = np.zeros(num_ribbons, dtype=np.int64), np.zeros(num_ribbons), 0, 0
    for step in range(num_steps):
        for later in range(step + 1, num_steps):
            both_n = active_Sn[step] * active_Sn[later]
            same_n = np.zeros(num_ribbons, dtype=np.int16)
            for k, other in slots:
                same_n += first_SKn[step, k] == second_SKn[later, other]
            total, repeated = int(counts @ both_n), int(counts @ same_n)
            pairs_n += both_n
            more_n += same_n - repeated / max(total, 1) * both_n
            same, every = same + repeated, every + total
    return pairs_n, more_n, same / max(every, 1)


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
