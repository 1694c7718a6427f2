"""Metrics of paths, tokens and loads beside independent implementations, never beside our own code.

What stands on the right of each comparison comes from scikit-learn, SciPy, networkx, the ``powerlaw`` package, NumPy's
own polynomial fit, exact fractions, or from loops over Python sets and Counters that spell the definition out. Where a
sealed run can be asked, the number is the run's answer, from writer to query. ``docs/metrics.md`` lists what is checked
where; families and comparisons are in ``test_independent_families.py``.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.stats
from scipy.spatial.distance import hamming
from sklearn.metrics import adjusted_mutual_info_score, mutual_info_score, normalized_mutual_info_score

from tests.support.runs import RunArrays, make, make_experts
from tokenpaths.engine.analysis.association import association, nmi
from tokenpaths.engine.analysis.expert_affinity import even_share, repetition_baselines
from tokenpaths.engine.analysis.load import effective_top_k, importance_cv2, load_entropy, max_violation, utilisation
from tokenpaths.engine.analysis.paired_runs import agreement
from tokenpaths.engine.analysis.path_statistics import (
    Histogram,
    effective_paths,
    independent_steps,
    path_distance,
    rank_frequency_fit,
)
from tokenpaths.engine.analysis.power_law import against_lognormal, fit_power_law, goodness_of_fit
from tokenpaths.engine.analysis.slope_growth import slope_growth, thinned, window_fit
from tokenpaths.engine.store.ask.run import Run


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Run, RunArrays]]]:
    """Runs as readers open them, each with the raw arrays that it was written from."""
    folder: Path = tmp_path_factory.mktemp("independent")
    made = {
        "top1": make("top1", samples=15, seed=11),
        "top2": make("top2", "text", samples=25, top_k=2, modules=8, identities=2, seed=12),
        "experts": make_experts("experts", layers=3, experts=12, top_k=3, samples=12, length=60),
    }
    runs = {name: (Run.open(one.write(folder)), one) for name, one in made.items()}
    yield runs
    for run, _ in runs.values():
        run.close()


def words_of(made: RunArrays) -> list[tuple]:
    """Each token's path as a tuple of sorted tuples: the identity that the definition gives."""
    return [tuple(tuple(sorted(step)) for step in token) for token in made.ids.tolist()]


BOTH = pytest.mark.parametrize("name", ["top1", "top2", "experts"])


# -- paths -------------------------------------------------------------------------------------
@BOTH
def test_ranks_counts_and_cdf_are_those_of_a_counter(sealed, name):
    run, made = sealed[name]
    counted = sorted(Counter(words_of(made)).items(), key=lambda item: (-item[1], item[0]))
    found = run.frames.paths()
    assert found["count"].tolist() == [count for _, count in counted]
    assert [tuple(tuple(sorted(step)) for step in ribbon) for ribbon in found["ribbon"]] == [p for p, _ in counted]
    assert found["rank"].tolist() == list(range(1, len(counted) + 1))
    seen = scipy.stats.ecdf(np.repeat(np.arange(1, len(counted) + 1), [c for _, c in counted])).cdf
    np.testing.assert_allclose(found["cdf"], seen.evaluate(found["rank"].to_numpy()), atol=1e-12)


@BOTH
def test_the_middle_of_the_cdf_is_scipys_mean_percentile(sealed, name):
    run, made = sealed[name]
    counts = Counter(words_of(made))
    found = run.frames.paths()
    rarity = [-count for count in counts.values() for _ in range(count)]
    expected = [scipy.stats.percentileofscore(rarity, -count, kind="mean") / 100 for count in found["count"]]
    np.testing.assert_allclose(found["cdf_middle"], expected, atol=1e-12)


@BOTH
def test_effective_paths_are_the_exponential_of_scipys_entropy(sealed, name):
    run, made = sealed[name]
    counts = np.array(list(Counter(words_of(made)).values()))
    assert effective_paths(counts) == pytest.approx(math.exp(scipy.stats.entropy(counts)))
    assert run.info()["summary"]["effective_paths"] == pytest.approx(math.exp(scipy.stats.entropy(counts)))
    for share in run.info()["summary"]["top_shares"]:
        top = sum(count for _, count in Counter(words_of(made)).most_common(share["n"]))
        assert share["share"] == pytest.approx(top / len(made.ids))


@BOTH
def test_the_rank_frequency_slope_is_scipys_regression(sealed, name):
    run, made = sealed[name]
    counts = np.array(sorted(Counter(words_of(made)).values(), reverse=True))
    line = scipy.stats.linregress(np.log(np.arange(1, len(counts) + 1)), np.log(counts))
    observed = run.fit()["observed"]
    assert (observed["slope"], observed["r2"]) == pytest.approx((line.slope, line.rvalue**2))
    assert rank_frequency_fit(counts).slope == pytest.approx(
        np.polyfit(np.log(np.arange(1, len(counts) + 1)), np.log(counts), 1)[0]
    )


def test_paths_that_are_summed_part_by_part_give_scipys_regression_and_entropy():
    counts = -np.sort(-np.random.default_rng(3).zipf(1.4, 200_001).clip(max=10**6))
    line = scipy.stats.linregress(np.log(np.arange(1, len(counts) + 1)), np.log(counts))
    fit = rank_frequency_fit(counts)
    assert (fit.slope, fit.r2) == pytest.approx((line.slope, line.rvalue**2), rel=1e-9)
    assert effective_paths(counts) == pytest.approx(math.exp(scipy.stats.entropy(counts)), rel=1e-9)


@BOTH
def test_slopes_at_equal_numbers_of_tokens_are_those_of_drawn_tokens(sealed, name):
    """Of the whole run by SciPy; thinned: the mean over runs whose tokens Python draws one by one."""
    run, made = sealed[name]
    words = words_of(made)
    sizes, draws = [len(words) // 4, len(words) // 2, len(words)], 40
    histogram = Histogram.of(np.array(list(Counter(words).values())))
    for size, point in zip(sizes, slope_growth(histogram, sizes, draws, seed=0), strict=True):
        lines, num_paths = [], []
        for seed in range(draws):
            counts = np.array(sorted(Counter(random.Random(seed).sample(words, size)).values(), reverse=True))
            lines.append(scipy.stats.linregress(np.log(np.arange(1, len(counts) + 1)), np.log(counts)).slope)
            num_paths.append(len(counts))
        # The number of tokens varies where each is kept by chance, which a sample of fixed size does not.
        assert point.slope == pytest.approx(np.mean(lines), abs=0.02 if size < len(words) else 1e-9)
        assert point.num_paths == pytest.approx(np.mean(num_paths), rel=0.04)
    answer = run.slopes()["observed"]
    assert answer[-1]["num_tokens"] == len(words)
    assert answer[-1]["slope"] == pytest.approx(run.fit()["observed"]["slope"])


def test_the_slope_of_a_window_is_numpys_line_through_its_ranks():
    counts = np.sort(np.random.default_rng(1).zipf(1.7, 5000))[::-1]
    ranks = np.arange(10, 1001)
    assert window_fit(counts).slope == pytest.approx(np.polyfit(np.log(ranks), np.log(counts[9:1000]), 1)[0])
    assert window_fit(counts[:58]).slope is None
    assert window_fit(counts[:59]).slope is not None


def test_thinned_paths_are_a_binomial_share_of_each():
    """Paths of one count that are thinned together are spread as SciPy's binomial says."""
    histogram = Histogram(np.array([1, 3, 5000]), np.array([40_000, 20_000, 2]))
    counts = thinned(histogram, 0.3, np.random.default_rng(0))
    assert (np.diff(counts) <= 0).all()
    assert counts[:2] == pytest.approx([1500, 1500], abs=5 * (5000 * 0.21) ** 0.5)
    ones = 40_000 * 0.3 + 20_000 * scipy.stats.binom.pmf(1, 3, 0.3)
    assert (counts == 1).sum() == pytest.approx(ones, abs=5 * ones**0.5)
    threes = 20_000 * 0.3**3
    assert (counts == 3).sum() == pytest.approx(threes, abs=5 * threes**0.5)


def test_path_distance_is_scipys_hamming_and_sets_for_several_slots():
    rng = np.random.default_rng(0)
    for _ in range(30):
        one, other = rng.integers(0, 4, (2, 6, 1))
        assert path_distance(one, other).mean() == pytest.approx(hamming(one[:, 0], other[:, 0]))
    for _ in range(30):
        one, other = rng.random((2, 4, 9)).argsort(axis=2)[:, :, :3]
        by_sets = [1 - len(set(a) & set(b)) / 3 for a, b in zip(one.tolist(), other.tolist(), strict=True)]
        np.testing.assert_allclose(path_distance(one, other), by_sets)


def test_independent_steps_keep_each_step_and_nothing_between():
    ribbons = np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2]])
    drawn = independent_steps(ribbons, np.array([4000, 3000, 3000]), 3, seed=1)[:, :, 0]
    for step in range(3):
        assert Counter(drawn[:, step].tolist()) == {0: 4000, 1: 3000, 2: 3000}
    for one, other in itertools.combinations(range(3), 2):
        table = scipy.stats.contingency.crosstab(drawn[:, one], drawn[:, other]).count
        assert scipy.stats.chi2_contingency(table).pvalue > 1e-3
        assert mutual_info_score(drawn[:, one], drawn[:, other]) < 1e-3


def test_a_power_law_and_its_rival_are_those_of_the_powerlaw_package():
    counts = np.random.default_rng(3).zipf(2.1, 5000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import powerlaw

        ours = fit_power_law(Histogram.of(counts))
        free = powerlaw.Fit(counts, discrete=True, verbose=False)
        fixed = powerlaw.Fit(counts, discrete=True, xmin=ours.x_min, verbose=False)
        ratio, p_value = fixed.distribution_compare("power_law", "lognormal", normalized_ratio=True)
    assert (ours.alpha, ours.ks) == pytest.approx((fixed.power_law.alpha, fixed.power_law.D), abs=2e-3)
    assert ours.x_min == free.xmin
    assert ours.alpha_error == pytest.approx(fixed.power_law.standard_err, rel=0.02)
    beside = against_lognormal(Histogram.of(counts), ours)
    assert (beside.ratio, beside.p_value) == pytest.approx((ratio, p_value), abs=0.05)
    # A law is refused where it should be: geometric counts of the same mean, against SciPy's own test of that law.
    geometric = Histogram.of(np.random.default_rng(4).geometric(0.2, 5000))
    assert goodness_of_fit(geometric, fit_power_law(geometric, x_min=1), draws=20) == 1 / 21
    assert goodness_of_fit(Histogram.of(counts), ours, draws=20) > 0.1


# -- what paths know ---------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(4))
def test_nmi_and_ami_are_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    paths, labels = rng.zipf(1.6, 3000).clip(max=400), rng.integers(0, 2 + seed, 3000)
    labels = np.where(rng.random(3000) < 0.4, paths % 3, labels)
    assert nmi(paths, labels) == pytest.approx(normalized_mutual_info_score(labels, paths), abs=1e-10)
    both = agreement(paths, labels)
    assert both.nmi == pytest.approx(normalized_mutual_info_score(labels, paths), abs=1e-10)
    assert both.ami == pytest.approx(adjusted_mutual_info_score(labels, paths), abs=1e-8)


def test_nmi_of_many_kinds_of_words_is_scikit_learns():
    """So many paths and words that they are sorted, not counted in a table; and paths that nobody shares."""
    rng = np.random.default_rng(9)
    paths, words = rng.zipf(1.3, 5000).clip(max=30_000), rng.zipf(1.4, 5000).clip(max=20_000)
    assert len(np.unique(paths)) * len(np.unique(words)) > 1 << 18
    assert nmi(paths, words) == pytest.approx(normalized_mutual_info_score(words, paths), abs=1e-10)
    alone = np.arange(500)
    assert nmi(alone, alone // 3) == pytest.approx(normalized_mutual_info_score(alone // 3, alone), abs=1e-10)


def test_a_runs_nmi_is_scikit_learns_over_its_tokens(sealed):
    run, made = sealed["top1"]
    labels, regions = made.per_token([s.label for s in made.samples]), np.concatenate([b.region for b in made.batches])
    codes = {path: number for number, path in enumerate(set(words_of(made)))}
    paths = [codes[path] for path in words_of(made)]
    found = {row["attribute"]: row for row in run.info()["associations"]}
    assert found["label"]["nmi"] == pytest.approx(normalized_mutual_info_score(labels, paths))
    assert found["region"]["nmi"] == pytest.approx(normalized_mutual_info_score(regions, paths))


def test_the_permutation_null_is_that_of_scipy():
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 240)
    paths = np.where(rng.random(240) < 0.15, labels, rng.integers(0, 12, 240))
    ours = association(paths, labels, shuffles=1000, seed=6)
    theirs = scipy.stats.permutation_test(
        (paths, labels),
        lambda a, b: normalized_mutual_info_score(b, a),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=1000,
        rng=np.random.default_rng(7),
    )
    assert ours.nmi == pytest.approx(theirs.statistic)
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=0.03)
    assert ours.null_mean == pytest.approx(theirs.null_distribution.mean(), rel=0.02)
    assert ours.null_std == pytest.approx(theirs.null_distribution.std(), rel=0.1)
    low, high = np.quantile(theirs.null_distribution, [0.025, 0.975])
    assert (ours.null_low, ours.null_high) == pytest.approx((low, high), rel=0.05)


# -- compute, reuse, load ----------------------------------------------------------------------
@BOTH
def test_compute_and_reuse_are_those_of_sets(sealed, name):
    run, made = sealed[name]
    kinds = {(module.step, module.module): module.kind for module in made.modules}
    compute, reuse = [], []
    for token in made.ids.tolist():
        visits = []
        for step, chosen in enumerate(token):
            for module in chosen:
                own = (step, module) if (step, module) in kinds else (None, module)
                if kinds[own] != "identity":
                    visits.append(own)
        compute.append(Fraction(len(visits), len(token) * len(token[0])))
        reuse.append(1 - Fraction(len(set(visits)), len(visits)) if visits else Fraction(0))
    owner = np.repeat(np.arange(len(made.samples)), [s.num_tokens for s in made.samples])
    found = run.frames.samples()
    for values, column in ((compute, "compute"), (reuse, "reuse")):
        means = [float(sum(np.array(values)[owner == s]) / int((owner == s).sum())) for s in range(len(made.samples))]
        np.testing.assert_allclose(found[column], means, atol=1e-9)
        token = run.frames.tokens(3)
        np.testing.assert_allclose(token[column], [float(v) for v in np.array(values)[owner == 3]], atol=1e-9)
    assert run.info()["summary"]["mean_compute"] == pytest.approx(float(sum(compute) / len(compute)))
    assert run.info()["summary"]["mean_reuse"] == pytest.approx(float(sum(reuse) / len(reuse)))


@BOTH
def test_loads_of_a_run_are_those_of_scipy_and_fractions(sealed, name):
    run, made = sealed[name]
    answer = run.usage()
    for step in range(made.info.num_steps):
        offered = [m.module for m in made.modules if m.step in (None, step)]
        counted = Counter(made.ids[:, step].ravel().tolist())
        counts = [counted.get(m, 0) for m in offered]
        row = answer["steps"][step]
        cells = [cell for cell in answer["usage"] if cell["step"] == step]
        assert [cell["count"] for cell in cells] == counts
        entropy = scipy.stats.entropy(counts, base=len(offered))
        assert row["load_entropy"] == pytest.approx(entropy)
        fair = [Fraction(c * len(offered), sum(counts)) for c in counts]
        assert row["max_violation"] == pytest.approx(float(max(fair) - 1))
        assert [cell["utilisation"] for cell in cells] == pytest.approx([float(u) for u in fair])
        # 1/IPR of the paper: (Σ c²)^α / Σ c^2α with α = 3/2, with the counts as exact integers.
        squares, cubes = sum(c**2 for c in counts), sum(c**3 for c in counts)
        assert row["effective_top_k"] == pytest.approx(math.sqrt(squares) * squares / cubes)
        assert row["dead"] == [m for m, c in zip(offered, counts, strict=True) if c == 0]


def test_loads_of_hand_computed_cases():
    even, one, mixed = np.full(16, 5), np.eye(16, dtype=int)[3] * 80, np.array([3, 1])
    assert effective_top_k(even) == pytest.approx(16**0.5)
    assert effective_top_k(one) == pytest.approx(1.0)
    assert effective_top_k(mixed) == pytest.approx(10**1.5 / 28)  # (9 + 1)^1.5 / (27 + 1)
    assert effective_top_k(mixed, alpha=2.0) == pytest.approx(100 / 82)  # (9 + 1)² / (81 + 1)
    assert (max_violation(even), max_violation(one), max_violation(mixed)) == pytest.approx((0, 15, 0.5))
    assert (load_entropy(even), load_entropy(one)) == pytest.approx((1, 0))
    assert load_entropy(mixed) == pytest.approx(2 - 0.75 * math.log2(3))
    assert utilisation(mixed).tolist() == [1.5, 0.5]


def test_importance_cv2_is_the_square_of_scipys_variation():
    weights = np.random.default_rng(8).gamma(0.7, size=(500, 24)).sum(axis=0)
    assert importance_cv2(weights) == pytest.approx(scipy.stats.variation(weights) ** 2)
    assert importance_cv2(np.array([1.0, 3.0])) == pytest.approx(0.25)


# -- flow --------------------------------------------------------------------------------------
@BOTH
def test_flow_is_the_graph_of_transitions(sealed, name):
    """A directed graph in which every token adds 1/K² to each pair of modules of consecutive steps."""
    run, made = sealed[name]
    steps, top_k = made.info.num_steps, made.info.top_k
    graph = nx.DiGraph()
    for token in made.ids.tolist():
        for step, (sources, targets) in enumerate(itertools.pairwise(token)):
            for pair in itertools.product(sources, targets):
                source, target = (step, pair[0]), (step + 1, pair[1])
                known = graph.get_edge_data(source, target, {"n": 0})["n"]
                graph.add_edge(source, target, n=known + Fraction(1, top_k**2))
    answer = run.flow(limit=2000)
    links = {((r["step"], r["source"]), (r["step"] + 1, r["target"])): r["count"] for r in answer["links"]}
    assert links == pytest.approx({(a, b): float(n) for a, b, n in graph.edges(data="n")})
    for step in range(steps - 1):
        assert sum(n for (a, _), n in links.items() if a[0] == step) == pytest.approx(len(made.ids))
    tokens = {(r["step"], r["module"]): r["count"] for r in answer["nodes"] if r["count"]}
    through = {node: float(n) * top_k for node, n in graph.out_degree(weight="n") if node[0] < steps - 1}
    assert {node: tokens[node] for node in through} == pytest.approx(through)
    into = {node: float(n) * top_k for node, n in graph.in_degree(weight="n") if node[0]}
    assert {node: tokens[node] for node in into} == pytest.approx(into)


def test_flow_between_two_modules_is_networkx_maximum_flow(sealed):
    """Through the circles of all steps runs exactly one unit a token: no link is lost between steps."""
    run, made = sealed["top1"]
    graph = nx.DiGraph()
    answer = run.flow(limit=2000)
    for row in answer["links"]:
        graph.add_edge((row["step"], row["source"]), (row["step"] + 1, row["target"]), capacity=round(row["count"]))
    for row in answer["nodes"]:
        if row["count"] and row["step"] == 0:
            graph.add_edge("in", (0, row["module"]), capacity=row["count"])
        if row["count"] and row["step"] == made.info.num_steps - 1:
            graph.add_edge((row["step"], row["module"]), "out", capacity=row["count"])
    assert nx.maximum_flow_value(graph, "in", "out") == len(made.ids)


# -- experts -----------------------------------------------------------------------------------
def test_co_activation_is_counted_pair_by_pair(sealed):
    run, made = sealed["experts"]
    for step in range(made.info.num_steps):
        pairs, alone = Counter(), Counter()
        for chosen in made.ids[:, step].tolist():
            alone.update(chosen)
            pairs.update(itertools.permutations(chosen, 2))
        answer = run.co_activation(step, limit=64)
        assert answer["baseline"] == pytest.approx(2 / 11)
        listed = [module["module"] for module in answer["modules"]]
        for i, row in zip(listed, answer["values"], strict=True):
            for j, share in zip(listed, row, strict=True):
                wanted = pairs[i, j] / alone[i] if i != j and alone[i] else 0.0
                assert (share or 0.0) == pytest.approx(wanted, abs=1e-6)


def test_repetition_is_counted_token_by_token(sealed):
    run, made = sealed["experts"]
    answer = run.repetition()
    owner = made.per_token(list(range(len(made.samples))))
    ids = made.ids.tolist()
    neighbours = [(ids[t], ids[t + 1]) for t in range(len(ids) - 1) if owner[t] == owner[t + 1]]
    assert answer["num_pairs"] == len(neighbours)
    for step, row in enumerate(answer["steps"]):
        first = sum(a[step][0] == b[step][0] for a, b in neighbours)
        shared = sum(bool(set(a[step]) & set(b[step])) for a, b in neighbours)
        assert (row["first"], row["any"]) == pytest.approx((first / len(neighbours), shared / len(neighbours)))


@pytest.mark.parametrize(("modules", "top_k"), [(4, 1), (5, 2), (6, 2), (6, 3), (7, 4)])
def test_repetition_baselines_are_those_of_all_pairs_of_sets(modules, top_k):
    sets = list(itertools.combinations(range(modules), top_k))
    shared = sum(bool(set(a) & set(b)) for a in sets for b in sets)
    first, any_ = repetition_baselines(modules, top_k)
    assert Fraction(any_).limit_denominator(10**6) == Fraction(shared, len(sets) ** 2)
    assert first == pytest.approx(1 / modules)
    assert even_share(modules, top_k) == pytest.approx(sum(0 in a for a in sets) / len(sets))


def test_specialisation_is_counted_label_by_label_and_word_by_word(sealed):
    run, made = sealed["experts"]
    labels = made.per_token([s.label for s in made.samples])
    words = np.concatenate([b.token_id for b in made.batches]).tolist()
    step = 1
    by_label = {label: Counter() for label in labels}
    by_word: dict[int, Counter] = {word: Counter() for word in words}
    for label, word, chosen in zip(labels, words, made.ids[:, step].tolist(), strict=True):
        by_label[label].update(chosen)
        by_word[word].update(chosen)
    for row in run.specialisation("label", step, limit=64)["modules"]:
        for preference in row["prefers"]:
            wanted = by_label[preference["label"]][row["module"]] / labels.count(preference["label"])
            assert preference["share"] == pytest.approx(wanted)
    table = run.frames.table("token_text")
    texts = dict(zip(table["token_id"], table["text"], strict=True))
    seen = 0
    for row in run.specialisation("input", step, limit=64)["modules"]:
        for preference in row["prefers"]:
            word = preference["token_id"]
            assert words.count(word) >= 10
            assert preference["share"] == pytest.approx(by_word[word][row["module"]] / words.count(word))
            assert preference["text"] == texts[word]
            seen += 1
    assert seen > 10
