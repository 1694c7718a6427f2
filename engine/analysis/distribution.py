"""One description of a list of numbers: moments, quantiles, histogram.

Shapes: n values, D distinct values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Integer

QUANTILES = {"q01": 0.01, "median": 0.5, "q99": 0.99}


def describe(
    values: Float[np.ndarray, " D"],
    bins: int,
    *,
    counts: Integer[np.ndarray, " D"] | None = None,
    limits: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """num, mean, std (of the population), min, q01, median, q99, max and ``bins`` of equal width.

    ``counts`` says how often each value occurs (once by default). A quantile q is interpolated
    between the neighbours of position q·(num − 1). The bins span ``limits`` or min … max, each
    holds lo ≤ value < hi, the last also hi; equal limits give one bin. No values: num 0, the rest None.
    """
    values = np.asarray(values, dtype=np.float64)
    if counts is None:
        counts = np.ones(len(values), dtype=np.int64)
    num = int(counts.sum())
    if num == 0:
        return {"num": 0, **dict.fromkeys(("mean", "std", "min", *QUANTILES, "max")), "bins": []}
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    ends = np.cumsum(counts)
    mean = float((values * counts).sum() / num)
    std = float(np.sqrt((counts * (values - mean) ** 2).sum() / num))
    low, high = limits or (float(values[0]), float(values[-1]))
    return {
        "num": num,
        "mean": mean,
        "std": std,
        "min": float(values[0]),
        **{name: _quantile(values, ends, q) for name, q in QUANTILES.items()},
        "max": float(values[-1]),
        "bins": _histogram(values, counts, bins, low, high),
    }


def _quantile(values: np.ndarray, ends: np.ndarray, q: float) -> float:
    """Linear interpolation between sorted values, ``ends`` = running counts."""
    position = q * (int(ends[-1]) - 1)
    below = int(position)
    low, high = values[np.searchsorted(ends, [below, min(below + 1, int(ends[-1]) - 1)], side="right")]
    return float(low + (high - low) * (position - below))


def _histogram(values: np.ndarray, counts: np.ndarray, bins: int, low: float, high: float) -> list[dict[str, Any]]:
    if low == high:
        return [{"lo": low, "hi": high, "count": int(counts.sum())}]
    edges = np.linspace(low, high, bins + 1)
    # Against the edges themselves: a value that equals an edge belongs to the bin that starts there.
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, bins - 1)
    heights = np.bincount(places, counts, bins)
    return [
        {"lo": float(a), "hi": float(b), "count": int(h)}
        for a, b, h in zip(edges[:-1], edges[1:], heights, strict=True)
    ]
