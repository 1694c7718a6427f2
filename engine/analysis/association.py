"""Do paths know the label? Normalised mutual information beside a permutation null.

Shapes: n tokens; P and L the numbers of distinct paths and labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer


@dataclass(frozen=True)
class Association:
    """Observed NMI and what shuffling the labels gives."""

    nmi: float
    null_mean: float
    null_std: float
    p_value: float
    shuffles: int
    num_tokens: int


def _entropy(counts: Integer[np.ndarray, " P"], total: int) -> float:
    """H in nats of counts that are all positive."""
    return float(np.log(total) - (counts * np.log(counts)).sum() / total)


def _codes(values: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def nmi(paths: Integer[np.ndarray, " n"], labels: Integer[np.ndarray, " n"]) -> float:
    """NMI(π; label) = 2·I(π; label) / (H(π) + H(label)), in [0, 1]; 0 when both are constant."""
    paths, labels = _codes(paths), _codes(labels)
    return _nmi_of_codes(paths, labels, int(labels.max()) + 1)


def _nmi_of_codes(paths: Integer[np.ndarray, " n"], labels: Integer[np.ndarray, " n"], num_labels: int) -> float:
    n = len(paths)
    entropy_paths = _entropy(np.bincount(paths), n)
    entropy_labels = _entropy(np.bincount(labels), n)
    joint = np.unique(paths * num_labels + labels, return_counts=True)[1]
    return _normalised(entropy_paths, entropy_labels, _entropy(joint, n))


def _normalised(entropy_paths: float, entropy_labels: float, entropy_joint: float) -> float:
    total = entropy_paths + entropy_labels
    if total < 1e-12:
        return 0.0
    return min(1.0, max(0.0, 2.0 * (total - entropy_joint) / total))


def association(
    paths: Integer[np.ndarray, " n"],
    labels: Integer[np.ndarray, " n"],
    *,
    shuffles: int = 200,
    seed: int = 0,
) -> Association:
    """NMI with a permutation null: labels shuffled over tokens ``shuffles`` times.

    p = (1 + number of shuffles with NMI ≥ the observed one) / (1 + shuffles), so never 0.
    """
    rng = np.random.default_rng(seed)
    paths, labels = _codes(paths), _codes(labels)
    num_labels = int(labels.max()) + 1
    n = len(paths)
    entropy_paths, entropy_labels = _entropy(np.bincount(paths), n), _entropy(np.bincount(labels), n)
    observed = _nmi_of_codes(paths, labels, num_labels)
    null = np.empty(shuffles)
    for i in range(shuffles):
        joint = np.unique(paths * num_labels + rng.permutation(labels), return_counts=True)[1]
        null[i] = _normalised(entropy_paths, entropy_labels, _entropy(joint, n))
    # Sums in another order differ in the last digits: a tie must count as one.
    at_least = int((null >= observed - 1e-12).sum())
    return Association(
        nmi=observed,
        null_mean=float(null.mean()) if shuffles else 0.0,
        null_std=float(null.std()) if shuffles else 0.0,
        p_value=(1 + at_least) / (1 + shuffles),
        shuffles=shuffles,
        num_tokens=n,
    )
