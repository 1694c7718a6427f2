"""``labels=merged``: every answer is that of the same run written with one label for those that look alike."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.asking import questions_of
from tests.support.runs import make, make_soft
from tests.support.runs.arrays import RunArrays
from tests.support.runs.counted import STEPS, make_counts
from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.labels import label_key, look_alikes
from tokenpaths.engine.store.ask.run import Run

SPELLINGS = ("{}", "{}", " {}", "{} ", "{}\u200b")
MADE: dict[str, dict[str, Any]] = {
    "one slot": {"samples": 60},
    "two slots": {"samples": 60, "top_k": 2},
    "packed": {"samples": 30, "modality": "text", "steps": 20, "modules": 12, "top_k": 4},
    "texts": {"samples": 60, "modality": "text"},
}


def spelled(arrays: RunArrays, one: bool) -> RunArrays:
    """The run with its labels spelled in several ways, or with the most frequent one of each group instead."""
    labels, records = [], [record for batch in arrays.batches for record in batch.samples]
    for number, record in enumerate(records):
        label = record.label or "a"
        labels.append(None if number % 10 == 9 else SPELLINGS[number % len(SPELLINGS)].format(label))
    groups = look_alikes(Counter(label for label in labels if label))
    first = {label: group[0] for group in groups for label in group} if one else {}
    named = iter(first.get(label or "", label) for label in labels)
    for batch in arrays.batches:
        batch.samples[:] = [replace(record, label=next(named)) for record in batch.samples]
    return arrays


@pytest.fixture(scope="module", params=[*MADE, "soft"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    folder = tmp_path_factory.mktemp("merged")

    def arrays() -> RunArrays:
        if request.param == "soft":
            rng = np.random.default_rng(0)
            return make_soft(gates=rng.random((6, 2, 3, 4), dtype=np.float32))
        return make("run", **MADE[request.param])

    files = [spelled(arrays(), one).write(folder / str(one)) for one in (False, True)]
    with Run.open(files[0]) as run, Run.open(files[1]) as other:
        yield run, other


def alike(one: Any, other: Any, where: str = "") -> None:
    """Equal, floats to rounding."""
    if isinstance(one, float) and isinstance(other, float):
        assert math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            alike(value, other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            alike(a, b, f"{where}[{i}]")
    else:
        assert one == other, where


def test_every_question_answers_as_if_the_labels_were_one(pair: tuple[Run, Run]) -> None:
    run, other = pair
    asked = 0
    for question, arguments in questions_of(other):
        if question.name in ("info", "gap", "regions_to_paths"):
            continue
        try:
            right = getattr(other, question.name)(**arguments)
        except (UserError, TypeError) as error:
            with pytest.raises(type(error)):
                getattr(run, question.name)(**arguments, labels="merged")
            continue
        found = getattr(run, question.name)(**arguments, labels="merged")
        if question.name == "tables":  # of the file: other labels may be of too few samples to be tested
            for answer in (found, right):
                answer["tables"] = [row for row in answer["tables"] if row["table"] != "association"]
        alike(found, right, f"{question.name}({arguments})")
        asked += 1
    assert asked > 10


def test_the_overview_names_groups_and_merges_them(pair: tuple[Run, Run]) -> None:
    run, other = pair
    plain, merged = run.info(), run.info(labels="merged")
    assert other.info()["look_alikes"] == []
    assert plain["look_alikes"] == merged["look_alikes"] != []
    for group in plain["look_alikes"]:
        assert len({label_key(row["label"]) for row in group}) == 1
        assert [row["num_samples"] for row in group] == sorted((row["num_samples"] for row in group), reverse=True)
    assert merged["labels"] == other.info()["labels"]
    assert len(plain["labels"]) > len(merged["labels"])
    for name in ("num_samples", "num_tokens"):
        assert sum(row[name] for row in plain["labels"]) == sum(row[name] for row in merged["labels"])


def test_any_spelling_filters_the_group_and_stored_values_stay(pair: tuple[Run, Run]) -> None:
    run, _ = pair
    group = run.look_alikes[0]
    answers = [run.samples(label=row[1], labels="merged")["total"] for row in group]
    assert answers == [sum(row[2] for row in group)] * len(group)
    assert [run.samples(label=row[1])["total"] for row in group] == [row[2] for row in group]
    exported = b"".join(run.export("sample", "csv")).decode()
    assert all(row[1] in exported for group in run.look_alikes for row in group)
    frame = run.frames.labels(labels="merged") if "labels" in inspect.signature(run.frames.labels).parameters else None
    assert frame is None or len(frame) == len(run.info(labels="merged")["labels"])


def test_nothing_to_merge_and_other_words(tmp_path: Path) -> None:
    with Run.open(make("run").write(tmp_path)) as run:
        assert run.labelled("merged") is run
        for word in ("Merged", "", 5):
            with pytest.raises(UserError, match="it should be merged"):
                run.usage(labels=word)


def test_counts_of_labels_that_look_alike_add_up(tmp_path: Path) -> None:
    spelt = ("Code", "code", "prose", "code ", "prose")  # "code" counts the most
    names = [spelt[part % len(spelt)] for part in range(len(make_counts().parts))]
    files = []
    for run_id, domains in (("spelt", names), ("plain", [name.lower().strip() for name in names])):
        counts = replace(make_counts(), domains=tuple(domains))
        files.append(import_counts(counts, Path("counts.json"), tmp_path / run_id, "counts"))
    with Run.open(files[0]) as run, Run.open(files[1]) as other:
        assert [group[0][1] for group in run.look_alikes] == ["code"]
        for label in (None, *spelt):
            right = label and label.lower().strip()
            alike(run.usage(label=label, labels="merged"), other.usage(label=right))
            for step in range(STEPS):
                told = run.load_over_time(step, label=label, labels="merged")
                alike(told, other.load_over_time(step, label=right))
                assert any(row["choices"] for row in told["bins"])
        alike(run.load_by_label(1, labels="merged")["labels"], other.load_by_label(1)["labels"])


def test_a_comparison_names_samples_by_merged_labels(tmp_path: Path) -> None:
    spelt, plain = (
        spelled(make(name, samples=20, twin=False), one) for name, one in (("spelt", False), ("plain", True))
    )
    with Run.open(spelt.write(tmp_path)) as run, Run.open(plain.write(tmp_path)) as other:
        labels = {row["label"] for row in other.compare(run)["points"]}
        assert {row["label"] for row in run.compare(other)["points"]} > labels
        assert {row["label"] for row in run.compare(other, labels="merged")["points"]} == labels
        with pytest.raises(UserError, match="merged"):
            run.compare(other, labels="some")
