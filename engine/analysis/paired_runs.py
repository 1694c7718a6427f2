"""Comparison of runs over the same samples: correlation of their measures, agreement of their paths, differences.

Shapes: n samples or tokens; m samples; P and Q distinct paths of the two runs; M modules; T statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer

from tokenpaths.engine.analysis.contrast import difference as mean_difference
from tokenpaths.engine.analysis.contrast import mean_of, student

NORMAL_95 = 1.959963984540054
FEWEST = 4
"""pairs from which on Fisher's interval is defined"""
_FLAT = 1e-9
"""a spread below this share of the values is rounding, not spread"""
_TIE = 1e-12
"""likewise of two values next to each other"""
_ROUNDING = 1e-12
"""likewise of an error"""
_ALMOST_ONE = 1 - 1e-12
"""a coefficient from which on it is ±1"""


FEWEST_SAMPLES = 8
"""samples below which no interval is given: halves of so few say too little"""
HALVES = 24
"""random halves; the standard error is then itself known to about 15 %"""

Statistics = Callable[[Bool[np.ndarray, " n"]], "Float[np.ndarray, ' T']"]


@dataclass(frozen=True)
class Correlation:
    """A coefficient with its 95 % interval."""

    r: float
    low: float
    high: float


def is_flat(values: Float[np.ndarray, " n"]) -> bool:
    """Whether all values are the same but for rounding: nothing can be correlated with them."""
    return bool(len(values) == 0 or np.ptp(values) <= _FLAT * max(1.0, float(np.abs(values).max())))


def pearson(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Correlation | None:
    """Pearson's r with the interval of Fisher's z, tanh(atanh r ± t·error), t Student's at n − 2 degrees of freedom.

    The error is 1/√(n − 3), which is that of normal values, or the jackknife's of z where that is larger: where one
    side scatters more the further out the other lies, or both are skewed, intervals of the first alone are wrong in 10
    to 26 of 100 cases, of the second alone in up to 11; of the larger one in 1 to 8. None for fewer than four pairs,
    or where one side has no spread.
    """
    if len(x) < FEWEST or is_flat(x) or is_flat(y):
        return None
    r, error = _jackknifed(x, y)
    return _with_interval(r, max(1 / math.sqrt(len(x) - 3), error), student(len(x) - 2))


def spearman(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Correlation | None:
    """Pearson's r of the ranks (ties share their mean rank), Fisher's z with standard error √((1 + r²/2)/(n − 3)).

    The error is that of Bonett and Wright (Psychometrika 65, 2000): ranks are not normal, so Fisher's own is too
    narrow; where the jackknife's is larger, that one. Ranks in one order reach ±1 though the law behind them does not:
    four of them by chance in one of twelve cases. So z is taken no nearer to it than half of the least step,
    6/(n³ − n), by which a coefficient can differ from it (the correction for continuity; Kendall and Gibbons, *Rank
    Correlation Methods*, 4.14). None as for ``pearson``.
    """
    if len(x) < FEWEST or is_flat(x) or is_flat(y):
        return None
    x, y = mean_ranks(x), mean_ranks(y)
    if is_flat(x) or is_flat(y):
        return None
    (r, error), most = _jackknifed(x, y), 1 - 6 / (len(x) ** 3 - len(x))
    nearest = max(-most, min(most, r))
    found = _with_interval(nearest, max(math.sqrt((1 + nearest**2 / 2) / (len(x) - 3)), error))
    return Correlation(r, min(found.low, r), max(found.high, r))


def mean_ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Rank of each value from 1 on; equal values share the mean of theirs, also those that rounding alone tells apart.

    Means of the same fractions, added in another order, differ in their last bits: ranked by these, samples that tie
    would have an order by chance.
    """
    order = np.argsort(values)
    ordered = values[order]
    group = np.concatenate([[0], np.cumsum(np.diff(ordered) > _TIE * np.abs(ordered[1:]))])
    count = np.bincount(group)
    ranks = np.empty(len(values))
    ranks[order] = (np.cumsum(count) - (count - 1) / 2)[group]
    return ranks


def _jackknifed(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Pearson's r, and the jackknife's standard error of atanh r; infinite where r hangs on one pair alone."""
    dx, dy, num = x - x.mean(), y - y.mean(), len(x)
    xx, yy, xy = float(dx @ dx), float(dy @ dy), float(dx @ dy)
    r = xy / math.sqrt(xx * yy)
    # Sums of squares without pair i, about the mean without it.
    left = num / (num - 1)
    xx_n, yy_n, xy_n = xx - left * dx * dx, yy - left * dy * dy, xy - left * dx * dy
    if min(float(xx_n.min()) / xx, float(yy_n.min()) / yy) < _ROUNDING:
        return r, math.inf
    z_n = np.arctanh(np.clip(xy_n / np.sqrt(xx_n * yy_n), -_ALMOST_ONE, _ALMOST_ONE))
    off_n = z_n - math.atanh(max(-_ALMOST_ONE, min(_ALMOST_ONE, r)))
    return r, math.sqrt((num - 1) / num * float(off_n @ off_n))


def _with_interval(r: float, error: float, times: float = NORMAL_95) -> Correlation:
    r = max(-1.0, min(1.0, r))
    if math.isinf(error):
        return Correlation(r, -1.0, 1.0)
    if abs(r) >= _ALMOST_ONE:
        return Correlation(math.copysign(1.0, r), math.copysign(1.0, r), math.copysign(1.0, r))
    z = math.atanh(r)
    return Correlation(r, math.tanh(z - times * error), math.tanh(z + times * error))


@dataclass(frozen=True)
class Agreement:
    """How far two groupings of the same tokens agree."""

    nmi: float
    """2·I / (H + H′): 1 = the same groups; grows with the number of groups, even at random"""
    ami: float | None
    """(I − E I) / ((H + H′)/2 − E I), E over permutations: 0 = as by chance, 1 = the same groups; None where chance
    alone gives the same, as when every token has a group of its own"""
    expected_nmi: float
    """NMI of groups of the same sizes, put together at random"""


def agreement(one: Integer[np.ndarray, " n"], other: Integer[np.ndarray, " n"]) -> Agreement:
    """NMI and adjusted mutual information of two groupings (Vinh, Epps and Bailey, JMLR 11, 2010).

    The expectation is exact up to terms beyond ten standard deviations of the hypergeometric law; it depends on the
    sizes of the groups alone, so groups of equal size are worked out once. That makes thousands of paths cheap.

    Raises:
        ValueError: groupings of different length, or of nothing.
    """
    if len(one) != len(other) or not len(one):
        raise ValueError(f"{len(one)} and {len(other)} tokens cannot be set side by side")
    n = len(one)
    code_n, code_m = _codes(one), _codes(other)
    sizes_P, sizes_Q = np.bincount(code_n), np.bincount(code_m)
    joint = np.unique(code_n * len(sizes_Q) + code_m, return_counts=True)[1]
    entropy_P, entropy_Q = _entropy(sizes_P, n), _entropy(sizes_Q, n)
    mutual = max(0.0, entropy_P + entropy_Q - _entropy(joint, n))
    mean = (entropy_P + entropy_Q) / 2
    if mean < 1e-12:  # one group on both sides: the same grouping
        return Agreement(1.0, 1.0, 1.0)
    expected = expected_mutual_information(sizes_P, sizes_Q)
    room = mean - expected
    ami = None if room < 1e-9 * max(1.0, mean) else (mutual - expected) / room
    return Agreement(min(1.0, mutual / mean), ami, min(1.0, expected / mean))


def _codes(groups: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
    """Groups numbered 0, 1, 2 …; without sorting where their numbers are small, as ids of paths are."""
    least, most = int(groups.min()), int(groups.max())
    if most - least > 4 * len(groups):
        return np.unique(groups, return_inverse=True)[1].reshape(-1).astype(np.int64)
    there = np.zeros(most - least + 1, dtype=np.int64)
    there[groups - least] = 1
    ranks: np.ndarray = (np.cumsum(there) - 1)[groups - least]
    return ranks


def _entropy(counts: Integer[np.ndarray, " P"], total: int) -> float:
    return float(np.log(total) - (counts * np.log(counts)).sum() / total)


def expected_mutual_information(sizes_P: Integer[np.ndarray, " P"], sizes_Q: Integer[np.ndarray, " Q"]) -> float:
    """E I in nats of two groupings of these sizes, one of them permuted at random.

    E I = Σ_ij Σ_c (c/N) ln(N·c/(a_i·b_j)) · p(c), p hypergeometric with N, a_i, b_j.
    """
    from scipy.special import gammaln

    n = int(sizes_P.sum())
    log_factorial = gammaln(np.arange(n + 1, dtype=np.float64) + 1)
    a_kinds, a_times = np.unique(sizes_P, return_counts=True)
    b_kinds, b_times = np.unique(sizes_Q, return_counts=True)
    total = 0.0
    for a, times in zip(a_kinds.tolist(), a_times.tolist(), strict=True):
        mean = a * b_kinds / n
        spread = np.sqrt(mean * (1 - b_kinds / n) * max(0.0, n - a) / max(1, n - 1))
        reach = 10 * spread + 30
        low = np.maximum(np.maximum(1, a + b_kinds - n), np.floor(mean - reach)).astype(np.int64)
        high = np.minimum(np.minimum(a, b_kinds), np.ceil(mean + reach)).astype(np.int64)
        length = np.maximum(0, high - low + 1)
        which = np.repeat(np.arange(len(b_kinds)), length)
        c = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length) + low[which]
        b = b_kinds[which]
        log_p = (
            log_factorial[a]
            + log_factorial[b]
            + log_factorial[n - a]
            + log_factorial[n - b]
            - log_factorial[n]
            - log_factorial[c]
            - log_factorial[a - c]
            - log_factorial[b - c]
            - log_factorial[n - a - b + c]
        )
        terms = c / n * (np.log(n) + np.log(c) - np.log(a) - np.log(b)) * np.exp(log_p)
        total += times * float((terms * b_times[which]).sum())
    return total


def load_difference(one: Integer[np.ndarray, " M"], other: Integer[np.ndarray, " N"]) -> float:
    """½ Σ |l_i − l′_i| of two loads as shares, each sorted from its busiest module on, in [0, 1].

    Modules of two models have no common numbering, so only the shapes of the loads are compared; of banks of
    different size the smaller one is filled up with idle modules. Nothing counted on one side: 1; on both: 0.
    """
    size = max(len(one), len(other))
    shares = np.zeros((2, size))
    for row, counts in zip(shares, (one, other), strict=True):
        row[: len(counts)] = np.sort(counts)[::-1] / max(1, int(counts.sum()))
    # Each side by itself: the shares of one side add up to 1 but for rounding.
    empty = [not counts.any() for counts in (one, other)]
    if any(empty):
        return 0.0 if all(empty) else 1.0
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


@dataclass(frozen=True)
class Difference:
    """A difference with its 95 % interval."""

    value: float
    low: float
    high: float
    num: int
    """samples that it rests on; of two runs the smaller number"""

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def difference(value: float, error: float, num: int) -> Difference:
    """``value`` ± 1.96 standard errors; an error below rounding counts as none."""
    half = 0.0 if error <= _ROUNDING * max(1.0, abs(value)) else NORMAL_95 * error
    return Difference(value, value - half, value + half, num)


def mean_half_width(values_m: Float[np.ndarray, " m"], weights_m: Float[np.ndarray, " m"]) -> float | None:
    """Half the 95 % interval of the weighted mean over drawn samples, as ``contrast.mean_of`` has it; None for fewer
    than ``FEWEST_SAMPLES``."""
    if len(values_m) < FEWEST_SAMPLES:
        return None
    mean = mean_of(weights_m * values_m, weights_m)
    return None if mean is None or mean.high is None else mean.high - mean.mean


def paired_difference(
    values_m: Float[np.ndarray, " m"],
    weights_m: Float[np.ndarray, " m"],
    others_m: Float[np.ndarray, " m"],
    other_weights_m: Float[np.ndarray, " m"],
) -> Difference | None:
    """Weighted mean of ``others`` − that of ``values`` over the same m samples; None for fewer than
    ``FEWEST_SAMPLES``.

    What both runs find easy or hard cancels sample by sample, so the interval is far narrower than that of two means.
    """
    if len(values_m) < FEWEST_SAMPLES:
        return None
    gap = mean_difference(other_weights_m * others_m, other_weights_m, weights_m * values_m, weights_m)
    if gap is None or gap.high is None:
        return None
    half = gap.high - gap.mean
    half = 0.0 if half <= _ROUNDING * max(1.0, abs(gap.mean)) else half
    return Difference(gap.mean, gap.mean - half, gap.mean + half, len(values_m))


def paired_share_difference(one_m: Float[np.ndarray, " m"], other_m: Float[np.ndarray, " m"]) -> Difference | None:
    """Share of the m samples that are right (1, else 0) in ``other`` less that in ``one``; None for fewer than
    ``FEWEST_SAMPLES``.

    Agresti and Min's interval (Biometrical Journal 47, 2005): half a sample is added to each of right and wrong in one
    and the other, as a few that turn alike, or none that turns, do not say that all would.
    """
    num = len(one_m)
    if num < FEWEST_SAMPLES:
        return None
    lost, won = float(((one_m > 0.5) & (other_m < 0.5)).sum()), float(((one_m < 0.5) & (other_m > 0.5)).sum())
    value, of = (won - lost) / num, num + 2
    middle = (won - lost) / of
    half = NORMAL_95 * math.sqrt(max(0.0, lost + won + 1 - (won - lost) ** 2 / of)) / of
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return Difference(value, min(low, value), max(high, value), num)


def half_sample_errors(
    sample_n: Integer[np.ndarray, " n"], statistics: Statistics, *, draws: int = HALVES, seed: int = 0
) -> Float[np.ndarray, " T"] | None:
    """Standard errors of T statistics of n tokens, from random halves of their samples; None for too few samples.

    The standard deviation of a statistic over random halves drawn without replacement is the standard error of the
    statistic of the whole: a half has twice the variance, and half of it is shared with the whole (the delete-half
    jackknife; Shao and Tu, *The Jackknife and Bootstrap*, 2.3). Whole samples are drawn because tokens of one sample
    are alike.

    Args:
        sample_n: the sample of each token.
        statistics: (T,) statistics of the tokens in a mask (n,); NaN where one is not determined.
    """
    _, sample_n = np.unique(sample_n, return_inverse=True)
    num_samples = int(sample_n.max(initial=-1)) + 1
    if num_samples < FEWEST_SAMPLES:
        return None
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        kept = np.zeros(num_samples, dtype=bool)
        kept[rng.permutation(num_samples)[: num_samples // 2]] = True
        values.append(statistics(kept[sample_n]))
    errors: Float[np.ndarray, " T"] = np.std(np.stack(values), axis=0, ddof=1)
    return errors
