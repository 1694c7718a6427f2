"""One module and one path in full, beside loops over the arrays that were written."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.support.naive_store import Case
from tests.support.runs import make, make_experts, with_unrecorded
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.topics.things import in_full, strongest
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.filters import Query


def offsets(case: Case) -> list[tuple[int, int]]:
    """Sample and token of each token of the run."""
    return [(number, token) for number, s in enumerate(case.naive.made.samples) for token in range(s.num_tokens)]


def test_a_module_in_full_is_what_loops_count(case: Case):
    naive, run = case.naive, case.run
    step = min(1, run.layout.num_steps - 1)
    counts = Counter(naive.visits(list(range(len(naive.keys))), step))
    module = counts.most_common(1)[0][0]
    answer = run.module(f"{step}.{module}")
    passing = list(naive.tokens(through=[(step, module)]))
    assert answer["count"] == len(passing)
    assert answer["share"] == len(passing) / len(naive.keys)
    assert answer["place"] == 1
    assert answer["utilisation"] == pytest.approx(len(passing) * answer["num_modules"] / sum(counts.values()))
    places = offsets(case)
    weights = {}
    for token in passing:
        slot = naive.ids[token, step].tolist().index(module)
        weights[places[token]] = naive.levels[token, step, slot]
    order = sorted(weights, key=lambda place: (-weights[place], place))[:12]
    assert [(row["sample"], row["token"]) for row in answer["strongest"]] == order
    assert [row["weight"] for row in answer["strongest"]] == pytest.approx(
        [weights[place] for place in order], abs=1e-4
    )
    assert answer["compared"] == {"num_tokens": len(passing), "of_tokens": len(passing), "exact": True}
    labels = Counter(naive.labels[token] for token in passing if naive.labels[token] is not None)
    everywhere = Counter(naive.labels)
    assert {row["label"]: row["count"] for row in answer["labels"]} == labels
    for row in answer["labels"]:
        assert row["lift"] == pytest.approx(
            (labels[row["label"]] / len(passing)) / (everywhere[row["label"]] / len(naive.labels))
        )
    links = naive.links(list(range(len(naive.keys))))
    for name, at, place in (("comes_from", step - 1, 2), ("goes_to", step, 1)):
        own = {key[3 - place]: value[0] for key, value in links.items() if key[0] == at and key[place] == module}
        expected = sorted(own.items(), key=lambda item: (-round(item[1], 6), item[0]))[:5]
        assert [row["module"] for row in answer[name]] == [module for module, _ in expected]
        assert [row["share"] for row in answer[name]] == pytest.approx([n / sum(own.values()) for _, n in expected])
        assert {row["step"] for row in answer[name]} <= {at if place == 2 else at + 1}
    (summary,) = [row for row in run.summaries()["rows"] if (row["step"], row["module"]) == (step, module)]
    assert answer["summary"].items() <= summary.items()
    assert answer["summary"].keys() == {"what", "value", "words", "share", "base", "lift", "low", "high", "reason"}


def test_a_path_in_full_is_what_loops_count(case: Case):
    naive, run = case.naive, case.run
    for rank in (1, min(3, run.row["num_paths"])):
        answer = run.path(rank)
        places = offsets(case)
        strength = {
            places[t]: float(np.log([max(row) for row in naive.levels[t] if max(row) > 0]).sum())
            for t in naive.tokens(paths=[rank])
        }
        top = sorted(strength.values(), reverse=True)[:12]
        got = [(row["sample"], row["token"]) for row in answer["strongest"]]
        assert [strength[place] for place in got] == pytest.approx(top)
        steps = sum(not set(ids) <= naive.unused for ids in answer["ribbon"])
        means = [np.exp(value / steps) for value in top]
        assert [row["weight"] for row in answer["strongest"]] == pytest.approx(means, abs=1e-4)
        (row,) = run.paths(limit=1, offset=rank - 1)["paths"]
        assert answer.items() >= row.items()
        assert answer["examples"] == run.examples(rank, 12)["examples"]
        sample, token = next(iter(strength))
        similar = run.similar_tokens(sample, token, limit=6)["paths"]
        expected = [(other["rank"], other["distance"], other["differs"]) for other in similar if other["rank"] != rank]
        assert [(row["rank"], row["distance"], row["differs"]) for row in answer["nearest"]] == expected[:5]


def test_without_examples_the_rest_is_the_same(case: Case):
    run, step = case.run, case.run.layout.num_steps - 1
    for number in case.run.bank.offered(step)[:3]:
        full, known = run.module(f"{step}.{number}"), run.module(f"{step}.{number}", limit=0)
        assert (known.pop("strongest"), known.pop("strongest_reason")) == ([], strongest.NOT_LOOKED)
        assert known.pop("compared") == {"num_tokens": 0, "of_tokens": full["count"], "exact": False}
        assert known == {name: full[name] for name in known}
    full, known = run.path(1), run.path(1, limit=0)
    assert (known.pop("strongest"), known.pop("strongest_reason")) == ([], strongest.NOT_LOOKED)
    assert known.pop("examples") == []
    assert known.pop("compared")["num_tokens"] == 0
    assert known == {name: full[name] for name in known}


def test_equal_weights_have_no_strongest_and_are_drawn_by_a_seed(tmp_path: Path):
    made = make("r", "text", samples=6, steps=2)
    for batch in made.batches:
        object.__setattr__(batch, "weights", np.ones_like(batch.weights))
    with Run.open(made.write(tmp_path)) as run:
        first, again, other = (run.module("0.1", 5, seed=seed) for seed in (0, 0, 1))
        on_path = run.path(1, 5)
    assert first["strongest_reason"] == on_path["strongest_reason"] == strongest.ALL_EQUAL
    assert first["strongest"] == again["strongest"] != other["strongest"]
    assert len(first["strongest"]) == 5


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_k": 2}, {"top_k": 8, "steps": 9, "modules": 12}], ids=str)
def test_a_large_run_is_looked_at_by_its_sample(options: dict[str, int], tmp_path: Path, monkeypatch):
    for module in ("write.seal", "ask.topics.things.in_full", "ask.topics.things.strongest"):
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.SAMPLE_TABLE_ROWS", 500)
    made = make("r", "vision", samples=20, **options)
    with Run.open(made.write(tmp_path)) as run:
        module = run.usage()["usage"][0]
        answer, frequent = run.module(f"0.{module['module']}"), run.path(1)
        of_few = []
        for looked_up in (0, strongest.FEW_TOKENS):  # all by one query, and one by one
            monkeypatch.setattr(strongest, "LOOKED_UP", looked_up)
            of_few.append([run.path(rank) for rank in range(1, 6)])
        assert of_few[0] == of_few[1]
        # Too many tokens in the run for a query of all of them, too few of the path in the sample: some are drawn.
        monkeypatch.setattr(strongest, "MOST_JOINED", 0)
        monkeypatch.setattr(strongest, "LOOKED_UP", drawn := max(2, frequent["count"] - 3))
        by_draw, shown = run.path(1), run.examples(1, drawn)["examples"]
        monkeypatch.setattr(strongest, "LOOKED_UP", 0)
        by_sample = run.path(1)
    assert 0 < answer["compared"]["num_tokens"] < answer["compared"]["of_tokens"] == module["count"]
    assert answer["strongest"]
    assert frequent["compared"]["exact"]
    assert by_draw["compared"] == {"num_tokens": drawn, "of_tokens": frequent["count"], "exact": False}
    among = [(row["sample"], row["token"]) for row in shown]
    assert [(row["sample"], row["token"]) for row in by_draw["strongest"]] == [
        place for row in frequent["strongest"] if (place := (row["sample"], row["token"])) in among
    ][: len(by_draw["strongest"])]
    assert by_sample["compared"]["num_tokens"] < by_sample["compared"]["of_tokens"] == frequent["count"]


def test_what_is_not_there_is_said(top1: Case):
    for node in ("1", "a.b", "1.2.3", "", "-1.2", "1.٣"):
        with pytest.raises(UserError, match="step.module"):
            top1.run.module(node)
    with pytest.raises(NoSuchThing, match="steps 0 to 4"):
        top1.run.module("9.0")
    with pytest.raises(NoSuchThing, match="does not offer module 77"):
        top1.run.module("0.77")
    with pytest.raises(NoSuchThing, match="rank 1 to"):
        top1.run.path(10**6)


def test_a_module_that_no_token_takes_is_told_as_such(tmp_path: Path):
    made = make("r", "text", samples=4, modules=400, top_k=2)
    with Run.open(made.write(tmp_path)) as run:
        dead = next(row for row in run.usage()["usage"] if not row["count"])
        answer = run.module(f"{dead['step']}.{dead['module']}")
    assert (answer["count"], answer["strongest"], answer["labels"]) == (0, [], [])
    assert answer["summary"]["what"] is None


def test_decisions_that_are_not_known_are_no_modules(tmp_path: Path):
    made = with_unrecorded(make_experts("lacking", layers=3, experts=6), 0.6)
    with Run.open(made.write(tmp_path)) as run:
        for number in range(6):
            answer = run.module(f"1.{number}")
            for name, step in (("comes_from", 0), ("goes_to", 2)):
                here = (made.ids[:, 1] == number).any(axis=1)
                modules = made.ids[here, step].ravel()
                counts = Counter(modules[modules < 6].tolist())
                expected = sorted(counts, key=lambda module: (-counts[module], module))[:5]
                assert [row["module"] for row in answer[name]] == expected
                assert [row["share"] for row in answer[name]] == pytest.approx(
                    [counts[module] / counts.total() for module in expected]
                )
            found = run.search_tokens(through=((0, number),), limit=100)
            assert all(row["module"] in run.bank.offered(row["step"]) for row in found["modules"])


@pytest.mark.parametrize("most", [1, 40, 10**6])
@pytest.mark.parametrize("recorded", [True, False])
def test_tokens_of_a_module_of_long_ribbons_are_compared_in_even_stretches(
    most: int, recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_full, "MOST_OF_MODULE", most)
    made = make("long", "text", samples=30, steps=9, modules=12, top_k=8)
    if not recorded:
        made = replace(made, info=replace(made.info, weight_semantics={"weights_recorded": False}))
    with Run.open(made.write(tmp_path)) as run:
        rows = run.rows(Query("SELECT sample, token, ids, weights FROM token ORDER BY rowid"))
        ids, levels = run.ribbons_of([[row[2] for row in rows], [row[3] for row in rows]])
        parts = [len(rows) * part // in_full.STRETCHES for part in range(in_full.STRETCHES + 1)]
        for step, module in ((0, 3), (8, 11), (4, 0)):
            hit_n = (ids[:, step] == module).any(axis=1)
            weight_n = np.where(ids[:, step] == module, levels[:, step], 0).max(axis=1)
            size = math.ceil(min(len(rows), most * len(rows) // hit_n.sum() + 1) / in_full.STRETCHES)
            looked = [row for first, end in pairwise(parts) for row in range(first, min(first + size, end))]
            compared = [row for row in looked if hit_n[row]]
            answer = run.module(f"{step}.{module}", limit=5)
            assert answer["compared"]["num_tokens"] == len(compared)
            assert answer["compared"]["exact"] == (len(compared) == hit_n.sum()) == (most == 10**6)
            shown = [(row["sample"], row["token"]) for row in answer["strongest"]]
            assert len(shown) == len(set(shown)) == min(5, len(compared))
            if recorded and len({weight_n[row] for row in compared}) > 1:
                order = sorted(compared, key=lambda row: (-int(weight_n[row]), row))
                assert shown == [rows[row][:2] for row in order[:5]]
            assert set(shown) <= {rows[row][:2] for row in compared}


@pytest.mark.parametrize("from_sample", [True, False])
def test_tokens_of_a_long_ribbon_without_weights_are_drawn_and_no_weight_is_read(
    from_sample: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not from_sample:  # those of rare paths of large runs are looked up one by one
        monkeypatch.setattr(strongest, "SAMPLE_TABLE_ROWS", 1)
        monkeypatch.setattr(strongest, "MOST_JOINED", 1)
    made = make("long", "text", samples=30, steps=9, modules=12, top_k=8)
    made = replace(made, info=replace(made.info, weight_semantics={"weights_recorded": False}))
    asked: list[str] = []
    with Run.open(made.write(tmp_path)) as run:
        rank = run.paths(limit=1)["paths"][0]["rank"]
        of_path = run.rows(
            Query(f"SELECT sample, token FROM token JOIN {PATHS} AS path USING (path_id) WHERE path.rank = ?", (rank,))
        )
        rows = RunFile.rows
        monkeypatch.setattr(RunFile, "rows", lambda run, query: asked.append(query.sql) or rows(run, query))
        answer = run.path(rank, limit=3)
    assert answer["strongest_reason"] == strongest.NOT_RECORDED
    num = len(of_path) if from_sample else min(len(of_path), strongest.LOOKED_UP)
    assert answer["compared"] == {"num_tokens": num, "of_tokens": len(of_path), "exact": num == len(of_path)}
    shown = [(row["sample"], row["token"], row["weight"]) for row in answer["strongest"]]
    assert {row[:2] for row in shown} <= set(of_path)
    assert len(shown) == min(3, len(of_path))
    assert {row[2] for row in shown} == {0.125}
    assert asked
    assert not any("weights" in query for query in asked)
