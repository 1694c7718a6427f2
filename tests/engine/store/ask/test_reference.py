"""Colour of paths from counts alone, and samples that take ranks from a reference run of the same model."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.naive_store import Case
from tests.support.runs import RunArrays, make
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.reference import choose_reference
from tokenpaths.engine.store.ask.tables.ribbon_index import ranks_of
from tokenpaths.engine.store.file.pages.path_pages import Shares

TOP1: dict = {"modality": "vision"}


def naive_middle(counts: list[int], count: int) -> float:
    """Share of tokens on paths with larger counts, plus half of that on paths with this count."""
    total = sum(counts)
    return (sum(n for n in counts if n > count) + sum(n for n in counts if n == count) / 2) / total


def shares_of(counts: list[int]) -> Shares:
    number = Counter(counts)
    values = np.array(sorted(number, reverse=True))
    return Shares(values, np.array([number[int(value)] for value in values]), sum(counts))


@pytest.mark.parametrize("counts", [[5], [1, 1, 1], [82, 9, 9], [4, 3, 3, 2, 1, 1, 1], [7] * 9])
def test_the_middle_of_the_cdf_is_that_of_a_loop(counts: list[int]) -> None:
    ranks = np.arange(1, len(counts) + 1)
    ink = shares_of(counts).ink_of(ranks)
    assert [row["path_tokens"] for row in ink] == counts
    assert [row["cdf_middle"] for row in ink] == pytest.approx([naive_middle(counts, count) for count in counts])


def test_equal_counts_have_equal_ink_and_what_most_take_is_never_rare() -> None:
    tied = shares_of([4, 4, 4, 4])
    assert tied.cdf_middle(np.arange(1, 5)).tolist() == [0.5] * 4
    assert len(set(tied.cdf(np.arange(1, 5)).tolist())) == 4  # the CDF orders ties by module id
    most = shares_of([82, *[1] * 18])
    assert most.cdf_middle(np.array([1]))[0] == pytest.approx(0.41)


def test_every_row_with_a_rank_has_the_ink_of_a_loop(case: Case) -> None:
    counts = list(case.naive.count.values())
    by_rank = dict(enumerate((case.naive.count[key] for key in case.naive.ranked), 1))

    def right(row: dict) -> bool:
        count = by_rank[row["rank"]]
        return row["path_tokens"] == count and row["cdf_middle"] == pytest.approx(naive_middle(counts, count))

    label = {} if case.label is None else {"label": case.label}
    for order in ("rank", "compute", "reuse"):
        assert all(right(row) for row in case.run.paths(order=order, limit=50)["paths"])
    assert all(right(row) for row in case.run.paths(limit=50, **label)["paths"])
    assert all(right(row) for row in case.run.sample(0)["tokens"])
    assert right(case.run.examples(1))
    assert all(right(row) for row in case.run.similar_tokens(0, 0)["paths"])
    assert all(right(row) for row in case.run.fit()["observed"]["points"])
    found = case.run.search_tokens(ranks=(1, len(by_rank)), examples=5)
    assert found["paths"]
    assert all(right(row) for row in [*found["paths"], *found["examples"]])


def uploaded(made: RunArrays, run_id: str, split: str = "try", shift: int = 0) -> RunArrays:
    """The first sample of a run as an upload; every third token takes modules that are ``shift`` further."""
    batch = made.batches[0]
    size = batch.samples[0].num_tokens
    ids = batch.module_ids[:size].copy()
    ids[::3] = (ids[::3] + shift) % made.info.num_modules
    names = [field.name for field in fields(batch) if field.name not in ("samples", "module_ids")]
    parts = {name: value[:size] for name in names if (value := getattr(batch, name)) is not None}
    small = replace(batch, samples=batch.samples[:1], module_ids=ids, **parts)
    return replace(made, info=replace(made.info, run_id=run_id, split=split), batches=[small])


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path):
    made = make("seen", samples=6, twin=False, **request.param)
    upload = uploaded(made, "mine", shift=1)
    with Run.open(made.write(tmp_path)) as reference, Run.open(upload.write(tmp_path)) as run:
        yield run, reference, upload, made


def path_of(ribbon) -> tuple:
    return tuple(tuple(sorted(int(module) for module in step)) for step in ribbon)


@pytest.mark.parametrize(
    "pair", [TOP1, {"top_k": 2}, {"modality": "text", "chunk": 3}, {"modules": 300, "top_k": 20}], indirect=True
)
def test_an_upload_ranks_as_a_loop_over_the_reference_says(pair) -> None:
    run, reference, upload, made = pair
    counts = Counter(path_of(ribbon) for ribbon in made.ids.tolist())
    ranked = sorted(counts, key=lambda path: (-counts[path], [i for step in path for i in step]))
    answer = run.in_reference(reference, similar=3, unusual=30)
    assert len(answer["tokens"]) == len(upload.ids) == answer["num_tokens"]
    for row, ribbon in zip(answer["tokens"], upload.ids.tolist(), strict=True):
        count = counts.get(path_of(ribbon), 0)
        assert row["path_tokens"] == count
        assert row["rank"] == (ranked.index(path_of(ribbon)) + 1 if count else None)
        middle = naive_middle(list(counts.values()), count) if count else None
        assert row["cdf_middle"] == (pytest.approx(middle) if count else None)
    new = [i for i, ribbon in enumerate(upload.ids) if path_of(ribbon) not in counts]
    assert new
    assert answer["num_known"] == len(upload.ids) - len(new)
    assert answer["num_once"] == sum(counts.get(path_of(ribbon)) == 1 for ribbon in upload.ids)
    assert sorted(token for row in answer["unusual"] for token in row["tokens"]) == new
    for row in answer["unusual"]:
        near = row["nearest"]
        apart = [
            sum(1 - len(set(a) & set(b)) / len(a) for a, b in zip(path_of(row["ribbon"]), other, strict=True))
            for other in counts
        ]
        assert near["distance"] == pytest.approx(min(apart))
        assert near["distance"] > 0
        assert near["examples"]
        assert near["count"] == counts[path_of(near["ribbon"])]


@pytest.mark.parametrize("pair", [TOP1], indirect=True)
def test_the_same_sample_is_the_nearest_of_the_reference(pair, tmp_path: Path) -> None:
    _, reference, _, made = pair
    with Run.open(uploaded(made, "same").write(tmp_path)) as run:
        answer = run.in_reference(reference, similar=3)
        assert (answer["num_known"], answer["unusual"]) == (answer["num_tokens"], [])
        assert (answer["similar"][0]["sample"], answer["similar"][0]["distance"]) == (0, 0)
        distances = [row["distance"] for row in answer["similar"]]
        assert distances == sorted(distances)
        others = reference.similar_samples(0, limit=2)["similar"]
        assert [row["sample"] for row in answer["similar"][1:]] == [row["sample"] for row in others]


@pytest.mark.parametrize("pair", [TOP1], indirect=True)
def test_what_cannot_be_ranked_is_refused(pair, tmp_path: Path) -> None:
    run, reference, _, _ = pair
    with pytest.raises(UserError, match="its own reference"):
        run.in_reference(run)
    with pytest.raises(NoSuchThing):
        run.in_reference(reference, 7)
    with (
        Run.open(make("other", "text", samples=2).write(tmp_path)) as other,
        pytest.raises(UserError, match="modality"),
    ):
        run.in_reference(other)
    with pytest.raises(UserError, match="similar is 61"):
        run.in_reference(reference, similar=61)


def test_ribbons_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tokenpaths.engine.store.ask.tables import ribbon_index

    monkeypatch.setattr(ribbon_index, "_hashes", lambda ids_VP: np.zeros(ids_VP.shape[1], dtype=np.uint64))
    with Run.open(make("seen", top_k=2, samples=3).write(tmp_path)) as run:
        rows = run.paths(limit=40)["paths"]
        ribbons = np.array([[i for step in path_of(row["ribbon"]) for i in step] for row in rows])
        assert ranks_of(run, ribbons).tolist() == [row["rank"] for row in rows]


def card(run: str, **fields) -> dict:
    """A card of a list of runs."""
    shape = {"modality": "vision", "family": "dna", "num_steps": 6, "num_modules": 8, "top_k": 1}
    usual = {"status": "sealed", "split": "test", "model": "m", "checkpoint_sha256": "a" * 64, "edited": False}
    return {"run": run, "num_tokens": 100, **shape, **usual, **fields}


def test_the_reference_is_the_largest_run_of_the_same_weights() -> None:
    mine = card("mine", split="try", num_tokens=64)
    small, large = card("small"), card("large", num_tokens=900)
    assert choose_reference(mine, [mine, small, large]).run == "large"
    assert choose_reference(mine, [small, large]).found_by == "checkpoint"
    never = [
        card("other-try", split="try", num_tokens=9999),
        card("detour", split="detour", num_tokens=9999),
        card("edited", edited=True, num_tokens=9999),
        card("broken", status="unreadable", num_tokens=9999),
        card("wide", num_modules=9, num_tokens=9999),
    ]
    assert choose_reference(mine, [*never, small]).run == "small"
    retrained = card("retrained", checkpoint_sha256="b" * 64, num_tokens=9999)
    assert choose_reference(mine, [retrained, small]).run == "small"
    assert choose_reference(mine, [retrained]) == choose_reference(mine, [retrained, *never])
    assert choose_reference(mine, [retrained]).found_by == "model"


def test_without_a_reference_there_is_a_sentence() -> None:
    choice = choose_reference(card("mine", split="try", checkpoint_sha256=""), [card("x", model="y")])
    assert choice.run is None
    assert "tokenpaths trace --model m" in str(choice.reason)
    of_data = card("mine")
    assert "There is no other run of m over a data set here" in str(choose_reference(of_data, [of_data]).reason)
