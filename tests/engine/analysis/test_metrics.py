"""Every metric against numbers worked out by hand on two to four tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenpaths.engine.analysis.association import association, nmi
from tokenpaths.engine.analysis.distribution import describe
from tokenpaths.engine.analysis.load import (
    balance,
    effective_top_k,
    importance_cv2,
    load_entropy,
    max_violation,
    utilisation,
)
from tokenpaths.engine.analysis.path_statistics import (
    canonical,
    effective_paths,
    independent_steps,
    log_spaced_ranks,
    path_distance,
    rank_frequency_fit,
    rank_order,
    unique_rows,
)
from tokenpaths.engine.analysis.ribbon_costs import NOTHING, compute, module_units, reuse
from tokenpaths.engine.base.records import ModuleInfo


def bank(*kinds: str, steps: tuple[int | None, ...] | None = None) -> list[ModuleInfo]:
    steps = steps or (None,) * len(kinds)
    return [ModuleInfo(s, i, f"m{i}", k, 1, 1) for i, (k, s) in enumerate(zip(kinds, steps, strict=True))]


def ribbons(*rows: list) -> np.ndarray:
    """(n, S) lists for K = 1, (n, S, K) lists otherwise."""
    array = np.array(rows)
    return array[:, :, None] if array.ndim == 2 else array


def test_compute_and_reuse_of_four_tokens():
    _, units = module_units(bank("mlp", "attention", "identity"), 4, 3)
    ids = ribbons([0, 0, 0, 0], [0, 1, 0, 2], [2, 2, 2, 2], [0, 1, 2, 2])
    np.testing.assert_allclose(compute(ids, units), [1, 3 / 4, 0, 2 / 4])
    # one module of four visits; two of three; no visit; two of two
    np.testing.assert_allclose(reuse(ids, units), [1 - 1 / 4, 1 - 2 / 3, 0, 0])


def test_compute_and_reuse_count_every_slot_of_top2():
    _, units = module_units(bank("mlp", "mlp", "identity"), 2, 3)
    ids = ribbons([[0, 1], [1, 0]], [[0, 2], [2, 0]])
    np.testing.assert_allclose(compute(ids, units), [1, 1 / 2])
    np.testing.assert_allclose(reuse(ids, units), [1 - 2 / 4, 1 - 1 / 2])


def test_reuse_knows_that_modules_of_two_steps_are_two_sets_of_parameters():
    own = [ModuleInfo(step, 0, f"s{step}", "mlp", 1, 1) for step in range(2)]
    available, units = module_units(own, 2, 2)
    assert available.tolist() == [[True, False], [True, False]]
    assert units[0, 0] != units[1, 0]
    assert units[0, 1] == NOTHING
    assert reuse(ribbons([0, 0]), units).tolist() == [0]
    _, shared = module_units(bank("mlp", "mlp"), 2, 2)
    assert reuse(ribbons([0, 0]), shared).tolist() == [1 / 2]


def test_load_of_one_step():
    counts = np.array([3, 1, 0, 0])
    assert utilisation(counts).tolist() == [3, 1, 0, 0]
    assert max_violation(counts) == 2
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(4)
    assert load_entropy(counts) == pytest.approx(expected)
    # (9 + 1)^1.5 / (27 + 1)
    assert effective_top_k(counts) == pytest.approx(10**1.5 / 28)
    assert effective_top_k(counts, alpha=2.0) == pytest.approx(100 / 82)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("num_modules", [1, 2, 7, 64])
def test_effective_top_k_reaches_both_bounds(alpha: float, num_modules: int):
    one = np.eye(1, num_modules, dtype=np.int64)[0] * 5
    assert effective_top_k(one, alpha) == pytest.approx(1)
    assert effective_top_k(np.full(num_modules, 3), alpha) == pytest.approx(num_modules ** (alpha - 1))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40).filter(any))
def test_effective_top_k_and_load_entropy_stay_within_bounds(counts: list[int]):
    c = np.array(counts)
    assert 1 - 1e-9 <= effective_top_k(c) <= len(c) ** 0.5 + 1e-9
    assert -1e-12 <= load_entropy(c) <= 1 + 1e-12
    assert utilisation(c).sum() == pytest.approx(len(c))


def test_a_step_without_tokens_has_numbers_all_the_same():
    nobody = np.zeros(3, dtype=np.int64)
    assert utilisation(nobody).tolist() == [0, 0, 0]
    assert effective_top_k(nobody) == 0
    assert load_entropy(nobody) == 0
    assert max_violation(nobody) == 0
    assert set(balance(nobody).values()) == {None}
    assert balance(np.array([2, 2]))["max_violation"] == 0


def test_importance_cv2():
    assert importance_cv2(np.array([1.0, 3.0])) == pytest.approx((1 / 2) ** 2)
    assert importance_cv2(np.array([2.0, 2.0])) == 0
    assert importance_cv2(np.zeros(2)) == 0


def test_ribbon_identity_ignores_the_order_of_slots_but_not_of_steps():
    ids = ribbons([[0, 3], [2, 1]], [[3, 0], [1, 2]], [[2, 1], [0, 3]])
    rows = canonical(ids)
    assert rows.tolist() == [[0, 3, 1, 2], [0, 3, 1, 2], [1, 2, 0, 3]]
    _, kind = unique_rows(rows)
    assert kind[0] == kind[1] != kind[2]


def test_unique_rows_is_exact_even_when_all_hashes_collide(monkeypatch: pytest.MonkeyPatch):
    rows = np.array([[1, 2], [2, 1], [1, 2]])
    monkeypatch.setattr(
        "tokenpaths.engine.analysis.path_statistics.row_hashes", lambda r: np.zeros(len(r), dtype=np.uint64)
    )
    first, kind = unique_rows(rows)
    assert rows[first][kind].tolist() == rows.tolist()
    assert len(first) == 2


def test_rank_order_breaks_ties_by_the_ids():
    rows = np.array([[2, 0], [1, 9], [1, 1], [0, 0]])
    assert rank_order(rows, np.array([5, 2, 2, 2])).tolist() == [0, 3, 2, 1]


def test_effective_paths_is_the_exponential_of_the_entropy():
    assert effective_paths(np.array([2, 2, 2, 2])) == pytest.approx(4)
    assert effective_paths(np.array([7])) == pytest.approx(1)
    assert effective_paths(np.array([3, 1])) == pytest.approx(
        math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    )


def test_rank_frequency_fit_of_exact_and_degenerate_laws():
    exact = rank_frequency_fit((1e12 * np.arange(1, 50) ** -1.3).astype(np.int64))
    assert exact.slope == pytest.approx(-1.3, abs=1e-6)
    assert exact.r2 == pytest.approx(1)
    two = rank_frequency_fit(np.array([4, 1]))
    assert two.slope == pytest.approx(math.log(1 / 4) / math.log(2))
    flat = rank_frequency_fit(np.array([3, 3, 3]))
    assert (flat.slope, flat.r2) == (0, None)
    alone = rank_frequency_fit(np.array([9]))
    assert (alone.slope, alone.r2) == (None, None)


def test_log_spaced_ranks():
    assert log_spaced_ranks(3).tolist() == [1, 2, 3]
    many = log_spaced_ranks(1_000_000)
    assert (many[0], many[-1], len(many) <= 200) == (1, 1_000_000, True)
    assert (np.diff(many) > 0).all()


def test_independent_steps_keep_every_step_and_lose_the_connection():
    rows, counts = np.array([[0, 1, 5, 6], [2, 3, 7, 8]]), np.array([300, 100])
    shuffled = independent_steps(rows, counts, num_steps=2, seed=3)
    assert shuffled.shape == (400, 2, 2)
    for step, (often, rare) in enumerate([([0, 1], [2, 3]), ([5, 6], [7, 8])]):
        assert (shuffled[:, step] == often).all(axis=1).sum() == 300
        assert (shuffled[:, step] == rare).all(axis=1).sum() == 100
    mixed = ((shuffled[:, 0] == [0, 1]).all(axis=1) & (shuffled[:, 1] == [7, 8]).all(axis=1)).sum()
    assert 50 < mixed < 100  # 75 expected, 0 in the observed ribbons
    np.testing.assert_array_equal(shuffled, independent_steps(rows, counts, num_steps=2, seed=3))


def test_path_distance_counts_what_is_not_shared():
    a, b = np.array([[0, 1], [2, 3]]), np.array([[1, 0], [2, 5]])
    assert path_distance(a, b).tolist() == [0, 1 / 2]


def test_nmi_of_four_tokens():
    assert nmi(np.array([7, 7, 9, 9]), np.array([1, 1, 0, 0])) == pytest.approx(1)
    assert nmi(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])) == pytest.approx(0)
    assert nmi(np.array([4, 4, 4]), np.array([2, 2, 2])) == 0
    # paths aab b, labels x y y y: I = H(x) + H(y) - H(xy)
    h_path, h_label = math.log(2), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    h_joint = -(0.25 * math.log(0.25) * 2 + 0.5 * math.log(0.5))
    expected = 2 * (h_path + h_label - h_joint) / (h_path + h_label)
    assert nmi(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])) == pytest.approx(expected)


def test_nmi_agrees_with_scikit_learn():
    from sklearn.metrics import normalized_mutual_info_score

    rng = np.random.default_rng(0)
    paths, labels = rng.integers(0, 30, 500), rng.integers(0, 4, 500)
    assert nmi(paths, labels) == pytest.approx(normalized_mutual_info_score(labels, paths))


def test_the_permutation_null_tells_chance_from_knowledge():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 400)
    knows = association(labels * 10 + rng.integers(0, 2, 400), labels, shuffles=50, seed=4)
    assert knows.nmi > knows.null_mean + 10 * knows.null_std
    assert knows.p_value == pytest.approx(1 / 51)
    chance = association(rng.integers(0, 40, 400), labels, shuffles=50, seed=4)
    assert chance.p_value > 0.05
    assert chance.null_mean > 0.01  # many paths look informative by chance: that is why the null is shown
    assert association(np.array([1]), np.array([0]), shuffles=5).p_value == 1


def test_labels_of_samples_are_shuffled_whole():
    """Tokens that share sample, label and path say no more than one of them."""
    rng = np.random.default_rng(2)
    over_tokens, over_samples = [], []
    for seed in range(20):
        samples = np.repeat(np.arange(40), 50)
        paths, labels = rng.integers(0, 4, 40)[samples], rng.integers(0, 3, 40)[samples]
        over_tokens.append(association(paths, labels, shuffles=40, seed=seed).p_value)
        over_samples.append(association(paths, labels, groups=samples, shuffles=40, seed=seed).p_value)
    assert max(over_tokens) < 0.05  # chance, and every one of them "significant"
    assert np.mean(np.array(over_samples) <= 0.1) < 0.35
    assert 0.25 < np.mean(over_samples) < 0.75
    labels = rng.integers(0, 3, 40)[samples]
    assert association(labels, labels, groups=samples, shuffles=40).p_value == pytest.approx(1 / 41)
    with pytest.raises(ValueError, match="different labels"):
        association(paths, np.arange(len(paths)), groups=samples)


def test_describe_by_hand():
    answer = describe(np.array([1.0, 2.0, 3.0, 4.0]), 3)
    assert (answer["num"], answer["mean"], answer["min"], answer["max"]) == (4, 2.5, 1, 4)
    assert answer["std"] == pytest.approx(math.sqrt(1.25))
    assert answer["median"] == 2.5
    assert [b["count"] for b in answer["bins"]] == [1, 1, 2]
    assert describe(np.array([]), 3) | {"bins": 0} == {
        "num": 0,
        "mean": None,
        "std": None,
        "min": None,
        "q01": None,
        "median": None,
        "q99": None,
        "max": None,
        "bins": 0,
    }
    assert describe(np.array([5.0, 5.0]), 4)["bins"] == [{"lo": 5.0, "hi": 5.0, "count": 2}]


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30), st.integers(1, 12))
def test_describe_agrees_with_numpy(values: list[int], bins: int):
    v = np.array(values) / 8
    distinct, counts = np.unique(v, return_counts=True)
    answer = describe(distinct, bins, counts=counts)
    assert answer["std"] == pytest.approx(v.std())
    for name, q in (("q01", 0.01), ("median", 0.5), ("q99", 0.99)):
        assert answer[name] == pytest.approx(np.quantile(v, q))
    if v.min() < v.max():
        assert [b["count"] for b in answer["bins"]] == np.histogram(v, bins)[0].tolist()
