"""Numbers of experts against loops over tokens, and the invariants of their docstrings."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tokenpaths.engine.analysis import expert_affinity
from tokenpaths.engine.analysis.ribbon_costs import compute, module_units, reuse
from tokenpaths.engine.base.records import UNRECORDED_KIND, UNUSED_KIND, ModuleInfo


def draw(n: int = 300, steps: int = 3, modules: int = 7, top_k: int = 3, seed: int = 0) -> np.ndarray:
    """(n, S, K) distinct choices, some modules liked more than others."""
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=(n, steps, modules)) + np.arange(modules) / 3
    return scores.argsort(axis=2)[:, :, ::-1][:, :, :top_k]


def test_domain_specialisation_is_the_share_of_each_domains_tokens() -> None:
    ids, domain = draw(steps=1)[:, 0], np.random.default_rng(1).integers(0, 3, 300)
    domain[:5] = 3
    counts = np.array([[sum(m in row for row in ids[domain == d]) for m in range(7)] for d in range(5)])
    tokens = np.array([(domain == d).sum() for d in range(5)])
    share = expert_affinity.domain_specialisation(counts, tokens)
    for d in range(4):
        for m in range(7):
            inside = [m in row for row, of in zip(ids, domain, strict=True) if of == d]
            assert share[d, m] == pytest.approx(sum(inside) / len(inside))
    assert np.allclose(share[:4].sum(axis=1), 3)
    assert not share[4].any()
    assert expert_affinity.even_share(7, 3) == pytest.approx(share[:4].sum(axis=1).mean() / 7)


@pytest.mark.parametrize("least", [1, 10, 40])
def test_vocabulary_specialisation_by_loops(least: int) -> None:
    ids, words = draw(steps=1)[:, 0], np.random.default_rng(2).zipf(1.4, 300) % 50 - 1
    found = expert_affinity.vocabulary_specialisation(ids, words, 7, least)
    naive = {}
    for x in sorted(set(words.tolist()) - {-1}):
        rows = [row.tolist() for row, word in zip(ids, words, strict=True) if word == x]
        if len(rows) >= least:
            naive[x] = (len(rows), [sum(m in row for row in rows) for m in range(7)])
    assert found.token_ids.tolist() == list(naive)
    assert found.seen.tolist() == [seen for seen, _ in naive.values()]
    assert found.counts.tolist() == [counts for _, counts in naive.values()]
    assert np.allclose(found.share.sum(axis=1), 3)


def test_words_that_are_all_rare_or_unknown_give_an_empty_table() -> None:
    found = expert_affinity.vocabulary_specialisation(draw(steps=1)[:5, 0], np.array([-1, 1, 2, 3, -1]), 7)
    assert found.counts.shape == (0, 7)
    assert len(found.seen) == 0


def test_the_next_token_stays_inside_its_sample() -> None:
    follows = np.array([False, True, True, False, True])
    assert expert_affinity.next_token_ids(np.array([5, 6, 7, 8, -1]), follows).tolist() == [6, 7, -1, -1, -1]
    assert expert_affinity.next_token_ids(np.array([5]), np.array([False])).tolist() == [-1]


@pytest.mark.parametrize("n", [300, 5000])
def test_pairs_chosen_together_by_loops(n: int) -> None:
    ids = draw(n, steps=1, top_k=3)[:, 0].astype(np.uint8)
    naive = np.zeros((8, 8), dtype=int)
    for row in ids.tolist():
        for i in row:
            naive[i, i] += 1
        for i, j in combinations(row, 2):
            naive[i, j] += 1
            naive[j, i] += 1
    together = expert_affinity.chosen_together(ids, np.arange(8))
    some = np.array([1, 2, 5])
    assert (expert_affinity.chosen_together(ids, some) == naive[np.ix_(some, some)]).all()
    far = np.array([4, 65_535])
    assert expert_affinity.chosen_together(np.array([[65_535, 4], [9, 4]]), far).tolist() == [[2, 1], [1, 1]]
    assert (together == naive).all()
    share = expert_affinity.co_activation(together)
    assert np.allclose(share[:7].sum(axis=1), 2)  # K − 1
    assert not share[7].any()  # the eighth is dead
    assert not np.diag(share).any()
    assert share[2, 5] == naive[2, 5] / naive[2, 2]
    assert (np.diag(together) == naive.diagonal()).all(), "the counts are not changed"


def test_even_choices_have_the_baseline_of_co_activation() -> None:
    everything = np.array(list(combinations(range(6), 3)))
    share = expert_affinity.co_activation(expert_affinity.chosen_together(everything, np.arange(6)))
    assert np.allclose(share[~np.eye(6, dtype=bool)], expert_affinity.even_co_activation(6, 3))
    assert expert_affinity.even_co_activation(1, 1) == 0


@pytest.mark.parametrize("n", [2, 50, 9000])
def test_repetition_by_loops(n: int) -> None:
    ids = draw(n, steps=2, top_k=2, seed=4)
    follows = np.arange(n) % 7 != 0
    first, any_, pairs = np.zeros(2), np.zeros(2), 0
    for t in range(1, n):
        if follows[t]:
            pairs += 1
            for step in range(2):
                first[step] += ids[t, step, 0] == ids[t - 1, step, 0]
                any_[step] += bool(set(ids[t, step]) & set(ids[t - 1, step]))
    found = expert_affinity.repetition(ids, follows)
    assert found.num_pairs == pairs
    assert np.allclose(found.first, first / pairs)
    assert np.allclose(found.any, any_ / pairs)
    assert (found.any >= found.first).all()


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("even", [True, False])
def test_independent_tokens_agree_and_pair_as_their_loads_say(top_k: int, even: bool) -> None:
    """Where some experts are busier neighbours agree, and pairs stand together, far more often than with even loads."""
    rng = np.random.default_rng(top_k)
    weight = np.zeros(12) if even else np.linspace(0, 3, 12)
    ids = np.argsort(-(weight + rng.gumbel(size=(20_000, 12))), axis=1)[:, None, :top_k]
    follows = np.arange(len(ids)) % 100 > 0
    seen, by_load = expert_affinity.repetition(ids, follows), expert_affinity.repetition_by_load(ids)
    first, any_ = expert_affinity.repetition_baselines(12, top_k)
    assert seen.first[0] == pytest.approx(by_load.first[0], abs=0.015)
    assert seen.any[0] == pytest.approx(by_load.any[0], abs=0.015)
    assert (seen.any[0] > any_ + 0.1) is not even
    assert (seen.first[0] > first + 0.1) is not even
    if top_k == 1:
        return
    together = expert_affinity.chosen_together(ids[:, 0], np.arange(12))
    share = expert_affinity.co_activation(together)
    for module in range(12):
        expected = expert_affinity.co_activation_by_load(together, len(ids), module)
        assert expected.sum() == pytest.approx(top_k - 1)
        assert expected[module] == 0
        assert np.abs(expected - share[module]).max() < 0.06
        if even:
            assert np.delete(expected, module) == pytest.approx((top_k - 1) / 11, abs=0.02)


def test_a_pair_that_seeks_each_other_lies_above_its_loads() -> None:
    rng = np.random.default_rng(0)
    ids = np.argsort(-(np.linspace(0, 2, 8) + rng.gumbel(size=(6000, 8))), axis=1)[:, :3]
    pair = np.isin(ids, (0, 1)).any(axis=1)
    ids[pair] = np.where(np.isin(ids[pair], (0, 1)).sum(axis=1)[:, None] == 2, ids[pair], [[0, 1, 7]])
    together = expert_affinity.chosen_together(ids, np.arange(8))
    share, by_load = expert_affinity.co_activation(together), expert_affinity.co_activation_by_load(together, 6000, 0)
    assert share[0, 1] == 1
    assert by_load[1] < 0.5
    always = np.array([[9, 9, 4], [9, 9, 4], [4, 4, 4]])
    assert expert_affinity.co_activation_by_load(always, 9, 0) == pytest.approx([0, 1, 4 / 9]), "every token chooses it"


def test_repetition_of_lonely_tokens_is_nothing() -> None:
    found = expert_affinity.repetition(draw(4), np.zeros(4, dtype=bool))
    assert found.num_pairs == 0
    assert not found.pairs.any()
    assert not found.first.any()


def test_sets_that_are_more_than_half_of_all_modules_meet() -> None:
    assert expert_affinity.repetition_baselines(3, 2) == (1 / 3, 1)
    assert expert_affinity.repetition_baselines(1, 2) == (1, 1), "a step that offers fewer modules than slots"


@pytest.mark.parametrize(("modules", "top_k"), [(5, 2), (6, 1), (4, 3)])
def test_baselines_of_repetition_are_those_of_all_pairs_of_tuples(modules: int, top_k: int) -> None:
    tuples = list(combinations(range(modules), top_k))
    meet = np.mean([bool(set(a) & set(b)) for a in tuples for b in tuples])
    first, any_ = expert_affinity.repetition_baselines(modules, top_k)
    assert first == 1 / modules
    assert any_ == pytest.approx(meet)


def test_common_modules_by_sets() -> None:
    one, other = draw(40, seed=5), draw(40, seed=6)
    naive = [[len(set(a) & set(b)) for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]
    assert expert_affinity.common(one, other).tolist() == naive
    assert (expert_affinity.common(one, one[:, :, ::-1]) == 3).all()


def test_unknown_decisions_are_no_work_no_rest_and_no_repetition() -> None:
    """Stand-ins for decisions that a log lacks, beside a count by loops."""
    n, steps, top_k, experts = 40, 3, 2, 6
    ids = draw(n, steps=steps, modules=experts, top_k=top_k, seed=9)
    unknown = np.random.default_rng(1).random((n, steps)) < 0.3
    ids[unknown] = [experts, experts + 1]
    modules = [ModuleInfo(step, m, str(m), "expert", 0, 0) for step in range(steps) for m in range(experts)]
    modules += [ModuleInfo(step, experts + k, "", UNRECORDED_KIND, 0, 0) for step in range(steps) for k in range(top_k)]
    modules[1] = ModuleInfo(0, 1, "1", "identity", 0, 0)
    units = module_units(modules, steps, experts + top_k)[1]
    for token, share, again in zip(ids, compute(ids, units), reuse(ids, units), strict=True):
        visits = [(s, m) for s in range(steps) for m in token[s].tolist() if m < experts]
        worked = [visit for visit in visits if visit != (0, 1)]
        assert share == (len(worked) / len(visits) if visits else 1)
        assert again == 0
    follows = np.arange(n) % 7 != 0
    found = expert_affinity.repetition(ids, follows, unknown)
    for step in range(steps):
        pairs = [t for t in range(1, n) if follows[t] and not unknown[t, step] and not unknown[t - 1, step]]
        shared = [bool(set(ids[t, step]) & set(ids[t - 1, step])) for t in pairs]
        assert found.any[step] == np.mean(shared)


def test_unused_slots_are_no_work_no_repetition_and_no_pair() -> None:
    """k that varies, beside a count by loops; tokens that use nothing are no pair of neighbours."""
    n, steps, top_k, experts = 60, 2, 3, 7
    ids = draw(n, steps=steps, modules=experts, top_k=top_k, seed=4)
    rng = np.random.default_rng(2)
    for token in ids:
        for step in token:
            used = int(rng.integers(0, top_k + 1))
            step[used:] = np.arange(experts, experts + top_k - used)
    modules = [ModuleInfo(step, m, str(m), "expert", 0, 0) for step in range(steps) for m in range(experts)]
    modules += [ModuleInfo(step, experts + k, "", UNUSED_KIND, 0, 0) for step in range(steps) for k in range(top_k)]
    units = module_units(modules, steps, experts + top_k)[1]
    sets = [[{m for m in step if m < experts} for step in token] for token in ids.tolist()]
    assert compute(ids, units).tolist() == [sum(map(len, token)) / (steps * top_k) for token in sets]
    follows = np.arange(n) % 7 != 0
    found = expert_affinity.repetition(ids, follows, None, ids < experts)
    used = (ids < experts).sum(axis=2)
    later = np.flatnonzero(follows)
    for step in range(steps):
        pairs = [(sets[t - 1][step], sets[t][step]) for t in later if sets[t][step] and sets[t - 1][step]]
        assert found.any[step] == np.mean([bool(one & other) for one, other in pairs])
        firsts = [ids[t, step, 0] == ids[t - 1, step, 0] for t in later if sets[t][step] and sets[t - 1][step]]
        assert found.first[step] == np.mean(firsts)
        chances = []
        for one, other in pairs:
            apart = [set(draws) for draws in combinations(range(experts), len(other))]
            chances.append(np.mean([bool(set(range(len(one))) & drawn) for drawn in apart]))
        expected = expert_affinity.any_repetition_of(experts, used[:, step], (later - 1, later))
        assert expected == pytest.approx(np.mean(chances))
        both = sum(k * (k - 1) for k in used[:, step].tolist()) / (experts - 1)
        assert expert_affinity.even_co_activation_of(experts, used[:, step]) == pytest.approx(
            both / used[:, step].sum()
        )
