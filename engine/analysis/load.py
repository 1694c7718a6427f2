"""Load balance of one step: how evenly its tokens spread over its modules.

Shapes: M modules of the step; ``counts`` = c_i, the number of tokens that chose module i.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Integer

Counts = Integer[np.ndarray, " M"]


def utilisation(counts: Counts) -> Float[np.ndarray, " M"]:
    """u_i = c_i·M / Σc: 1 = fair share, 0 = dead. All zero when nothing was counted."""
    total = counts.sum()
    return counts * (len(counts) / total) if total else np.zeros(len(counts))


def max_violation(counts: Counts) -> float:
    """MaxVio = max u − 1: 0 = perfectly even, M − 1 = everything on one module. 0 when nothing was counted."""
    return max(0.0, float(utilisation(counts).max() - 1.0))


def load_cv(counts: Counts) -> float:
    """Coefficient of variation std / mean of the counts: 0 = perfectly even, √(M − 1) = everything on one module."""
    mean = float(counts.mean())
    return float(counts.std() / mean) if mean else 0.0


def load_entropy(counts: Counts) -> float:
    """H(c/Σc) / ln M, in [0, 1]: 1 = even, 0 = everything on one module; 1 when M = 1."""
    if len(counts) == 1:
        return 1.0
    shares = counts[counts > 0] / max(int(counts.sum()), 1)
    return float(-(shares * np.log(shares)).sum() / np.log(len(counts))) + 0.0


def effective_top_k(counts: Counts, alpha: float = 1.5) -> float:
    """(Σ c_i²)^α / Σ c_i^{2α}; 1 = one module takes all, M^{α−1} = all take the same.

    α = 1.5 by default; it is one over the inverse participation ratio that the paper uses.
    0 when nothing was counted.
    """
    shares = counts / max(int(counts.sum()), 1)
    denominator = float((shares ** (2 * alpha)).sum())
    return float((shares**2).sum() ** alpha / denominator) if denominator else 0.0


def balance(counts: Counts) -> dict[str, float | None]:
    """Load entropy, MaxVio and effective top-k of one step; None when nothing was counted."""
    measures = {"load_entropy": load_entropy, "max_violation": max_violation, "effective_top_k": effective_top_k}
    return {name: measure(counts) if counts.any() else None for name, measure in measures.items()}


def load_overlap(counts: Counts, other: Counts) -> float | None:
    """1 − ½ Σ |l − l′| of the loads l, l′ as shares of all choices: 1 = the same modules get the same, 0 = none in
    common. None where nothing was counted.
    """
    if not counts.sum() or not other.sum():
        return None
    return 1.0 - float(np.abs(counts / counts.sum() - other / other.sum()).sum()) / 2


def importance_cv2(importance: Float[np.ndarray, " M"]) -> float:
    """(std / mean)² of Σ_t w_ti over the modules; 0 = all equally important (or nothing weighted)."""
    mean = float(importance.mean())
    return float((importance.std() / mean) ** 2) if mean else 0.0
