"""Correlations, agreement of groupings and loads, against SciPy, scikit-learn and hand-computed cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from tokenpaths.engine.analysis.paired_runs import (
    agreement,
    expected_mutual_information,
    load_difference,
    pearson,
    spearman,
)


@pytest.mark.parametrize("seed", range(4))
def test_pearson_is_scipys_with_its_interval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=40 + seed)
    y = 0.3 * seed * x + rng.normal(size=len(x))
    found, known = pearson(x, y), stats.pearsonr(x, y)
    assert found is not None
    assert found.r == pytest.approx(known.statistic)
    # Fisher's own interval, or a little wider: of normal values the jackknife's error scatters about his.
    interval = known.confidence_interval(0.95)
    assert interval.low - 0.1 < found.low <= interval.low
    assert interval.high <= found.high < interval.high + 0.1


def test_spearman_is_scipys_with_ties_and_a_wider_interval() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 6, 60).astype(float)
    y = np.exp(x) + rng.integers(0, 40, 60)
    found = spearman(x, y)
    assert found is not None
    assert found.r == pytest.approx(stats.spearmanr(x, y).statistic)
    half = 1.959964 * math.sqrt((1 + found.r**2 / 2) / 57)
    assert found.low <= math.tanh(math.atanh(found.r) - half) + 1e-6
    assert found.high >= math.tanh(math.atanh(found.r) + half) - 1e-6
    assert found.high - found.low < 0.4


def test_a_correlation_that_hangs_on_one_pair_is_not_known() -> None:
    x, y = np.zeros(9), np.random.default_rng(0).normal(size=9)
    x[4] = 1.0
    for measure in (pearson, spearman):
        found = measure(x, y)
        assert found is not None
        assert (found.low, found.high) == (-1, 1)


def test_ties_that_rounding_tells_apart_are_ties() -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.integers(1, 4, 80) for _ in range(2))
    y[:50] = x[:50]
    # The same fractions added in another order, as means over the tokens of samples are.
    noisy = [np.array([sum(rng.permutation([0.1 * n] * 7 + [0.2] * 3)) / 10 for n in side]) for side in (x, y)]
    assert all(len(np.unique(side)) > 3 for side in noisy)
    found = spearman(*noisy)
    assert found is not None
    assert found.r == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_what_has_no_spread_or_too_few_values_has_no_correlation() -> None:
    rising = np.arange(10.0)
    # Means of shares that are all the same differ by rounding.
    flat = np.full(10, 0.1) + np.array([0, 1e-17] * 5)
    for measure in (pearson, spearman):
        assert measure(rising, flat) is None
        assert measure(flat, rising) is None
        assert measure(rising[:3], rising[:3]) is None
        assert measure(rising[:0], rising[:0]) is None
        same = measure(rising, -2 * rising)
        assert same is not None
        assert (same.r, same.low) == (-1, -1)
        assert same.high == (-1 if measure is pearson else pytest.approx(-0.9635, abs=1e-4))


@pytest.mark.parametrize("num", [4, 5, 6, 8])
def test_ranks_in_one_order_are_no_certainty(num: int) -> None:
    """Where nothing is related the interval leaves 0 out in at most about one of twenty cases, also of few samples."""
    rng, wrong = np.random.default_rng(num), 0
    for _ in range(1000):
        found = spearman(*rng.normal(size=(2, num)))
        assert found is not None
        assert found.low <= found.r <= found.high
        wrong += not found.low <= 0 <= found.high
    assert wrong / 1000 < 0.06


@pytest.mark.parametrize(
    ("kinds", "others", "num"), [(3, 3, 50), (40, 7, 300), (200, 300, 1000), (1, 5, 30), (30, 30, 30)]
)
def test_agreement_is_scikit_learns(kinds: int, others: int, num: int) -> None:
    rng = np.random.default_rng(kinds)
    one = np.minimum(rng.zipf(1.4, num), kinds)
    other = np.where(rng.random(num) < 0.4, one % others, rng.integers(0, others, num))
    found = agreement(one, other)
    assert found.ami == pytest.approx(adjusted_mutual_info_score(one, other), abs=1e-9)
    assert found.nmi == pytest.approx(normalized_mutual_info_score(one, other), abs=1e-9)


def test_expectation_is_the_mean_over_permutations() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 4, 40), np.minimum(rng.zipf(1.8, 40), 6)
    drawn = []
    for _ in range(1000):
        shuffled = rng.permutation(other)
        drawn.append(agreement(one, shuffled).nmi)
    mean = float(np.mean(drawn))
    assert agreement(one, other).expected_nmi == pytest.approx(mean, abs=5 * float(np.std(drawn)) / math.sqrt(1000))
    assert expected_mutual_information(np.array([5]), np.array([2, 3])) == pytest.approx(0, abs=1e-12)


def test_groups_of_one_token_each_say_nothing_beyond_chance() -> None:
    found = agreement(np.arange(50), np.arange(50)[::-1])
    assert found.ami is None
    assert found.nmi == pytest.approx(1)
    one_group = agreement(np.zeros(5, dtype=int), np.ones(5, dtype=int))
    assert (one_group.nmi, one_group.ami) == (1, 1)
    with pytest.raises(ValueError, match="0 and 0 tokens"):
        agreement(np.zeros(0, dtype=int), np.zeros(0, dtype=int))


def test_loads_are_compared_by_their_shape() -> None:
    assert load_difference(np.array([6, 3, 1]), np.array([1, 6, 3])) == 0
    # 0.5, 0.5 against 1, 0: half of the choices would have to move.
    assert load_difference(np.array([5, 5]), np.array([0, 7])) == pytest.approx(0.5)
    assert load_difference(np.array([1, 1, 1, 1]), np.array([2, 2])) == pytest.approx(0.5)
    assert load_difference(np.array([0, 0]), np.array([3, 0])) == 1
    assert load_difference(np.array([0, 0]), np.array([0, 0])) == 0
    # 1/49 forty-nine times, added up, is not 1.
    assert sum([1 / 49] * 49) != 1
    for busy in (np.ones(49, dtype=np.int64), *np.random.default_rng(0).integers(0, 50, (60, 9))):
        assert load_difference(busy, np.zeros(9, dtype=np.int64)) == 1
        assert load_difference(np.zeros(9, dtype=np.int64), busy) == 1
