"""Active share of a threshold router's network by sample, and its correlation with the loss.

Computed from the firing rates as a run stores them: 0 where a block was silent, and after a sample's stop.

Shapes: n samples, R threshold steps, P blocks.
Source: "Ray-Tracing for Conditionally Activated Neural Networks", section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Num

from tokenpaths.engine.analysis.contrast import student
from tokenpaths.engine.analysis.paired_runs import mean_ranks

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
    """Of two numbers of every sample, with percentile bootstrap intervals; NaN where one of them is constant."""

    pearson: float
    pearson_low: float
    pearson_high: float
    spearman: float
    spearman_low: float
    spearman_high: float
    num_samples: int
    resamples: int
    confidence: float


def correlation(
    share: Values, loss: Num[np.ndarray, " m"], *, resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Correlation:
    """Does a sample that lights up more blocks have a higher loss?

    Pearson: of the values; Spearman: of their ranks, ties at their mean rank. The intervals come from
    ``resamples`` draws of the samples with replacement (a draw in which one number is constant is left out).

    Raises:
        ValueError: lengths differ, fewer than 3 samples, or values that are not finite.
    """
    x, y = np.asarray(share, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if len(x) != len(y) or len(x) < 3:
        raise ValueError(f"{len(x)} shares and {len(y)} losses: give as many of both, at least 3")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("shares or losses hold NaN or infinite values")
    rng = np.random.default_rng(seed)
    draws = [rng.integers(0, len(x), len(x)) for _ in range(resamples)]
    tail = 50 * (1 - confidence)
    pearson, spearman = ((measure(x, y), *_interval(measure, x, y, draws, tail)) for measure in (_pearson, _spearman))
    return Correlation(*pearson, *spearman, len(x), resamples, confidence)


def _interval(
    measure: Callable[[np.ndarray, np.ndarray], float],
    x: np.ndarray,
    y: np.ndarray,
    draws: list[np.ndarray],
    tail: float,
) -> tuple[float, float]:
    values = np.array([measure(x[rows], y[rows]) for rows in draws])
    values = values[np.isfinite(values)]
    if not len(values):
        return np.nan, np.nan
    return float(np.percentile(values, tail)), float(np.percentile(values, 100 - tail))


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    if x.min() == x.max() or y.min() == y.max():
        return np.nan
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / np.sqrt((x @ x) * (y @ y)))


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    return _pearson(mean_ranks(x), mean_ranks(y))
