"""What is specific to a label: pairs beside a dense table, memory, and labels that a draw does not hold."""

from __future__ import annotations

import tracemalloc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import RunArrays, make, routed, run_info
from tokenpaths.engine.analysis.contrast import wilson
from tokenpaths.engine.base.records import ModuleInfo, SampleRecord
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import token_table
from tokenpaths.engine.store.ask.tables.token_table import LazyRibbons, TokenTable
from tokenpaths.engine.store.ask.topics import label_specificity
from tokenpaths.engine.store.ask.topics.label_specificity import LEAST_SAMPLES, Counts, count_modules, count_paths


def made_up(paths: int, samples: int, labels: int, tokens: int, seed: int = 0, top_k: int = 2) -> TokenTable:
    """Tokens without a run; a few samples have no label."""
    rng = np.random.default_rng(seed)
    sample_n = np.sort(rng.integers(0, samples, tokens)).astype(np.int32)
    label_N = rng.integers(-1, labels, samples)
    path_n = np.minimum(rng.geometric(5 / paths, tokens) - 1, paths - 1).astype(np.int32)
    ribbons = rng.random((paths, 3, 9)).argsort(axis=2)[:, :, :top_k].astype(np.uint8)
    return TokenTable(
        run=weakref.ref(make_up),
        columns={},
        sample_n=sample_n,
        samples_N=np.arange(samples),
        label_N=label_N,
        path_n=path_n,
        rank_P=np.arange(1, paths + 1),
        compute_P=np.ones(paths),
        reuse_P=np.zeros(paths),
        ribbons=LazyRibbons(lambda: ribbons),
        num_modules=9,
        counted={"exact": True},
    )


def make_up() -> None:
    """Stands where a run would."""


def dense(found: TokenTable, ids: np.ndarray, of: str) -> tuple[list, np.ndarray, np.ndarray, np.ndarray]:
    """Things, and tables of things × labels: tokens, samples; and the effective number of samples of each thing."""
    visits: dict[object, np.ndarray] = {}
    for sample, path in zip(found.sample_n.tolist(), found.path_n.tolist(), strict=True):
        ribbon = found.ribbon_PSK[path].tolist()
        for thing in [path] if of == "path" else [(s, m) for s, ms in enumerate(ribbon) for m in ms]:
            visits.setdefault(thing, np.zeros(found.num_samples))[sample] += found.label_N[sample] >= 0
    things = sorted(thing for thing, of_N in visits.items() if of_N.any())
    of_IN = np.stack([visits[thing] for thing in things])
    tokens, samples = (
        np.stack([table[:, found.label_N == label].sum(axis=1) for label in ids], axis=1)
        for table in (of_IN, (of_IN > 0).astype(float))
    )
    return things, tokens, samples, of_IN.sum(axis=1) ** 2 / (of_IN**2).sum(axis=1)


def thing_of(counts: Counts, i: int, of: str) -> object:
    return int(counts.things[i]) if of == "path" else tuple(counts.things[i].tolist())


@pytest.mark.parametrize("of", ["path", "module"])
@pytest.mark.parametrize("least", [1, 3])
def test_pairs_are_those_of_the_dense_table(of, least):
    found = made_up(paths=60, samples=40, labels=7, tokens=900)
    ids = np.unique(found.label_N[found.label_N >= 0])
    things, tokens, samples, sizes = dense(found, ids, of)
    base = tokens.sum(axis=0) / tokens.sum()
    share = tokens / tokens.sum(axis=1, keepdims=True)
    low, _ = wilson(share, np.broadcast_to(sizes[:, None], share.shape))
    keep = (tokens >= least) & (samples >= LEAST_SAMPLES)
    lift = np.where(keep, low / base, -1)
    counts = (count_paths if of == "path" else count_modules)(found, ids)
    pairs = np.stack([counts.thing_J, counts.label_J, counts.tokens_J, counts.samples_J], axis=1).tolist()
    told = {(thing_of(counts, i, of), j): (n, m) for i, j, n, m in pairs}
    assert told == {(things[i], j): (tokens[i, j], samples[i, j]) for i, j in np.argwhere(tokens > 0).tolist()}
    kept = np.flatnonzero((counts.tokens_J >= least) & (counts.samples_J >= LEAST_SAMPLES))
    for wanted in (None, 2):
        best = lift.argmax(axis=1) if wanted is None else np.full(len(things), wanted)
        top = lift[np.arange(len(things)), best]
        expected = [(things[i], int(best[i])) for i in np.lexsort((np.arange(len(things)), -top)) if top[i] >= 0]
        ranked = label_specificity._ranked(counts, kept, base, wanted)
        assert [(thing_of(counts, counts.thing_J[j], of), int(counts.label_J[j])) for j in ranked] == expected


def test_paths_that_never_meet_a_label_take_no_memory():
    found = made_up(paths=20_000, samples=3000, labels=2000, tokens=30_000, top_k=1)
    ids = np.unique(found.label_N[found.label_N >= 0])
    tracemalloc.start()
    counts = count_paths(found, ids)
    label_specificity._ranked(counts, np.arange(len(counts.thing_J)), np.full(len(ids), 1 / len(ids)), None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * len(ids)  # less than one byte for each cell of a table


def test_a_label_that_the_draw_does_not_hold_is_answered_with_a_reason(tmp_path: Path, monkeypatch):
    made = make("rare", samples=60, twin=False)
    numbers = iter(range(60))
    rare = [
        replace(
            b,
            samples=[
                replace(s, label=f"rare {n:02d}" if n % 3 == 0 else "common")
                for s, n in zip(b.samples, numbers, strict=False)
            ],
        )
        for b in made.batches
    ]
    monkeypatch.setattr(token_table, "MOST_TOKENS", 1000)
    with Run.open(replace(made, batches=rare).write(tmp_path)) as run:
        drawn = {int(label) for label in token_table.tokens_of(run).label_N}
        absent = [row[1] for row in run.labels if row[1] is not None and row[0] not in drawn]
        assert absent
        for of in ("path", "module"):
            told = run.specific(of, label=absent[0], least=1)
            assert told["rows"] == []
            assert f"{absent[0]!r}: none of its samples is in the draw of 16 of 60 samples" in told["reason"]
            assert run.specific(of, label="common", least=1)["rows"][0]["label"] == "common"


@pytest.mark.parametrize("known", [False, True])
def test_of_many_modules_one_is_specific_only_where_labels_decide(tmp_path: Path, known: bool):
    """Samples stick to modules of their own; labels have nothing to do with it, or decide at one step."""
    alone = clear = 0
    for seed in range(8):
        made = make(f"planted{seed}", "text", samples=100, steps=5, modules=8, top_k=1, twin=False, seed=seed)
        rng, batches = np.random.default_rng(seed), []
        for batch in made.batches:
            ids, first = batch.module_ids.copy(), 0
            for sample in batch.samples:
                rows = slice(first, first + sample.num_tokens)
                for step in range(ids.shape[1]):
                    ids[rows, step, 0] = rng.choice(8, sample.num_tokens, p=rng.dirichlet(np.full(8, 0.5)))
                if known:
                    ids[rows, 2, 0] = sum(map(ord, sample.label)) % 8
                first += sample.num_tokens
            batches.append(replace(batch, module_ids=ids))
        with Run.open(replace(made, batches=batches).write(tmp_path)) as run:
            rows = run.specific(of="module", limit=500)["rows"]
        alone += rows[0]["low"] > 1
        clear += rows[0]["clear"]
        assert all(row["low"] > 1 for row in rows if row["clear"])
    assert alone >= 4
    assert clear == (8 if known else 0)


def test_paths_of_three_samples_are_not_specific_because_the_samples_happen_to_have_one_label(tmp_path: Path):
    """Labels are dealt out; 40 paths with three samples of ten tokens each."""
    clear = alone = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        labels = [str(label) for label in rng.choice(list("abcdef"), 120)]
        texts = [SampleRecord(num_tokens=10, label=label, source=f"{i}") for i, label in enumerate(labels)]
        path = np.repeat(np.arange(120) % 40, 10)
        ids = np.stack([path // 8, path % 8], axis=1)[:, :, None]
        info = run_info(f"dealt{seed}", num_modules=8)
        bank = [ModuleInfo(None, module, f"block {module}", "mlp", 1, 2) for module in range(8)]
        with Run.open(RunArrays(info, bank, [routed(texts, ids)]).write(tmp_path)) as run:
            rows = run.specific(of="path", limit=500)["rows"]
        alone += any(row["num_samples"] == 3 and row["low"] > 1 for row in rows)
        clear += any(row["clear"] for row in rows)
    assert alone >= 3, "of so many paths some have three samples of one label"
    assert not clear
