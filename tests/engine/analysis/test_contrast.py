"""Intervals by hand, beside SciPy, and by drawing samples again and again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student

from tokenpaths.engine.analysis.contrast import Z, contrast, difference, effective_size, kish_size, mean_of, wilson


@pytest.mark.parametrize(("hits", "size"), [(0, 7), (3, 7), (7, 7), (40, 200)])
def test_wilson_is_that_of_scipy(hits, size):
    low, high = wilson(np.array([hits / size]), np.array([size]))
    expected = binomtest(hits, size).proportion_ci(0.95, method="wilson")
    assert (low[0], high[0]) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_tokens_of_one_sample_count_once_for_its_label():
    # 10 tokens from one sample and 2 from another: (12)² / (100 + 4); from one alone: 1.
    assert kish_size(np.array([[10, 5], [2, 0]])).tolist() == pytest.approx([144 / 104, 1.0])


def test_a_contrast_by_hand():
    # Three samples; of A's 4 + 4 + 2 tokens 2, 1, 0 choose the module, of B's 10 + 0 + 10 tokens 1, 0, 1.
    hits_a, of_a = np.array([[2], [1], [0]]), np.array([4, 4, 2])
    hits_b, of_b = np.array([[1], [0], [1]]), np.array([10, 0, 10])
    told = contrast(hits_a, of_a, hits_b, of_b)
    assert told.share_a[0] == pytest.approx(0.3)
    assert told.share_b[0] == pytest.approx(0.1)
    rest = [(2 - 0.3 * 4) / 10 - (1 - 0.1 * 10) / 20, (1 - 0.3 * 4) / 10 - 0, (0 - 0.3 * 2) / 10 - (1 - 0.1 * 10) / 20]
    clustered = 3 / 2 * sum(r * r for r in rest)
    p, q = (3 + 1) / (10 + 2), (2 + 1) / (20 + 2)
    plain = p * (1 - p) / 12 + q * (1 - q) / 22
    assert plain > clustered
    half = student.ppf(0.975, 2 - 1) * math.sqrt(plain)  # B lies in two samples
    assert (told.low[0], told.high[0]) == (pytest.approx(max(-1, 0.2 - half)), pytest.approx(min(1, 0.2 + half)))


def test_samples_that_agree_with_themselves_widen_the_interval():
    rng = np.random.default_rng(0)
    of = np.full(60, 50)
    alone = rng.binomial(50, 0.3, (60, 1))
    alike = rng.choice([0, 50], p=[0.7, 0.3], size=(60, 1))
    other = rng.binomial(50, 0.3, (60, 1))
    narrow, wide = (contrast(hits, of, other, of) for hits in (alone, alike))
    assert (wide.high - wide.low)[0] > 4 * (narrow.high - narrow.low)[0]
    assert effective_size(alike, of)[0] == pytest.approx(60, rel=0.25)
    assert effective_size(alone, of)[0] > 1500


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        # Samples differ in their taste (between 0.1 and 0.5), A and B of a sample share it: the true Δ is 0.1.
        taste, of_a, of_b = rng.uniform(0.1, 0.5, 40), rng.integers(5, 30, 40), rng.integers(5, 30, 40)
        told = contrast(rng.binomial(of_a, taste + 0.1)[:, None], of_a, rng.binomial(of_b, taste)[:, None], of_b)
        covered += told.low[0] <= 0.1 <= told.high[0]
    assert 0.92 <= covered / 400 <= 0.985


def test_nothing_is_said_of_one_sample():
    told = contrast(np.array([[2], [0]]), np.array([4, 0]), np.array([[1], [0]]), np.array([4, 4]))
    assert told.delta[0] == pytest.approx(0.5 - 0.125)
    assert np.isnan([told.low[0], told.high[0]]).all()
    assert effective_size(np.array([[2], [0]]), np.array([4, 0]))[0] == 1


def test_a_share_of_one_after_few_tokens_is_not_certain():
    told = contrast(np.array([[1], [1]]), np.array([1, 1]), np.array([[0], [0]]), np.array([50, 50]))
    assert told.delta[0] == 1
    assert told.low[0] < 0
    assert pytest.approx(1.959964, abs=1e-6) == Z


def test_an_interval_ends_where_values_do():
    """Of three samples Student's t takes the mean of confidences from −45 % to 140 %."""
    high_N, low_N, of_N = np.array([0.9, 0.9, 0.1]), np.array([0.1, 0.0, 0.8]), np.ones(3)
    free, told = mean_of(high_N, of_N), mean_of(high_N, of_N, least=0.0, most=1.0)
    assert free is not None
    assert told is not None
    assert free.low < 0 < 1 < free.high
    assert (told.mean, told.low, told.high) == (free.mean, 0.0, 1.0)
    apart = difference(high_N, of_N, low_N, of_N, width=1.0)
    assert apart is not None
    assert (apart.low, apart.high) == (-1.0, 1.0)
