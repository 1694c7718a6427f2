"""Intervals of 95 % from few samples, samples of unlike sizes and things that are rare, drawn again and again."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tokenpaths.engine.analysis.contrast import (
    Z,
    clear_of_all,
    contrast,
    difference,
    freedom,
    group_means,
    kish_size,
    line,
    mean_of,
    ratio_error,
    share_interval,
    share_intervals,
    shares_apart,
    student,
    surely_above,
    wilson,
)
from tokenpaths.engine.analysis.paired_runs import paired_share_difference, pearson, spearman

DRAWS = 500


def held(low: float | None, high: float | None, truth: float) -> bool:
    """Whether the interval says nothing wrong of the truth; none says nothing."""
    return low is None or high is None or low <= truth <= high


def sizes(rng: np.random.Generator, num: int, skew: float) -> np.ndarray:
    """Tokens of each sample."""
    return np.maximum(2, np.rint(50 * np.exp(skew * rng.normal(size=num))))


def test_of_samples_of_one_size_the_interval_of_a_mean_is_students():
    values = np.random.default_rng(0).normal(size=9)
    found = mean_of(20 * values, np.full(9, 20.0))
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))


def test_an_error_by_hand():
    total, count = np.array([8.0, 2.0, 1.0, 0.0]), np.array([6.0, 3.0, 1.0, 0.0])
    weight, rest = count / 10, (total - 1.1 * count) / 10
    left = 1 - 2 * weight + (weight**2).sum()
    assert ratio_error(total, count) == pytest.approx(np.sqrt((rest**2 / left).sum()))
    assert freedom(count) == pytest.approx(1 / (weight**2).sum() - 1)
    assert ratio_error(total[:1], count[:1]) is None
    assert ratio_error(total[2:], count[2:]) is None, "a second sample without tokens is none"


@pytest.mark.parametrize("num", [3, 8, 30])
def test_means_of_samples_of_unlike_sizes_hold_the_truth(num):
    rng, single, apart = np.random.default_rng(num), 0, 0
    for _ in range(DRAWS):
        of, values = sizes(rng, 2 * num, 1.5), rng.normal(size=2 * num)
        first = np.arange(2 * num) < num
        found = mean_of((of * values)[first], of[first])
        single += held(found.low, found.high, 0)
        found = difference(of * values * first, of * first, of * values * ~first, of * ~first)
        apart += held(found.low, found.high, 0)
    assert single / DRAWS > 0.925
    assert apart / DRAWS > 0.94


@pytest.mark.parametrize(
    ("num", "share", "least"), [(2, 0.5, 0.92), (4, 0.5, 0.92), (8, 0.1, 0.92), (12, 0.1, 0.92), (30, 0.02, 0.88)]
)
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_shares_of_tokens_that_are_alike_within_samples_hold_the_truth(num, share, least, skew):
    rng, covered = np.random.default_rng(num), 0
    for _ in range(DRAWS):
        of = sizes(rng, num, skew)
        hits = rng.binomial(of.astype(int), rng.beta(10 * share, 10 * (1 - share), num))
        low, high = share_interval(hits[:, None], of)
        covered += held(low[0], high[0], share)
    assert covered / DRAWS > least


def test_a_share_by_one_token_a_sample_is_wilsons_and_tokens_all_alike_count_as_their_samples():
    hits, of = np.array([1, 0, 1, 1, 0, 1, 1]), np.ones(7)
    alone, alike = (share_interval(times * hits[:, None], times * of) for times in (1, 40))
    theirs = wilson(np.array([5 / 7]), np.array([7.0]))
    assert np.allclose(alone, theirs)
    assert np.allclose(alike, theirs)
    uneven = np.array([30, 1, 1, 1])
    widest = wilson(np.array([30 / 33]), kish_size(uneven[:, None]))
    assert np.allclose(share_interval(np.array([[30], [0], [0], [0]]), uneven), widest)


def test_a_share_in_many_even_samples_is_that_of_the_tokens():
    rng = np.random.default_rng(5)
    hits = rng.binomial(20, 0.3, (5000, 1))
    low, high = share_interval(hits, np.full(5000, 20))
    share = hits.mean() / 20
    half = Z * np.sqrt(share * (1 - share) / 100_000)
    assert (low[0], high[0]) == (pytest.approx(share - half, rel=0.005), pytest.approx(share + half, rel=0.005))


def test_a_contrast_of_unlike_samples_is_seldom_sure_of_nothing():
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(DRAWS):
        of, first = sizes(rng, 24, 1.0), np.arange(24) < 12
        hits = rng.binomial(of.astype(int), rng.beta(0.5, 0.5, 24))
        found = contrast((hits * first)[:, None], of * first, (hits * ~first)[:, None], of * ~first)
        wrong += not held(found.low[0], found.high[0], 0)
    assert wrong / DRAWS < 0.06


def across(rng: np.random.Generator, kind: str, num: int) -> np.ndarray:
    if kind == "skewed":
        return np.exp(rng.normal(size=num))
    same = np.full(num, 0.2)
    moved = 1 if kind == "one far out" else max(2, num // 8)
    same[:moved] += rng.uniform(0.05, 0.3, moved)
    return same + (0.005 * rng.normal(size=num) if kind == "one far out" else 0.0)


@pytest.mark.parametrize("kind", ["skewed", "mostly the same", "one far out"])
@pytest.mark.parametrize("num", [4, 8, 12, 40])
@pytest.mark.parametrize("uneven", [False, True])
def test_a_line_is_seldom_sure_of_a_slope_that_is_not_there(kind, num, uneven):
    rng, wrong = np.random.default_rng(num), 0
    for _ in range(DRAWS):
        x = across(rng, kind, num)
        y = rng.normal(size=num) * (1 + uneven * 5 * np.abs(x - np.median(x)))
        found = line(x, y)
        wrong += not held(found.low, found.high, 0)
    assert wrong / DRAWS < 0.075


def test_the_error_and_the_freedom_of_a_line_are_those_of_the_matrices():
    rng = np.random.default_rng(2)
    x, y = np.exp(rng.normal(size=11)), rng.normal(size=11)
    design = np.stack([np.ones(11), x], axis=1)
    hat = design @ np.linalg.inv(design.T @ design) @ design.T
    rest = y - hat @ y
    weight = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    error = np.sqrt((weight**2 * rest**2 / (1 - np.diag(hat)) ** 2).sum())
    middle = (np.eye(11) - hat) @ np.diag(weight**2 / (1 - np.diag(hat))) @ (np.eye(11) - hat)
    few = np.trace(middle) ** 2 / np.trace(middle @ middle)
    assert 1 < few < 9
    found = line(x, y)
    half = scipy.stats.t.ppf(0.975, few) * error
    assert (found.low, found.high) == (pytest.approx(found.slope - half), pytest.approx(found.slope + half))


def test_a_line_through_one_sample_that_differs_has_no_interval():
    found = line(np.array([0.2, 0.2, 0.2, 0.5]), np.array([1.0, 2.0, 3.0, 9.0]))
    assert found.slope == pytest.approx(7 / 0.3)
    assert found.low is found.high is None


def effective(weight: np.ndarray) -> float:
    return float(weight.sum() ** 2 / (weight**2).sum())


def weighted_variance(value: np.ndarray, weight: np.ndarray) -> float:
    """Of one sample, by what the weighted mean scatters: no other small-sample factor than that of equal weights."""
    mean, many = np.average(value, weights=weight), effective(weight)
    error = (weight**2 * (value - mean) ** 2).sum() / weight.sum() ** 2
    return float(error * many / (many - 1) * many)


@pytest.mark.parametrize("weigh", [False, True])
def test_means_of_groups_and_which_are_apart(weigh):
    """As one group after the other, beside all others; a group of one sample has no interval, an empty one no mean."""
    rng = np.random.default_rng(3)
    group = rng.integers(0, 4, 60)
    group[0] = 4
    value = rng.normal(size=60) + 3.0 * (group == 2)
    weight = np.exp(rng.normal(size=60)) if weigh else np.ones(60)
    found = group_means(value, weight, group, 6)
    for g in range(4):
        alone = mean_of((value * weight)[group == g], weight[group == g])
        assert (found.mean[g], found.low[g], found.high[g]) == pytest.approx((alone.mean, alone.low, alone.high))
        here, rest = (np.where(mask, weight, 0.0) for mask in (group == g, group != g))
        # Four intervals instead of one, and hardly another error: two sides that share no sample.
        apart = difference(value * here, here, value * rest, rest)
        few = min(freedom(here), freedom(rest))
        sure = abs(apart.mean) - (apart.high - apart.mean) * student(few, 4) / student(few)
        others = weighted_variance(value, rest) * (1 / effective(here) + 1 / effective(rest))
        sure = min(sure, abs(apart.mean) - np.sqrt(others) * student(effective(rest) - 1, 4))
        if abs(sure) > 0.02:
            assert found.clear[g] == (sure > 0)
    assert found.clear.tolist()[2]
    assert found.mean[4] == pytest.approx(value[0])
    assert np.isnan([found.low[4], found.high[4], found.mean[5]]).all()
    assert not found.clear[4:].any()


@pytest.mark.parametrize(("num", "groups"), [(16, 2), (40, 8), (200, 12)])
@pytest.mark.parametrize("alike", [False, True])
def test_no_group_is_apart_where_there_is_nothing(num, groups, alike):
    rng, wrong = np.random.default_rng(num), 0
    for _ in range(DRAWS):
        weight = np.ones(num) if alike else sizes(rng, num, 0.7)
        found = group_means(rng.normal(size=num), weight, np.arange(num) % groups, groups)
        wrong += found.clear.any()
    assert wrong / DRAWS < 0.08


@pytest.mark.parametrize(("groups", "size"), [(10, 20), (50, 20), (10, 5)])
@pytest.mark.parametrize("kind", ["most tie", "long tail"])
def test_no_group_is_apart_where_most_samples_tie_or_few_lie_far_out(groups, size, kind):
    """Of ten groups of twenty one was apart in 52 and in 22 of 100 draws by errors of the groups' own scatter alone."""
    rng, group, wrong = np.random.default_rng(size), np.repeat(np.arange(groups), size), 0
    for _ in range(DRAWS // 2):
        tail = rng.exponential(0.05, len(group))
        value = np.where(rng.random(len(group)) < 0.8, 1.0, 1 - tail) if kind == "most tie" else np.exp(20 * tail)
        wrong += group_means(value, np.ones(len(group)), group, groups).clear.any()
    assert wrong <= 0.06 * DRAWS / 2


def test_one_group_is_apart_from_no_other():
    found = group_means(np.arange(5.0), np.ones(5), np.zeros(5, dtype=int), 1)
    assert found.mean.tolist() == [2.0]
    assert not found.clear.any()


def test_means_of_groups_of_equal_weights_are_students_and_apart_as_welch_has_it():
    rng, told = np.random.default_rng(11), []
    for _ in range(200):
        group = np.repeat(np.arange(3), rng.integers(4, 12, 3))
        value = rng.normal(size=len(group)) * (1 + group) + 1.5 * (group == 1)
        found = group_means(value, np.ones(len(group)), group, 3)
        for g in range(3):
            own, rest = value[group == g], value[group != g]
            interval = scipy.stats.t.interval(0.95, len(own) - 1, own.mean(), scipy.stats.sem(own))
            assert (found.low[g], found.high[g]) == pytest.approx(interval)
            t = scipy.stats.ttest_ind(own, rest, equal_var=False).statistic
            # As many degrees of freedom as the smaller side has, where Welch's would be some more; and further than as
            # many of the others would be.
            far = abs(t) > scipy.stats.t.ppf(1 - 0.025 / 3, min(len(own), len(rest)) - 1)
            error = rest.std(ddof=1) * np.sqrt(1 / len(own) + 1 / len(rest))
            further = abs(own.mean() - rest.mean()) > error * scipy.stats.t.ppf(1 - 0.025 / 3, len(rest) - 1)
            told.append(found.clear[g])
            assert told[-1] == (far and further)
    assert 20 < sum(told) < 400


@pytest.mark.parametrize("num", [8, 60])
@pytest.mark.parametrize("kind", ["normal", "scatter grows", "both skewed"])
def test_correlations_hold_the_truth_also_of_values_that_are_not_normal(kind, num):
    """Fisher's own interval is wrong in 22 to 24 of 100 cases where the scatter grows, in 13 to 19 of skewed values."""
    rng = np.random.default_rng(num)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        x, off = rng.normal(size=count), rng.normal(size=count)
        if kind == "scatter grows":
            return x, off * np.abs(x)
        joint = 0.6 * x + 0.8 * off
        return (x, joint) if kind == "normal" else (np.exp(0.7 * x), np.exp(joint))

    many = drawn(2_000_000)
    truths = [scipy.stats.pearsonr(*many).statistic, scipy.stats.spearmanr(*many).statistic]
    wrong = [0, 0]
    for _ in range(DRAWS):
        x, y = drawn(num)
        for place, measure in enumerate((pearson, spearman)):
            found = measure(x, y)
            wrong[place] += not found.low <= truths[place] <= found.high
    assert max(wrong) <= 0.1 * DRAWS


@pytest.mark.parametrize(("rare", "skip"), [(3, 0.1), (5, 0.1), (3, 0.3)])
def test_a_rare_label_whose_samples_tie_is_not_clear_by_chance(rare, skip):
    """Compute is 1 for most samples where few skip: three that all have it say nothing of their scatter."""
    rng, group = np.random.default_rng(rare), np.repeat(np.arange(5), [rare, 300, 300, 300, 300])
    clear = right = 0
    for _ in range(DRAWS // 2):
        value = np.where(rng.random(len(group)) < skip, 1 - 0.03 * rng.random(len(group)), 1.0)
        found = group_means(value, np.ones(len(group)), group, 5)
        clear += bool(found.clear[0])
        right += held(found.low[0], found.high[0], 1 - 0.015 * skip)
    assert clear <= 0.06 * DRAWS / 2
    assert right >= 0.93 * DRAWS / 2


def test_groups_that_tie_everywhere_are_told_apart():
    found = group_means(np.array([1.0, 1, 1, 0.5, 0.5, 0.5]), np.ones(6), np.repeat([0, 1], 3), 2)
    assert found.clear.all()


@pytest.mark.parametrize(("right", "num"), [(0.97, 20), (0.9, 8), (0.99, 100)])
def test_shares_of_paired_runs_hold_the_truth(right, num):
    rng, wrong, own = np.random.default_rng(num), 0, 0
    for _ in range(DRAWS):
        one, other = (rng.random((2, num)) < right).astype(float)
        found = paired_share_difference(one, other)
        assert found.low <= found.value <= found.high
        assert found.low < found.high
        wrong += not held(found.low, found.high, 0.0)
        mean = mean_of(one, np.ones(num), share=True)
        own += not held(mean.low, mean.high, right)
    assert wrong <= 0.06 * DRAWS
    assert own <= 0.1 * DRAWS
    turned = paired_share_difference(np.zeros(8), np.ones(8))
    assert (turned.value, turned.high) == (1.0, 1.0)
    assert 0.4 < turned.low < 0.9, "eight that all turn do not say that all would"
    assert paired_share_difference(np.ones(7), np.ones(7)) is None


def test_one_of_many_modules_is_named_only_if_it_is_clear_of_all():
    rng, named, alone = np.random.default_rng(0), 0, 0
    for _ in range(60):
        of = np.full(40, 50.0)
        mine = rng.binomial(of.astype(int), 0.1).astype(float)
        shares = rng.dirichlet(np.full(128, 5.0))
        a, b = (np.stack([rng.multinomial(int(n), shares) for n in size]).astype(float) for size in (mine, of - mine))
        apart = contrast(a, mine, b, of - mine)
        named += bool(clear_of_all(apart, mine, of - mine, 128).any())
        alone += bool(((apart.low > 0) | (apart.high < 0)).any())
    assert alone > 30, "of so many some differ by chance"
    assert named <= 6
    low, high = share_interval(a, mine)
    lower, higher = share_intervals(a, mine, (128,))[0]
    assert (lower <= low).all()
    assert (higher >= high).all()
    assert (higher - lower).mean() > 1.3 * (high - low).mean()


def _stays(rng: np.random.Generator, length: int, kinds: int, stay: float) -> np.ndarray:
    """(length,) kinds that last for a while, as paths and words of a text do."""
    drawn, kept = rng.integers(kinds, size=length), rng.random(length) < stay
    kept[0] = False
    return drawn[np.maximum.accumulate(np.where(kept, -1, np.arange(length)))]


@pytest.mark.parametrize(("samples", "length"), [(1, 200), (3, 150), (5, 100), (10, 60)])
def test_no_path_of_a_few_tokens_is_named_because_one_of_them_takes_it(samples, length):
    """Words and paths that last for some tokens and know nothing of each other: a word meets a few paths of many."""
    rng, named, draws = np.random.default_rng(0), 0, 150
    for _ in range(draws):
        word, path = (np.stack([_stays(rng, length, kinds, 0.9) for _ in range(samples)]) for kinds in (10, 36))
        mine = (word == 0).sum(axis=1)
        if mine.sum() < 10:
            continue
        hits = np.stack([np.bincount(p[w == 0], minlength=36) for w, p in zip(word, path, strict=True)]).astype(float)
        base, taken = np.bincount(path.ravel(), minlength=36) / path.size, hits.any(axis=0)
        named += bool(shares_apart(hits[:, taken], mine, base[taken], 36).any())
    assert named <= 0.05 * draws


def test_two_samples_that_agree_by_chance_name_no_path():
    """Each keeps to one path of ten, so the tokens of a word scatter by nothing where its two samples agree."""
    base = np.full(10, 0.1)
    hits = np.zeros((2, 10))
    hits[:, 3] = 10
    assert not shares_apart(hits, np.full(2, 10.0), base, 1000).any()
    assert shares_apart(np.repeat(hits, 10, axis=0), np.full(20, 10.0), base, 1000)[3]


def test_a_path_that_surely_has_more_of_the_tokens_is_named():
    of = np.full(20, 10.0)
    hits = np.array([[4.0, 1.0, 0.0]] * 20)
    hits[0, 2] = 1
    apart = shares_apart(hits, of, np.array([0.01, 0.1, 1e-3]), 1000)
    assert apart.tolist() == [True, False, False]
    for share, size, base in ((0.3, 10, 0.1), (0.5, 40, 0.3), (0.05, 60, 0.01)):
        exact = scipy.stats.binomtest(round(share * size), size, base, alternative="greater").pvalue
        for intervals in (1, 3, 30):
            found = surely_above(np.array([share]), np.array([float(size)]), np.array([base]), intervals)
            assert found.tolist() == [exact <= 0.025 / intervals]
