"""Automatic names: beside a naive twin, of planted modules, and of random routing, which gets none."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from tests.support.naive_store import Case, Naive
from tests.support.runs import RunArrays, make, make_experts, routed, run_info
from tests.support.runs.arrays import joined
from tokenpaths.engine.analysis.contrast import effective_size, kish_size, share_interval, wilson
from tokenpaths.engine.analysis.words import KINDS, is_kind
from tokenpaths.engine.base.records import ModuleInfo, SampleRecord
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables.attributes import LEAST_TOKENS, Attributes, label_attributes
from tokenpaths.engine.store.ask.tables.patch_kinds import PATCH_KINDS, patches_of_kind
from tokenpaths.engine.store.ask.tables.token_table import LazyRibbons, TokenTable, tokens_of
from tokenpaths.engine.store.ask.topics.things import naming
from tokenpaths.engine.store.ask.topics.things.naming import (
    LEAST,
    LEAST_LIFT,
    LEAST_SHARE,
    Things,
    in_words,
    name_things,
    summaries,
)
from tokenpaths.engine.store.write.large.seal_answers import seal_answers


def attributes(made: RunArrays, run: Run) -> dict[tuple[str, str], np.ndarray]:
    """(n,) masks by what and value, one token at a time."""
    labels = made.per_token([sample.label for sample in made.samples])
    masks = {("label", label): np.array([own == label for own in labels]) for label in sorted(set(labels)) if label}
    if made.info.modality == "text":
        words = []
        for sample, batch in zip(made.samples, batches_of(made), strict=True):
            low, high = batch
            words += [(sample.text or "")[a:b] for a, b in zip(low, high, strict=True)]
        for kind in KINDS:
            masks["word_kind", kind] = np.array([is_kind(word, kind) for word in words])
        for word in {word.casefold() for word in words}:
            mask = np.array([other.casefold() == word for other in words])
            if mask.sum() >= LEAST_TOKENS:
                masks["word", word] = mask
        return masks
    for kind in PATCH_KINDS:
        masks["patch_kind", kind] = patches_of_kind(run, tokens_of(run), kind)
    region = np.concatenate([batch.region for batch in made.batches])
    masks |= {("region", name): region == i for i, name in enumerate(made.info.regions)}
    return masks


def batches_of(made: RunArrays) -> Iterator[tuple[list[int], list[int]]]:
    """First and last characters of the tokens of each sample."""
    for batch in made.batches:
        first = 0
        for sample in batch.samples:
            here = slice(first, first + sample.num_tokens)
            yield batch.char_start[here].tolist(), batch.char_end[here].tolist()
            first += sample.num_tokens


def naive_names(made: RunArrays, run: Run, of: str) -> dict[object, tuple[str, str, int, float, float] | None]:
    """Every pair of a thing and an attribute in full, then the best of each thing."""
    twin = Naive(made)
    samples = np.array(twin.sample_of)
    things: dict[object, set[int]] = defaultdict(set)
    for token in range(len(twin.keys)):
        if of == "path":
            things[twin.rank[twin.keys[token]]].add(token)
            continue
        for step in range(made.info.num_steps):
            for module in twin.ids[token, step].tolist():
                things[step, module].add(token)
    masks = attributes(made, run)
    num_pairs = len(masks) * sum(len(tokens) >= LEAST for tokens in things.values())
    names: dict[object, tuple[str, str, int, float, float] | None] = {}
    for thing, tokens in things.items():
        here = np.array(sorted(tokens))
        of_N = np.bincount(samples[here], minlength=len(made.samples))
        met, best = of_N > 0, 0.0
        names[thing] = None
        for (what, value), mask in masks.items():
            hits_N = np.bincount(samples[here[mask[here]]], minlength=len(of_N))
            share, base = hits_N.sum() / len(here), mask.mean()
            if hits_N.sum() < LEAST or (hits_N > 0).sum() < 2 or share < LEAST_SHARE:
                continue
            size = kish_size(of_N[met, None]) if what == "label" else effective_size(hits_N[met, None], of_N[met])
            parts = (hits_N - share * of_N) ** 2
            freedom = kish_size(of_N[met, None])[0]
            if what != "label" and parts.any():
                freedom = min(freedom, parts.sum() ** 2 / (parts**2).sum())
            quantile = float(student.ppf(1 - 0.025 / num_pairs, max(freedom - 1, 1)))
            surely = wilson(np.array([share]), size, quantile)[0][0]
            own = wilson(np.array([share]), size) if what == "label" else share_interval(hits_N[met, None], of_N[met])
            low, high = (ends[0] for ends in own)
            if surely > base and low > LEAST_LIFT * base and low * math.log2(low / base) > best:
                best = low * math.log2(low / base)
                names[thing] = (what, value, int(hits_N.sum()), low / base, high / base)
    return names


@pytest.mark.parametrize(
    "made",
    [
        make("r", "vision", samples=20, steps=2),
        make("r", "vision", samples=40, steps=2, top_k=2, labels=False),
        make("r", "text", samples=80, steps=2),
        make("r", "text", samples=90, steps=2, top_k=2),
    ],
    ids=["vision", "vision top 2", "text", "text top 2"],
)
@pytest.mark.parametrize("of", ["module", "path"])
def test_names_are_those_of_all_pairs_in_full(made: RunArrays, of: str, tmp_path: Path):
    with Run.open(made.write(tmp_path)) as run:
        expected = naive_names(made, run, of)
        rows = run.summaries(of)["rows"]
        got = {row["rank"] if of == "path" else (row["step"], row["module"]): row for row in rows}
        assert len(got) == len(rows)
        num_named = 0
        for thing, row in got.items():
            wanted = expected.get(thing)
            if wanted is None:
                assert row["what"] is None, (thing, row)
                assert row["reason"]
                continue
            num_named += 1
            assert (row["what"], row["value"]) == wanted[:2], (thing, row, wanted)
            assert round(row["share"] * row["count"]) == wanted[2]
            assert (row["low"], row["high"]) == pytest.approx(wanted[3:])
            assert row["words"] == in_words(row["what"], row["value"], row["share"])
        assert num_named > 0


def planted(seed: int = 0) -> RunArrays:
    """Texts whose full stops all go to module 1 of step 0, alone; everything else is drawn."""
    rng = np.random.default_rng(seed)
    samples, columns, ids = [], defaultdict(list), []
    for number in range(40):
        words = [str(rng.choice(["the", "ship", "sails", "far", "home"])) for _ in range(30)]
        words[9::10] = ["."] * 3
        samples.append(SampleRecord(num_tokens=30, text=" ".join(words), label=f"l{number % 2}"))
        for name, values in joined(words).items():
            columns[name].append(values)
        first = np.where(np.array(words) == ".", 1, rng.choice([0, 2], 30))
        ids.append(np.stack([first, rng.integers(0, 3, 30)], axis=1)[:, :, None])
    bank = [ModuleInfo(None, m, f"block {m}", "mlp", 1, 1) for m in range(3)]
    arrays = {name: np.concatenate(values) for name, values in columns.items()}
    return RunArrays(run_info("r"), bank, [routed(samples, np.concatenate(ids), **arrays)])


def test_a_module_that_only_takes_full_stops_is_named_so(tmp_path: Path):
    with Run.open(planted().write(tmp_path)) as run:
        answer = run.summaries()
        names = {(row["step"], row["module"]): row["words"] for row in answer["rows"]}
        row = next(row for row in answer["rows"] if (row["step"], row["module"]) == (0, 1))
    assert row["words"] in ("ends of sentences, 100 %", "punctuation, 100 %")
    assert row["share"] == 1.0
    assert row["lift"] == pytest.approx(10)
    assert 5 < row["low"] < row["lift"] <= row["high"] + 1e-9
    assert {thing: words for thing, words in names.items() if thing[0] == 1} == dict.fromkeys(
        [(1, 0), (1, 1), (1, 2)], None
    ), "step 1 is random"


Random = tuple[TokenTable, list[Things], list[Attributes]]


def random_routing(
    seed: int, *, samples: int, modules: int = 4, words: int = 8, favourites: int = 3, labels: int = 3
) -> Random:
    """Three steps that know nothing of words and labels, but much of their sample, as do the words: the hard case."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, 60, samples)
    sample_n = np.repeat(np.arange(samples), lengths)
    n = len(sample_n)
    own = rng.integers(0, modules, (samples, 3))
    ids = np.where(rng.random((n, 3)) < 0.7, own[sample_n], rng.integers(0, modules, (n, 3)))
    ribbons, path_n = np.unique(ids, axis=0, return_inverse=True)
    liked = np.stack([rng.permutation(words)[:favourites] for _ in range(samples)])
    table = TokenTable(
        run=weakref.ref(random_routing),  # type: ignore[arg-type]
        columns={},
        sample_n=sample_n.astype(np.int32),
        samples_N=np.arange(samples),
        label_N=rng.integers(0, labels, samples),
        path_n=path_n.reshape(-1).astype(np.int32),
        rank_P=np.arange(1, len(ribbons) + 1),
        compute_P=np.ones(len(ribbons)),
        reuse_P=np.zeros(len(ribbons)),
        ribbons=LazyRibbons(lambda: ribbons[:, :, None].astype(np.uint8)),
        num_modules=modules,
        counted={"exact": True},
    )
    code_n = liked[sample_n, rng.integers(0, favourites, n)].astype(np.int32)
    of_words = Attributes(table, code_n, np.eye(words, dtype=bool), tuple(("word", str(i)) for i in range(words)))
    of_labels = label_attributes(table, {i: str(i) for i in range(labels)})
    groups = [Things([{} for _ in range(modules)], ribbons[:, step, None]) for step in range(3)]
    return table, groups, [part for part in (of_labels, of_words) if part is not None]


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 10, "favourites": 2},
        {"samples": 24},
        {"samples": 24, "modules": 8, "words": 40},
        {"samples": 100, "modules": 16, "words": 100, "labels": 10},
        {"samples": 60},
    ],
    ids=str,
)
def test_random_routing_gets_names_no_more_often_than_the_level_says(options: dict[str, int], monkeypatch):
    runs = [random_routing(seed, **options) for seed in range(40)]
    assert sum(any(name_things(*run)[0]) for run in runs) <= naming.LEVEL * len(runs)
    monkeypatch.setattr(naming, "_freedom", lambda *_, by_sample: 1e9)
    monkeypatch.setattr(naming, "LEVEL", naming.LEVEL * name_things(*runs[0])[1])
    assert sum(any(name_things(*run)[0]) for run in runs) > 0.05 * len(runs), "without corrections it would"


def test_what_a_thing_would_be_named_by_is_told_where_its_samples_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token of the thing is the word, three samples have it: no name, and not "no attribute"."""
    monkeypatch.setattr(naming, "LEVEL", 1e-5)  # as where thousands of modules are compared
    rng, samples, length = np.random.default_rng(0), 60, 40
    sample_n = np.repeat(np.arange(samples), length)
    word_n = rng.integers(1, 6, samples * length)
    word_n[(sample_n < 3) & (np.arange(len(word_n)) % length < 30)] = 0
    ribbons = np.array([[0], [1]])
    table = TokenTable(
        run=weakref.ref(random_routing),  # type: ignore[arg-type]
        columns={},
        sample_n=sample_n.astype(np.int32),
        samples_N=np.arange(samples),
        label_N=np.zeros(samples, dtype=np.int64),
        path_n=(word_n != 0).astype(np.int32),
        rank_P=np.array([1, 2]),
        compute_P=np.ones(2),
        reuse_P=np.zeros(2),
        ribbons=LazyRibbons(lambda: ribbons[:, :, None].astype(np.uint8)),
        num_modules=2,
        counted={"exact": True},
    )
    words = tuple(("word", name) for name in ("over", "a", "b", "c", "d", "e"))
    part = Attributes(table, word_n.astype(np.int32), np.eye(6, dtype=bool), words)
    names, _, near = name_things(table, [Things([{}, {}], ribbons)], [part])
    assert names[0] is None
    assert (near[0].value, near[0].share, near[0].num_samples) == ("over", 1.0, 3)
    told = naming._row(names[0], 90, 6, near[0])
    assert told["words"] is None
    assert told["reason"] == "“over”, 100 % (of all tokens 4 %), comes from 3 samples: too few or too unlike to be sure"


def test_a_draw_names_as_the_whole_run_does(tmp_path: Path, monkeypatch):
    with Run.open(planted().write(tmp_path)) as run:
        whole = run.summaries()
    monkeypatch.setattr(naming, "MOST_TOKENS", 600)
    with Run.open(tmp_path / "r.duckdb") as run:
        drawn = run.summaries()
    assert not drawn["counted"]["exact"]
    assert drawn["counted"]["num_tokens"] <= 630
    first = [next(row for row in answer["rows"] if row["module"] == 1)["words"] for answer in (whole, drawn)]
    assert first[0] == first[1] is not None


def test_a_run_without_attributes_says_so(tmp_path: Path):
    made = make_experts(labels=False, text=False, token_ids=False)
    with Run.open(made.write(tmp_path)) as run:
        answer = run.summaries()
    assert answer["num_candidates"] == 0
    assert answer["reason"]
    assert {row["what"] for row in answer["rows"]} == {None}
    assert all(row["reason"] for row in answer["rows"])


def test_sealed_answers_are_those_worked_out(tmp_path: Path, monkeypatch):
    file = planted().write(tmp_path)
    with Run.open(file) as run:
        expected = [run.summaries(of) for of in ("module", "path")]

    def questions(run: Run) -> Iterator[tuple[Callable[..., dict], dict]]:
        yield from ((summaries, arguments) for arguments in ({"of": "module"}, {"of": "path"}))

    seal_answers(file, "r", questions)
    with Run.open(file) as run:
        monkeypatch.setattr(naming, "cached", None)  # nothing is worked out anew
        assert [run.summaries(of) for of in ("module", "path")] == expected


def test_merged_labels_are_one_candidate(case: Case):
    assert case.run.summaries(labels="merged")["rows"]
