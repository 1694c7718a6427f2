"""Differences between runs: against pairs written out, and against many runs drawn from one law."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tokenpaths.engine.analysis.paired_runs import (
    FEWEST_SAMPLES,
    difference,
    half_sample_errors,
    mean_half_width,
    paired_difference,
)


def test_equal_weights_give_the_paired_interval_of_any_textbook() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = x + 0.3 + 0.1 * rng.normal(size=40)
    gap = paired_difference(x, np.ones(40), y, np.ones(40))
    assert gap is not None
    error = (y - x).std(ddof=1) / np.sqrt(40)
    assert gap.value == pytest.approx((y - x).mean())
    theirs = scipy.stats.ttest_rel(y, x).confidence_interval(0.95)
    assert (gap.low, gap.high) == pytest.approx((theirs.low, theirs.high))
    assert gap.high - gap.value > 2 * error
    assert gap.clear
    own = scipy.stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert mean_half_width(x, np.ones(40)) == pytest.approx((own.high - own.low) / 2)


def test_a_longer_sample_counts_more() -> None:
    x, w = np.array([1.0, 2.0] * 8), np.array([1.0, 3.0] * 8)
    gap = paired_difference(x, w, x[::-1].copy(), w)
    assert gap is not None
    assert gap.value == pytest.approx((1 * 2 + 3 * 1) / 4 - (1 * 1 + 3 * 2) / 4)


def test_what_differs_by_nothing_is_not_clear_and_a_constant_gap_is() -> None:
    ones = np.ones(9)
    same = paired_difference(ones, ones, ones, ones)
    assert same is not None
    assert (same.value, same.low, same.high, same.clear) == (0, 0, 0, False)
    lower = paired_difference(ones, ones, ones / 2, ones)
    assert lower is not None
    assert lower.clear
    assert not difference(0.1, 0.1, 9).clear


def test_few_samples_have_no_interval() -> None:
    few = np.arange(FEWEST_SAMPLES - 1.0)
    assert paired_difference(few, few + 1, few, few + 1) is None
    assert mean_half_width(few, few + 1) is None
    assert half_sample_errors(few.astype(int), lambda kept: np.array([kept.sum()])) is None


def test_the_interval_covers_as_often_as_it_says() -> None:
    """400 pairs of runs from one law with unequal weights: the true difference lies within about 95 of 100."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        w = rng.integers(5, 30, 60).astype(float)
        common = rng.normal(size=60)
        gap = paired_difference(common + rng.normal(size=60), w, common + 0.5 + rng.normal(size=60), w)
        assert gap is not None
        inside += gap.low <= 0.5 <= gap.high
    assert 0.91 <= inside / 400 <= 0.985


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_runs_over_few_samples_that_do_not_differ_seldom_seem_to(skew: float) -> None:
    rng, clear, held = np.random.default_rng(3), 0, 0
    for _ in range(600):
        w, x = np.exp(skew * rng.normal(size=FEWEST_SAMPLES)), rng.normal(size=FEWEST_SAMPLES)
        gap, half = paired_difference(x, w, x + rng.normal(size=len(x)), w), mean_half_width(x, w)
        assert gap is not None
        assert half is not None
        clear += gap.clear
        held += abs((w * x).sum() / w.sum()) <= half
    assert clear / 600 < 0.07
    assert held / 600 > 0.93


def test_halves_of_samples_give_the_error_that_many_runs_show() -> None:
    """Tokens of a sample are alike; the error is that of samples, several times that of independent tokens."""
    rng = np.random.default_rng(2)

    def run() -> tuple[np.ndarray, np.ndarray]:
        return np.repeat(np.arange(50), 20), np.repeat(rng.normal(size=50), 20) + 0.1 * rng.normal(size=1000)

    true = np.std([run()[1].mean() for _ in range(500)], ddof=1)
    estimates = []
    for seed in range(30):
        sample_n, value_n = run()
        errors = half_sample_errors(sample_n, lambda kept, x=value_n: np.array([x[kept].mean()]), seed=seed)
        assert errors is not None
        estimates.append(errors[0])
    assert np.mean(estimates) == pytest.approx(true, rel=0.15)
    assert true > 3 * value_n.std() / np.sqrt(1000)
