"""Intervals by resampling samples."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.resampling import interval, tenths_apart, weighted_correlation, weighted_mean


def test_the_interval_of_a_mean_is_that_of_its_standard_error():
    values = np.random.default_rng(0).normal(size=400)
    mean, low, high = interval(lambda counts: weighted_mean(values, counts), 400, draws=4000)
    error = values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert (low, high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.25 * error)


def test_an_interval_holds_the_truth_as_often_as_it_says():
    rng, held = np.random.default_rng(1), 0
    for seed in range(200):
        values = rng.normal(loc=3.0, size=60)
        _, low, high = interval(lambda counts, v=values: weighted_mean(v, counts), 60, draws=200, seed=seed)
        held += low <= 3.0 <= high
    assert 180 <= held <= 199


def test_what_is_not_defined_in_a_resample_is_left_out():
    values = np.array([np.nan, np.nan, 5.0])
    assert interval(lambda counts: weighted_mean(values, counts), 3, draws=50) == (5.0, 5.0, 5.0)
    value, low, high = interval(lambda counts: float("nan"), 3, draws=5)
    assert np.isnan([value, low, high]).all()


def test_weights_are_repetitions():
    rng = np.random.default_rng(2)
    x, y, counts = rng.normal(size=30), rng.normal(size=30), rng.integers(0, 4, size=30)
    repeated = np.repeat(np.arange(30), counts)
    assert weighted_mean(x, counts) == pytest.approx(x[repeated].mean())
    assert weighted_correlation(x, y, counts) == pytest.approx(np.corrcoef(x[repeated], y[repeated])[0, 1])
    assert np.isnan(weighted_correlation(x, np.ones(30), counts))


def test_tenths_of_resamples_are_those_of_the_repeated_list():
    rng = np.random.default_rng(3)
    key, values, counts = rng.normal(size=50), rng.normal(size=50), rng.multinomial(50, np.full(50, 0.02))
    order = np.argsort(key)
    repeated = np.repeat(values[order], counts[order])
    assert tenths_apart(key, values, counts) == pytest.approx((repeated[:5].mean(), repeated[-5:].mean()))


def test_samples_of_one_key_count_with_their_mean():
    key, values = np.array([1.0] * 15 + [2.0] * 5), np.arange(20.0)
    assert tenths_apart(key, values, np.ones(20, dtype=int)) == pytest.approx((7.0, 17.0))
