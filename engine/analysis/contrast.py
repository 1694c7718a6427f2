"""Shares, means, lifts and contrasts with 95 % intervals that account for the similarity of tokens within a sample.

Shapes: n tokens (or samples, one token each); N samples; G groups; U distinct keys; I things that are compared
(modules, paths). Every interval takes samples, not tokens, as what was drawn: a share is a ratio of two sums over
samples, its variance that of the linearised ratio (Cochran, "Sampling Techniques", 1977, section 6.4); that of a share
is never below that of independent tokens. A long sample draws the mean to itself and leaves too small a residual, so
residuals are made as large as they are expected to be (Bell and McCaffrey, Survey Methodology 28, 2002), and Student's
quantile takes as many samples as the long ones leave effective, (Σw)²/Σw² (Carter, Schnepel and Steigerwald, Review of
Economics and Statistics 99, 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer, Real

Z = 1.959963984540054
"""standard deviations on both sides of 95 %"""
FEW_SAMPLES = 3
"""samples below which how their tokens scatter says nothing of how independent they are"""


@dataclass(frozen=True)
class Contrast:
    """Δ = share among A − share among B of each thing, with a 95 % interval; NaN where there is none."""

    share_a: Float[np.ndarray, " I"]
    share_b: Float[np.ndarray, " I"]
    delta: Float[np.ndarray, " I"]
    low: Float[np.ndarray, " I"]
    high: Float[np.ndarray, " I"]


def wilson(
    share: Float[np.ndarray, "*I"], size: Real[np.ndarray, "*I"], z: float = Z
) -> tuple[Float[np.ndarray, "*I"], Float[np.ndarray, "*I"]]:
    """Both ends of Wilson's interval of a share of ``size`` independent draws (1927), at ``z`` = 1.96 one of 95 %; size
    may be a fraction."""
    size = np.maximum(size, 1e-9)
    middle = (share + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * np.sqrt(share * (1 - share) / size + z**2 / (4 * size**2))
    # Rounding leaves 4e-19 of 0, which a reader of digits takes for something that was seen.
    low, high = np.where(share <= 0, 0.0, middle - half), np.where(share >= 1, 1.0, middle + half)
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def kish_size(of_NI: Real[np.ndarray, "N I"]) -> Float[np.ndarray, " I"]:
    """Effective number of samples (Σx)²/Σx² of tokens that fall x in each: what counts for a label, which all tokens
    of a sample share (Kish 1965)."""
    squares = (of_NI.astype(np.float64) ** 2).sum(axis=0)
    sizes: np.ndarray = of_NI.sum(axis=0).astype(np.float64) ** 2 / np.maximum(squares, 1e-300)
    return sizes


def freedom(of_N: Real[np.ndarray, " N"]) -> float:
    """Degrees of freedom of a mean over samples of these sizes: how many of them are effective, less 1; at least 1."""
    return max(float(kish_size(of_N[:, None])[0]) - 1.0, 1.0)


def student(freedom: int | float, intervals: int = 1) -> float:
    """Student's quantile of a 95 % interval; of one of several ``intervals`` that are to hold together (Bonferroni)."""
    from scipy.special import stdtrit  # only for who asks

    return float(stdtrit(freedom, 1 - 0.025 / intervals))


def effective_size(hits_NI: Real[np.ndarray, "N I"], of_N: Real[np.ndarray, " N"]) -> Float[np.ndarray, " I"]:
    """Independent tokens that would tell as much about the shares Σhits/Σof: at most Σof, and 1 of one sample."""
    total = float(of_N.sum())
    if (of_N > 0).sum() < 2:
        return np.ones(hits_NI.shape[1])
    squares_NI, plain_I = _parts(hits_NI, of_N)
    sizes: np.ndarray = total / np.maximum(squares_NI.sum(axis=0) / plain_I, 1.0)
    return sizes


def share_interval(
    hits_NI: Real[np.ndarray, "N I"], of_N: Real[np.ndarray, " N"], share_I: Float[np.ndarray, " I"] | None = None
) -> tuple[Float[np.ndarray, " I"], Float[np.ndarray, " I"]]:
    """Both ends of the 95 % interval of the shares Σhits/Σof, as of ``share_intervals``."""
    return share_intervals(hits_NI, of_N, (1,), share_I)[0]


def share_intervals(
    hits_NI: Real[np.ndarray, "N I"],
    of_N: Real[np.ndarray, " N"],
    intervals: Sequence[int],
    share_I: Float[np.ndarray, " I"] | None = None,
) -> list[tuple[Float[np.ndarray, " I"], Float[np.ndarray, " I"]]]:
    """Both ends of intervals of the shares Σhits/Σof (of ``share_I``, where these are known of more tokens), for each
    of ``intervals``: so many of them hold together in 95 % (Bonferroni).

    Wilson's, of as many independent tokens as tell as much; the variance that says how many is estimated from the
    samples, so it counts (t/1.96)² times (Korn and Graubard, Survey Methodology 24, 1998). t has as many degrees of
    freedom as the sizes leave (``freedom``), and no more than the estimate has: 2 V²/Var(V), V the sum of what each
    sample adds (Satterthwaite 1946), as a few samples may hold all that is rare. Tokens that are all alike within
    their samples tell as much as the samples would (``kish_size``), so never less than that is counted; where each
    sample has one token, nothing is estimated.
    """
    from scipy.special import ndtri  # only for who asks

    share: np.ndarray = hits_NI.sum(axis=0) / float(of_N.sum()) if share_I is None else share_I
    levels = [1 - 0.025 / many for many in intervals]
    sizes = _sizes_at(levels, hits_NI, of_N)
    return [wilson(share, size_I, float(ndtri(level))) for level, size_I in zip(levels, sizes, strict=True)]


def _sizes_at(
    levels: Sequence[float], hits_NI: Real[np.ndarray, "N I"], of_N: Real[np.ndarray, " N"]
) -> list[Float[np.ndarray, " I"]]:
    """Independent tokens that tell as much as these of the shares Σhits/Σof, for bounds at each of ``levels``."""
    from scipy.special import ndtri, stdtrit

    total, num = float(of_N.sum()), int((of_N > 0).sum())
    least = float(kish_size(of_N[:, None])[0])
    if num < 2 or of_N.max() <= 1:
        return [np.full(hits_NI.shape[1], max(least, 1.0)) for _ in levels]
    squares_NI, plain_I = _parts(hits_NI, of_N)
    variance_I = squares_NI.sum(axis=0)
    # Σ(v − mean)² over the samples that are there, times num: the variance of V is estimated as it / (num − 1).
    spread_I = num * np.square(squares_NI).sum(axis=0) - variance_I**2
    of_variance_I = 2 * variance_I**2 * (num - 1) / np.maximum(spread_I, 1e-300)
    freedom_I = np.clip(of_variance_I, 1.0, freedom(of_N))
    found = []
    for level in levels:
        wider_I = (stdtrit(freedom_I, level) / float(ndtri(level))) ** 2
        found.append(np.maximum(total / np.maximum(variance_I * wider_I / plain_I, 1.0), least))
    return found


def shares_apart(
    hits_NI: Real[np.ndarray, "N I"], of_N: Real[np.ndarray, " N"], base_I: Float[np.ndarray, " I"], intervals: int
) -> Bool[np.ndarray, " I"]:
    """Which shares Σhits/Σof are surely not ``base_I``, if that is to hold of ``intervals`` of them together.

    Those of as many independent tokens as in ``share_intervals``, by the binomial distribution itself: who asks about
    the largest of many shares meets rare things, which a single token already makes frequent, and Wilson's interval
    of one token in ten leaves out a base of a thousandth at any level.
    """
    # The size is that of one interval: t at the level of thousands would leave as many tokens as there are samples.
    (size_I,) = _sizes_at([0.975], hits_NI, of_N)
    if (of_N > 0).sum() < FEW_SAMPLES:  # two that agree by chance look as if their tokens were independent
        size_I = np.full_like(size_I, kish_size(of_N[:, None])[0])
    share_I = hits_NI.sum(axis=0) / float(of_N.sum())
    apart: np.ndarray = surely_above(share_I, size_I, base_I, intervals)
    apart |= surely_above(1 - share_I, size_I, 1 - base_I, intervals)
    return apart


def surely_above(
    share_I: Float[np.ndarray, " I"], size_I: Float[np.ndarray, " I"], base_I: Float[np.ndarray, " I"], intervals: int
) -> Bool[np.ndarray, " I"]:
    """Whether Clopper and Pearson's lower end (1934) of a share of ``size_I`` independent draws, which may be a
    fraction, lies above ``base_I``, if that is to hold of ``intervals`` of them together (Bonferroni)."""
    from scipy.special import betainc

    hits_I = share_I * size_I
    # P(at least so many hits), for whole numbers that of a binomial distribution.
    chance_I = betainc(np.maximum(hits_I, 1e-9), size_I - hits_I + 1, base_I)
    above: np.ndarray = (chance_I <= 0.025 / max(1, intervals)) & (hits_I > 0)
    return above


def _parts(
    hits_NI: Real[np.ndarray, "N I"], of_N: Real[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "N I"], Float[np.ndarray, " I"]]:
    """What each sample adds to the variance of a share, and that of independent tokens with a hit and a miss more."""
    total, hits_I = float(of_N.sum()), hits_NI.sum(axis=0)
    even_I = (hits_I + 1) / (total + 2)
    rest_NI = _residuals(hits_NI, hits_I / total, of_N, total)
    return np.square(rest_NI, out=rest_NI), even_I * (1 - even_I) / total


def ratio_error(total_N: Real[np.ndarray, " N"], count_N: Real[np.ndarray, " N"]) -> float | None:
    """Standard error of Σtotal/Σcount, a mean over all tokens, from its parts by sample; None with fewer than two.

    Tokens of one sample rise and fall together, so taken as independent they would give too small an error. The
    interval takes Student's quantile at ``freedom(count_N)``.
    """
    if (count_N > 0).sum() < 2:
        return None
    size = float(count_N.sum())
    rest_N1 = _residuals(total_N[:, None], np.array([total_N.sum() / size]), count_N, size)
    return float(np.sqrt(np.square(rest_N1).sum()))


def contrast(
    hits_a_NI: Real[np.ndarray, "N I"],
    of_a_N: Real[np.ndarray, " N"],
    hits_b_NI: Real[np.ndarray, "N I"],
    of_b_N: Real[np.ndarray, " N"],
) -> Contrast:
    """Δ_i = f_i(A) − f_i(B), f = share of tokens that choose i.

    ``hits`` counts, sample by sample, tokens of A (of B) that choose i, ``of`` all of them. The half width is the
    t-quantile at the smaller ``freedom`` times the standard error; its floor is that of independent tokens with one
    hit and one miss added to each side (Agresti and Caffo 2000), for shares of 0 or 1 would look certain after a few
    tokens. No interval where A or B lies in a single sample.
    """
    total_a, total_b = float(of_a_N.sum()), float(of_b_N.sum())
    hits_a_I, hits_b_I = hits_a_NI.sum(axis=0), hits_b_NI.sum(axis=0)
    share_a, share_b = hits_a_I / max(total_a, 1.0), hits_b_I / max(total_b, 1.0)
    delta = share_a - share_b
    num_a, num_b = int((of_a_N > 0).sum()), int((of_b_N > 0).sum())
    if min(num_a, num_b) < 2:
        nothing = np.full(delta.shape, np.nan)
        return Contrast(share_a, share_b, delta, nothing, nothing)
    rest_NI = _residuals(hits_a_NI, share_a, of_a_N, total_a)
    rest_NI -= _residuals(hits_b_NI, share_b, of_b_N, total_b)
    variance = np.square(rest_NI, out=rest_NI).sum(axis=0)
    floor = _added(hits_a_I, total_a) + _added(hits_b_I, total_b)
    half = student(min(freedom(of_a_N), freedom(of_b_N))) * np.sqrt(np.maximum(variance, floor))
    return Contrast(share_a, share_b, delta, np.maximum(delta - half, -1.0), np.minimum(delta + half, 1.0))


def clear_of_all(
    apart: Contrast, of_a_N: Real[np.ndarray, " N"], of_b_N: Real[np.ndarray, " N"], intervals: int
) -> Bool[np.ndarray, " I"]:
    """Which Δ of ``contrast`` differ from 0, if that is to hold of ``intervals`` of them together (Bonferroni): who
    names one of many has looked at all of them."""
    least = min(freedom(of_a_N), freedom(of_b_N))
    half = np.maximum(apart.high - apart.delta, apart.delta - apart.low)
    clear: np.ndarray = np.abs(apart.delta) > half * (student(least, max(1, intervals)) / student(least))
    return clear


def _residuals(
    hits_NI: Real[np.ndarray, "N I"], share_I: Float[np.ndarray, " I"], of_N: Real[np.ndarray, " N"], total: float
) -> Float[np.ndarray, "N I"]:
    """(hits − share · of) / total / √(1 − 2 w + Σw²), w = of/total, so that their squares add up to the variance.

    The share is drawn to each sample by its weight; if samples scatter alike, what is left of one is that root of what
    it was: √(1 − 1/N) where all weigh the same. In place: new memory for each operation would take as long as these.
    """
    rest_NI: np.ndarray = np.multiply(share_I, of_N[:, None], dtype=np.float64)
    np.subtract(hits_NI, rest_NI, out=rest_NI)
    weight_N = of_N / total
    left_N = np.maximum(1.0 - 2.0 * weight_N + np.square(weight_N).sum(), 1e-12)
    rest_NI /= (total * np.sqrt(left_N))[:, None]
    return rest_NI


def _added(hits_I: Real[np.ndarray, " I"], total: float) -> Float[np.ndarray, " I"]:
    even = (hits_I + 1) / (total + 2)
    floor: np.ndarray = even * (1 - even) / (total + 2)
    return floor


@dataclass(frozen=True)
class Mean:
    """A mean over all tokens of a group; no interval from fewer than two samples."""

    mean: float
    low: float | None
    high: float | None


class EqualParts:
    """Tokens in the order of a key, cut into ``num_groups`` groups of one size.

    Tokens of one key are not told apart: each is in every group that their stretch reaches into, by the part of the
    stretch that lies there. So no tie is broken by chance, and groups may share a key.
    """

    def __init__(self, key_n: Float[np.ndarray, " n"], num_groups: int) -> None:
        # Means of the same tokens differ in the last digits, by the order in which they were added up.
        self.keys_U, self.code_n, counts = np.unique(np.round(key_n, 10), return_inverse=True, return_counts=True)
        self.code_n = self.code_n.reshape(-1)
        stop = np.cumsum(counts)
        edges = np.arange(num_groups + 1) * (len(key_n) / num_groups)
        overlap = np.minimum(stop[:, None], edges[None, 1:]) - np.maximum((stop - counts)[:, None], edges[None, :-1])
        self.part_UG = np.maximum(overlap, 0.0) / counts[:, None]
        self.counts_U = counts

    def weight(self, group: int) -> Float[np.ndarray, " n"]:
        """How much of each token is in the group."""
        weights: np.ndarray = self.part_UG[self.code_n, group]
        return weights

    def bounds(self, group: int) -> tuple[float, float, float]:
        """Lowest, mean and highest key of the group."""
        inside = self.part_UG[:, group] > 1e-12
        weights = (self.part_UG[:, group] * self.counts_U)[inside]
        keys = self.keys_U[inside]
        return float(keys[0]), float((weights * keys).sum() / weights.sum()), float(keys[-1])


def by_sample(
    value_n: Float[np.ndarray, " n"],
    weight_n: Float[np.ndarray, " n"],
    sample_n: Integer[np.ndarray, " n"],
    num_samples: int,
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Σ weight · value and Σ weight of each sample; tokens without a value (NaN) count nowhere."""
    known = np.isfinite(value_n)
    weight_n = np.where(known, weight_n, 0.0)
    sums = np.bincount(sample_n, weight_n * np.where(known, value_n, 0.0), minlength=num_samples)
    return sums, np.bincount(sample_n, weight_n, minlength=num_samples)


def mean_of(
    sum_N: Float[np.ndarray, " N"],
    of_N: Float[np.ndarray, " N"],
    *,
    share: bool = False,
    least: float = -np.inf,
    most: float = np.inf,
) -> Mean | None:
    """Σ sums / Σ weights; None without any weight. A ``share`` of yes or no gets that of ``share_interval``, which
    knows that a few that are all right may not all be. No value is below ``least`` or above ``most``."""
    total = float(of_N.sum())
    if total <= 1e-12:
        return None
    mean = float(sum_N.sum()) / total
    if (of_N > 0).sum() < 2:
        return Mean(mean, None, None)
    if share:
        low, high = share_interval(sum_N[:, None], of_N)
        return Mean(mean, float(low[0]), float(high[0]))
    half = student(freedom(of_N)) * (ratio_error(sum_N, of_N) or 0.0)
    return Mean(mean, max(mean - half, least), min(mean + half, most))


def difference(
    sum_a_N: Float[np.ndarray, " N"],
    of_a_N: Float[np.ndarray, " N"],
    sum_b_N: Float[np.ndarray, " N"],
    of_b_N: Float[np.ndarray, " N"],
    *,
    share: bool = False,
    width: float = np.inf,
) -> Mean | None:
    """Mean of a less mean of b, ``width`` at most. Samples that are in both count once: what they share cancels."""
    total_a, total_b = float(of_a_N.sum()), float(of_b_N.sum())
    if total_a <= 1e-12 or total_b <= 1e-12:
        return None
    mean_a, mean_b = float(sum_a_N.sum()) / total_a, float(sum_b_N.sum()) / total_b
    delta = mean_a - mean_b
    if min((of_a_N > 0).sum(), (of_b_N > 0).sum()) < 2:
        return Mean(delta, None, None)
    if share:
        apart = contrast(sum_a_N[:, None], of_a_N, sum_b_N[:, None], of_b_N)
        return Mean(delta, float(apart.low[0]), float(apart.high[0]))
    rest_N1 = _residuals(sum_a_N[:, None], np.array([mean_a]), of_a_N, total_a)
    rest_N1 -= _residuals(sum_b_N[:, None], np.array([mean_b]), of_b_N, total_b)
    error = float(np.sqrt(np.square(rest_N1).sum()))
    half = student(min(freedom(of_a_N), freedom(of_b_N))) * error
    return Mean(delta, max(delta - half, -width), min(delta + half, width))


@dataclass(frozen=True)
class GroupMeans:
    """Mean of each group of samples with a 95 % interval; NaN where a group has none."""

    mean: Float[np.ndarray, " G"]
    low: Float[np.ndarray, " G"]
    high: Float[np.ndarray, " G"]
    clear: Bool[np.ndarray, " G"]
    """whether it differs from the mean of all other groups, when that is to hold of all of them together"""


def group_means(
    value_N: Float[np.ndarray, " N"],
    weight_N: Real[np.ndarray, " N"],
    group_N: Integer[np.ndarray, " N"],
    num_groups: int,
) -> GroupMeans:
    """Weighted means over the samples of each group, as ``mean_of`` has them; weights are positive.

    A group is ``clear`` where the interval of its mean less that of the others leaves 0 out at 1 − 0.05/G (Bonferroni):
    who names the largest of many has looked at all of them. The others count with the variance of their weighted
    mean, K/(K − 1) times, K how many of them are effective. Where all samples of a group have one and the same value,
    their scatter says nothing of its error: a few of a rare label do where most samples have that value. Their error
    is then that of as many samples of the other groups. For the same reason, of values with a long tail or many ties,
    no group is ``clear`` that as many samples drawn from the others could be: most draws miss the tail, and scatter
    too little.
    """
    order = np.argsort(group_N, kind="stable")
    ends = np.cumsum(np.bincount(group_N, minlength=num_groups))[:-1]
    mean_G, half_G, error_G = np.full((3, num_groups), np.nan)
    freedom_G = np.ones(num_groups)
    parts = (np.split(values[order], ends) for values in (value_N * weight_N, weight_N.astype(np.float64)))
    for group, (sum_n, of_n) in enumerate(zip(*parts, strict=True)):
        if not len(of_n):
            continue
        mean_G[group], freedom_G[group] = sum_n.sum() / of_n.sum(), freedom(of_n)
        if (error := ratio_error(sum_n, of_n)) is not None:
            error_G[group], half_G[group] = error, student(freedom_G[group]) * error
    # Sums of the other groups: those of all less its own.
    powers = (weight_N, weight_N * value_N, weight_N**2, weight_N**2 * value_N, (weight_N * value_N) ** 2)
    of_G, sum_G, square_G, cross_G, both_G = (
        total.sum() - total for total in (np.bincount(group_N, power, num_groups) for power in powers)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        rest_G, effective_G = sum_G / of_G, of_G**2 / square_G
        variance_G = (both_G - 2 * rest_G * cross_G + rest_G**2 * square_G) / of_G**2
        variance_G = np.maximum(variance_G, 0.0) * effective_G / (effective_G - 1)
        own_G = np.bincount(group_N, weight_N, num_groups) ** 2 / np.bincount(group_N, weight_N**2, num_groups)
        tied_G = (error_G <= 1e-12 * np.maximum(1.0, np.abs(mean_G))) & np.isfinite(variance_G)
        error_G[tied_G] = np.sqrt(variance_G * effective_G / own_G)[tied_G]
        half_G[tied_G] = [student(own) * error for own, error in zip(freedom_G[tied_G], error_G[tied_G], strict=True)]
        several = int(np.isfinite(error_G).sum())
        apart_G = np.sqrt(error_G**2 + variance_G) * [
            student(max(1.0, min(own, rest - 1)), max(1, several)) if rest > 1 else np.nan
            for own, rest in zip(freedom_G.tolist(), effective_G.tolist(), strict=True)
        ]
        alike_G = np.sqrt(variance_G * effective_G / own_G + variance_G)
        alike_G *= [
            student(max(1.0, rest - 1), max(1, several)) if rest > 1 else np.nan for rest in effective_G.tolist()
        ]
        clear_G: np.ndarray = np.abs(mean_G - rest_G) > np.maximum(apart_G, alike_G)
    return GroupMeans(mean_G, mean_G - half_G, mean_G + half_G, clear_G)


@dataclass(frozen=True)
class Line:
    """Slope of the least-squares line of one number over another; no interval from fewer than three samples, or where
    all but one have the same x."""

    slope: float
    low: float | None
    high: float | None


def line(x_N: Float[np.ndarray, " N"], y_N: Float[np.ndarray, " N"]) -> Line:
    """Slope of y over x; ``x_N`` must have a spread. Samples need not scatter as much everywhere.

    The standard error is MacKinnon and White's "HC3" (Journal of Econometrics 29, 1985): a residual counts 1/(1 − h)
    times, h what the sample itself adds to its value on the line, since one that lies far out draws the line to itself.
    Student's quantile has Bell and McCaffrey's degrees of freedom (Survey Methodology 28, 2002; Imbens and Kolesár,
    Review of Economics and Statistics 98, 2016): few, where the slope hangs on a few samples.
    """
    num, across_N = len(x_N), x_N - x_N.mean()
    squares = float((across_N**2).sum())
    slope = float((across_N * y_N).sum()) / squares
    own_N = 1 / num + across_N**2 / squares
    left_N = 1 - own_N
    if num < 3 or left_N.min() < 1e-9:
        return Line(slope, None, None)
    rest_N = (y_N - y_N.mean() - slope * across_N) / left_N
    error = float(np.sqrt(((across_N * rest_N) ** 2).sum())) / squares
    # (tr A)² / tr A² of A = (1 − H) D (1 − H), H_ij = 1/N + x_i x_j / Σx², without a table of N × N.
    part_N = across_N**2 / left_N
    pairs = (part_N**2 * (left_N**2 - own_N**2)).sum() + (part_N.sum() / num) ** 2
    pairs += 2 * (part_N * across_N).sum() ** 2 / (num * squares) + ((part_N * across_N**2).sum() / squares) ** 2
    half = student(max(1.0, squares**2 / pairs)) * error
    return Line(slope, slope - half, slope + half)
