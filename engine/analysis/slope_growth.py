"""Slopes of the rank–frequency curve that can be compared: within a window of ranks, and at equal numbers of tokens.

The slope over all ranks falls with the number of tokens, since every rare path that is met once more lengthens the
flat end of the curve. A window of ranks is less dependent on it; at equal numbers of tokens both can be compared.

Shapes: P paths, U different counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

import numpy as np
from jaxtyping import Float, Int

from tokenpaths.engine.analysis.path_statistics import Histogram, RankFit, least_squares, rank_frequency_fit

WINDOW: Final = (10, 1000)
"""first and last rank of the window"""
FEWEST_RANKS: Final = 50
"""ranks in the window below which it has no slope"""
MOST_TOKENS: Final = 4_000_000
"""to which a run is thinned at most: what costs is the longest list of paths"""
_MANY: Final = 1000
"""paths of one count that are thinned together"""
_SMALL: Final = 1000
"""counts up to which that is done"""


@dataclass(frozen=True)
class SlopePoint:
    """Slopes of a run of so many tokens; means over the draws, with their standard deviation."""

    num_tokens: int
    num_paths: float
    slope: float | None
    """over all ranks"""
    slope_std: float | None
    window_slope: float | None
    """over the ranks of ``WINDOW``; None with fewer than ``FEWEST_RANKS`` of them"""
    window_std: float | None


def window_fit(counts: Int[np.ndarray, " P"]) -> RankFit:
    """Line through (ln rank, ln frequency) of the ranks of ``WINDOW``; ``counts`` in rank order (falling)."""
    first, last = WINDOW
    inside = counts[first - 1 : last]
    if len(inside) < FEWEST_RANKS:
        return RankFit(None, None)
    ranks = np.arange(first, first + len(inside))
    return least_squares(np.log(ranks), np.log(inside.astype(np.float64)))


def thinned(histogram: Histogram, share: float, rng: np.random.Generator) -> Int[np.ndarray, " P"]:
    """Counts, falling, of the paths that are left when each token is kept with probability ``share``."""
    left: list[np.ndarray] = []
    for value, paths in zip(histogram.values.tolist(), histogram.paths.tolist(), strict=True):
        if paths > _MANY and value <= _SMALL:
            kept = np.arange(1, value + 1)
            chances = _binomial(value, share)
            left.append(np.repeat(kept, rng.multinomial(paths, chances / chances.sum())[1:]))
        else:
            drawn = rng.binomial(value, share, paths)
            left.append(drawn[drawn > 0])
    counts = np.concatenate(left) if left else np.zeros(0, dtype=np.int64)
    left.clear()
    counts.sort()  # in place: these are as many numbers as there are paths
    return counts[::-1]


def _binomial(tries: int, share: float) -> Float[np.ndarray, " n"]:
    """Chance of 0 … ``tries`` successes where each succeeds with probability ``share``.

    For at most ``_SMALL`` tries, whose terms do not overflow; to load ``scipy.stats`` takes longer than all else here.
    """
    kept = np.arange(tries + 1)
    ways = np.array([float(comb(tries, k)) for k in range(tries + 1)])
    chances: np.ndarray = ways * share**kept * (1 - share) ** (tries - kept)
    return chances


def sizes_up_to(num_tokens: int) -> list[int]:
    """Numbers of tokens 1,000, 2,000, 4,000 … and ``num_tokens`` itself, at most ``MOST_TOKENS``."""
    most = min(num_tokens, MOST_TOKENS)
    sizes = [1000 * 2**power for power in range(32) if 1000 * 2**power < 0.75 * most]
    return [*sizes, most]


def slope_growth(histogram: Histogram, sizes: Sequence[int], draws: int, seed: int) -> list[SlopePoint]:
    """Slopes at each of ``sizes``: of the run itself where it has so many tokens, else of ``draws`` thinned runs."""
    total = int(histogram.values @ histogram.paths)
    points = []
    for size in sizes:
        rng = np.random.default_rng([abs(seed), size])
        whole = size >= total
        runs = [np.repeat(histogram.values, histogram.paths)[::-1]] if whole else []
        runs = runs or [thinned(histogram, size / total, rng) for _ in range(draws)]
        slope, slope_std = _mean([rank_frequency_fit(counts).slope for counts in runs])
        window, window_std = _mean([window_fit(counts).slope for counts in runs])
        num_paths = float(np.mean([len(counts) for counts in runs]))
        points.append(SlopePoint(min(size, total), num_paths, slope, slope_std, window, window_std))
    return points


def _mean(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation over draws; None where one of them has no value."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None, None
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
