"""Shares, means, lifts and contrasts with 95 % intervals that account for the similarity of tokens within a sample.

Shapes: n tokens (or samples, one token each); N samples; G groups; U distinct keys; I things that are compared
(modules, paths). Every interval takes samples, not tokens, as what was drawn: a share is a ratio of two sums over
samples, its variance that of the linearised ratio (Cochran, "Sampling Techniques", 1977, section 6.4); that of a share
is never below that of independent tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer, Real

Z = 1.959963984540054
"""standard deviations on both sides of 95 %"""


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
    return np.clip(middle - half, 0.0, 1.0), np.clip(middle + half, 0.0, 1.0)


def kish_size(of_NI: Real[np.ndarray, "N I"]) -> Float[np.ndarray, " I"]:
    """Effective number of samples (Σx)²/Σx² of tokens that fall x in each: what counts for a label, which all tokens
    of a sample share (Kish 1965)."""
    squares = (of_NI.astype(np.float64) ** 2).sum(axis=0)
    sizes: np.ndarray = of_NI.sum(axis=0).astype(np.float64) ** 2 / np.maximum(squares, 1e-300)
    return sizes


def effective_size(hits_NI: Real[np.ndarray, "N I"], of_N: Real[np.ndarray, " N"]) -> Float[np.ndarray, " I"]:
    """Independent tokens that would tell as much about the shares Σhits/Σof: at most Σof, and 1 of one sample."""
    total = float(of_N.sum())
    if (of_N > 0).sum() < 2:
        return np.ones(hits_NI.shape[1])
    hits_I = hits_NI.sum(axis=0)
    share, even = hits_I / total, (hits_I + 1) / (total + 2)
    variance = _clustered(_residuals(hits_NI, share, of_N, total), of_N > 0)
    plain = even * (1 - even) / total
    sizes: np.ndarray = total / np.maximum(variance / plain, 1.0)
    return sizes


def ratio_error(total_N: Real[np.ndarray, " N"], count_N: Real[np.ndarray, " N"]) -> float | None:
    """Standard error of Σtotal/Σcount, a mean over all tokens, from its parts by sample; None with fewer than two.

    Tokens of one sample rise and fall together, so taken as independent they would give too small an error.
    """
    if len(total_N) < 2:
        return None
    rest_N1 = ((total_N - total_N.sum() / count_N.sum() * count_N) / count_N.sum())[:, None]
    return float(np.sqrt(_clustered(rest_N1, count_N > 0)[0]))


def contrast(
    hits_a_NI: Real[np.ndarray, "N I"],
    of_a_N: Real[np.ndarray, " N"],
    hits_b_NI: Real[np.ndarray, "N I"],
    of_b_N: Real[np.ndarray, " N"],
) -> Contrast:
    """Δ_i = f_i(A) − f_i(B), f = share of tokens that choose i.

    ``hits`` counts, sample by sample, tokens of A (of B) that choose i, ``of`` all of them. The half width is the
    t-quantile of the samples times the standard error; its floor is that of independent tokens with one hit and one
    miss added to each side (Agresti and Caffo 2000), for shares of 0 or 1 would look certain after a few tokens. No
    interval where A or B lies in a single sample.
    """
    from scipy.special import stdtrit  # only for who asks

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
    variance = _clustered(rest_NI, (of_a_N > 0) | (of_b_N > 0))
    floor = _added(hits_a_I, total_a) + _added(hits_b_I, total_b)
    half = float(stdtrit(min(num_a, num_b) - 1, 0.975)) * np.sqrt(np.maximum(variance, floor))
    return Contrast(share_a, share_b, delta, np.maximum(delta - half, -1.0), np.minimum(delta + half, 1.0))


def _residuals(
    hits_NI: Real[np.ndarray, "N I"], share_I: Float[np.ndarray, " I"], of_N: Real[np.ndarray, " N"], total: float
) -> Float[np.ndarray, "N I"]:
    """(hits − share · of) / total, in place: new memory for each operation would take as long as these."""
    rest_NI: np.ndarray = np.multiply(share_I, of_N[:, None], dtype=np.float64)
    np.subtract(hits_NI, rest_NI, out=rest_NI)
    rest_NI /= total
    return rest_NI


def _added(hits_I: Real[np.ndarray, " I"], total: float) -> Float[np.ndarray, " I"]:
    even = (hits_I + 1) / (total + 2)
    floor: np.ndarray = even * (1 - even) / (total + 2)
    return floor


def _clustered(rest_NI: Real[np.ndarray, "N I"], present_N: Bool[np.ndarray, " N"]) -> Float[np.ndarray, " I"]:
    """Variance of a sum of residuals over the samples that are there."""
    num = int(present_N.sum())
    there_NI = rest_NI if num == len(rest_NI) else rest_NI[present_N]
    variance: np.ndarray = num / (num - 1) * np.square(there_NI).sum(axis=0)
    return variance


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


def mean_of(sum_N: Float[np.ndarray, " N"], of_N: Float[np.ndarray, " N"], *, share: bool = False) -> Mean | None:
    """Σ sums / Σ weights; None without any weight. A ``share`` of yes or no gets Wilson's interval, which knows that
    a few that are all right may not all be."""
    total = float(of_N.sum())
    if total <= 1e-12:
        return None
    mean = float(sum_N.sum()) / total
    if (of_N > 0).sum() < 2:
        return Mean(mean, None, None)
    if share:
        low, high = wilson(np.array([mean]), effective_size(sum_N[:, None], of_N))
        return Mean(mean, float(low[0]), float(high[0]))
    half = _quantile(of_N > 0) * (ratio_error(sum_N, of_N) or 0.0)
    return Mean(mean, mean - half, mean + half)


def difference(
    sum_a_N: Float[np.ndarray, " N"],
    of_a_N: Float[np.ndarray, " N"],
    sum_b_N: Float[np.ndarray, " N"],
    of_b_N: Float[np.ndarray, " N"],
    *,
    share: bool = False,
) -> Mean | None:
    """Mean of a less mean of b. Samples that are in both count once: what they share cancels."""
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
    rest_N = (sum_a_N - mean_a * of_a_N) / total_a - (sum_b_N - mean_b * of_b_N) / total_b
    there = (of_a_N > 0) | (of_b_N > 0)
    num = int(there.sum())
    error = float(np.sqrt(num / (num - 1) * (rest_N[there] ** 2).sum()))
    half = max(_quantile(of_a_N > 0), _quantile(of_b_N > 0)) * error
    return Mean(delta, delta - half, delta + half)


@dataclass(frozen=True)
class Line:
    """Slope of the least-squares line of one number over another; no interval from fewer than three samples."""

    slope: float
    low: float | None
    high: float | None


def line(x_N: Float[np.ndarray, " N"], y_N: Float[np.ndarray, " N"]) -> Line:
    """Slope of y over x, with White's standard error (Econometrica 48, 1980; times N / (N − 2), "HC1"): samples need
    not scatter as much everywhere. ``x_N`` must have a spread."""
    from scipy.special import stdtrit  # only for who asks

    num, across_N = len(x_N), x_N - x_N.mean()
    squares = float((across_N**2).sum())
    slope = float((across_N * y_N).sum()) / squares
    if num < 3:
        return Line(slope, None, None)
    rest_N = y_N - y_N.mean() - slope * across_N
    error = float(np.sqrt(num / (num - 2) * ((across_N * rest_N) ** 2).sum())) / squares
    half = float(stdtrit(num - 2, 0.975)) * error
    return Line(slope, slope - half, slope + half)


def _quantile(present_N: Bool[np.ndarray, " N"]) -> float:
    from scipy.special import stdtrit  # only for who asks

    return float(stdtrit(int(present_N.sum()) - 1, 0.975))
