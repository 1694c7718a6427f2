"""Summary of a list of numbers: moments, quantiles, histogram.

Shapes: n values, D distinct values.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def describe_sorted(
    parts: Iterable[Float[np.ndarray, " n"]], bins: int, *, num: int, limits: tuple[float, float]
) -> dict[str, Any]:
    """``describe`` of ``num`` values between ``limits``, which come in rising order, a part at a time.

    For more values than fit into memory. Mean and std are merged part by part (Chan, Golub, LeVeque), so they agree
    with ``describe`` up to rounding; everything else is the same.
    """
    if num == 0:
        return describe(np.zeros(0), bins)
    low, high = limits
    places = {name: _between(num, q) for name, q in QUANTILES.items()}
    picked: dict[int, float] = {}
    edges, heights = np.linspace(low, high, bins + 1), np.zeros(bins, dtype=np.int64)
    seen, mean, squares = 0, 0.0, 0.0
    for part in parts:
        n = len(part)
        picked |= {i: float(part[i - seen]) for pair in places.values() for i in pair[:2] if seen <= i < seen + n}
        heights += np.bincount(np.clip(np.searchsorted(edges, part, side="right") - 1, 0, bins - 1), minlength=bins)
        own = float(part.mean())
        squares += float(((part - own) ** 2).sum()) + (own - mean) ** 2 * seen * n / (seen + n)
        mean += (own - mean) * n / (seen + n)
        seen += n
    rows = [
        {"lo": float(a), "hi": float(b), "count": int(h)}
        for a, b, h in zip(edges[:-1], edges[1:], heights, strict=True)
    ]
    return {
        "num": num,
        "mean": mean,
        "std": float(np.sqrt(squares / num)),
        "min": low,
        **{name: picked[i] + (picked[j] - picked[i]) * part for name, (i, j, part) in places.items()},
        "max": high,
        "bins": rows if low != high else [{"lo": low, "hi": high, "count": num}],
    }


def _between(num: int, q: float) -> tuple[int, int, float]:
    """Positions of the neighbours of quantile q in sorted values, and how far it is from the first to the second."""
    position = q * (num - 1)
    below = int(position)
    return below, min(below + 1, num - 1), position - below


def _quantile(values: np.ndarray, ends: np.ndarray, q: float) -> float:
    """Linear interpolation between sorted values, ``ends`` = running counts."""
    below, above, part = _between(int(ends[-1]), q)
    low, high = values[np.searchsorted(ends, [below, above], side="right")]
    return float(low + (high - low) * part)


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


def margin_and_runner_up(
    scores: Float[np.ndarray, "*n M"], ids: Integer[np.ndarray, "*n K"]
) -> tuple[Float[np.ndarray, "*n"], Integer[np.ndarray, "*n"]]:
    """Margin ρ_(K) − ρ_(K+1) of a choice, and the module of the next score.

    Args:
        scores: probabilities by which the router chose; −inf where a module could not be chosen.
        ids: the chosen modules.

    Returns:
        The smallest chosen score less the largest other one, NaN where no other module could be chosen; and its id.
    """
    kept = np.take_along_axis(scores, ids, axis=-1).min(axis=-1)
    rest = scores.copy()
    np.put_along_axis(rest, ids, -np.inf, axis=-1)
    runner_up = rest.argmax(axis=-1)
    best = np.take_along_axis(rest, runner_up[..., None], axis=-1)[..., 0]
    margin: np.ndarray = np.where(np.isfinite(best), kept - best, np.nan)
    return margin, runner_up
