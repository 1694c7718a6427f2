"""Do paths know the label? Normalised mutual information beside a permutation null.

Shapes: n tokens; P and L the numbers of distinct paths and labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer

_LARGEST_TABLE = 1 << 18
"""cells of paths × labels that are counted in one table; larger ones are sorted"""


@dataclass(frozen=True)
class Association:
    """Observed NMI and what shuffling the labels gives."""

    nmi: float
    null_mean: float
    null_std: float
    null_low: float
    """95 % of the shuffles lie between this and ``null_high``"""
    null_high: float
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
    return _Joint(paths, num_labels).nmi(labels)


class _Joint:
    """NMI of the same paths with one set of labels after another: what stays the same is worked out once.

    A path that one token takes shares its cell of the table with nobody, whatever the labels: cells of one token add
    nothing to Σ c ln c, so these tokens, often half of all, are left out of the count.
    """

    def __init__(self, paths: Integer[np.ndarray, " n"], num_labels: int) -> None:
        self.size, self.num_labels = len(paths), num_labels
        counts = np.bincount(paths)
        self.entropy = _entropy(counts, self.size)
        self.often = np.flatnonzero(counts[paths] > 1)
        self.rows = _codes(paths[self.often]) * num_labels if len(self.often) else paths[:0].astype(np.int64)
        self.cells = (int(self.rows.max()) + num_labels) if len(self.rows) else 0

    def nmi(self, labels: Integer[np.ndarray, " n"]) -> float:
        of_labels = np.bincount(labels, minlength=1)
        entropy_labels = _entropy(of_labels[of_labels > 0], self.size)
        cells = self.rows + labels[self.often]
        if self.cells <= _LARGEST_TABLE:
            counts = np.bincount(cells)
        else:
            cells.sort()
            counts = np.diff(np.flatnonzero(np.diff(cells, prepend=-1, append=-1)))
        counts = counts[counts > 1]
        entropy_joint = float(np.log(self.size) - (counts * np.log(counts)).sum() / self.size)
        return _normalised(self.entropy, entropy_labels, entropy_joint)


def _normalised(entropy_paths: float, entropy_labels: float, entropy_joint: float) -> float:
    total = entropy_paths + entropy_labels
    if total < 1e-12:
        return 0.0
    return min(1.0, max(0.0, 2.0 * (total - entropy_joint) / total))


def association(
    paths: Integer[np.ndarray, " n"],
    labels: Integer[np.ndarray, " n"],
    *,
    groups: Integer[np.ndarray, " n"] | None = None,
    shuffles: int = 200,
    seed: int = 0,
) -> Association:
    """NMI with a permutation null: labels shuffled over tokens ``shuffles`` times, or over ``groups`` of them.

    Tokens of one sample share its label, and often their decisions: shuffled one by one they would make any
    paths look as if they knew it. So a label is shuffled over samples (``groups``), whole.

    p = (1 + number of shuffles with NMI ≥ the observed one) / (1 + shuffles), so never 0.

    Raises:
        ValueError: tokens of one group have different labels.
    """
    rng = np.random.default_rng(seed)
    paths, labels = _codes(paths), _codes(labels)
    group_n = np.arange(len(labels)) if groups is None else _codes(groups)
    label_of_group = np.empty(int(group_n.max()) + 1, dtype=np.int64)
    label_of_group[group_n] = labels
    if not np.array_equal(label_of_group[group_n], labels):
        raise ValueError("tokens of one group have different labels, so the group has none to shuffle")
    num_labels = int(labels.max()) + 1
    joint = _Joint(paths, num_labels)
    observed = joint.nmi(labels)
    null = np.empty(shuffles)
    for i in range(shuffles):
        null[i] = joint.nmi(rng.permutation(label_of_group)[group_n])
    # Sums in another order differ in the last digits: a tie must count as one.
    at_least = int((null >= observed - 1e-12).sum())
    return Association(
        nmi=observed,
        null_mean=float(null.mean()) if shuffles else 0.0,
        null_std=float(null.std()) if shuffles else 0.0,
        null_low=float(np.quantile(null, 0.025)) if shuffles else 0.0,
        null_high=float(np.quantile(null, 0.975)) if shuffles else 0.0,
        p_value=(1 + at_least) / (1 + shuffles),
        shuffles=shuffles,
        num_tokens=len(paths),
    )
