"""Shares, lifts and contrasts with 95 % intervals that account for the similarity of tokens within a sample.

Shapes: N samples; I things that are compared (modules, paths). Every interval takes samples, not tokens, as what was
drawn: a share is a ratio of two sums over samples, its variance that of the linearised ratio (Cochran, "Sampling
Techniques", 1977, section 6.4), never below that of independent tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Real

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
    share = hits_NI.sum(axis=0) / total
    even = (hits_NI.sum(axis=0) + 1) / (total + 2)
    variance = _clustered((hits_NI - share * of_N[:, None]) / total, of_N > 0)
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
    share_a = hits_a_NI.sum(axis=0) / max(total_a, 1.0)
    share_b = hits_b_NI.sum(axis=0) / max(total_b, 1.0)
    delta = share_a - share_b
    num_a, num_b = int((of_a_N > 0).sum()), int((of_b_N > 0).sum())
    if min(num_a, num_b) < 2:
        nothing = np.full(delta.shape, np.nan)
        return Contrast(share_a, share_b, delta, nothing, nothing)
    rest_NI = (hits_a_NI - share_a * of_a_N[:, None]) / total_a - (hits_b_NI - share_b * of_b_N[:, None]) / total_b
    variance = _clustered(rest_NI, (of_a_N > 0) | (of_b_N > 0))
    floor = _added(hits_a_NI, total_a) + _added(hits_b_NI, total_b)
    half = float(stdtrit(min(num_a, num_b) - 1, 0.975)) * np.sqrt(np.maximum(variance, floor))
    return Contrast(share_a, share_b, delta, np.maximum(delta - half, -1.0), np.minimum(delta + half, 1.0))


def _added(hits_NI: Real[np.ndarray, "N I"], total: float) -> Float[np.ndarray, " I"]:
    even = (hits_NI.sum(axis=0) + 1) / (total + 2)
    floor: np.ndarray = even * (1 - even) / (total + 2)
    return floor


def _clustered(rest_NI: Real[np.ndarray, "N I"], present_N: Bool[np.ndarray, " N"]) -> Float[np.ndarray, " I"]:
    """Variance of a sum of residuals over the samples that are there."""
    num = int(present_N.sum())
    variance: np.ndarray = num / (num - 1) * (rest_NI[present_N] ** 2).sum(axis=0)
    return variance
