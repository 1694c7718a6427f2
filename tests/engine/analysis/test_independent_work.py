"""Reuse by chance, lines over skip and agreement, against dealing anew, SciPy and scikit-learn; see
``docs/metrics.md``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import accuracy_score, cohen_kappa_score, precision_score
from sklearn.neighbors import NearestNeighbors

from tests.support.runs import make, make_experts
from tokenpaths.engine.analysis.contrast import line
from tokenpaths.engine.analysis.ribbon_costs import chance_reuse, module_units, repeated_pairs
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.store.ask.run import Run


def planted(rng: np.random.Generator, num: int, *, modules: int = 6, steps: int = 6, top_k: int = 1) -> np.ndarray:
    """(num, steps, top_k) ribbons of independent steps, with uneven shares; the last module does nothing."""
    shares = rng.dirichlet(np.ones(modules), steps)
    ids = np.stack([rng.permuted(np.tile(np.arange(modules), (num, 1)), axis=1)[:, :top_k] for _ in range(steps)], 1)
    first = np.stack([rng.choice(modules, num, p=shares[step]) for step in range(steps)], axis=1)
    if top_k == 1:
        return first[:, :, None]
    return ids


def reuse_of(ids: np.ndarray, own: bool) -> np.ndarray:
    """Reuse of each ribbon by sets; module 5 does nothing, ``own``: every step has modules of its own."""
    found = []
    for ribbon in ids.tolist():
        visits = [
            (step if own else 0, module) for step, modules in enumerate(ribbon) for module in modules if module != 5
        ]
        found.append(1 - len(set(visits)) / len(visits) if visits else 0.0)
    return np.array(found)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("own", [False, True])
def test_reuse_by_chance_is_that_of_choices_dealt_anew(top_k: int, own: bool):
    rng = np.random.default_rng(top_k)
    ids = planted(rng, 2000, top_k=top_k)
    copied = rng.random(2000) < 0.5
    ids[copied, 3] = ids[copied, 2]  # steps that are not independent: reuse lies above chance
    modules = [ModuleInfo(None, m, f"m{m}", "identity" if m == 5 else "mlp", 1, 1) for m in range(6)]
    if own:
        modules = [replace(m, step=step) for step in range(6) for m in modules]
    _, units = module_units(modules, 6, 6)
    expected = chance_reuse(ids, np.ones(2000, dtype=np.int64), units)
    active = (ids != 5).sum(axis=2)
    dealt = []
    for _ in range(40):
        anew = ids.copy()
        for step in range(6):
            for count in range(top_k + 1):
                here = np.flatnonzero(active[:, step] == count)
                anew[here, step] = ids[rng.permutation(here), step]
        dealt.append(reuse_of(anew, own))
    assert abs(np.mean(dealt) - expected.mean()) < 4 * np.std([d.mean() for d in dealt]) / np.sqrt(40) + 1e-9
    for visits in np.unique(active.sum(axis=1)):
        kind = active.sum(axis=1) == visits
        spread = np.std([d[kind].mean() for d in dealt])
        assert abs(np.mean([d[kind].mean() for d in dealt]) - expected[kind].mean()) < 5 * spread / np.sqrt(40) + 1e-9
    if own:
        assert np.allclose(expected, 0)
    else:
        assert reuse_of(ids, own).mean() > expected.mean() + 0.01
    distinct, counts = np.unique(ids, axis=0, return_counts=True)
    places = {row.tobytes(): place for place, row in enumerate(distinct)}
    by_path = chance_reuse(distinct, counts, units)
    assert np.allclose([by_path[places[row.tobytes()]] for row in ids], expected)


@pytest.mark.parametrize(("always", "sticky"), [(0.0, 0.0), (0.0, 1.0), (0.4, 0.0), (0.5, -0.8)])
def test_only_samples_that_come_back_more_where_they_skip_more_are_told_so(
    tmp_path: Path, always: float, sticky: float
):
    """Samples of different skip repeat their first module never, or always as readily, or the more the more they skip.

    Whoever repeats modules as readily whatever it skips reuses less beyond chance where it skips more.
    """
    made = make("planted", "text", samples=120, identities=1, steps=6, modules=6, top_k=1)
    rng, batches, skips = np.random.default_rng(3), [], {}
    for batch in made.batches:
        ids = rng.integers(0, 5, batch.module_ids.shape).astype(batch.module_ids.dtype)
        first = 0
        for sample in batch.samples:
            rows = slice(first, first + sample.num_tokens)
            skip = skips.setdefault(len(skips), rng.uniform(0.1, 0.6))
            again = rng.random(ids[rows, 1:].shape) < always + sticky * skip
            ids[rows, 1:] = np.where(again, ids[rows, :1], ids[rows, 1:])
            ids[rows] = np.where(rng.random(ids[rows].shape) < skip, 5, ids[rows])
            first += sample.num_tokens
        batches.append(replace(batch, module_ids=ids))
    with Run.open(replace(made, batches=batches).write(tmp_path)) as run:
        answer = run.skip_and_reuse()
    assert answer["by_chance"]["slope"] < -0.1
    if sticky > 0:
        assert answer["pairs"]["low"] > 0
        assert answer["beyond"]["low"] > 0
    elif sticky < 0:
        assert answer["pairs"]["high"] < 0
    else:
        assert answer["pairs"]["low"] < 0 < answer["pairs"]["high"]
    if always and not sticky:
        assert answer["beyond"]["high"] < 0, "what the pairs do not mistake for a trend"
    if not always and not sticky:
        assert answer["excess"]["low"] < 0 < answer["excess"]["high"]


@pytest.mark.parametrize("top_k", [1, 2])
def test_pairs_of_visits_are_counted_one_by_one(top_k: int):
    rng = np.random.default_rng(top_k)
    ids, counts = planted(rng, 60, top_k=top_k), rng.integers(1, 5, 60)
    modules = [ModuleInfo(None, m, f"m{m}", "identity" if m == 5 else "mlp", 1, 1) for m in range(6)]
    _, units = module_units(modules, 6, 6)
    found, equal = np.zeros((60, 6, 6)), np.zeros((60, 6, 6))
    for i, ribbon in enumerate(ids.tolist()):
        for step in range(6):
            for later in range(step + 1, 6):
                pairs = [(one, other) for one in ribbon[step] for other in ribbon[later] if 5 not in (one, other)]
                found[i, step, later] = len(pairs)
                equal[i, step, later] = sum(one == other for one, other in pairs)
    every, same = np.tensordot(counts, found, 1), np.tensordot(counts, equal, 1)
    pairs, more, share = repeated_pairs(ids, counts, units)
    assert pairs.tolist() == found.sum(axis=(1, 2)).tolist()
    assert np.allclose(more, (equal - same / np.maximum(every, 1) * found).sum(axis=(1, 2)))
    assert counts @ more == pytest.approx(0, abs=1e-9)
    assert share == pytest.approx(same.sum() / every.sum())


def test_the_slope_of_a_line_is_scipys_and_its_interval_holds_what_it_says():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    y = 0.3 * x + rng.normal(size=50)
    assert line(x, y).slope == pytest.approx(scipy.stats.linregress(x, y).slope)
    assert line(x[:2], y[:2]).low is None
    held = 0
    for _ in range(400):
        y = 0.3 * x + rng.normal(size=50) * (0.2 + np.abs(x))  # not as much scatter everywhere
        found = line(x, y)
        held += found.low <= 0.3 <= found.high
    assert 0.90 < held / 400 < 0.985


def test_the_share_of_nearest_samples_with_one_label_is_scikit_learns(tmp_path: Path):
    made = make("near", "vision", samples=60, modules=7, steps=4, top_k=1)
    with Run.open(made.write(tmp_path)) as run:
        found = run.map()["nearest"]
    sample_of, step_of = made.per_token(list(range(60))), np.arange(4)
    shares = np.zeros((60, 4, 7))
    for number, ribbon in zip(sample_of, made.ids[:, :, 0], strict=True):
        shares[number, step_of, ribbon] += 1
    roots = np.sqrt(shares / shares.sum(axis=2, keepdims=True)).reshape(60, -1)
    nearest = NearestNeighbors(n_neighbors=2).fit(roots).kneighbors(roots, return_distance=False)[:, 1]
    labels = np.array([sample.label for sample in made.samples])
    assert found["share"] == pytest.approx((labels == labels[nearest]).mean())
    dealt = [
        (shuffled == shuffled[nearest]).mean() for shuffled in map(np.random.default_rng(5).permutation, [labels] * 400)
    ]
    assert found["by_chance"] == pytest.approx(np.mean(dealt), abs=0.02)
    assert found["low"] == pytest.approx(np.quantile(dealt, 0.025), abs=0.04)
    assert found["high"] == pytest.approx(np.quantile(dealt, 0.975), abs=0.04)


@pytest.mark.parametrize("top_k", [1, 2])
def test_agreement_of_two_runs_is_scikit_learns_accuracy_precision_and_kappa(tmp_path: Path, top_k: int):
    shape = dict(layers=3, experts=6, top_k=top_k, samples=9, length=20)
    made = [make_experts(name, series=("mine", at), drift=0.3 * at, **shape) for at, name in enumerate("ab")]
    with Run.open(made[0].write(tmp_path)) as a, Run.open(made[1].write(tmp_path)) as b:
        answer = a.agree(b)
    first, second = (np.array([np.isin(np.arange(6), ids) for step in one.ids for ids in step]) for one in made)
    overall = answer["overall"]
    assert overall["sets"]["share"] == pytest.approx(accuracy_score(first, second))
    assert overall["overlap"]["mean"] == pytest.approx(precision_score(first, second, average="samples"))
    whole = (one.reshape(-1, 3 * 6) for one in (first, second))
    assert overall["tokens"]["share"] == pytest.approx(accuracy_score(*whole))
    for step, row in enumerate(answer["steps"]):
        chosen = [one.ids[:, step, 0] for one in made]
        if top_k == 1:
            kappa, same = cohen_kappa_score(*chosen), row["sets"]["share"]
            assert row["chance"] == pytest.approx((same - kappa) / (1 - kappa))
