"""Metrics of families, checkpoints, interventions and comparisons beside independent implementations.

As ``test_independent.py``: what stands on the right comes from scikit-learn, SciPy, statistics worked out by hand, or
from loops that spell the definition out. ``docs/metrics.md`` lists what is checked where.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.spatial.distance import pdist, squareform
from sklearn.decomposition import PCA
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import NearestCentroid

from tests.support.runs import make, make_experts
from tokenpaths.engine.analysis.contrast import wilson
from tokenpaths.engine.analysis.families.connections import (
    label_distance,
    mean_by_label,
    nearest_label_accuracy,
    self_share,
    stability,
)
from tokenpaths.engine.analysis.families.directions import (
    centroid_accuracy,
    domain_gates,
    principal_components,
    specialists,
)
from tokenpaths.engine.analysis.families.lights import (
    active_share,
    correlation,
    lit_share,
    share_by_class,
    steps_until_output,
)
from tokenpaths.engine.analysis.paired_runs import load_difference, pearson, spearman
from tokenpaths.engine.analysis.path_distance import profile_distance, profiles
from tokenpaths.engine.analysis.projection import pca
from tokenpaths.engine.analysis.route_changes import RouteChange
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.raytracing import RayTracing
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.saturation import saturation
from tokenpaths.frontend.charts.families.raytracing_network import network_of, share_rows


# -- checkpoints and interventions -------------------------------------------------------------
def test_saturation_is_counted_with_sets_over_sealed_checkpoints(tmp_path: Path):
    made = [
        make_experts(f"at-{iteration}", top_k=3, samples=7, series=("mine", iteration), drift=drift)
        for iteration, drift in ((100, 0.8), (500, 0.3), (1000, 0.0))
    ]
    files = [one.write(tmp_path) for one in made]
    answer = saturation(files)
    assert [one.iteration for one in answer.checkpoints] == [100, 500, 1000]
    for checkpoint, one in zip(answer.checkpoints, made, strict=True):
        for step, share in enumerate(checkpoint.steps):
            pairs = zip(one.ids[:, step].tolist(), made[-1].ids[:, step].tolist(), strict=True)
            assert share == pytest.approx(statistics.mean(len(set(a) & set(b)) / 3 for a, b in pairs))
        assert checkpoint.mean == pytest.approx(statistics.mean(checkpoint.steps))
    assert answer.checkpoints[-1].mean == 1.0
    assert answer.chance == pytest.approx([3 / 16] * 4)


def test_an_intervention_is_counted_token_by_token():
    rng = np.random.default_rng(0)
    before = rng.random((300, 4, 6)).argsort(axis=2)[:, :, :2]
    after = before.copy()
    moved = rng.random((300, 4)) < 0.3
    after[moved] = rng.random((300, 4, 6)).argsort(axis=2)[:, :, :2][moved]
    change = RouteChange(6, frozenset({1}))
    change.add(before, after)
    answer = change.answer()
    apart = [
        [1 - len(set(a) & set(b)) / 2 for a, b in zip(x, y, strict=True)]
        for x, y in zip(before.tolist(), after.tolist(), strict=True)
    ]
    assert answer["paths_changed"] == pytest.approx(statistics.mean(any(token) for token in apart))
    assert answer["paths_changed_after"] == pytest.approx(statistics.mean(any(token[2:]) for token in apart))
    assert answer["path_distance"] == pytest.approx(statistics.mean(sum(token) for token in apart))
    flows = []
    for ids in (before, after):
        table = np.zeros((3, 6, 6))
        for token in ids.tolist():
            for step, (sources, targets) in enumerate(itertools.pairwise(token)):
                for a, b in itertools.product(sources, targets):
                    table[step, a, b] += 0.25
        flows.append(table / 300)
    # Half the L1 distance is the total variation distance of two distributions; one for each pair of steps.
    assert answer["flow_difference"] == pytest.approx(np.abs(flows[0] - flows[1]).sum(axis=(1, 2)).mean() / 2)


# -- two runs ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "noise"), [(8, 2.0), (60, 0.5), (400, 5.0)])
def test_correlations_and_intervals_are_scipys(size, noise):
    rng = np.random.default_rng(size)
    x = rng.normal(size=size).round(1)
    y = (x + noise * rng.normal(size=size)).round(1)
    ours, r = pearson(x, y), scipy.stats.pearsonr(x, y).statistic
    error = max(1 / np.sqrt(size - 3), jackknife(x, y))
    half = scipy.stats.t.ppf(0.975, size - 2) * error
    assert (ours.r, ours.low, ours.high) == pytest.approx(
        (r, np.tanh(np.arctanh(r) - half), np.tanh(np.arctanh(r) + half))
    )
    ranks = spearman(x, y)
    rho = scipy.stats.spearmanr(x, y).statistic
    error = np.sqrt((1 + rho**2 / 2) / (size - 3))
    half = scipy.stats.norm.ppf(0.975) * max(error, jackknife(*map(scipy.stats.rankdata, (x, y))))
    assert (ranks.r, ranks.low, ranks.high) == pytest.approx(
        (rho, np.tanh(np.arctanh(rho) - half), np.tanh(np.arctanh(rho) + half))
    )


def jackknife(x, y):
    """Standard error of atanh r: once without each pair."""
    z = np.arctanh(scipy.stats.pearsonr(x, y).statistic)
    without = [np.arctanh(scipy.stats.pearsonr(np.delete(x, i), np.delete(y, i)).statistic) - z for i in range(len(x))]
    return np.sqrt((len(x) - 1) / len(x) * np.sum(np.square(without)))


def test_the_skip_and_reuse_correlation_of_two_runs_is_scipys(tmp_path: Path):
    files = [make(name, samples=24, identities=2, seed=seed).write(tmp_path) for name, seed in (("a", 1), ("b", 2))]
    with Run.open(files[0]) as a, Run.open(files[1]) as b:
        for measure in ("compute", "reuse"):
            answer = a.compare(b, measure)
            pairs = [(point["sample"], point["partner"]) for point in answer["points"]]
            sources = [run.frames.samples()["source"] for run in (a, b)]
            assert len(pairs) > 10
            assert all(sources[0][one] == sources[1][other] for one, other in pairs)
            values = [run.frames.samples()[measure].to_numpy() for run in (a, b)]
            one, other = values[0][[p for p, _ in pairs]], values[1][[p for _, p in pairs]]
            found = next(row for row in answer["correlations"] if row["measure"] == measure)
            for name, theirs in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
                assert found[name]["r"] == pytest.approx(theirs(one, other).statistic, abs=1e-6)


def test_the_interval_of_a_share_is_scipys_wilson():
    for hits, size in ((0, 5), (3, 17), (40, 41), (250, 1000)):
        theirs = scipy.stats.binomtest(hits, size).proportion_ci(method="wilson")
        low, high = wilson(np.array([hits / size]), np.array([float(size)]))
        assert (low[0], high[0]) == pytest.approx((theirs.low, theirs.high))


def test_the_load_difference_is_scipys_distance_of_sorted_shares():
    one, other = np.array([5, 0, 3, 2]), np.array([10, 10, 0, 0])
    assert load_difference(one, one[::-1]) == 0.0
    assert load_difference(one, other) == pytest.approx((0 + 0.2 + 0.2 + 0) / 2)  # .5 .3 .2 0 against .5 .5 0 0


def test_profile_distance_is_hellingers():
    """By its definition through SciPy's Euclidean distance of the square roots of both distributions."""
    rng = np.random.default_rng(3)
    ribbons = rng.integers(0, 5, (40, 3))
    sample, count = np.sort(rng.integers(0, 6, 40)), rng.integers(1, 9, 40)
    found = profiles(sample, count, ribbons, num_samples=6, num_steps=3, num_modules=5)
    shares = np.zeros((6, 3, 5))
    for s, c, ribbon in zip(sample, count, ribbons, strict=True):
        for step, module in enumerate(ribbon):
            shares[s, step, module] += c
    shares /= shares.sum(axis=2, keepdims=True)
    hellinger = np.sqrt(np.mean([squareform(pdist(np.sqrt(shares[:, s]))) ** 2 / 2 for s in range(3)], axis=0))
    ours = np.stack([profile_distance(row.astype(np.float32), found) for row in found])
    np.testing.assert_allclose(ours, hellinger, atol=1e-5)


def test_the_map_is_scikit_learns_pca():
    values = np.random.default_rng(4).random((50, 12)) ** 3
    theirs = PCA(2, svd_solver="full").fit(values)
    plane = pca(values)
    np.testing.assert_allclose(plane.explained, theirs.explained_variance_ratio_, atol=1e-8)
    np.testing.assert_allclose(np.abs(plane.points), np.abs(theirs.transform(values)), atol=1e-6)


# -- H-Model -----------------------------------------------------------------------------------
@pytest.fixture
def edges() -> tuple[np.ndarray, np.ndarray]:
    """(n, I, A, Z) connections of two hidden layers, one input and one output; and a label of each input."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 40)
    values = rng.dirichlet(np.ones(3), (40, 4, 3)) * 0.5 + 0.5 * np.eye(3)[labels][:, None, None, :]
    values[:, 0, :2] = 0  # hidden layers send from iteration 1 on
    values[:, 1:, 2] = 0  # the input sends at iteration 0 only
    values[:, -1, :, :2] = 0  # at the end only the output receives
    return values, labels


def test_hmodel_stability_is_one_minus_numpys_variance_connection_by_connection(edges):
    values, _ = edges
    exist = [(0, 2, z) for z in range(3)]
    exist += [(i, a, z) for i in (1, 2) for a in range(2) for z in range(3)] + [(3, a, 2) for a in range(2)]
    variances = [statistics.pvariance(values[:, i, a, z].tolist()) for i, a, z in exist]
    assert stability(values, 2) == pytest.approx(1 - statistics.mean(variances))
    own = sum(values[:, i, a, a].sum() for i in (1, 2) for a in range(2))
    assert self_share(values, 2) == pytest.approx(own / sum(values[:, i, a].sum() for i in (1, 2) for a in range(2)))


def test_hmodel_distances_are_scipys_and_its_labels_nearest_centroids(edges):
    values, labels = edges
    exist = [(0, 2, z) for z in range(3)]
    exist += [(i, a, z) for i in (1, 2) for a in range(2) for z in range(3)] + [(3, a, 2) for a in range(2)]
    flat = np.stack([values[:, i, a, z] for i, a, z in exist], axis=1)
    distances = squareform(pdist(flat)) / np.sqrt(flat.shape[1])
    same = labels[:, None] == labels[None]
    off = ~np.eye(len(labels), dtype=bool)
    found = label_distance(values, labels, 2, shuffles=20)
    assert (found.within, found.between) == pytest.approx((distances[same & off].mean(), distances[~same].mean()))
    assert found.ratio == pytest.approx(found.between / found.within)
    predicted = cross_val_predict(NearestCentroid(), flat, labels, cv=LeaveOneOut())
    assert nearest_label_accuracy(values, labels, 2) == pytest.approx((predicted == labels).mean())
    for label, mean in mean_by_label(values, labels).items():
        np.testing.assert_allclose(mean, values[labels == int(label)].mean(axis=0))


# -- Directional Routing -----------------------------------------------------------------------
def test_nearest_centroid_accuracy_is_scikit_learns_leave_one_out():
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 4, 60)
    vectors = rng.normal(size=(60, 10)) + 0.7 * np.eye(4)[codes] @ rng.normal(size=(4, 10))
    domains = [f"domain {code}" for code in codes]
    predicted = cross_val_predict(NearestCentroid(), vectors, codes, cv=LeaveOneOut())
    found = centroid_accuracy(vectors, domains, shuffles=10)
    assert found.accuracy == pytest.approx((predicted == codes).mean())
    assert found.balanced == pytest.approx(balanced_accuracy_score(codes, predicted))
    assert 0.3 < found.accuracy < 1.0
    theirs = PCA(3, svd_solver="full").fit(vectors)
    parts = principal_components(vectors, 3)
    np.testing.assert_allclose(parts.explained, theirs.explained_variance_ratio_)
    np.testing.assert_allclose(np.abs(parts.scores), np.abs(theirs.transform(vectors)), atol=1e-8)


def test_gate_means_variances_and_specialists_by_hand():
    gates = np.zeros((4, 2, 2, 1))
    gates[:, 0, 0, 0], gates[:, 0, 1, 0], gates[:, 1, 0, 0] = (0, 0.2, 0.8, 1), (0.5, 0.5, 0.7, 0.7), 0.4
    found = domain_gates(gates, ["a", "a", "b", "b"])
    assert found.mean[:, 0, 0, 0].tolist() == pytest.approx([0.1, 0.9])
    assert found.head_variance[0].tolist() == pytest.approx([statistics.pvariance([0.1, 0.9]), 0.01])
    assert specialists(found.head_variance).tolist() == [[True, False], [False, False]]


# -- RayTracing --------------------------------------------------------------------------------
def test_raytracing_shares_are_counted_with_sets():
    rng = np.random.default_rng(7)
    rates = rng.random((20, 5, 8)) * (rng.random((20, 5, 8)) < 0.25)
    rates[3] = 0
    rates[4, 2:] = 0
    for n, sample in enumerate(rates.tolist()):
        lit: set[int] = set()
        last = 0
        for step, row in enumerate(sample):
            fired = {block for block, rate in enumerate(row) if rate > 0}
            lit |= fired
            last = step + 1 if fired else last
            assert active_share(rates)[n, step] == pytest.approx(len(fired) / 8)
            assert lit_share(rates)[n, step] == pytest.approx(len(lit) / 8)
        assert steps_until_output(rates)[n] == last


@pytest.mark.parametrize("crossing", ["one", "all"])
def test_the_used_share_of_raytracing_is_a_set_of_parameters_at_each_threshold_step(crossing: str):
    """Of a sample at every step, as the page draws it, and at its stop, as cards and benchmarks have it."""
    config = RayTracingConfig(
        image_size=4,
        conv_channels=(5,),
        conv_pools=(),
        input_neurons=(2, 4),
        input_density=0.1,
        layers=3,
        blocks=4,
        width=3,
        num_classes=5,
        theta_steps=5,
        crossing=crossing,
    )
    model = RayTracing(config)
    network = network_of(
        {"config": config.model_dump(), "modules": [asdict(module) for module in model.module_table()]}
    )
    wires = [("input", j, n, end) for j, ends in enumerate(config.input_wires) for n, end in enumerate(ends)]
    wires += [("block", b, n, end) for b, ends in enumerate(config.block_wires) for n, end in enumerate(ends)]
    always = {("input", *one) for one in itertools.product(range(6), range(config.fan_in + 1))}
    always |= {("output bias", label) for label in range(5)}
    rng = np.random.default_rng(11)
    rates = rng.random((20, 5, 12)) * (rng.random((20, 5, 12)) < 0.25)
    rates[3] = 0
    rates[4, 2:] = 0
    at_the_stop = []
    for sample in rates.tolist():
        inside: set[tuple] = set()
        curve = share_rows(network, sample)
        for step, row in enumerate(curve):
            fired = {block for block, rate in enumerate(sample[step]) if rate > 0}
            before = {block for block, rate in enumerate(sample[step - 1]) if rate > 0 and step}
            sends = fired if crossing == "all" else before
            for block in fired:
                inside |= {("bias", block, neuron) for neuron in range(3)}
                for kind, source, n, end in wires:
                    if end == block and (kind == "input" or source in sends):
                        inside |= {("weight", kind, source, n, neuron) for neuron in range(3)}
            read = {(b, n, label) for k, b, n, end in wires if end == 12 and b in fired for label in range(5)}
            share = len(always | inside | read) / model.trainable_params
            assert row["used"] == pytest.approx(share)
        at_the_stop.append(curve[-1]["used"])
    used = model.used_params(torch.from_numpy(rates)).numpy() / model.trainable_params
    assert used.tolist() == pytest.approx(at_the_stop)


def test_raytracing_means_and_correlations_are_scipys():
    rng = np.random.default_rng(8)
    share = rng.random(200)
    loss = share + 2 * rng.normal(size=200)
    labels = [["cat", "dog", None][i % 3] for i in range(200)]
    for row in share_by_class(share, labels):
        values = [s for s, label in zip(share, labels, strict=True) if label == row.label]
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, np.mean(values), scipy.stats.sem(values))
        assert (row.mean, row.low, row.high) == pytest.approx((np.mean(values), low, high), rel=1e-3)
    ours = correlation(share, loss)
    assert ours.pearson == pytest.approx(scipy.stats.pearsonr(share, loss).statistic)
    assert ours.spearman == pytest.approx(scipy.stats.spearmanr(share, loss).statistic)
    for measure, low, high in (
        (scipy.stats.pearsonr, ours.pearson_low, ours.pearson_high),
        (scipy.stats.spearmanr, ours.spearman_low, ours.spearman_high),
    ):
        theirs = scipy.stats.bootstrap(
            (share, loss),
            lambda x, y, measure=measure: measure(x, y).statistic,
            paired=True,
            vectorized=False,
            method="percentile",
            n_resamples=1000,
            rng=np.random.default_rng(10),
        ).confidence_interval
        assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.03)
