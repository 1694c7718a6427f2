"""Work beside its outcome, means by kind, likeness of paths, kinds of modules, against loops over what was written."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.support.naive_store import Case
from tests.support.runs import make
from tests.support.runs.arrays import png_bytes
from tokenpaths.engine.analysis.words import CLASSES, is_kind, word_class
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables.excerpts import open_picture
from tokenpaths.engine.store.ask.topics import alikeness as topic
from tokenpaths.engine.store.ask.topics.work.kind_means import _judge, _row


def spread_over_groups(keys: list[float], groups: int) -> list[list[float]]:
    """How much of each item is in each group: every item as ``groups`` pieces, those of one key dealt out evenly."""
    pieces = sorted(key for key in keys for _ in range(groups))
    parts = {}
    for key in set(keys):
        places = [i for i, one in enumerate(pieces) if one == key]
        parts[key] = [sum(i // len(keys) == g for i in places) / len(places) for g in range(groups)]
    return [parts[key] for key in keys]


def naive_outcomes(case: Case, measure: str, label: str | None) -> tuple[list[float], dict[str, list[float]]]:
    made, naive = case.naive.made, case.naive
    keys, outcomes = [], {"right": [], "confidence": [], "loss": []}
    for number, sample in enumerate(made.samples):
        if label not in (None, sample.label):
            continue
        tokens = [t for t, owner in enumerate(naive.sample_of) if owner == number]
        if measure == "modules":
            visits = {(s, m) for t in tokens for s, step in enumerate(naive.ids[t].tolist()) for m in step}
            keys.append(float(sum(m not in naive.identity | naive.unused for _, m in visits)))
        else:
            keys.append(float(np.mean([getattr(naive, measure)(t) for t in tokens])))
        nothing = sample.prediction is None or sample.label is None or sample.loss is None
        outcomes["right"].append(np.nan if nothing else float(sample.prediction == sample.label))
        outcomes["confidence"].append(np.nan if sample.confidence is None else sample.confidence)
        outcomes["loss"].append(np.nan if sample.loss is None else sample.loss)
    return keys, outcomes


@pytest.mark.parametrize("measure", ["compute", "reuse", "modules"])
def test_outcomes_of_samples(case: Case, measure: str):
    for label in {None, case.label}:
        keys, outcomes = naive_outcomes(case, measure, label)
        answer = case.run.outcomes(measure, groups=2, label=label)
        if len(keys) < 4 or np.ptp(keys) < 1e-9:
            assert answer["reason"]
            assert answer["groups"] == []
            continue
        parts = spread_over_groups([round(key, 12) for key in keys], 2)
        assert answer["counted"]["num_samples"] == len(keys)
        for name, values in outcomes.items():
            for group, row in enumerate(answer["groups"]):
                known = [(v, part[group]) for v, part in zip(values, parts, strict=True) if not np.isnan(v)]
                if not known:
                    assert row[name] is None
                    continue
                mean = sum(v * w for v, w in known) / sum(w for _, w in known)
                assert row[name]["mean"] == pytest.approx(mean)
                assert row[name]["low"] <= mean <= row[name]["high"]
                if name != "loss":
                    assert row[name]["low"] >= 0
                    assert row[name]["high"] <= 1
        assert answer["groups"][0]["lowest"] == pytest.approx(min(keys))
        assert answer["groups"][-1]["highest"] == pytest.approx(max(keys))
        told = [row["outcome"] for row in answer["differences"]]
        assert told == [name for name in outcomes if not np.isnan(outcomes[name]).all()]
        for row in answer["differences"]:
            assert row["difference"] == pytest.approx(row["least"] - row["most"])
            assert row["low"] <= row["difference"] <= row["high"]


def test_outcomes_of_tokens(text: Case):
    naive, made = text.naive, text.naive.made
    loss = np.concatenate([b.loss for b in made.batches]).astype(float)
    keys = [naive.reuse(t) for t in range(len(naive.keys))]
    known = [t for t in range(len(keys)) if not np.isnan(loss[t])]
    parts = spread_over_groups([round(keys[t], 12) for t in known], 4)
    answer = text.run.outcomes("reuse", per="token", groups=4)
    for group, row in enumerate(answer["groups"]):
        weights = [part[group] for part in parts]
        mean = sum(loss[t] * w for t, w in zip(known, weights, strict=True)) / sum(weights)
        # Tokens hold their loss as a level.
        assert row["loss"]["mean"] == pytest.approx(mean, abs=2e-3)
        assert row["right"] is None
    with pytest.raises(UserError, match="counted per sample"):
        text.run.outcomes("modules", per="token")
    with pytest.raises(UserError, match="measure"):
        text.run.outcomes("depth")


def test_right_tokens_are_those_that_predict_their_successor(tmp_path):
    made = make("next", "text", samples=8)
    made = replace(made, info=replace(made.info, predicts_tokens=True))
    rng = np.random.default_rng(0)
    batches = []
    for batch in made.batches:
        hit = rng.random(batch.num_tokens) < 0.5
        batches.append(replace(batch, predicted_id=np.where(hit, np.roll(batch.token_id, -1), 0)))
    made = replace(made, batches=batches)
    ids, predicted = (np.concatenate([getattr(b, name) for b in batches]) for name in ("token_id", "predicted_id"))
    sizes = [s.num_tokens for s in made.samples]
    ends = set((np.cumsum(sizes) - 1).tolist())
    loss = np.concatenate([batch.loss for batch in batches])
    right = [float(predicted[t] == ids[t + 1]) for t in range(len(ids)) if t not in ends and not np.isnan(loss[t])]
    with Run.open(made.write(tmp_path)) as run:
        groups = run.outcomes("reuse", per="token", groups=2)["groups"]
        assert 0.2 < np.mean([row["right"]["mean"] for row in groups]) < 0.8
        whole = run.outcomes("reuse", per="token", groups=2)["counted"]["num_tokens"]
    assert whole == len(ids)
    low, high = min(row["right"]["mean"] for row in groups), max(row["right"]["mean"] for row in groups)
    assert low <= np.mean(right) <= high


def test_tokens_without_a_loss_are_neither_right_nor_wrong_where_others_have_one(tmp_path):
    """As the routing prefix of a DiPaCo: what is said there of the next token is no prediction."""
    made = make("prefix", "text", samples=8)
    made = replace(made, info=replace(made.info, predicts_tokens=True))
    batches = []
    for batch in made.batches:
        place = np.concatenate([np.arange(sample.num_tokens) for sample in batch.samples])
        loss = np.where(place < 2, np.nan, 1.0)
        successor = np.roll(batch.token_id, -1)
        batches.append(replace(batch, loss=loss, predicted_id=np.where(place < 2, successor, successor + 1)))
    with Run.open(replace(made, batches=batches).write(tmp_path)) as run:
        groups = run.outcomes("reuse", per="token", groups=2)["groups"]
    assert [row["right"]["mean"] for row in groups] == [0, 0]


@pytest.mark.parametrize("measure", ["compute", "reuse", "loss"])
def test_means_by_kind(case: Case, measure: str):
    naive, made = case.naive, case.naive.made
    if measure == "loss":
        parts = [np.full(b.num_tokens, np.nan) if b.loss is None else b.loss for b in made.batches]
        values = np.concatenate(parts).astype(float)
    else:
        values = np.array([getattr(naive, measure)(t) for t in range(len(naive.keys))])
    answer = case.run.kind_means(measure)
    if np.isnan(values).all() or np.nanmax(values) - np.nanmin(values) < 1e-9:
        assert answer["kinds"] == []
        assert answer["reason"]
        return
    told = {(row["by"], row["kind"]): row for row in answer["kinds"]}
    known = ~np.isnan(values)
    close = 2e-3 if measure == "loss" else 1e-6
    if made.info.modality == "vision":
        region = np.concatenate([b.region for b in made.batches])
        row, col = (np.concatenate([getattr(b, name) for b in made.batches]) for name in ("row", "col"))
        wanted = {("region", name): region == number for number, name in enumerate(made.info.regions)}
        wanted["patch", "border"] = np.isin(row, (0, 7)) | np.isin(col, (0, 7))
        wanted["patch", "centre"] = (row // 2 % 3 > 0) & (col // 2 % 3 > 0)
        assert {("patch", "edge"), ("patch", "flat")} <= set(told)
    else:
        ids = np.concatenate([b.token_id for b in made.batches])
        words = [made.info.token_texts[i] for i in ids.tolist()]
        wanted = {("word", name): np.array([word_class(w) == name for w in words]) for name in CLASSES}
        wanted["word", "sentence_end"] = np.array([is_kind(w, "sentence_end") for w in words])
    for key, mask in wanted.items():
        mask = mask & known
        if not mask.any():
            assert key not in told
            continue
        row = told[key]
        assert row["num_tokens"] == mask.sum()
        assert row["num_samples"] == len({naive.sample_of[t] for t in np.flatnonzero(mask)})
        assert row["mean"] == pytest.approx(values[mask].mean(), abs=close)
        assert row["difference"] == pytest.approx(values[mask].mean() - values[known].mean(), abs=close)
        if row["num_samples"] > 1:
            assert row["difference_low"] <= row["difference"] <= row["difference_high"]
            assert not row["clear"] or not row["difference_low"] <= 0 <= row["difference_high"]


def test_kinds_of_modules_by_step(case: Case):
    naive, made = case.naive, case.naive.made
    kinds = {m.module: m.kind for m in made.modules if m.module not in naive.unused}
    for label in {None, case.label}:
        tokens = list(naive.tokens(label))
        answer = case.run.module_kinds(label)
        for row in answer["shares"]:
            visits = naive.visits(tokens, row["step"])
            assert row["share"] == pytest.approx(sum(kinds[m] == row["kind"] for m in visits) / len(visits))
            assert row["even"] == pytest.approx(sum(k == row["kind"] for k in kinds.values()) / len(kinds))
            assert row["low"] - 1e-12 <= row["share"] <= row["high"] + 1e-12
            if len(made.twin) and label is None:
                twin = [m for m in made.twin[:, row["step"]].reshape(-1).tolist() if m in kinds]
                assert row["untrained"] == pytest.approx(sum(kinds[m] == row["kind"] for m in twin) / len(twin))
        assert len(answer["shares"]) == made.info.num_steps * len(set(kinds.values()))


def test_kinds_where_no_token_chooses_the_last_module(tmp_path):
    made = make("r", "text", modules=300, top_k=2, samples=3, twin=False)
    assert made.ids.max() < max(module.module for module in made.modules)
    kinds = {module.module: module.kind for module in made.modules}
    with Run.open(made.write(tmp_path)) as run:
        for row in run.module_kinds()["shares"]:
            chosen = [kinds[module] == row["kind"] for module in made.ids[:, row["step"]].reshape(-1).tolist()]
            assert row["share"] == pytest.approx(np.mean(chosen))


def naive_likeness(looks: np.ndarray, paths: np.ndarray, samples: np.ndarray) -> float:
    """Over all pairs of tokens of different samples, one by one."""

    def mean_square(tokens) -> tuple[float, int]:
        apart = [
            float(((looks[i] - looks[j]) ** 2).sum())
            for i, j in itertools.combinations(tokens, 2)
            if samples[i] != samples[j]
        ]
        return (float(np.mean(apart)), len(tokens)) if apart else (0.0, 0)

    near = [mean_square(np.flatnonzero(paths == path).tolist()) for path in np.unique(paths)]
    far, _ = mean_square(range(len(paths)))
    return 1 - sum(d * n for d, n in near) / sum(n for _, n in near) / far


@pytest.mark.parametrize("modality", ["vision", "text"])
def test_likeness_of_paths_counts_pairs_one_by_one(modality, tmp_path, monkeypatch):
    monkeypatch.setattr(topic, "FEWEST_OF_TWIN", 10)
    made = make("alike", modality, samples=5)
    with Run.open(made.write(tmp_path)) as run:
        told = run.alikeness()
        tokens = [token for i in range(5) for token in run.sample(i)["tokens"]]
    samples = np.repeat(np.arange(5), [s.num_tokens for s in made.samples])
    paths = np.array([token["rank"] for token in tokens])
    if modality == "vision":
        pictures = [np.asarray(open_picture(s.image)) for s in made.samples]
        cell = pictures[0].shape[0] // 8
        looks = np.array(
            [
                np.asarray(Image.fromarray(pictures[s]))[
                    t["row"] * cell : (t["row"] + 1) * cell, t["col"] * cell : (t["col"] + 1) * cell
                ].mean(axis=(0, 1))
                for s, t in zip(samples, tokens, strict=True)
            ]
        )
    else:
        words = [made.info.token_texts[int(i)] for i in np.concatenate([b.token_id for b in made.batches])]
        looks = np.eye(len(CLASSES))[[CLASSES.index(word_class(word)) for word in words]]
    row = told["looks"][0]
    assert row["look"] == ("colour" if modality == "vision" else "word_class")
    assert row["likeness"] == pytest.approx(naive_likeness(looks, paths, samples))
    assert row["trained"] == pytest.approx(row["likeness"])  # the untrained path of every token is known
    twin = np.unique(np.sort(made.twin, axis=2).reshape(len(made.twin), -1), axis=0, return_inverse=True)[1]
    assert row["untrained"] == pytest.approx(naive_likeness(looks, twin.reshape(-1), samples))
    shared = np.mean([len(set(samples[paths == path])) > 1 for path in paths])
    assert told["shared"] == pytest.approx(shared)
    for one in row["paths"]:
        on = paths == one["rank"]
        assert one["num_tokens"] == on.sum() >= topic.LEAST_TOKENS
        assert one["num_samples"] == len(set(samples[on]))


def test_what_the_place_makes_alike_is_in_the_null_of_likeness(tmp_path):
    """Pictures that are bright on the left: paths of the column are alike, and no more than places of any pictures."""
    made = make("columns", "vision", samples=30)
    rng = np.random.default_rng(0)
    ramp = np.linspace(220, 30, 64)[None, :, None]
    noise = rng.integers(-25, 25, (30, 8, 8, 1)).repeat(8, axis=1).repeat(8, axis=2)
    pictures = np.clip(ramp + noise + np.zeros((30, 64, 64, 3)), 0, 255).astype(np.uint8)
    for content, sure in ((False, False), (True, True)):
        batches, start = [], 0
        for batch in made.batches:
            drawn = [png_bytes(Image.fromarray(one)) for one in pictures[start : start + len(batch.samples)]]
            samples = [replace(s, image=png) for s, png in zip(batch.samples, drawn, strict=True)]
            bright = pictures[start : start + len(samples), ::8, ::8, 0].reshape(-1) > 125
            column = bright.astype(int) if content else (batch.col // 4).astype(int)
            ids = batch.module_ids.copy()
            ids[:] = 0
            ids[:, 0, 0] = column
            batches.append(replace(batch, samples=samples, module_ids=ids))
            start += len(samples)
        with Run.open(
            replace(made, batches=batches, info=replace(made.info, run_id=f"c{content}")).write(tmp_path)
        ) as run:
            row = run.alikeness()["looks"][0]
        assert row["likeness"] > 0.5  # alike in any case
        assert (row["p_value"] <= 0.05) == sure


def test_a_few_labels_that_the_model_knows_say_nothing_of_the_rest(tmp_path):
    made = make("vision", samples=60)
    for batch in made.batches:
        batch.samples[:] = [replace(one, loss=None) if one.label != "circle" else one for one in batch.samples]
    with Run.open(made.write(tmp_path)) as run:
        assert run.card()["accuracy"] is None
        told = run.outcomes("compute", groups=5)
    assert [row["outcome"] for row in told["differences"]] == ["confidence"]
    assert all(row["right"] is None and row["loss"] is None for row in told["groups"])


@pytest.mark.parametrize("tied", [False, True])
def test_of_many_kinds_that_differ_by_nothing_hardly_one_stands_out(tied: bool):
    """Eight kinds of tokens that samples hold by chance: one of their intervals leaves 0 out far more often than one of
    twenty, ``clear`` does not. Nor where most tokens tie, as in compute where few skip: the tokens of a rare kind that
    all do have no scatter, and by that alone one of eight stood out in 94 of 100."""
    rng, apart, clear, single = np.random.default_rng(0), 0, 0, 0
    shares = np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.356]) if tied else np.full(8, 1 / 8)
    for _ in range(200):
        sample_n = np.repeat(np.arange(12), rng.integers(30, 90, 12))
        num = len(sample_n)
        value_n = rng.normal(size=12)[sample_n] + rng.normal(size=num)
        if tied:
            value_n = np.where(rng.random(num) < 0.05, 1 - 0.1 * rng.random(num), 1.0)
        kind_n, table = rng.choice(8, num, p=shares), SimpleNamespace(sample_n=sample_n, num_samples=12)
        everything, rows = np.ones(num, dtype=bool), []
        for kind in range(8):
            rows += _row("word", str(kind), value_n, kind_n == kind, everything, table)
        _judge(rows)
        known = [row for row in rows if row["difference_high"] is not None]
        out = [row["difference_low"] > 0 or row["difference_high"] < 0 for row in known]
        apart, clear = apart + any(out), clear + any(row["clear"] for row in rows)
        single += float(np.mean(out))
    assert clear / 200 < 0.06
    assert single / 200 < 0.06
    assert tied or apart / 200 > 0.15
