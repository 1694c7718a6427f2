"""PCA against scikit-learn, t-SNE against a naive version and scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE as TheirTSNE
from sklearn.neighbors import NearestNeighbors

from tokenpaths.engine.analysis.projection import (
    TSNE,
    joint_probabilities,
    kl_gradient,
    nearest_of,
    pca,
    same_label,
    squared_distances,
)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (700, 650), (3, 2), (650, 3000)])
def test_pca_is_scikit_learns_but_for_signs(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape[0])
    values = (rng.normal(size=shape) * np.geomspace(3, 0.3, shape[1])).astype(np.float32)
    found, known = pca(values), PCA(2, svd_solver="full").fit(values.astype(np.float64))
    assert found.explained == pytest.approx(tuple(known.explained_variance_ratio_), rel=1e-6)
    theirs = known.transform(values)
    for axis in range(2):
        gap = min(np.abs(found.points[:, axis] - sign * theirs[:, axis]).max() for sign in (1, -1))
        assert gap < 1e-3 * np.abs(theirs[:, axis]).max()


def test_pca_of_points_that_do_not_span_a_plane() -> None:
    assert pca(np.ones((5, 3), dtype=np.float32)).explained == (0, 0)
    assert pca(np.ones((1, 3), dtype=np.float32)).points.tolist() == [[0, 0]]
    line = pca(np.outer(np.arange(4.0), [0, 1, 0, 0]))
    assert line.explained == pytest.approx((1, 0))
    assert line.points[:, 0] == pytest.approx([-1.5, -0.5, 0.5, 1.5])  # the largest weight is positive
    assert np.isfinite(line.points).all()
    assert pca(np.arange(4.0)[:, None]).points[:, 0] == pytest.approx([-1.5, -0.5, 0.5, 1.5])


def naive_joint(squared: np.ndarray, perplexity: float) -> np.ndarray:
    """Row by row with a root finder."""
    num = len(squared)
    chances = np.zeros((num, num))
    for i in range(num):
        others = np.delete(squared[i], i)

        def row(log_beta: float, others: np.ndarray = others) -> np.ndarray:
            weight = np.exp(-(others - others.min()) * np.exp(log_beta))
            return weight / weight.sum()

        def error(log_beta: float) -> float:
            p = row(log_beta)
            return float(-(p[p > 0] * np.log(p[p > 0])).sum() - np.log(perplexity))

        chances[i, np.arange(num) != i] = row(brentq(error, -20, 20))
    return (chances + chances.T) / (2 * num)


def test_neighbours_are_those_of_the_naive_version() -> None:
    values = np.random.default_rng(0).normal(size=(30, 5))
    squared = squared_distances(values)
    assert squared[3, 7] == pytest.approx(((values[3] - values[7]) ** 2).sum())
    found = joint_probabilities(squared, 8)
    assert found == pytest.approx(naive_joint(squared, 8), abs=1e-6)
    assert found.sum() == pytest.approx(1)


def test_equal_points_have_equal_neighbours() -> None:
    found = joint_probabilities(np.zeros((6, 6)), 3)
    assert np.isfinite(found).all()
    assert found[0, 1] == pytest.approx(1 / 30)


def test_the_gradient_is_that_of_the_divergence() -> None:
    rng = np.random.default_rng(1)
    joint = joint_probabilities(squared_distances(rng.normal(size=(12, 4))), 4)
    points = rng.normal(size=(12, 2))
    gradient, divergence = kl_gradient(joint, points)
    for place in ((0, 0), (5, 1), (11, 0)):
        moved = points.copy()
        moved[place] += 1e-5
        back = points.copy()
        back[place] -= 1e-5
        numeric = (kl_gradient(joint, moved)[1] - kl_gradient(joint, back)[1]) / 2e-5
        assert gradient[place] == pytest.approx(numeric, rel=1e-4)
    off = ~np.eye(12, dtype=bool)
    near = 1 / (1 + squared_distances(points))
    chance = near / near[off].sum()
    assert divergence == pytest.approx((joint[off] * np.log(joint[off] / chance[off])).sum())


def test_three_clusters_are_parted_as_well_as_scikit_learn_does() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=(30, 8)) + 7 * place for place in range(3)])
    work = TSNE.begin(values, 12)
    for _ in range(500):
        divergence = work.advance()
    theirs = TheirTSNE(perplexity=12, method="exact", init="pca", random_state=0, max_iter=500).fit(values)
    assert divergence < theirs.kl_divergence_ + 0.05
    squared = squared_distances(work.points)
    np.fill_diagonal(squared, np.inf)
    assert (squared.argmin(axis=1) // 30 == np.arange(90) // 30).all()


def test_a_stopped_one_goes_on_bit_for_bit() -> None:
    values = np.random.default_rng(2).normal(size=(25, 6))
    whole, first = TSNE.begin(values, 5), TSNE.begin(values, 5)
    for _ in range(300):
        whole.advance()
    for _ in range(260):
        first.advance()
    second = TSNE.begin(values, 5)
    second.points, second.speed, second.gains = first.points.copy(), first.speed.copy(), first.gains.copy()
    second.iteration = first.iteration
    for _ in range(40):
        second.advance()
    assert np.array_equal(second.points, whole.points)


def test_the_nearest_point_is_scikit_learns() -> None:
    values = np.random.default_rng(3).normal(size=(1200, 6)).astype(np.float32)
    theirs = NearestNeighbors(n_neighbors=2).fit(values).kneighbors(values, return_distance=False)[:, 1]
    assert np.array_equal(nearest_of(values), theirs)


def test_of_points_as_near_each_is_drawn_alike() -> None:
    values = np.zeros((6, 2))
    values[5] = 3.0
    drawn = np.array([nearest_of(values, seed) for seed in range(400)])
    assert (drawn != np.arange(6)).all()
    assert set(drawn[:, 0]) == {1, 2, 3, 4}
    assert set(drawn[:, 5]) == {0, 1, 2, 3, 4}
    assert np.unique(drawn[:, 0], return_counts=True)[1].min() > 60


def test_labels_of_the_nearest_agree_beyond_chance_only_where_they_do() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 30)
    found = same_label(rng.normal(size=(120, 5)) + 2 * labels[:, None], labels)
    assert found is not None
    assert found.share > 0.7 > found.high
    assert found.p_value == pytest.approx(1 / 201)
    assert found.by_chance == pytest.approx(29 / 119, abs=0.01)
    refused = 0
    for seed in range(200):
        by_chance = same_label(np.random.default_rng(seed).normal(size=(24, 5)), np.arange(24) % 3)
        assert by_chance is not None
        refused += by_chance.p_value <= 0.05
    assert refused <= 18  # 10 are expected; P(19 or more) < 0.5 %
    # Points without a label are nobody's neighbours, and a label for each, or one for all, tells nothing.
    some = np.where(np.arange(120) % 2 == 0, labels, -1)
    within = same_label(np.arange(120.0)[:, None], some)
    assert within is not None
    assert within.num == 60
    assert within.share > 0.9
    assert same_label(rng.normal(size=(5, 2)), np.arange(5)) is None
    assert same_label(rng.normal(size=(5, 2)), np.zeros(5, dtype=int)) is None
    # One exchange in three of two and two leaves them as they are.
    assert same_label(rng.normal(size=(4, 2)), np.array([0, 0, 1, 1])) is None
