"""Power laws of path counts, beside the ``powerlaw`` package and laws that are known."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import zeta
from scipy.stats import zipf

from tokenpaths.engine.analysis import power_law
from tokenpaths.engine.analysis.power_law import (
    FEWEST,
    MOST_CUTS,
    Histogram,
    against_lognormal,
    drawing,
    fit_power_law,
    goodness_of_fit,
    judge,
)
from tokenpaths.engine.base.errors import QueryTimeout


def lognormal_counts(size: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.maximum(1, np.rint(np.exp(rng.normal(2.0, 1.2, size)))).astype(np.int64)


SAMPLES = {
    "steep": zipf.rvs(2.3, size=4000, random_state=1),
    "flat": zipf.rvs(1.6, size=3000, random_state=2),
    "lognormal": lognormal_counts(4000),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_powerlaw_package_says_the_same(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import powerlaw

        law = fit_power_law(Histogram.of(SAMPLES[name]))
        other = powerlaw.Fit(SAMPLES[name], discrete=True, xmin=law.x_min, verbose=False)
        ratio, p_value = other.distribution_compare("power_law", "lognormal", normalized_ratio=True)
        assert law.alpha == pytest.approx(other.power_law.alpha, abs=2e-3)
        assert law.ks == pytest.approx(other.power_law.D, abs=5e-4)
        assert law.num_tail == (SAMPLES[name] >= law.x_min).sum()
        beside = against_lognormal(Histogram.of(SAMPLES[name]), law)
        assert beside.ratio == pytest.approx(ratio, abs=0.02)
        assert beside.p_value == pytest.approx(p_value, abs=0.01)
        assert (beside.mu, beside.sigma) == pytest.approx((other.lognormal.mu, other.lognormal.sigma), rel=0.01)


def one_by_one(histogram: Histogram) -> tuple[float, float, int]:
    """KS distance, α and x_min of the best tail, as the formulas stand: the naive twin of ``fit_power_law``."""
    found = []
    left = histogram.paths[::-1].cumsum()[::-1]
    for cut in histogram.values[:-1][left[:-1] >= FEWEST]:
        tail = histogram.tail(int(cut))
        size, logs = tail.paths.sum(), np.log(tail.values) @ tail.paths
        best = minimize_scalar(
            lambda a, size=size, logs=logs, cut=cut: size * np.log(zeta(a, cut)) + a * logs,
            bounds=(1.01, 12.0),
            method="bounded",
            options={"xatol": 1e-7},
        )
        whole, seen, off = zeta(best.x, cut), 0, 0.0
        for value, paths in zip(tail.values.tolist(), tail.paths.tolist(), strict=True):
            off = max(off, abs(seen / size - (1 - zeta(best.x, value) / whole)))
            seen += paths
            off = max(off, abs(seen / size - (1 - zeta(best.x, value + 1) / whole)))
        found.append((off, float(best.x), int(cut)))
    return min(found)


@pytest.mark.parametrize("seed", range(6))
def test_all_tails_at_once_are_the_tails_one_by_one(seed):
    rng = np.random.default_rng(seed)
    counts = zipf.rvs(rng.uniform(1.4, 4.0), size=int(rng.integers(60, 1500)), random_state=seed)
    histogram = Histogram.of(counts)
    law = fit_power_law(histogram)
    distance, alpha, x_min = one_by_one(histogram)
    assert (law.ks, law.alpha) == pytest.approx((distance, alpha), abs=2e-5)
    assert law.x_min == x_min


def mixed_counts(seed: int) -> np.ndarray:
    """Counts of no one law, most of which are different."""
    rng = np.random.default_rng(seed)
    others = [rng.integers(1, 200, 600), rng.lognormal(3, 1.2, 500).astype(np.int64) + 1]
    return np.minimum(np.concatenate([rng.zipf(1.8, 600), *others]), 3000)


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_every_count_is_tried_where_many_differ(seed, monkeypatch):
    histogram = Histogram.of(mixed_counts(seed))
    assert len(histogram.values) > 3 * MOST_CUTS
    law = fit_power_law(histogram)
    distance, alpha, x_min = one_by_one(histogram)
    assert (law.ks, law.alpha, law.x_min) == pytest.approx((distance, alpha, x_min), abs=2e-5)
    # Of so many that not all can be tried those around the best are, down to each of them.
    monkeypatch.setattr(power_law, "MOST_COMPARED", 0)
    some = fit_power_law(histogram)
    values = histogram.values.tolist()
    place = values.index(some.x_min)
    assert some.ks - law.ks < 0.004
    assert some.ks <= min(fit_power_law(histogram, x_min=values[near]).ks for near in (place - 1, place + 1))


@pytest.mark.parametrize("exponent", [1.5, 2.0, 2.5, 3.2])
def test_a_known_exponent_is_found_within_its_error(exponent):
    law = fit_power_law(Histogram.of(zipf.rvs(exponent, size=20_000, random_state=3)), x_min=1)
    assert abs(law.alpha - exponent) < 4 * law.alpha_error
    assert law.alpha_error < 0.03


def test_the_cut_is_found_where_the_law_begins():
    rng = np.random.default_rng(4)
    above = zipf.rvs(2.5, size=60_000, random_state=5)
    tail = above[above >= 10]
    counts = np.concatenate([tail, rng.integers(1, 10, size=3 * len(tail))])
    law = fit_power_law(Histogram.of(counts))
    assert 8 <= law.x_min <= 14
    assert law.alpha == pytest.approx(2.5, abs=0.15)


def test_a_power_law_is_kept_and_a_lognormal_refused():
    kept, refused = Histogram.of(SAMPLES["steep"]), Histogram.of(SAMPLES["lognormal"])
    assert goodness_of_fit(kept, fit_power_law(kept), draws=20) > 0.1
    law = fit_power_law(refused, x_min=1)
    assert against_lognormal(refused, law).ratio < -10
    assert against_lognormal(refused, law).p_value < 1e-6
    # With x_min fixed at 1 no draw lies as far from its own best fit as these data.
    assert goodness_of_fit(refused, law, draws=20) == 1 / 21  # none of 20, and the observed one


def test_a_goodness_of_fit_is_reproducible():
    histogram = Histogram.of(SAMPLES["flat"][:800])
    law = fit_power_law(histogram)
    assert goodness_of_fit(histogram, law, 8, seed=7) == goodness_of_fit(histogram, law, 8, seed=7)


def test_draws_have_the_law_above_the_cut_and_the_data_below_it():
    histogram = Histogram.of(np.concatenate([np.ones(3000, int), np.full(1000, 2), zipf.rvs(2.2, size=2000) + 4]))
    law = fit_power_law(histogram, x_min=5)
    drawn = drawing(histogram, law)(np.random.default_rng(0))
    assert drawn.paths.sum() == histogram.paths.sum()
    assert set(drawn.values[drawn.values < 5]) <= {1, 2}
    assert drawn.paths[drawn.values == 1][0] == pytest.approx(3000, abs=200)
    assert fit_power_law(drawn, x_min=5).alpha == pytest.approx(law.alpha, abs=0.15)


def test_nothing_is_fitted_to_too_few_paths_or_to_one_count():
    assert fit_power_law(Histogram.of(np.arange(1, FEWEST))) is None
    assert fit_power_law(Histogram.of(np.full(1000, 3))) is None
    assert fit_power_law(Histogram.of(np.zeros(0, dtype=np.int64))) is None
    assert fit_power_law(Histogram.of(np.full(1000, 3)), x_min=5) is None


def test_many_paths_are_fitted_from_their_histogram():
    """A million paths: no more candidates than for a thousand, and the same answer as path by path."""
    counts = zipf.rvs(1.9, size=1_000_000, random_state=6)
    histogram = Histogram.of(counts)
    assert len(histogram.values) < 20_000
    law = fit_power_law(histogram)
    assert law.alpha == pytest.approx(1.9, abs=0.02)
    logs = np.log(counts[counts >= law.x_min])
    near = [
        -len(logs) * np.log(zeta(a, law.x_min)) - a * logs.sum()
        for a in (law.alpha - 0.01, law.alpha, law.alpha + 0.01)
    ]
    assert near[1] == max(near)
    assert MOST_CUTS < 100


def test_the_edge_of_the_search_is_no_fit():
    verdict = judge(Histogram(np.array([1, 2]), np.array([100_000, 1])), draws=0)
    assert verdict.law is None
    assert "same number of tokens (1)" in verdict.reason


def test_the_lower_edge_of_the_search_is_no_fit_either(monkeypatch):
    flat = Histogram(2 ** np.arange(0, 33, 3), 10 * 2 ** np.arange(11))
    assert judge(flat, draws=0).law.alpha < 2
    monkeypatch.setattr(power_law, "ALPHA_RANGE", (2.5, 12.0))
    verdict = judge(flat, draws=0)
    assert verdict.law is None
    assert "more slowly than with α = 2.5" in verdict.reason


def test_a_refusal_takes_nine_draws():
    refused = Histogram.of(np.random.default_rng(4).geometric(0.2, 5000))
    law = fit_power_law(refused, x_min=1)
    for draws in (4, 9):
        assert goodness_of_fit(refused, law, draws=draws) == pytest.approx(1 / (1 + draws))


def test_draws_end_in_time() -> None:
    with pytest.raises(QueryTimeout, match="0 of 1,000 draws for these counts .* fewer draws") as refused:
        judge(Histogram.of(SAMPLES[next(iter(SAMPLES))]), draws=1000, ends=0.0)
    assert refused.value.field == "draws"
