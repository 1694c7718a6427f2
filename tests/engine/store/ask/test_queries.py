"""Every fast question against loops over the arrays that were written, in every layout."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.naive_store import Case
from tests.support.runs import make, make_run
from tokenpaths.engine.analysis.load import effective_top_k, load_entropy, max_violation
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables.excerpts import CONTEXT_CHARACTERS


def filter_sets(case: Case) -> list[dict]:
    """No filter, each alone and all together; the ones that name a token's own steps match something."""
    ids = case.naive.ids
    token = len(ids) // 2
    through = [(0, int(ids[token, 0, -1])), (len(ids[token]) - 1, int(ids[token, -1, 0]))]
    own_rank = case.naive.rank[case.naive.keys[token]]
    sets = [{}, {"through": through}, {"paths": [1, 2, own_rank]}, {"paths": [own_rank], "through": through}]
    if case.label is not None:
        label = case.naive.labels[token]
        sets += [{"label": label}, {"label": label, "through": through, "paths": [1, own_rank]}]
    return sets


def test_flow_counts_what_the_tokens_did(case: Case):
    for filters in filter_sets(case):
        tokens = list(case.naive.tokens(**filters))
        assert tokens
        answer = case.run.flow(**filters)
        assert answer["num_tokens"] == len(tokens)
        links = {(x["step"], x["source"], x["target"]): (x["count"], x["weight"]) for x in answer["links"]}
        cut = {x["step"]: x["count"] for x in answer["other"]}
        expected = case.naive.links(tokens)
        if not cut:
            assert links.keys() == expected.keys()
        for key, found in links.items():
            assert found == pytest.approx(expected[key], rel=1e-9, abs=1e-6)
        for step in answer["steps"][:-1]:
            shown = sum(count for (s, _, _), (count, _) in links.items() if s == step)
            assert shown + cut.get(step, 0) == pytest.approx(case.naive.linked(tokens, step))
        nodes = {(n["step"], n["module"]): n["count"] for n in answer["nodes"]}
        assert nodes == {key: count for key, (count, _) in case.naive.usage(tokens).items()}
        assert all(n["share"] == n["count"] / len(tokens) for n in answer["nodes"])
        json.dumps(answer, allow_nan=False)


def test_flow_of_some_steps(top1: Case):
    whole, part = top1.run.flow(), top1.run.flow(steps=(1, 4))
    assert part["steps"] == [1, 2, 3]
    assert part["links"] == [x for x in whole["links"] if x["step"] in (1, 2)]
    assert part["nodes"] == [x for x in whole["nodes"] if x["step"] in (1, 2, 3)]
    alone = top1.run.flow(steps=(2, 3), through=[(0, 1)])
    assert alone["links"] == []
    assert {n["step"] for n in alone["nodes"]} == {2}


def test_hidden_links_are_counted_in_other(case: Case):
    whole = case.run.flow(limit=2000)
    if not whole["links"]:
        return
    tokens = list(range(case.run.card()["num_tokens"]))
    for arguments in ({"min_share": 0.05}, {"limit": 7}, {"limit": 5, "min_share": 0.01}):
        answer = case.run.flow(**arguments)
        assert len(answer["links"]) <= arguments.get("limit", 2000)
        assert all(x["share"] >= arguments.get("min_share", 0) for x in answer["links"])
        for step in answer["steps"][:-1]:
            shown = sum(x["count"] for x in answer["links"] if x["step"] == step)
            hidden = [x for x in answer["other"] if x["step"] == step]
            assert shown + sum(x["count"] for x in hidden) == pytest.approx(case.naive.linked(tokens, step))
            links = sum(x["step"] == step for x in answer["links"]) + sum(x["num_links"] for x in hidden)
            everything = {k for k in case.naive.links(list(case.naive.tokens())) if k[0] == step}
            assert links == len(everything)
        kept, dropped = [x["count"] for x in answer["links"]], case.run.flow()["links"]
        if kept:
            larger = [x for x in dropped if x["count"] > min(kept) and x["share"] >= arguments.get("min_share", 0)]
            assert len(larger) <= len(kept)


def test_paths_rank_cdf_compute_reuse_and_labels(case: Case):
    naive = case.naive
    for filters in filter_sets(case):
        tokens = list(naive.tokens(**filters))
        counts = Counter(naive.keys[token] for token in tokens)
        answer = case.run.paths(**filters, limit=1000)
        assert (answer["num_paths"], answer["num_tokens"]) == (len(counts), len(tokens))
        assert [p["rank"] for p in answer["paths"]] == sorted(naive.rank[key] for key in counts)
        for path in answer["paths"]:
            key = naive.ranked[path["rank"] - 1]
            token = naive.keys.index(key)
            assert path["ribbon"] == naive.shown(key)
            assert path["count"] == counts[key]
            assert path["share"] == counts[key] / len(tokens)
            assert path["cdf"] == pytest.approx(naive.cdf[key])
            assert path["compute"] == pytest.approx(naive.compute(token))
            assert path["reuse"] == pytest.approx(naive.reuse(token))
            here = Counter(naive.labels[t] for t, k in enumerate(naive.keys) if k == key and naive.labels[t])
            if here:
                top = min(here, key=lambda name: (-here[name], name))
                assert (path["top_label"], path["top_label_share"]) == (top, here[top] / naive.count[key])
            else:
                assert (path["top_label"], path["top_label_share"]) == (None, None)


@pytest.mark.parametrize("order", ["rank", "compute"])
def test_paths_of_some_compute_are_those_of_all_with_it(case: Case, order: str):
    for filters in filter_sets(case):
        every = case.run.paths(**filters, order=order, limit=1000)
        values = sorted({path["compute"] for path in every["paths"]})
        for low, high in [
            (values[0], values[-1]),
            (values[0], values[len(values) // 2]),
            (values[-1], 1.0),
            (0.0, 0.0),
        ]:
            answer = case.run.paths(**filters, order=order, compute=(low, high), limit=1000)
            expected = [path for path in every["paths"] if low <= path["compute"] <= high]
            tokens = sum(path["count"] for path in expected)
            assert (answer["num_paths"], answer["num_tokens"]) == (len(expected), tokens)
            assert answer["paths"] == [path | {"share": path["count"] / tokens} for path in expected]


@pytest.mark.parametrize("order", ["rank", "compute", "reuse"])
def test_pages_of_paths_follow_each_other(case: Case, order: str):
    pages, offset = [], 0
    while offset is not None:
        answer = case.run.paths(order=order, limit=7, offset=offset)
        pages += answer["paths"]
        offset = answer["next"]
    assert len(pages) == answer["num_paths"] == len({p["rank"] for p in pages})
    keys = [p["rank"] if order == "rank" else (-p[order], p["rank"]) for p in pages]
    assert keys == sorted(keys)


def test_the_law_is_that_of_the_counts(case: Case):
    from tokenpaths.engine.analysis.path_statistics import Histogram
    from tokenpaths.engine.analysis.power_law import judge

    answer = case.run.law(draws=4, seed=3)
    counts = np.array([row["count"] for row in case.run.paths(limit=1000)["paths"]])
    verdict, observed = judge(Histogram.of(counts), draws=4, seed=3), answer["observed"]
    assert observed["num_paths"] == len(counts)
    if verdict.law is None:
        assert observed["reason"] == verdict.reason
        return
    assert {name: observed[name] for name in ("alpha", "x_min", "num_tail", "ks")} == {
        name: getattr(verdict.law, name) for name in ("alpha", "x_min", "num_tail", "ks")
    }
    assert observed["p_value"] == verdict.p_value
    # The curve starts where the tail ends: as many ranks as paths in the tail.
    assert observed["curve"][0]["rank"] == pytest.approx(observed["num_tail"])
    assert observed["curve"][0]["share"] == pytest.approx(observed["x_min"] / counts.sum())


def test_fit_and_its_nulls(case: Case):
    answer = case.run.fit()
    observed = answer["observed"]
    counts = [case.naive.count[key] for key in case.naive.ranked]
    assert [p["count"] for p in observed["points"]] == [counts[p["rank"] - 1] for p in observed["points"]]
    assert observed["num_paths"] == len(counts)
    if len(set(counts)) > 1:
        x, y = np.log(np.arange(1, len(counts) + 1)), np.log(counts)
        assert observed["slope"] == pytest.approx(np.polyfit(x, y, 1)[0])
        assert observed["r2"] == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    assert answer["independent"]["num_tokens"] == sum(counts)
    twin = case.naive.made.twin
    if len(twin):
        keys = Counter(tuple(tuple(sorted(step)) for step in ribbon) for ribbon in twin.tolist())
        assert answer["untrained"]["num_paths"] == len(keys)
        assert answer["untrained"]["points"][0]["count"] == max(keys.values())
    else:
        assert answer["untrained"] is None
    json.dumps(answer, allow_nan=False)


def test_usage_against_loops(case: Case):
    made = case.naive.made
    entropy = np.concatenate([batch.gate_entropy for batch in made.batches]).astype(np.float64)
    for label in {None, case.label}:
        tokens = list(case.naive.tokens(label=label))
        expected = case.naive.usage(tokens)
        answer = case.run.usage(label)
        modules = case.naive.modules
        assert len(answer["usage"]) == made.info.num_steps * len(modules)
        for cell in answer["usage"]:
            count, weight = expected.get((cell["step"], cell["module"]), (0, 0.0))
            assert cell["count"] == count
            assert cell["weight"] == pytest.approx(weight)
            assert cell["share"] == count / len(tokens)
        for step in answer["steps"]:
            s = step["step"]
            c = np.array([expected.get((s, m), (0, 0))[0] for m in modules])
            assert step["effective_top_k"] == pytest.approx(effective_top_k(c))
            assert step["load_entropy"] == pytest.approx(load_entropy(c))
            assert step["max_violation"] == pytest.approx(max_violation(c))
            assert step["dead"] == np.flatnonzero(c == 0).tolist()
            weights = np.array([expected.get((s, m), (0, 0.0))[1] for m in modules])
            assert step["importance_cv2"] == pytest.approx((weights.std() / weights.mean()) ** 2)
            assert step["gate_entropy"] == pytest.approx(entropy[tokens, s].mean(), rel=1e-6)
            if len(made.twin) and label is None:
                twin = np.bincount(made.twin[:, s].reshape(-1), minlength=made.info.num_modules)[modules]
                assert step["untrained_effective_top_k"] == pytest.approx(effective_top_k(twin))
            else:
                assert step["untrained_effective_top_k"] is None


def test_sample_returns_what_was_written(case: Case):
    made, naive = case.naive.made, case.naive
    offset = 0
    for number, record in enumerate(made.samples):
        answer = case.run.sample(number)
        tokens = range(offset, offset + record.num_tokens)
        offset += record.num_tokens
        assert answer["text"] == record.text
        assert answer["label"] == record.label
        assert answer["grid"] == ({"rows": record.grid[0], "cols": record.grid[1]} if record.grid else None)
        assert answer["compute"] == pytest.approx(np.mean([naive.compute(t) for t in tokens]))
        assert answer["reuse"] == pytest.approx(np.mean([naive.reuse(t) for t in tokens]))
        assert answer["num_distinct_paths"] == len({naive.keys[t] for t in tokens})
        assert [t["token"] for t in answer["tokens"]] == list(range(record.num_tokens))
        for t, token in zip(tokens, answer["tokens"], strict=True):
            assert token["ribbon"] == naive.ribbon(t)
            for own, kept, step in zip(token["weights"], made.weights[t], token["ribbon"], strict=True):
                np.testing.assert_allclose(own, kept[: len(step)], atol=1 / 510 + 1e-4, rtol=0.0147)
            assert token["rank"] == naive.rank[naive.keys[t]]
            assert token["cdf"] == pytest.approx(naive.cdf[naive.keys[t]])
            assert token["compute"] == pytest.approx(naive.compute(t))
            assert token["reuse"] == pytest.approx(naive.reuse(t))
        json.dumps(answer, allow_nan=False)
    _check_places(case)


def _check_places(case: Case) -> None:
    """Rows and columns of patches, characters and losses of words."""
    batch = case.naive.made.batches[0]
    first = case.run.sample(0)
    n = first["num_tokens"]
    if case.naive.made.info.modality == "vision":
        assert [t["row"] for t in first["tokens"]] == batch.row[:n].tolist()
        names = case.naive.made.info.regions
        assert [t["region"] for t in first["tokens"]] == [names[r] for r in batch.region[:n]]
        return
    assert [t["text"] for t in first["tokens"]] == first["text"].split(" ")
    assert [t["token_id"] for t in first["tokens"]] == batch.token_id[:n].tolist()
    losses = [np.nan if t["loss"] is None else t["loss"] for t in first["tokens"]]
    np.testing.assert_allclose(
        losses, batch.loss[:n], rtol=1 / 4000, atol=1 / 4000
    )  # see tokenpaths.engine.store.file.columns
    assert first["tokens"][0]["loss"] is None


def test_last_tokens_against_a_loop(case: Case):
    if case.run.row["modality"] != "text":
        with pytest.raises(UserError, match="no token ids"):
            case.run.last_tokens()
        return
    for label in dict.fromkeys((None, case.label)):
        wanted = [s for s in range(case.run.row["num_samples"]) if label in (None, case.naive.made.samples[s].label)]
        ends = [sample["tokens"][-1] for sample in map(case.run.sample, wanted) if sample["tokens"]]
        answer = case.run.last_tokens(label=label, limit=500)
        assert (answer["num_samples"], answer["num_token_ids"]) == (len(ends), len({end["token_id"] for end in ends}))
        counts = Counter(end["token_id"] for end in ends)
        assert [(row["token_id"], row["count"]) for row in answer["tokens"]] == sorted(
            counts.items(), key=lambda pair: (-pair[1], pair[0])
        )
        for row in answer["tokens"]:
            paths = Counter(end["rank"] for end in ends if end["token_id"] == row["token_id"])
            rank = min(paths, key=lambda rank: (-paths[rank], rank))
            assert (row["rank"], row["path_count"], row["num_paths"]) == (rank, paths[rank], len(paths))
            assert row["share"] == row["count"] / len(ends)
            (end,) = {str(end["ribbon"]) for end in ends if end["rank"] == rank}
            assert [sorted(step) for step in row["ribbon"]] == [sorted(step) for step in json.loads(end)]
        assert case.run.last_tokens(label=label, limit=1)["tokens"] == answer["tokens"][:1]


def test_examples_are_tokens_of_the_path(case: Case):
    naive, made = case.naive, case.naive.made
    starts = np.cumsum([0] + [s.num_tokens for s in made.samples])
    for rank in {1, 2, len(naive.ranked)}:
        key = naive.ranked[rank - 1]
        answer = case.run.examples(rank, limit=5, seed=1)
        assert answer["ribbon"] == naive.shown(key)
        assert len(answer["examples"]) == min(5, naive.count[key])
        for example in answer["examples"]:
            sample = made.samples[example["sample"]]
            assert naive.keys[starts[example["sample"]] + example["token"]] == key
            assert example["label"] == sample.label
            if sample.text is None:
                patch = base64.b64decode(example["patch"].removeprefix("data:image/png;base64,"))
                whole = np.asarray(Image.open(io.BytesIO(sample.image)))
                row, col = example["row"] * 8, example["col"] * 8
                expected = whole[row : row + 8, col : col + 8]
                np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(patch))), expected)
            else:
                words = sample.text.split(" ")
                assert example["text"] == words[example["token"]]
                around = example["before"] + example["text"] + example["after"]
                assert around in sample.text
                assert len(example["before"]) <= CONTEXT_CHARACTERS


def test_examples_are_a_seeded_draw(top1: Case):
    once, again = top1.run.examples(1, 10, seed=0), top1.run.examples(1, 10, seed=0)
    assert once == again
    assert once != top1.run.examples(1, 10, seed=1)
    everyone = {(e["sample"], e["token"]) for e in top1.run.examples(1, 200)["examples"]}
    drawn = [(e["sample"], e["token"]) for seed in range(40) for e in top1.run.examples(1, 10, seed)["examples"]]
    assert set(drawn) <= everyone
    assert len(set(drawn)) > 0.9 * len(everyone)  # every member can be drawn


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("order", ["sample", "compute", "reuse", "loss", "confidence", "num_distinct_paths"])
def test_samples_in_every_order(case: Case, order: str, descending: bool):
    rows, offset = [], 0
    while offset is not None:
        answer = case.run.samples(order=order, descending=descending, label=case.label, limit=3, offset=offset)
        rows += answer["samples"]
        offset = answer["next"]
    samples = case.naive.made.samples
    assert answer["total"] == len(rows) == sum(s.label == case.label for s in samples)
    values = [row[order] for row in rows]
    known = [v for v in values if v is not None]
    assert values[: len(known)] == known  # what has no value comes last
    assert known == sorted(known, reverse=descending)
    for row in rows:
        assert row["has_image"] == (samples[row["sample"]].image is not None)
        assert row["label"] == case.label


def test_samples_in_a_drawn_order_are_all_of_them_once_and_not_as_they_stand(tmp_path: Path):
    with Run.open(make_run(tmp_path, samples=40, steps=2, modules=3)) as run:
        pages = [run.samples(order="drawn", limit=10, offset=offset)["samples"] for offset in (0, 10, 20, 30)]
        numbers = [row["sample"] for page in pages for row in page]
        assert sorted(numbers) == list(range(40))
        assert numbers == [row["sample"] for row in run.samples(order="drawn", limit=40)["samples"]]
        assert {number // 10 for number in numbers[:10]} == {0, 1, 2, 3}


def test_card_and_info(case: Case):
    made, naive = case.naive.made, case.naive
    info = case.run.info()
    assert (info["num_tokens"], info["num_samples"]) == (len(naive.keys), len(made.samples))
    assert info["num_paths"] == info["summary"]["num_paths"] == len(naive.ranked)
    for share in info["summary"]["top_shares"]:
        assert share["share"] == pytest.approx(naive.cdf[naive.ranked[share["n"] - 1]])
    computes = [naive.compute(t) for t in range(len(naive.keys))]
    assert info["summary"]["mean_compute"] == pytest.approx(np.mean(computes))
    labels = Counter(s.label for s in made.samples if s.label)
    assert {row["label"]: row["num_samples"] for row in info["labels"]} == labels
    assert info["config"] == made.info.config
    attributes = {a["attribute"] for a in info["associations"]}
    wanted = {"region"} if made.info.modality == "vision" else {"token_id"}
    # Labels of six samples or fewer cannot be exchanged to any effect.
    assert attributes == (wanted | {"label"} if case.label and len(made.samples) > 6 else wanted)
    if made.info.modality == "vision":
        right = [s.prediction == s.label for s in made.samples]
        assert info["accuracy"] == pytest.approx(np.mean(right))
        assert info["loss"] == pytest.approx(np.mean([s.loss for s in made.samples]))
    else:
        losses = np.concatenate([b.loss for b in made.batches]).astype(np.float32)
        assert info["accuracy"] is None
        assert info["loss"] == pytest.approx(np.nanmean(losses.astype(np.float64)))
    assert info["measures"] == ["compute", "reuse", "loss", "gate_entropy"]
    json.dumps(info, allow_nan=False)


def test_a_run_without_labels_says_so(unlabelled: Case):
    assert unlabelled.run.info()["labels"] == []
    assert unlabelled.run.distribution("compute")["by_label"] == []
    with pytest.raises(UserError, match="it has no labels"):
        unlabelled.run.flow(label="circle")


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda run: run.flow(label="no such"), "label"),
        (lambda run: run.flow(steps=(3, 3)), "steps"),
        (lambda run: run.flow(steps=(0, 99)), "steps"),
        (lambda run: run.flow(min_share=float("nan")), "min_share"),
        (lambda run: run.flow(limit=2001), "limit"),
        (lambda run: run.flow(paths=[0]), "paths"),
        (lambda run: run.flow(paths=[10**9]), "paths"),
        (lambda run: run.flow(through=[(0, 99)]), "through"),
        (lambda run: run.flow(through=[(-1, 0)]), "through"),
        (lambda run: run.paths(order="count; DROP TABLE token"), "order"),
        (lambda run: run.paths(limit=0), "limit"),
        (lambda run: run.paths(compute=(0.9, 0.1)), "compute"),
        (lambda run: run.samples(order="label"), "order"),
        (lambda run: run.samples(offset=-1), "next"),
        (lambda run: run.distribution("loss); --"), "measure"),
        (lambda run: run.distribution("compute", per="module"), "per"),
        (lambda run: run.distribution("compute", bins=0), "bins"),
        (lambda run: run.export("path", "xlsx"), "format"),
    ],
)
def test_questions_that_make_no_sense_name_the_field(top1: Case, ask, field: str):
    with pytest.raises(UserError) as caught:
        ask(top1.run)
    assert caught.value.field == field


def test_what_is_not_there_is_not_there(top1: Case, text: Case):
    for ask in (
        lambda: top1.run.examples(10**6),
        lambda: top1.run.examples(0),
        lambda: top1.run.sample(12),
        lambda: top1.run.sample(-1),
        lambda: top1.run.sample(2**40),
        lambda: text.run.image(0),
        lambda: top1.run.export("no_table", "csv"),
    ):
        with pytest.raises(NoSuchThing):
            ask()
    assert top1.run.image(3) == top1.naive.made.samples[3].image


def test_crops_of_few_pictures_are_said_to_be_so(tmp_path):
    made = make("crops", samples=6, twin=False)

    def cut(sources):
        places = iter(sources)
        return replace(
            made,
            batches=[
                replace(batch, samples=[replace(sample, source=next(places)) for sample in batch.samples])
                for batch in made.batches
            ],
        )

    for number, (sources, words) in enumerate(
        [
            ([f"{'ab'[i % 2]}.jpg at ({i}, 3), 90 px" for i in range(6)], "6 crops of 2 pictures"),
            ([f"a.jpg at ({i}, 3), 90 px" for i in range(6)], "6 crops of 1 picture"),
            ([f"{i}.jpg at ({i}, 3), 90 px" for i in range(6)], None),
            ([*(f"a.jpg at ({i}, 3), 90 px" for i in range(5)), "b.jpg"], None),
            ([None] * 6, None),
        ]
    ):
        run = replace(cut(sources), info=replace(made.info, run_id=f"crops-{number}"))
        with Run.open(run.write(tmp_path)) as opened:
            assert opened.card()["samples_are"] == opened.info()["samples_are"] == words
