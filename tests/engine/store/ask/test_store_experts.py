"""Experts of a sealed run against loops over the arrays that were written; merging in the flow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.runs import RunArrays, make, make_experts, with_unrecorded, with_unused
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.base.records import UNRECORDED_KIND, UNUSED_KIND
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.series import no_series, series_of
from tokenpaths.engine.store.ask.tables import drawn_tokens
from tokenpaths.engine.store.ask.topics import experts as store

LAYOUTS = {
    "columns": {},
    "top-1": {"top_k": 1},
    "packed": {"layers": 5, "experts": 300, "top_k": 14, "dead": 40},
    "log": {"text": False},
    "bare log": {"text": False, "token_ids": False, "labels": False},
}


class Case:
    """A run and what was written into it."""

    def __init__(self, made: RunArrays, folder: Path) -> None:
        self.made = made
        self.run = Run.open(made.write(folder))
        self.ids = made.ids
        self.labels = made.per_token([sample.label for sample in made.samples])
        self.sample_of = made.per_token(list(range(len(made.samples))))
        given = [batch.token_id for batch in made.batches]
        self.words = None if given[0] is None else np.concatenate(given).tolist()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Case]]:
    folder = tmp_path_factory.mktemp("experts")
    found = {
        name: Case(make_experts(f"run{i}", seed=i, **options), folder)
        for i, (name, options) in enumerate(LAYOUTS.items())
    }
    for name in ("columns", "top-1", "packed"):
        some = with_unrecorded(make_experts(f"unknown {name}".replace(" ", "-"), **LAYOUTS[name]), 0.5)
        found[f"unknown {name}"] = Case(some, folder)
    varied = with_unrecorded(with_unused(make_experts("varied"), 0.2), 0.3, first_step=1)
    found["varied"] = Case(varied, folder)
    yield found
    for case in found.values():
        case.run.close()


@pytest.fixture(params=list(LAYOUTS))
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def test_specialisation_in_labels_is_the_share_of_their_tokens(case: Case) -> None:
    if case.labels[0] is None:
        with pytest.raises(UserError, match="no labels") as caught:
            case.run.specialisation("label")
        assert caught.value.field == "of"
        return
    for step in (0, 1):
        answer = case.run.specialisation("label", step, limit=256)
        sizes = Counter(case.labels)
        assert {row["label"]: row["num_tokens"] for row in answer["domains"]} == sizes
        naive = Counter(
            (label, module) for label, row in zip(case.labels, case.ids, strict=True) for module in row[step].tolist()
        )
        shown = {(one["label"], row["module"]): one for row in answer["modules"] for one in row["prefers"]}
        assert {key: one["count"] for key, one in shown.items() if one["count"]} == dict(naive)
        for (label, _), one in shown.items():
            assert one["share"] == pytest.approx(one["count"] / sizes[label])
        rest = {key: sum(one["count"] for other, one in shown.items() if other[1] == key[1]) for key in shown}
        others = {key: len(case.labels) - sizes[key[0]] for key in shown}
        above = {key: one["share"] - (rest[key] - one["count"]) / max(1, others[key]) for key, one in shown.items()}
        best = [max(above[one["label"], row["module"]] for one in row["prefers"]) for row in answer["modules"]]
        assert best == pytest.approx(sorted(best, reverse=True))
        assert answer["baseline"] == case.run.layout.top_k / case.run.layout.num_modules
        assert answer["more"] == 0
    few = case.run.specialisation("label", 1, limit=3)
    assert few["modules"] == answer["modules"][:3]
    assert few["more"] == len(answer["modules"]) - 3


def test_predicted_words_equal_the_written_ones_and_older_runs_say_why_not(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no token ids|holds no predictions: it was made from a log") as caught:
        case.run.specialisation("predicted")
    assert caught.value.field == "of"
    if case.words is None:
        return
    rng, made = np.random.default_rng(3), case.made
    batches = [replace(batch, predicted_id=rng.integers(0, 4, batch.num_tokens)) for batch in made.batches]
    predicted = np.concatenate([batch.predicted_id for batch in batches]).tolist()
    info = replace(made.info, run_id="telling", predicts_tokens=True)
    with Run.open(replace(made, info=info, batches=batches).write(tmp_path)) as run:
        answer = run.specialisation("predicted", 1, limit=256, each=100)
        chosen = Counter((word, int(m)) for word, row in zip(predicted, case.ids, strict=True) for m in row[1])
        found = {(one["token_id"], row["module"]): one["count"] for row in answer["modules"] for one in row["prefers"]}
        assert found == chosen
        assert answer["num_words"] == 4
        assert "predicted_id" in run.token_columns
    assert "predicted_id" not in case.run.token_columns


@pytest.mark.parametrize("of", ["input", "next"])
def test_specialisation_in_words_by_loops(case: Case, of: str) -> None:
    if case.words is None:
        with pytest.raises(UserError, match="no token ids") as caught:
            case.run.specialisation(of)
        assert caught.value.field == "of"
        return
    n = len(case.words)
    words = list(case.words)
    if of == "next":
        same = [t + 1 < n and case.sample_of[t + 1] == case.sample_of[t] for t in range(n)]
        words = [case.words[t + 1] if same[t] else None for t in range(n)]
    seen, chosen = Counter(words), defaultdict(Counter)
    for word, row in zip(words, case.ids, strict=True):
        for module in row[1].tolist():
            chosen[module][word] += 1
    often = {word for word, count in seen.items() if word is not None and count >= 10}
    answer = case.run.specialisation(of, 1, limit=256, each=100)
    assert answer["num_words"] == len(often) >= 2
    listed = {row["module"]: {one["token_id"]: one for one in row["prefers"]} for row in answer["modules"]}
    naive = {m: {w: c for w, c in words.items() if w in often} for m, words in chosen.items()}
    assert {m: {w: one["count"] for w, one in row.items()} for m, row in listed.items()} == {
        m: words for m, words in naive.items() if words
    }
    for row in answer["modules"]:  # of rare words and of those before none too
        assert row["count"] == sum(chosen[row["module"]].values())
    for row in listed.values():
        for word, one in row.items():
            assert one["of"] == seen[word]
            assert one["share"] == pytest.approx(one["count"] / one["of"])
            assert one["text"] == case.made.info.token_texts.get(word)
    top = case.run.specialisation(of, 1, limit=4, each=2)["modules"]
    assert all(len(row["prefers"]) <= 2 for row in top)
    means = [np.mean([one["share"] for one in row["prefers"]]) for row in top]
    assert means == sorted(means, reverse=True)


def test_words_of_one_label_only(cases: dict[str, Case]) -> None:
    case = cases["columns"]
    answer = case.run.specialisation("input", 0, label="code", limit=256, each=100)
    mine = [t for t, label in enumerate(case.labels) if label == "code"]
    assert answer["counted"]["num_tokens"] == answer["counted"]["of_tokens"] == len(mine)
    seen = Counter(case.words[t] for t in mine)
    assert {one["token_id"]: one["of"] for row in answer["modules"] for one in row["prefers"]} == {
        word: count for word, count in seen.items() if count >= 10
    }


def test_co_activation_by_loops(case: Case) -> None:
    if case.run.layout.top_k == 1:
        with pytest.raises(UserError, match="top-1") as caught:
            case.run.co_activation()
        assert caught.value.field == "run"
        return
    answer = case.run.co_activation(1, limit=256)
    single, both = Counter(), Counter()
    for row in case.ids[:, 1].tolist():
        for i in row:
            single[i] += 1
            for j in row:
                both[i, j] += i != j
    shown = [row["module"] for row in answer["modules"]]
    assert len(set(shown)) == len(shown)
    assert {row["module"]: row["count"] for row in answer["modules"]} == {m: single[m] for m in shown}
    for a, i in enumerate(shown):
        for b, j in enumerate(shown):
            assert answer["values"][a][b] == pytest.approx(both[i, j] / single[i], abs=1e-6)
    assert answer["more"] == len(single) - len(shown)
    for pair in answer["pairs"]:
        i, j = pair["module"], pair["other"]
        assert pair["count"] == both[i, j]
        assert pair["share"] == pytest.approx(both[i, j] / single[i])
        assert pair["back"] == pytest.approx(both[i, j] / single[j])
    often = [pair for pair in answer["pairs"] if pair["count"] >= 10]
    weaker = [min(pair["share"], pair["back"]) for pair in often]
    assert weaker == sorted(weaker, reverse=True)
    few = case.run.co_activation(1, limit=4)
    assert len(few["modules"]) <= 4
    strongest = answer["pairs"][0]
    assert {strongest["module"], strongest["other"]} <= {row["module"] for row in few["modules"]}


def test_repetition_by_loops(case: Case) -> None:
    answer = case.run.repetition()
    n = len(case.ids)
    neighbours = [t for t in range(1, n) if case.sample_of[t] == case.sample_of[t - 1]]
    assert answer["num_pairs"] == len(neighbours)
    for row in answer["steps"]:
        step = row["step"]
        first = [case.ids[t, step, 0] == case.ids[t - 1, step, 0] for t in neighbours]
        any_ = [bool(set(case.ids[t, step]) & set(case.ids[t - 1, step])) for t in neighbours]
        assert row["first"] == pytest.approx(np.mean(first))
        assert row["any"] == pytest.approx(np.mean(any_))
        assert row["baseline_first"] == 1 / case.run.layout.num_modules


@pytest.mark.parametrize(("first", "limit"), [(0, 7), (20, 40), (23, 1)])
def test_a_slice_is_what_the_tokens_chose(case: Case, first: int, limit: int) -> None:
    made = case.made
    answer = case.run.token_slice(3, 1, first=first, limit=limit)
    here = [t for t, sample in enumerate(case.sample_of) if sample == 3][first : first + limit]
    assert [row["token"] for row in answer["tokens"]] == list(range(first, first + len(here)))
    assert [row["modules"] for row in answer["tokens"]] == case.ids[here, 1].tolist()
    assert np.allclose([row["weights"] for row in answer["tokens"]], made.weights[here, 1], rtol=0.015, atol=4e-5)
    assert answer["num_tokens"] == 24
    whole = case.run.sample(3)["tokens"][first : first + limit]
    assert [row["text"] for row in answer["tokens"]] == [token["text"] for token in whole]


def test_a_draw_is_of_whole_samples_and_says_so(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_tokens, "MOST_TOKENS", 60)
    drawn = drawn_tokens.draw_tokens(case.run)
    assert drawn.counted == {"num_tokens": 72, "of_tokens": 216, "num_samples": 3, "of_samples": 9, "exact": False}
    members = sorted(set(drawn.samples_n.tolist()))
    rows = [t for t, sample in enumerate(case.sample_of) if sample in members]
    assert (drawn.ids_nSK == case.ids[rows]).all()
    one = drawn_tokens.draw_tokens(case.run, 2)
    assert (one.ids_nSK[:, 0] == case.ids[rows, 2]).all()
    assert drawn.follows_n.sum() == len(rows) - 3
    long = drawn_tokens.draw_tokens(case.run, most=10)
    assert long.counted["num_tokens"] == 10, "one sample that is longer than all that may be read"
    assert (long.tokens_n == np.arange(10)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"most_modules": 3},
        {"merge_share": 0.1},
        {"merge_share": 0.05, "most_modules": 5, "steps": (1, 3)},
        {"most_modules": 2, "through": [(0, 3)]},
        {"most_modules": 4, "label": "code", "min_share": 0.02},
        {"merge_share": 0.08, "limit": 7},
        {"merge_share": 1.0},
    ],
)
@pytest.mark.parametrize(
    "name", ["columns", "top-1", "packed", "unknown columns", "unknown top-1", "unknown packed", "varied"]
)
def test_small_modules_become_other_and_tokens_are_conserved(cases: dict[str, Case], name: str, options: dict) -> None:
    case = cases[name]
    ids = case.ids
    unknown, unused = (
        {m.module for m in case.made.modules if m.kind == kind} for kind in (UNRECORDED_KIND, UNUSED_KIND)
    )
    if options.get("through"):
        options = {**options, "through": [(0, int(ids[0, 0, 0]))]}
    keep = [
        t
        for t in range(len(ids))
        if options.get("label") in (None, case.labels[t])
        and all(module in ids[t, step] for step, module in options.get("through", []))
    ]
    first, stop = options.get("steps", (0, ids.shape[1]))
    answer = case.run.flow(**options)
    stays = {}
    for step in range(first, stop):
        counts = Counter(m for m in ids[keep, step].ravel().tolist() if m not in unknown | unused)
        ordered = sorted(counts, key=lambda m: (-counts[m], m))
        kept = [
            m
            for m in ordered[: options.get("most_modules", 999)]
            if counts[m] / len(keep) >= options.get("merge_share", 0)
        ]
        stays[step] = set(ordered if len(kept) == len(ordered) - 1 else kept)
        nodes = {node["module"]: node for node in answer["nodes"] if node["step"] == step}
        rest = set(counts) - stays[step]
        assert {m: node["count"] for m, node in nodes.items() if m >= 0} == {m: counts[m] for m in stays[step]}
        if rest:
            assert nodes[-1]["name"] == f"other ({len(rest)} experts)"
            assert nodes[-1]["num_modules"] == len(rest) > 1
            assert nodes[-1]["count"] == sum(counts[m] for m in rest)
        else:
            assert -1 not in nodes
    naive, linked = defaultdict(float), Counter()
    for t in keep:
        for step in range(first, stop - 1):
            here, there = ([m for m in row if m not in unused] for row in ids[t, step : step + 2].tolist())
            linked[step] += bool(here and there)
            for i in here:
                for j in there:
                    source = i if i in stays[step] | unknown else -1
                    target = j if j in stays[step + 1] | unknown else -1
                    naive[step, source, target] += 1 / (len(here) * len(there))
    large = {
        key: count
        for key, count in naive.items()
        if count / len(keep) >= options.get("min_share", 0) - 1e-12 and unknown.isdisjoint(key[1:])
    }
    links = {(link["step"], link["source"], link["target"]): link["count"] for link in answer["links"]}
    assert len(links) == min(len(large), options.get("limit", 2000))
    for key, count in links.items():
        assert count == pytest.approx(naive[key])
    order = sorted(large, key=lambda key: (min(key[1:]) < 0, -round(large[key], 9), key[1:], key[0]))
    assert set(links) == set(order[: len(links)]), "named modules first, then by count"
    hidden = {row["step"]: row for row in answer["other"]}
    for step in range(first, stop - 1):
        shown = sum(count for key, count in links.items() if key[0] == step)
        assert shown + hidden.get(step, {"count": 0})["count"] == pytest.approx(linked[step])
        here = [key for key in naive if key[0] == step]
        assert hidden.get(step, {"num_links": 0})["num_links"] == len(here) - sum(key[0] == step for key in links)


def test_nothing_is_merged_unless_asked_and_one_alone_never(cases: dict[str, Case]) -> None:
    case = cases["columns"]
    plain = case.run.flow()
    assert all(node["module"] >= 0 for node in plain["nodes"])
    assert plain["own_modules"]
    used = Counter(node["step"] for node in plain["nodes"])
    most = max(used.values()) - 1
    merged = case.run.flow(most_modules=most)
    for step, count in used.items():
        others = [node for node in merged["nodes"] if node["step"] == step and node["module"] == -1]
        assert not others, "a module that would be merged with nothing but itself stays"
        assert sum(node["step"] == step for node in merged["nodes"]) == count


def test_modules_of_any_step_are_no_experts_of_their_own(tmp_path: Path) -> None:
    with Run.open(make("shared", "text").write(tmp_path)) as run:
        flow = run.flow(most_modules=2)
        assert not flow["own_modules"]
        assert {node["name"] for node in flow["nodes"] if node["module"] < 0} == {"other (4 modules)"}
        assert run.repetition()["steps"]


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda run: run.specialisation("colour"), "of"),
        (lambda run: run.specialisation("label", 4), "step"),
        (lambda run: run.specialisation("label", -1), "step"),
        (lambda run: run.specialisation("label", label="code"), "label"),
        (lambda run: run.specialisation("input", label="no such"), "label"),
        (lambda run: run.specialisation("input", limit=0), "limit"),
        (lambda run: run.specialisation("input", each=101), "each"),
        (lambda run: run.co_activation(99), "step"),
        (lambda run: run.co_activation(limit=257), "limit"),
        (lambda run: run.repetition(label="no such"), "label"),
        (lambda run: run.token_slice(0, 4), "step"),
        (lambda run: run.token_slice(0, 0, first=24), "first"),
        (lambda run: run.token_slice(0, 0, limit=501), "limit"),
        (lambda run: run.token_slice(9, 0), "sample"),
        (lambda run: run.token_slice(-1, 0), "sample"),
        (lambda run: run.flow(merge_share=1.5), "merge_share"),
        (lambda run: run.flow(merge_share=float("nan")), "merge_share"),
        (lambda run: run.flow(most_modules=0), "most_modules"),
    ],
)
def test_what_the_run_does_not_have_is_named(cases: dict[str, Case], ask, field: str) -> None:
    with pytest.raises(UserError) as caught:
        ask(cases["columns"].run)
    assert caught.value.field == field


def test_ids_without_weights_have_no_first_choice(tmp_path: Path) -> None:
    made = make_experts("ids", top_k=3)
    bare = replace(made, info=replace(made.info, weight_semantics={"weights_recorded": False}))
    with Run.open(bare.write(tmp_path)) as run:
        answer = run.repetition()
        assert [row["first"] for row in answer["steps"]] == [None] * 4
        assert all(row["any"] > row["baseline_any"] for row in answer["steps"])
        assert "recorded no weights" in answer["first_missing"]
        assert run.token_slice(0, 0)["weights_recorded"] is False
        assert {token["weights"] for token in run.sample(0)["tokens"]} == {None}
        usage = run.usage()  # 1/K stands in for each weight: none was measured
        assert {row["importance_cv2"] for row in usage["steps"]} == {None}
        assert {cell["weight"] for cell in usage["usage"]} == {None}
    with Run.open(make_experts("one", top_k=1).write(tmp_path)) as run:
        assert run.repetition()["first_missing"] is None


def test_more_labels_than_are_compared_are_counted(cases: dict[str, Case], monkeypatch: Any) -> None:
    run, labels = cases["columns"].run, cases["columns"].labels
    assert run.specialisation("label")["more_labels"] == 0
    monkeypatch.setattr(store, "MOST_LABELS", 2)
    answer = run.specialisation("label")
    counted, known = answer["counted"], [label for label in labels if label is not None]
    largest = sum(sorted((known.count(label) for label in set(known)), reverse=True)[:2])
    assert answer["more_labels"] == len(set(known)) - 2
    assert (counted["num_tokens"], counted["of_tokens"], counted["exact"]) == (largest, len(known), False)


def test_a_run_of_no_series_says_so(cases: dict[str, Case]) -> None:
    assert series_of(cases["columns"].run) is None
    error = no_series("x")
    assert isinstance(error, NoSuchThing)
    assert error.field == "run"


def test_a_label_whose_samples_have_one_token_each_is_told_so_and_not_the_whole_run(tmp_path: Path) -> None:
    made = make_experts("short", layers=2, samples=4, length=6)
    (batch,) = made.batches
    records = [*batch.samples[:3], *(replace(batch.samples[3], num_tokens=1, label="alone") for _ in range(6))]
    with Run.open(made.with_changes(samples=records).write(tmp_path)) as run:
        assert run.repetition()["num_pairs"] == 15
        with pytest.raises(UserError, match="no sample of label 'alone' with two tokens") as caught:
            run.repetition(label="alone")
    assert caught.value.field == "label"
