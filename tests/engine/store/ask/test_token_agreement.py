"""Agreement of two runs against Python sets, token by token."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields, replace

import numpy as np
import pytest

from tests.support.runs import RunArrays, make_experts, make_run, with_unrecorded, with_unused
from tests.support.runs.margins import with_margins
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.base.records import UNRECORDED_KIND, UNUSED_KIND
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs import decision_tally, token_agreement
from tokenpaths.engine.store.ask.several_runs.compare import NotComparable
from tokenpaths.engine.store.file.weight_codes import code_for, decode_margins, encode_margins

ROWS = ("module_ids", "weights", "gate_entropy", "flops", "margin", "runner_up", "loss", "token_id")


def by_sample(made: RunArrays) -> list:
    """One batch a sample."""
    parts = []
    for batch in made.batches:
        start = 0
        for sample in batch.samples:
            rows = slice(start, start + sample.num_tokens)
            columns = {
                f.name: getattr(batch, f.name)[rows]
                for f in fields(batch)
                if f.name != "samples" and getattr(batch, f.name) is not None
            }
            parts.append(replace(batch, samples=[sample], **columns))
            start = rows.stop
    return parts


def cut(batch, rows: slice):
    """A sample's batch with some of its tokens."""
    columns = {
        f.name: getattr(batch, f.name)[rows]
        for f in fields(batch)
        if f.name != "samples" and getattr(batch, f.name) is not None
    }
    (sample,) = batch.samples
    return replace(batch, samples=[replace(sample, num_tokens=len(columns["flops"]))], **columns)


def with_losses(made: RunArrays, seed: int) -> RunArrays:
    """Losses of most tokens."""
    rng = np.random.default_rng(seed)
    batches = []
    for batch in made.batches:
        loss = rng.gamma(2.0, size=batch.num_tokens).astype(np.float32)
        loss[rng.random(len(loss)) < 0.2] = np.nan
        batches.append(replace(batch, loss=loss))
    return replace(made, batches=batches)


def decisions(made: RunArrays, part) -> list[list[list[tuple[int, float]] | None]]:
    """Token by token and step by step the modules with their stored weights; None where unknown."""
    kinds = {m.module: m.kind for m in made.modules}
    code = code_for(made.info.num_modules, made.info.top_k)
    told = []
    for ids_SK, weights_SK in zip(part.module_ids.tolist(), part.weights, strict=True):
        steps = []
        for ids, weights in zip(ids_SK, code.decode(code.encode(weights_SK)).tolist(), strict=True):
            pairs = [(m, w) for m, w in zip(ids, weights, strict=True) if kinds[m] != UNUSED_KIND]
            steps.append(None if any(kinds[m] == UNRECORDED_KIND for m, _ in pairs) else pairs)
        told.append(steps)
    return told


def naive(one: RunArrays, other: RunArrays, stretches) -> dict:
    """The counts of ``agree``, by loops; ``stretches``: (part of one, its rows, part of other, its rows)."""
    sums = Counter()
    steps = defaultdict(Counter)
    first, number = Counter(), Counter()
    margins, loss = defaultdict(Counter), defaultdict(list)
    for part, rows, partner, other_rows in stretches:
        ours, theirs = cut(part, rows), cut(partner, other_rows)
        margin_nS = None if ours.margin is None else decode_margins(encode_margins(ours.margin))
        for token, (mine, its) in enumerate(zip(decisions(one, ours), decisions(other, theirs), strict=True)):
            apart = []
            for step, (x, y) in enumerate(zip(mine, its, strict=True)):
                if x is None or y is None:
                    continue
                a, b = dict(x), dict(y)
                size = max(len(a), len(b))
                told = {
                    "decisions": 1,
                    "sets": a.keys() == b.keys(),
                    "overlap": len(a.keys() & b.keys()) / size if size else 1.0,
                    "first": [m for m, _ in x[:1]] == [m for m, _ in y[:1]],
                    "order": [m for m, _ in x] == [m for m, _ in y],
                    "moved": sum(abs(a[m] - b[m]) for m in a.keys() & b.keys()),
                    "both": len(a.keys() & b.keys()),
                }
                sums.update(told)
                steps[step].update(told)
                if not told["sets"]:
                    apart.append(step)
                if margin_nS is not None and np.isfinite(margin_nS[token, step]):
                    place = int(np.searchsorted(decision_tally.MARGIN_EDGES, margin_nS[token, step], side="right"))
                    margins[place].update(told)
            if any(x is not None and y is not None for x, y in zip(mine, its, strict=True)):
                number[len(apart)] += 1
                first[apart[0] if apart else -1] += 1
                change = theirs.loss[token] - ours.loss[token] if ours.loss is not None else np.nan
                if np.isfinite(change):
                    loss["different" if apart else "same"].append(float(change))
    return {"sums": sums, "steps": steps, "first": first, "number": number, "margins": margins, "loss": loss}


def check(answer: dict, told: dict, num_steps: int) -> None:
    """Every number of an answer that the naive loop has too."""
    sums, overall = told["sums"], answer["overall"]
    assert overall["decisions"] == sums["decisions"]
    for name in ("sets", "first", "order"):
        assert overall[name]["share"] == pytest.approx(sums[name] / sums["decisions"]), name
    assert overall["overlap"]["mean"] == pytest.approx(sums["overlap"] / sums["decisions"])
    assert overall["weight_change"] == pytest.approx(sums["moved"] / sums["both"], abs=1e-6)
    num = sum(told["number"].values())
    assert answer["tokens"]["num"] == num
    assert answer["tokens"]["num_different"] == [told["number"][i] for i in range(num_steps + 1)]
    assert answer["tokens"]["first_different"] == [told["first"][i] for i in range(num_steps)]
    assert overall["tokens"]["share"] == pytest.approx(told["number"][0] / num)
    for step, row in enumerate(answer["steps"]):
        own = told["steps"][step]
        assert row["decisions"] == own["decisions"]
        if own["decisions"]:
            for name in ("overlap", "first", "order"):
                assert row[name] == pytest.approx(own[name] / own["decisions"]), (step, name)
            assert row["sets"]["share"] == pytest.approx(own["sets"] / own["decisions"])
            low, high = row["sets"]["low"], row["sets"]["high"]
            assert low <= row["sets"]["share"] <= high
    assert sum(row["decisions"] for row in answer["positions"]) == sums["decisions"]
    of_labels = [row["decisions"] * row["sets"]["share"] for row in answer["labels"]]
    assert sum(of_labels) == pytest.approx(sums["sets"])
    for name in ("same", "different"):
        if told["loss"][name]:
            assert answer["loss"][name]["mean"] == pytest.approx(np.mean(told["loss"][name]), abs=2e-3)
            assert answer["loss"][f"num_{name}"] == len(told["loss"][name])


SHAPES = {
    "columns": dict(layers=3, experts=8, top_k=2),
    "one": dict(layers=4, experts=6, top_k=1),
    "packed": dict(layers=9, experts=300, top_k=8),
}
CHANGES = {
    "whole": lambda made, seed: made,
    "unused": lambda made, seed: with_unused(made, 0.3, seed),
    "unknown": lambda made, seed: with_unrecorded(made, 0.3, seed),
    "both": lambda made, seed: with_unrecorded(with_unused(made, 0.3, seed), 0.3, seed),
}


def two(shape: dict, change=CHANGES["whole"], **options) -> tuple[RunArrays, RunArrays]:
    """Two checkpoints of one training over the same texts, a third of the decisions drawn anew."""
    made = [
        make_experts(name, series=("mine", at), drift=0.15 * at, **shape, **options) for at, name in enumerate("ab")
    ]
    return tuple(with_losses(change(one, seed), seed) for seed, one in enumerate(made))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("changed", CHANGES)
def test_equals_its_naive_twin(tmp_path, monkeypatch, shape, changed):
    monkeypatch.setattr(token_agreement, "CHUNK_CHOICES", 300)  # several parts
    one, other = two(SHAPES[shape], CHANGES[changed], samples=7, length=21)
    one = with_margins(one)
    files = [made.write(tmp_path) for made in (one, other)]
    everything = slice(0, 21)
    parts = list(zip(by_sample(one), by_sample(other), strict=True))
    told = naive(one, other, [(x, everything, y, everything) for x, y in parts])
    seen = []
    with Run.open(files[0]) as a, Run.open(files[1]) as b:
        answer = a.agree(b, limit=7, progress=lambda done, total: seen.append((done, total)))
    check(answer, told, SHAPES[shape]["layers"])
    assert len(seen) > 1
    assert seen[-1] == (147, 147)
    assert answer["counted"]["exact"]
    assert answer["matched"]["num_tokens"] == 147
    close = {row["low"]: row for row in answer["margins"]}
    for place, own in told["margins"].items():
        row = close[decision_tally.MARGIN_EDGES[place - 1]]
        assert (row["decisions"], row["sets"]) == (own["decisions"], pytest.approx(own["sets"] / own["decisions"]))
    shares = [row["sets"] for row in answer["samples"]]
    assert shares == sorted(shares)
    assert shares[0] < 1


def test_samples_in_another_order_cut_and_behind_another_prompt(tmp_path):
    one, other = two(SHAPES["columns"], samples=12, length=30)
    ours, theirs = by_sample(one), by_sample(other)
    order = [5, 0, 11, 3, 8, 1]
    prompt = cut(theirs[2], slice(0, 9))
    parts, stretches = [], []
    for place, number in enumerate(order):
        part = theirs[number]
        if place == 0:  # cut at its end
            part, rows, own = cut(part, slice(0, 20)), slice(0, 20), slice(0, 20)
        elif place == 1:  # begins later
            part, rows, own = cut(part, slice(8, 30)), slice(0, 22), slice(8, 30)
        elif place == 2:  # behind a prompt that the other run has not
            joined = {
                name: np.concatenate([getattr(prompt, name), getattr(part, name)])
                for name in ROWS
                if getattr(part, name) is not None
            }
            for name in ("char_start", "char_end"):
                joined[name] = np.concatenate([getattr(prompt, name), getattr(part, name)])
            (sample,) = part.samples
            part = replace(part, samples=[replace(sample, num_tokens=39)], **joined)
            rows, own = slice(9, 39), slice(0, 30)
        else:
            rows = own = slice(0, 30)
        parts.append(part)
        stretches.append((ours[number], own, part, rows))
    with_sources = replace(other, batches=parts)
    bare = [replace(p, samples=[replace(p.samples[0], source=None, text=None)]) for p in parts]
    answers = []
    for name, made in (("named", with_sources), ("bare", replace(with_sources, batches=bare))):
        made = replace(made, info=replace(made.info, run_id=name))
        with Run.open(one.write(tmp_path / name)) as a, Run.open(made.write(tmp_path / name)) as b:
            answers.append(a.agree(b, limit=12))
    told = naive(one, other, stretches)
    for answer in answers:
        check(answer, told, 3)
        matched = answer["matched"]
        assert (matched["num"], matched["only_a"], matched["only_b"]) == (6, 6, 0)
        assert (matched["alone_a"], matched["alone_b"], matched["shifted"]) == (18, 9, 2)
        assert {row["sample"]: row["partner"] for row in answer["samples"]} == {n: p for p, n in enumerate(order)}
    assert [answer["matched"]["by_ids"] for answer in answers] == [0, 6]
    assert "start at another token" in answers[0]["matched"]["sentence"]
    assert "found by vocabulary ids" in answers[1]["matched"]["sentence"]


def test_names_that_are_numbers_do_not_pair_other_texts(tmp_path):
    one, other = two(SHAPES["columns"], samples=9, length=24, text=False)
    parts = by_sample(other)[::-1]

    def numbered(made, parts):
        named = [replace(p, samples=[replace(p.samples[0], source=str(i))]) for i, p in enumerate(parts)]
        return replace(made, batches=named)

    with (
        Run.open(numbered(one, by_sample(one)).write(tmp_path)) as a,
        Run.open(numbered(other, parts).write(tmp_path)) as b,
    ):
        answer = a.agree(b, limit=9)
    everything = slice(0, 24)
    stretches = [(x, everything, y, everything) for x, y in zip(by_sample(one), parts[::-1], strict=True)]
    check(answer, naive(one, other, stretches), 3)
    assert {row["sample"]: row["partner"] for row in answer["samples"]} == {i: 8 - i for i in range(9)}
    assert answer["matched"]["by_ids"] == 8  # the fifth of nine is itself


def test_numbered_requests_in_another_order_behind_one_system_prompt(tmp_path):
    """Number 3 of each log shares the system prompt with number 3 of the other, and is another request."""
    one, other = two(SHAPES["columns"], samples=20, length=80, text=False)
    sides = []
    for made, cut_at in ((one, 80), (other, 79)):  # the other log ends one token earlier
        parts = by_sample(made)
        system = parts[0].token_id[:50]
        parts = [replace(p, token_id=np.concatenate([system, p.token_id[50:]])) for p in parts]
        parts = [cut(p, slice(0, cut_at)) for p in parts]
        order = list(range(20)) if made is one else [(7 * n + 3) % 20 for n in range(20)]
        parts = [replace(parts[n], samples=[replace(parts[n].samples[0], source=str(i))]) for i, n in enumerate(order)]
        sides.append((replace(made, batches=parts), parts))
    with Run.open(sides[0][0].write(tmp_path)) as a, Run.open(sides[1][0].write(tmp_path)) as b:
        answer = a.agree(b, limit=20)
    stretches = []
    for place, part in enumerate(sides[1][1]):
        stretches.append((sides[0][1][(7 * place + 3) % 20], slice(0, 79), part, slice(0, 79)))
    check(answer, naive(one, other, stretches), 3)
    matched = answer["matched"]
    assert (matched["num"], matched["num_tokens"], matched["different"]) == (20, 20 * 79, 0)
    assert "left out" not in matched["sentence"]


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_chance_counts_dropped_tokens_and_sizes(tmp_path, top_k):
    """Shuffling the decisions of one step keeps its loads and sizes: what is shared then is chance."""
    made = with_unused(make_experts("a", layers=2, experts=12, top_k=top_k, samples=50, length=80), 0.5, 1)
    rng = np.random.default_rng(2)
    order_nS = np.stack([rng.permutation(4000) for _ in range(2)], axis=1)
    columns = {
        name: np.take_along_axis(np.concatenate([getattr(b, name) for b in made.batches]), order_nS[:, :, None], 0)
        for name in ("module_ids", "weights")
    }
    ends = np.cumsum([batch.num_tokens for batch in made.batches])[:-1]
    split = [
        dict(zip(columns, part, strict=True))
        for part in zip(*(np.split(c, ends) for c in columns.values()), strict=True)
    ]
    batches = [replace(batch, **own) for batch, own in zip(made.batches, split, strict=True)]
    other = replace(made, batches=batches, info=replace(made.info, run_id="b"))
    with Run.open(made.write(tmp_path)) as a, Run.open(other.write(tmp_path)) as b:
        overall = a.agree(b)["overall"]
    assert overall["chance"] == pytest.approx(overall["overlap"]["mean"], abs=0.015)


def test_a_planted_difference_is_found_where_it_is(tmp_path):
    one = make_experts("a", series=("mine", 0), layers=5, experts=16, top_k=2, samples=30, length=40)
    word = int(one.batches[0].token_id[3])
    batches = []
    for batch in one.batches:
        ids = batch.module_ids.copy()
        own = np.flatnonzero(batch.token_id == word)
        ids[own, 3, 0] = [next(m for m in range(14) if m not in ids[token, 3]) for token in own]
        batches.append(replace(batch, module_ids=ids))
    other = replace(one, batches=batches, info=replace(one.info, run_id="b", config=one.info.config))
    with Run.open(one.write(tmp_path)) as a, Run.open(other.write(tmp_path)) as b:
        answer, backwards = a.agree(b), b.agree(a)
    assert [row["sets"]["share"] == 1 for row in answer["steps"]] == [True, True, True, False, True]
    assert [row["token_id"] for row in answer["words"]["rows"]] == [word]
    assert answer["words"]["rows"][0]["sets"] == pytest.approx(0.8)
    assert answer["tokens"]["first_different"][3] == answer["tokens"]["num_different"][1] > 0
    assert answer["overall"]["overlap"] == backwards["overall"]["overlap"]
    assert answer["overall"]["chance"] < 0.5 < answer["overall"]["overlap"]["mean"]


def test_a_draw_of_whole_samples_comes_near(tmp_path):
    one, other = two(SHAPES["columns"], samples=60, length=30)
    with Run.open(one.write(tmp_path)) as a, Run.open(other.write(tmp_path)) as b:
        whole, drawn = a.agree(b, most_choices=None), a.agree(b, most_choices=30 * 6 * 20)
    assert (whole["counted"]["exact"], drawn["counted"]["exact"]) == (True, False)
    assert (drawn["counted"]["num_samples"], drawn["counted"]["of_samples"]) == (20, 60)
    assert drawn["overall"]["sets"]["low"] < whole["overall"]["sets"]["share"] < drawn["overall"]["sets"]["high"]


def test_chance_is_what_shuffled_decisions_share(tmp_path):
    one, _ = two(SHAPES["one"], samples=60, length=40)
    rng = np.random.default_rng(0)
    ids = one.ids
    shuffled = np.stack([rng.permutation(ids[:, step]) for step in range(4)], axis=1)
    ends = np.cumsum([batch.num_tokens for batch in one.batches])[:-1]
    batches = [replace(batch, module_ids=own) for batch, own in zip(one.batches, np.split(shuffled, ends), strict=True)]
    other = replace(one, batches=batches, info=replace(one.info, run_id="b"))
    with Run.open(one.write(tmp_path)) as a, Run.open(other.write(tmp_path)) as b:
        overall = a.agree(b)["overall"]
    assert overall["overlap"]["low"] < overall["chance"] < overall["overlap"]["high"]
    assert overall["chance"] == pytest.approx(overall["overlap"]["mean"], abs=0.03)


def test_without_recorded_weights_no_choice_is_first(tmp_path):
    one, other = two(SHAPES["columns"], samples=4, length=10)
    bare = replace(other, info=replace(other.info, weight_semantics={"weights_recorded": False}))
    with Run.open(one.write(tmp_path)) as a, Run.open(bare.write(tmp_path)) as b:
        answer = a.agree(b)
    overall = answer["overall"]
    assert overall["first"] is overall["order"] is overall["weight_change"] is None
    assert "no weights" in answer["order_missing"]
    assert overall["sets"]["share"] < 1


def test_pictures_are_paired_patch_by_patch(tmp_path):
    make_run(tmp_path, "one", samples=5, seed=1, twin=False)
    make_run(tmp_path, "other", samples=5, seed=1, twin=False)
    with Run.open(tmp_path / "one.duckdb") as a, Run.open(tmp_path / "other.duckdb") as b:
        answer = a.agree(b)
    assert answer["overall"]["sets"]["share"] == answer["overall"]["tokens"]["share"] == 1
    assert answer["samples"] == []
    assert answer["words"] == {"looked_at": 0, "rows": []}


def test_nothing_and_everything_are_exact_ends_of_intervals(tmp_path):
    one, _ = two(SHAPES["columns"], samples=5, length=20)
    ids = [(batch.module_ids + 1) % 8 for batch in one.batches]
    batches = [replace(batch, module_ids=own) for batch, own in zip(one.batches, ids, strict=True)]
    other = replace(one, batches=batches, info=replace(one.info, run_id="b"))
    again = replace(one, info=replace(one.info, run_id="again"))
    files = [made.write(tmp_path) for made in (one, other, again)]
    with Run.open(files[0]) as a, Run.open(files[1]) as b, Run.open(files[2]) as c:
        least, most = (a.agree(run)["overall"]["sets"] for run in (b, c))
    assert (least["share"], least["low"], most["share"], most["high"]) == (0.0, 0.0, 1.0, 1.0)
    assert least["high"] > 0
    assert most["low"] < 1


def test_what_cannot_be_compared_is_refused(tmp_path):
    one, other = two(SHAPES["columns"], samples=3, length=10)
    more = make_experts("more", layers=4, experts=8, top_k=2, samples=3)
    fewer = make_experts("fewer", layers=3, experts=7, top_k=2, samples=3)
    fewer = replace(fewer, info=replace(fewer.info, checkpoint_sha256=""))  # as of a log
    elsewhere = make_experts("elsewhere", seed=5, **SHAPES["columns"], samples=3, length=50)
    unknown = replace(with_unrecorded(other, 1.0), info=replace(with_unrecorded(other, 1.0).info, run_id="unknown"))
    for made in (one, other, more, fewer, elsewhere, unknown):
        made.write(tmp_path)
    opened = {file.stem: Run.open(file) for file in tmp_path.glob("*.duckdb")}
    for name, words in {
        "a": "given twice",
        "more": "has 3 steps, 'more' has 4",
        "fewer": "has 8 modules, 'fewer' has 7: .* is imported with --experts",
        "elsewhere": "no token in common",
        "unknown": "known in both",
    }.items():
        with pytest.raises(NotComparable, match=words):
            opened["a"].agree(opened[name])
    for options in ({"limit": 0}, {"words": 101}):
        with pytest.raises(UserError):
            opened["a"].agree(opened["b"], **options)
    for run in opened.values():
        run.close()


@pytest.mark.parametrize("shape", ["columns", "packed"])
def test_the_decisions_of_one_sample_are_those_that_are_counted(tmp_path, shape):
    one, other = two(SHAPES[shape], CHANGES["both"], samples=6, length=20)
    parts = by_sample(other)
    shorter = [cut(part, slice(3, 20)) if place == 2 else part for place, part in enumerate(parts)]
    other = replace(other, batches=shorter[::-1])
    with Run.open(one.write(tmp_path)) as a, Run.open(other.write(tmp_path)) as b:
        counted = {row["sample"]: row for row in a.agree(b, limit=6)["samples"]}
        for sample in range(6):
            told = a.agree_in(b, sample)
            known = [[share for share in token["overlap"] if share is not None] for token in told["tokens"]]
            row = counted[sample]
            assert (told["partner"], told["num_tokens"]) == (5 - sample, row["num_tokens"]) == (5 - sample, len(known))
            assert sum(any(share < 1 for share in token) for token in known) == row["differ"]
            assert np.mean([share == 1 for token in known for share in token]) == pytest.approx(row["sets"])
        part = a.agree_in(b, 2, first=5, limit=4)
        assert [(token["token"], token["partner"]) for token in part["tokens"]] == [(8 + i, 5 + i) for i in range(4)]
        for options in ({"first": 17}, {"limit": 0}):
            with pytest.raises(UserError):
                a.agree_in(b, 2, **options)
        with pytest.raises(NoSuchThing):
            a.agree_in(b, 6)
