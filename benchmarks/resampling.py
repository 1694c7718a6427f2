"""Intervals by resampling samples: tokens of one image or text rise and fall together, so samples are what was drawn.

Shapes: b samples; R draws.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

DRAWS = 1000


def interval(
    statistic: Callable[[Int[np.ndarray, " b"]], float], num_samples: int, *, draws: int = DRAWS, seed: int = 0
) -> tuple[float, float, float]:
    """A statistic and the 95 % percentile interval of its bootstrap (Efron, 1979).

    ``statistic`` takes how often each of the samples counts, first once each, then as ``draws`` resamples have it; a
    resample for which it is not defined (NaN) is left out.

    Returns:
        the statistic, and the two ends of its interval; NaN where it is not defined.
    """
    rng = np.random.default_rng(seed)
    even = np.full(num_samples, 1.0 / num_samples)
    observed = statistic(np.ones(num_samples, dtype=np.int64))
    drawn = np.array([statistic(rng.multinomial(num_samples, even)) for _ in range(draws)])
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, (0.025, 0.975)) if len(drawn) else (np.nan, np.nan)
    return float(observed), float(low), float(high)


def weighted_mean(values: Float[np.ndarray, " b"], counts: Int[np.ndarray, " b"]) -> float:
    """Mean of the values that are known (not NaN), each as often as it counts; NaN for none."""
    known = np.isfinite(values)
    total = counts[known].sum()
    return float((values[known] * counts[known]).sum() / total) if total else float("nan")


def weighted_correlation(
    x: Float[np.ndarray, " b"], y: Float[np.ndarray, " b"], counts: Int[np.ndarray, " b"]
) -> float:
    """Pearson's correlation, each pair as often as it counts; NaN where one of the two does not vary."""
    total = counts.sum()
    x, y = x - (x * counts).sum() / total, y - (y * counts).sum() / total
    spread = float((counts * x * x).sum() * (counts * y * y).sum())
    return float((counts * x * y).sum() / spread**0.5) if spread > 0 else float("nan")


def tenths_apart(
    key: Float[np.ndarray, " b"], values: Float[np.ndarray, " b"], counts: Int[np.ndarray, " b"]
) -> tuple[float, float]:
    """Mean of ``values`` over the tenth of the samples with the lowest ``key``, and over that with the highest.

    A sample on the edge of a tenth counts with the part of it that is inside. Samples of one key count with their mean.
    """
    _, group = np.unique(key, return_inverse=True)
    group = group.reshape(-1)
    size = np.bincount(group, weights=counts)
    mean = np.bincount(group, weights=values * counts) / np.maximum(size, 1)
    ends = np.cumsum(size)
    begins, tenth = ends - size, ends[-1] / 10
    low, high = np.clip(tenth - begins, 0, size), np.clip(ends - 9 * tenth, 0, size)
    return float((mean * low).sum() / tenth), float((mean * high).sum() / tenth)
