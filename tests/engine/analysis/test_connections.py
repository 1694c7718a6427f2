"""Connections of two hidden layers, one input and one output, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tokenpaths.engine.analysis.families.connections import (
    label_distance,
    mean_by_label,
    nearest_label_accuracy,
    open_connections,
    pairwise_distances,
    self_share,
    stability,
)
from tokenpaths.engine.base.errors import UserError


def make(*flat: list[float], iterations: int = 3) -> np.ndarray:
    """Edges of inputs from their open connections in order: 3 of the input, 2 × 3 an iteration, 2 at the end."""
    edges = np.zeros((len(flat), iterations, 3, 3))
    exist = open_connections(edges, 2)
    for row, values in zip(edges, flat, strict=True):
        row[exist] = values
    return edges


def random_edges(labels: np.ndarray, strength: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.2, 0.8, size=(labels.max() + 1, 11))
    return make(*np.clip(strength * centres[labels] + (1 - strength) * rng.uniform(size=(len(labels), 11)), 0, 1))


def test_open_connections_are_those_that_something_can_pass():
    exist = open_connections(np.zeros((1, 3, 3, 3)), 2)
    assert exist[0].tolist() == [[False] * 3, [False] * 3, [True] * 3]
    assert exist[1].tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert exist[2].tolist() == [[False, False, True], [False, False, True], [False] * 3]
    once = open_connections(np.zeros((1, 2, 3, 3)), 2)
    assert once[0, 2].all()
    assert once[1, :2].tolist() == [[False, False, True]] * 2
    with pytest.raises(UserError, match="1 to 2 hidden layers"):
        open_connections(np.zeros((1, 2, 3, 3)), 3)


def test_an_hmodel_records_exactly_the_open_connections():
    import torch

    from tokenpaths.engine.models.hmodel.hmodel import HModel, HModelConfig

    config = HModelConfig(
        modality="text",
        hidden=("transformer",) * 2,
        iterations=3,
        width=8,
        heads=1,
        mlp_width=8,
        vocab_size=9,
        context=5,
    )
    edges = HModel(config).trace(torch.zeros(2, 5, dtype=torch.long)).edges.detach().numpy()
    assert np.array_equal(edges[0] > 0, open_connections(edges, 2))


def test_self_share_by_hand():
    # iteration 1: layer 0 sends .5 .1 .2, layer 1 sends .3 .4 .5
    edges = make([1, 1, 1, 0.5, 0.1, 0.2, 0.3, 0.4, 0.5, 1, 1])
    assert self_share(edges, 2) == pytest.approx((0.5 + 0.4) / (0.5 + 0.1 + 0.2 + 0.3 + 0.4 + 0.5))
    assert self_share(make([0.7] * 11), 2) == pytest.approx(1 / 3)
    assert np.isnan(self_share(make([0.5] * 5, iterations=2), 2))


def test_stability_by_hand():
    same, other = [0.5] * 11, [0.5] * 10 + [0.9]
    assert stability(make(same, same, same), 2) == 1
    # one connection of eleven has variance 0.04
    assert stability(make(same, other), 2) == pytest.approx(1 - 0.04 / 11)
    assert stability(make([0.0] * 11, [1.0] * 11), 2) == pytest.approx(0.75)


def test_mean_by_label():
    edges = make([0.2] * 11, [0.4] * 11, [0.9] * 11)
    means = mean_by_label(edges, np.array(["de", "de", "uk"]))
    assert list(means) == ["de", "uk"]
    assert means["de"][1, 0, 0] == pytest.approx(0.3)
    assert means["uk"][2, 0, 2] == pytest.approx(0.9)


def test_distances_are_roots_of_mean_squares():
    points = np.array([[0.0, 0.0], [0.3, 0.4], [0.3, 0.4]])
    expected = 0.5 / np.sqrt(2)
    assert pairwise_distances(points) == pytest.approx(
        np.array([[0, expected, expected], [expected, 0, 0], [expected, 0, 0]]), abs=1e-8
    )


def test_label_distance_of_four_inputs_by_hand():
    edges = make([0.0] * 11, [0.2] * 11, [1.0] * 11, [0.9] * 11)
    answer = label_distance(edges, np.array([0, 0, 1, 1]), 2, shuffles=0)
    assert answer.within == pytest.approx((0.2 + 0.1) / 2)
    assert answer.between == pytest.approx((1.0 + 0.9 + 0.8 + 0.7) / 4)
    assert answer.ratio == pytest.approx(0.85 / 0.15)
    assert answer.matrix == pytest.approx(np.array([[0.2, 0.85], [0.85, 0.1]]))
    lonely = label_distance(edges, np.array([0, 0, 0, 1]), 2, shuffles=0)
    assert np.isnan(lonely.matrix[1, 1])
    assert lonely.matrix[0, 1] == pytest.approx((0.9 + 0.7 + 0.1) / 3)


def test_label_distance_agrees_with_a_loop_over_pairs():
    labels = np.random.default_rng(2).integers(0, 3, 20)
    edges = random_edges(labels, 0.3)
    flat = edges[:, open_connections(edges, 2)]
    within, between = [], []
    for i in range(20):
        for j in range(i):
            d = np.sqrt(((flat[i] - flat[j]) ** 2).mean())
            (within if labels[i] == labels[j] else between).append(d)
    answer = label_distance(edges, labels, 2, shuffles=5)
    assert (answer.within, answer.between) == pytest.approx((np.mean(within), np.mean(between)))


def test_the_permutation_null_tells_chance_from_knowledge():
    labels = np.random.default_rng(1).integers(0, 6, 90)
    knows = label_distance(random_edges(labels, 0.6), labels, 2, shuffles=200)
    assert knows.p_value == pytest.approx(1 / 201)
    assert knows.ratio > knows.null_max > 1 - 0.05
    chance = label_distance(random_edges(labels, 0.0), labels, 2, shuffles=200)
    assert chance.p_value > 0.05
    assert chance.ratio == pytest.approx(1, abs=0.05)
    names = np.array(["abcdef"[label] for label in labels])
    assert label_distance(random_edges(labels, 0.6), names, 2).ratio == knows.ratio


def test_many_inputs_are_compared_by_a_seeded_sample():
    labels = np.random.default_rng(1).integers(0, 6, 300)
    edges = random_edges(labels, 0.6)
    some = label_distance(edges, labels, 2, shuffles=3, most=120)
    assert some.num_inputs == 120
    assert some.ratio == label_distance(edges, labels, 2, shuffles=3, most=120).ratio
    assert some.ratio == pytest.approx(label_distance(edges, labels, 2, shuffles=3).ratio, rel=0.05)


def test_inputs_of_one_label_that_never_differ_are_infinitely_closer():
    edges = make([0.0] * 11, [0.0] * 11, [1.0] * 11, [1.0] * 11)
    answer = label_distance(edges, np.array([0, 0, 1, 1]), 2, shuffles=30)
    assert answer.ratio == float("inf")
    assert answer.p_value > 0.1  # a third of all shuffles give the same partition


def test_p_values_are_uniform_when_labels_mean_nothing():
    labels = np.random.default_rng(3).integers(0, 2, 16)
    ps = [label_distance(random_edges(labels, 0.0, seed), labels, 2, shuffles=39).p_value for seed in range(60)]
    assert 0.3 < np.mean(ps) < 0.7
    assert np.mean(np.array(ps) <= 0.05) < 0.17


def test_nearest_label_accuracy_leaves_the_input_out():
    labels = np.array([0, 0, 1, 1])
    assert nearest_label_accuracy(make([0.0] * 11, [0.1] * 11, [1.0] * 11, [0.9] * 11), labels, 2) == 1
    # Alone with its label, an input would be nearest to itself.
    lonely = nearest_label_accuracy(make([0.0] * 11, [0.1] * 11, [1.0] * 11), np.array([0, 0, 1]), 2)
    assert lonely == pytest.approx(2 / 3)
    chance = nearest_label_accuracy(random_edges(np.arange(200) % 2, 0.0), np.arange(200) % 2, 2)
    assert 0.35 < chance < 0.65


@pytest.mark.parametrize(
    ("labels", "field"), [(["a", "a", "a"], "labels"), (["a", "b", "c"], "labels"), (["a", "a", "b"], "edges")]
)
def test_comparisons_that_mean_nothing_are_refused(labels, field):
    with pytest.raises(UserError) as error:
        label_distance(make(*[[0.5] * 11] * 3), np.array(labels), 2)
    assert error.value.field == field


def test_nan_is_refused_by_name():
    edges = make([0.5] * 11, [float("nan")] + [0.5] * 10)
    for measure in (lambda: stability(edges, 2), lambda: label_distance(edges, np.array([0, 1]), 2)):
        with pytest.raises(UserError):
            measure()
