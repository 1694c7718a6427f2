"""Active share of a threshold router's network by sample, and its correlation with the loss.

Computed from the firing rates as a run stores them: 0 where a block was silent, and after a sample's stop.

Shapes: n samples, R threshold steps, P blocks.
Source: "Ray-Tracing for Conditionally Activated Neural Networks", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Num

from tokenpaths.engine.analysis.contrast import student
from tokenpaths.engine.analysis.paired_runs import Correlation as Coefficient
from tokenpaths.engine.analysis.paired_runs import pearson, spearman

Values = Num[np.ndarray, " n"]


def active_share(rates: Float[np.ndarray, "n R P"]) -> Float[np.ndarray, "n R"]:
    """Share of the blocks that fire at each threshold step, in [0, 1]; 0 after the sample's stop."""
    fired: np.ndarray = (rates > 0).mean(axis=2)
    return fired


def lit_share(rates: Float[np.ndarray, "n R P"]) -> Float[np.ndarray, "n R"]:
    """Share of the blocks that have fired at any step so far; never falls."""
    share: np.ndarray = _so_far(rates).mean(axis=2)
    return share


def steps_until_output(rates: Float[np.ndarray, "n R P"]) -> Int[np.ndarray, " n"]:
    """Threshold steps until the sample stopped: no output fires without a block that fires with it.

    0 where no block ever fired. Where the cap ended the relaxation, the last step at which one did.
    """
    any_nR = np.any(rates > 0, axis=2)
    last_n = rates.shape[1] - any_nR[:, ::-1].argmax(axis=1)
    return np.where(any_nR.any(axis=1), last_n, 0).astype(np.int64)


def _so_far(rates: np.ndarray) -> np.ndarray:
    return np.logical_or.accumulate(rates > 0, axis=1)


@dataclass(frozen=True)
class ClassShare:
    """Mean share of one class, with a 95 % interval of the mean (Student's; NaN for a single sample)."""

    label: str
    count: int
    mean: float
    low: float
    high: float


def share_by_class(share: Values, labels: Sequence[str | None]) -> list[ClassShare]:
    """The mean of ``share`` for every label, smallest first; samples without one are left out."""
    if len(labels) != len(share):
        raise ValueError(f"{len(share)} shares and {len(labels)} labels: give one label a sample")
    rows = []
    for label in sorted({label for label in labels if label is not None}):
        own = share[[other == label for other in labels]]
        half = student(len(own) - 1) * own.std(ddof=1) / len(own) ** 0.5 if len(own) > 1 else np.nan
        mean = float(own.mean())
        rows.append(ClassShare(label, len(own), mean, float(mean - half), float(mean + half)))
    return sorted(rows, key=lambda row: row.mean)


def cheapest_and_dearest(share: Values, count: int = 12) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"]]:
    """The samples with the smallest shares, smallest first, and those with the largest, largest first."""
    order = np.argsort(share, kind="stable")
    dearest = np.argsort(-share, kind="stable")
    return order[:count].astype(np.int64), dearest[:count].astype(np.int64)


@dataclass(frozen=True)
class Correlation:
    """Of two numbers of every sample, with 95 % intervals; None where there is none (``paired_runs``)."""

    pearson: float | None
    pearson_low: float | None
    pearson_high: float | None
    spearman: float | None
    spearman_low: float | None
    spearman_high: float | None
    num_samples: int


def correlation(share: Values, loss: Num[np.ndarray, " m"]) -> Correlation:
    """Does a sample that lights up more blocks have a higher loss?

    Pearson: of the values; Spearman: of their ranks, ties at their mean rank; ``paired_runs`` says how their intervals
    are made.

    Raises:
        ValueError: lengths differ, fewer than 3 samples, or values that are not finite.
    """
    x, y = np.asarray(share, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if len(x) != len(y) or len(x) < 3:
        raise ValueError(f"{len(x)} shares and {len(y)} losses: give as many of both, at least 3")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("shares or losses hold NaN or infinite values")
    return Correlation(*_ends(pearson(x, y)), *_ends(spearman(x, y)), len(x))


def _ends(found: Coefficient | None) -> tuple[float | None, float | None, float | None]:
    return (found.r, found.low, found.high) if found else (None, None, None)
