"""Skip against reuse beside what chance gives, against loops over the tokens."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import scipy.stats

from tests.support.naive_store import Case


def naive_chance(ribbons: list[list[list[int]]], at_rest: set[int], own: bool) -> list[float]:
    """Reuse of each token by chance, with dictionaries; ``own``: every step has modules of its own."""
    tokens, visits = Counter(), Counter()
    used = [
        [
            {(s, m) if own else m for m in step} - {(s, r) if own else r for r in at_rest}
            for s, step in enumerate(ribbon)
        ]
        for ribbon in ribbons
    ]
    # A module that fills two slots of a step is worked through twice and is one module.
    active = [[sum(m not in at_rest for m in step) for step in ribbon] for ribbon in ribbons]
    for sets, counts in zip(used, active, strict=True):
        for step, (modules, count) in enumerate(zip(sets, counts, strict=True)):
            tokens[step, count] += 1
            visits.update((step, count, module) for module in modules)
    shares = defaultdict(dict)
    for (step, count, module), times in visits.items():
        shares[step, count][module] = times / tokens[step, count]
    found = []
    for counts in active:
        never = defaultdict(lambda: 1.0)
        for step, count in enumerate(counts):
            for module, share in shares[step, count].items():
                never[module] *= 1 - share
        found.append(1 - sum(1 - value for value in never.values()) / sum(counts) if sum(counts) else 0.0)
    return found


def test_skip_and_reuse_of_a_run_are_counted_token_by_token(case: Case):
    naive = case.naive
    for label in {None, case.label}:
        answer = case.run.skip_and_reuse(label=label)
        tokens = list(naive.tokens(label=label))
        if all(naive.compute(t) == 1 for t in range(len(naive.keys))):
            assert answer["reason"] == "no sample skipped anything"
            continue
        chance = naive_chance([naive.ids[t].tolist() for t in tokens], naive.identity | naive.unused, own=False)
        samples = sorted({naive.sample_of[t] for t in tokens})
        rows = {
            name: np.array(
                [np.mean([v for v, t in zip(values, tokens, strict=True) if naive.sample_of[t] == n]) for n in samples]
            )
            for name, values in (
                ("skip", [1 - naive.compute(t) for t in tokens]),
                ("reuse", [naive.reuse(t) for t in tokens]),
                ("chance_reuse", chance),
            )
        }
        for name, values in rows.items():
            assert answer[name] == pytest.approx(values.mean(), abs=1e-6)
        assert answer["num_samples"] == len(samples)
        if answer["reason"] is not None:
            assert len(samples) < 4 or min(np.ptp(rows["skip"]), np.ptp(rows["reuse"])) < 1e-6
            continue
        assert answer["pearson"]["r"] == pytest.approx(scipy.stats.pearsonr(rows["skip"], rows["reuse"]).statistic)
        beyond = rows["reuse"] - rows["chance_reuse"]
        for name, values in (("seen", rows["reuse"]), ("by_chance", rows["chance_reuse"]), ("beyond", beyond)):
            fit = scipy.stats.linregress(rows["skip"], values)
            assert answer[name]["slope"] == pytest.approx(fit.slope, abs=1e-5)
            assert answer[name]["low"] - 1e-9 <= fit.slope <= answer[name]["high"] + 1e-9
        assert answer["excess"]["mean"] == pytest.approx(beyond.mean(), abs=1e-6)
        for name in ("skip", "chance_reuse"):
            assert np.mean([row[name] for row in answer["groups"]]) == pytest.approx(rows[name].mean(), abs=1e-6)
        reused = [row["reuse"]["mean"] for row in answer["groups"]]
        assert np.mean(reused) == pytest.approx(rows["reuse"].mean(), abs=1e-6)
        if len(samples) % 4 == 0 and len(np.unique(rows["skip"].round(10))) == len(samples):
            order = np.argsort(rows["skip"]).reshape(4, -1)
            assert reused == pytest.approx(rows["reuse"][order].mean(axis=1), abs=1e-6)
