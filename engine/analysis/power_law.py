"""Power-law test of path counts: discrete maximum likelihood, goodness of fit, lognormal alternative.

Counts come as a histogram, so that ten million paths cost as much as their few thousand distinct counts.

Shapes: P paths, U different counts. Source: Clauset, Shalizi and Newman, "Power-law distributions in empirical
data" (2009), sections 3.1 (estimate), 3.3 (x_min), 4.1 (p-value), 5 and appendix C (likelihood ratio, Vuong 1989).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import erfc, log_ndtr, zeta

from tokenpaths.engine.analysis.path_statistics import Histogram
from tokenpaths.engine.base.errors import QueryTimeout

FEWEST = 50
"""paths at or above x_min below which nothing is fitted: estimates from fewer are biased (section 3.5)"""
MOST_COMPARED = 60_000
"""values of x_min, times counts that each is compared at, up to which all are tried"""
MOST_CUTS = 64
"""otherwise so many of them at once, then those between the neighbours of the best, and so on"""
ALPHA_RANGE = (1.01, 12.0)
MOST_PLACES = 600
"""different counts at which data and law are compared: all small ones, then ever wider gaps"""
WIDEST_SIGMA = 300.0
"""of the logs of counts; a wider lognormal is a power law in all but name over any counts there are"""
_NUDGE = 1e-4
"""between two α whose likelihoods are compared for its slope"""
_FAR = 50.0
_TABLE = 20_000
"""counts above x_min that are drawn exactly; beyond, the continuous law rounded is as good (appendix D)"""


@dataclass(frozen=True)
class PowerLaw:
    """p(count = x) ∝ x^−α for x ≥ x_min."""

    alpha: float
    alpha_error: float
    """standard error, (α − 1)/√num_tail"""
    x_min: int
    num_tail: int
    """paths with at least ``x_min`` tokens"""
    ks: float
    """Kolmogorov–Smirnov distance of tail and law; x_min makes it smallest"""


@dataclass(frozen=True)
class AgainstLognormal:
    """A power law beside a lognormal fitted to the same tail."""

    ratio: float
    """log likelihood ratio divided by its standard deviation; positive: the power law fits better"""
    p_value: float
    """how likely so large a ratio is when both fit equally well"""
    mu: float
    sigma: float


def fit_power_law(histogram: Histogram, x_min: int | None = None) -> PowerLaw | None:
    """The law with the x_min of the smallest distance, or of the one given; None for too few paths or one count."""
    left = histogram.paths[::-1].cumsum()[::-1]
    able = np.arange(int((left[:-1] >= FEWEST).sum()))
    if x_min is not None:
        able = np.searchsorted(histogram.values, [x_min])
        able = able[able < len(histogram.values) - 1]
        able = able[left[able] >= FEWEST]
    if not len(able):
        return None
    # All tails at once: a p-value takes thousands of fits, and one by one they are mostly calls of functions.
    starts = _some(able, len(histogram.values))
    alphas, distances = _fit_tails(histogram, starts, left[starts])
    while len(starts) < len(able):  # those between the best one's neighbours, until none is left out
        best = int(np.argmin(distances))
        first, last = np.searchsorted(able, [starts[max(best - 1, 0)], starts[min(best + 1, len(starts) - 1)]])
        able = able[first : last + 1]
        starts = _some(able, len(histogram.values))
        alphas, distances = _fit_tails(histogram, starts, left[starts])
    best = int(np.argmin(distances))
    alpha, num_tail = float(alphas[best]), int(left[starts[best]])
    place = int(histogram.values[starts[best]])
    return PowerLaw(alpha, (alpha - 1.0) / num_tail**0.5, place, num_tail, float(distances[best]))


@dataclass(frozen=True)
class Verdict:
    """A law, how well it does and against what; ``law`` None where nothing could be fitted, ``reason`` says why."""

    law: PowerLaw | None
    p_value: float | None = None
    beside: AgainstLognormal | None = None
    reason: str | None = None


def judge(
    histogram: Histogram, draws: int = 100, seed: int = 0, ends: float = math.inf, of: str = "these counts"
) -> Verdict:
    """Fit, goodness of fit (unless ``draws`` is 0) and the lognormal, of one run's path counts; ``of`` names them.

    Raises:
        QueryTimeout: the draws were not all made at ``ends``, by ``time.monotonic``.
    """
    num_paths = int(histogram.paths.sum())
    if num_paths < FEWEST:
        return Verdict(None, reason=f"{num_paths} paths are too few to fit a law to; it takes {FEWEST}")
    if len(histogram.values) < 2:
        each = "1 token" if histogram.values[0] == 1 else f"{histogram.values[0]} tokens"
        return Verdict(None, reason=f"all paths are taken equally often ({each} each)")
    law = fit_power_law(histogram)
    if law is None:
        return Verdict(None, reason=f"no {FEWEST} paths are taken by more than the fewest tokens")
    if law.alpha > ALPHA_RANGE[1] - 0.01:
        # The best exponent lies beyond those that are tried: this one would be the edge of the search, not a fit.
        return Verdict(
            None,
            reason=f"almost all paths have the same number of tokens ({law.x_min}): counts fall off faster than with "
            f"α = {ALPHA_RANGE[1]:g}",
        )
    if law.alpha < ALPHA_RANGE[0] + _NUDGE:
        return Verdict(
            None,
            reason=f"counts fall off more slowly than with α = {ALPHA_RANGE[0]:g}, where hardly a law adds up to 1",
        )
    p_value = goodness_of_fit(histogram, law, draws, seed, ends, of) if draws else None
    return Verdict(law, p_value, against_lognormal(histogram, law))


def goodness_of_fit(
    histogram: Histogram,
    law: PowerLaw,
    draws: int = 100,
    seed: int = 0,
    ends: float = math.inf,
    of: str = "these counts",
) -> float:
    """p = (1 + data sets drawn from the law that lie at least as far from *their* fit) / (1 + draws), so never 0; at
    most 0.1: the law is refused, which takes nine draws or more.

    Below x_min the drawn paths have the observed counts (section 4.1). The standard error of the share is at most
    1/(2·√draws). That the observed data set counts as one of the draws keeps a test of few draws honest (Phipson and
    Smyth, "Permutation P-values should never be zero", 2010). Drawn data sets with too few paths for a fit tell
    nothing and are left out.

    Raises:
        QueryTimeout: the draws were not all made at ``ends``, by ``time.monotonic``.
    """
    rng, draw = np.random.default_rng(seed), drawing(histogram, law)
    fits = []
    for made in range(draws):
        if time.monotonic() > ends:  # a p-value of the draws made would hang on the machine
            raise QueryTimeout(
                f"{made:,} of {draws:,} draws for {of} were made in time: ask for fewer draws", field="draws"
            )
        if (fit := fit_power_law(draw(rng))) is not None:
            fits.append(fit)
    return (1 + sum(fit.ks >= law.ks for fit in fits)) / (1 + len(fits))


def rank_curve(law: PowerLaw, largest: int, points: int = 40) -> tuple[Float[np.ndarray, " R"], Int[np.ndarray, " R"]]:
    """The law as a rank–frequency curve: expected rank of a path with each of these counts, x_min … ``largest``.

    The rank of a path is the number of paths taken at least as often: num_tail · P(count ≥ x).
    """
    counts = np.unique(np.rint(np.geomspace(law.x_min, max(largest, law.x_min), points)).astype(np.int64))
    return law.num_tail * zeta(law.alpha, counts.astype(np.float64)) / zeta(law.alpha, law.x_min), counts


def against_lognormal(histogram: Histogram, law: PowerLaw) -> AgainstLognormal:
    """Vuong's test of the power law against a discrete lognormal on the same tail."""
    from scipy.optimize import minimize  # over a second, and only this needs it

    tail = histogram.tail(law.x_min)
    logs, edges = np.log(tail.values), np.log([tail.values - 0.5, tail.values + 0.5])
    mean = np.average(logs, weights=tail.paths)
    spread = max(0.1, np.sqrt(np.average((logs - mean) ** 2, weights=tail.paths)))

    # In (μ/σ², log σ): towards a power law μ and σ run away together, but their ratio, the slope, stands still.
    def cost(place: Float[np.ndarray, " two"]) -> float:
        sigma = np.exp(place[1])
        return -float(_lognormal_logs(edges, law.x_min, place[0] * sigma**2, sigma) @ tail.paths)

    bounds = ((None, None), (None, np.log(WIDEST_SIGMA)))
    best = min(
        (
            minimize(
                cost,
                (mu / sigma**2, np.log(sigma)),
                method="Nelder-Mead",
                bounds=bounds,
                options={"maxiter": 2000, "xatol": 1e-4, "fatol": 1e-5},
            )
            for mu, sigma in ((mean, spread), (0.0, min(2 * spread + 1, WIDEST_SIGMA)))
        ),
        key=lambda found: found.fun,
    )
    sigma = float(np.exp(best.x[1]))
    mu = float(best.x[0]) * sigma**2
    difference = _power_logs(tail.values, law.x_min, law.alpha) - _lognormal_logs(edges, law.x_min, mu, sigma)
    total = tail.paths.sum()
    ratio = float(difference @ tail.paths)
    variance = float(np.average((difference - ratio / total) ** 2, weights=tail.paths))
    if variance < 1e-18:
        return AgainstLognormal(0.0, 1.0, mu, sigma)
    normalised = ratio / np.sqrt(total * variance)
    return AgainstLognormal(float(normalised), float(erfc(abs(normalised) / np.sqrt(2))), mu, sigma)


def drawing(histogram: Histogram, law: PowerLaw) -> Callable[[np.random.Generator], Histogram]:
    """A function that draws as many paths again: from the law above x_min, from the observed counts below it."""
    num_paths = int(histogram.paths.sum())
    below = histogram.values < law.x_min
    weights = histogram.paths[below]
    shares_below = weights / max(1, weights.sum())
    table = np.arange(law.x_min, law.x_min + _TABLE)
    shares = table.astype(np.float64) ** -law.alpha / zeta(law.alpha, law.x_min)
    shares = np.append(shares, max(0.0, 1.0 - shares.sum()))
    edge = law.x_min + _TABLE - 0.5

    def draw(rng: np.random.Generator) -> Histogram:
        above = int(rng.binomial(num_paths, law.num_tail / num_paths))
        paths = [rng.multinomial(num_paths - above, shares_below) if len(weights) else weights]
        drawn = rng.multinomial(above, shares)
        values = [histogram.values[below], table[drawn[:-1] > 0]]
        paths.append(drawn[:-1][drawn[:-1] > 0])
        if drawn[-1]:
            far = edge * (1.0 - rng.random(int(drawn[-1]))) ** (-1.0 / (law.alpha - 1.0)) + 0.5
            rare, times = np.unique(np.minimum(far, 2.0**62).astype(np.int64), return_counts=True)
            values.append(rare)
            paths.append(times)
        together, counts = np.concatenate(values).astype(np.int64), np.concatenate(paths).astype(np.int64)
        return Histogram(together[counts > 0], counts[counts > 0])

    return draw


def _some(able: Int[np.ndarray, " C"], num_values: int) -> Int[np.ndarray, " tried"]:
    """All if that is quick, else ``MOST_CUTS`` of them, dense at the start, with the first and the last."""
    if len(able) <= max(MOST_CUTS, MOST_COMPARED // min(num_values, MOST_PLACES)):
        return able
    places, kept = _thinned(np.array([len(able)]), MOST_CUTS)
    some: np.ndarray = able[places[kept]]
    return some


def _thinned(nums: Int[np.ndarray, " C"], most: int) -> tuple[Int[np.ndarray, "C most"], Bool[np.ndarray, "C most"]]:
    """Of each of ``nums`` the indices 0 … num − 1, at most ``most``: dense at the start, ever wider gaps after; and
    which of these places of the table hold one."""
    places = np.tile(np.arange(most), (len(nums), 1))
    many = nums > most
    places[many] = np.rint(np.geomspace(1.0, nums[many], most)).astype(np.int64).T - 1
    kept = places < nums[:, None]
    kept[:, 1:] &= places[:, 1:] > places[:, :-1]
    return places, kept


def _fit_tails(
    histogram: Histogram, starts: Int[np.ndarray, " C"], num_tail: Int[np.ndarray, " C"]
) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
    """α and Kolmogorov–Smirnov distance of the tails that begin at these places of ``histogram.values``."""
    values, paths = histogram.values.astype(np.float64), histogram.paths
    summed = (np.log(values) * paths)[::-1].cumsum()[::-1]
    alphas = _alphas(values[starts], summed[starts] / num_tail)
    whole = zeta(alphas, values[starts])
    places, kept = _thinned(len(values) - starts, MOST_PLACES)
    sizes = kept.sum(axis=1)
    looked = (starts[:, None] + places)[kept]
    tail = np.repeat(np.arange(len(starts)), sizes)
    x, alpha = values[looked], alphas[tail]
    # P(count ≥ x) and, one term later in the sum, P(count > x).
    term = x**-alpha
    at_least = _zeta(alpha, x, term) / whole[tail]
    above = at_least - term / whole[tail]
    up_to = np.concatenate([[0], paths.cumsum()])
    first, num = up_to[starts][tail], num_tail[tail]
    # Between two counts that occur the law goes on rising while the data stand still: look at both edges.
    off = np.maximum(
        np.abs((up_to[looked + 1] - first) / num - (1.0 - above)),
        np.abs((up_to[looked] - first) / num - (1.0 - at_least)),
    )
    return alphas, np.maximum.reduceat(off, np.cumsum(sizes) - sizes)


def _alphas(cuts: Float[np.ndarray, " C"], mean_logs: Float[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
    """The α that makes log ζ(α, x_min) + α·(mean log count) smallest, within ``ALPHA_RANGE``.

    Newton's steps for the zero of the derivative, which rises and flattens: from the second on they come from below
    and cannot overshoot.
    """
    low, high = ALPHA_RANGE
    alphas: np.ndarray = np.clip(1.0 + 1.0 / np.maximum(mean_logs - np.log(cuts - 0.5), 1e-9), low + _NUDGE, high)
    for _ in range(60):
        before, here, after = (np.log(zeta(alphas + nudge, cuts)) for nudge in (-_NUDGE, 0.0, _NUDGE))
        slope = (after - before) / (2 * _NUDGE) + mean_logs
        bend = (after - 2 * here + before) / _NUDGE**2
        moved = np.clip(alphas - slope / np.maximum(bend, 1e-9), low, high)
        done = np.abs(moved - alphas).max() < 1e-7
        alphas = moved
        if done:
            break
    return alphas


def _zeta(
    alpha: Float[np.ndarray, " n"], x: Float[np.ndarray, " n"], term: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Hurwitz' ζ(α, x) where ``term`` = x^−α is known: Euler and Maclaurin's sum, to 10⁻⁹ from ``_FAR`` on."""
    far: np.ndarray = term * (
        x / (alpha - 1.0) + 0.5 + alpha / (12.0 * x) - alpha * (alpha + 1) * (alpha + 2) / (720.0 * x**3)
    )
    near = x < _FAR
    far[near] = zeta(alpha[near], x[near])
    return far


def _power_logs(values: Int[np.ndarray, " U"], x_min: int, alpha: float) -> Float[np.ndarray, " U"]:
    logs: np.ndarray = -alpha * np.log(values) - np.log(zeta(alpha, x_min))
    return logs


def _lognormal_logs(edges: Float[np.ndarray, "two U"], x_min: int, mu: float, sigma: float) -> Float[np.ndarray, " U"]:
    """Logs of the lognormal's mass between x − ½ and x + ½ (their logs are ``edges``), given that it is above x_min."""
    low, high = (edges - mu) / sigma
    # Φ(high) − Φ(low) on the side where both are small, so that far tails keep their digits.
    flip = low > 0
    small, large = np.where(flip, -high, low), np.where(flip, -low, high)
    logs = log_ndtr(large) + np.log1p(-np.exp(np.minimum(log_ndtr(small) - log_ndtr(large), -1e-12)))
    tail: np.ndarray = logs - log_ndtr(-(np.log(x_min - 0.5) - mu) / sigma)
    return tail
