"""Questions with arguments of another kind: a sentence that names the argument, for every method that people call."""

from __future__ import annotations

import inspect
import json
import pickle
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.support.runs import make_run
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.arguments import KINDS, _check_of
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.compare import compare
from tokenpaths.engine.store.ask.several_runs.many_runs import compare_runs
from tokenpaths.shortcuts import explore, trace

ARGUMENTS = [
    (name, argument)
    for name, method in vars(Run).items()
    if not name.startswith("_") and inspect.isfunction(method)
    for argument, hint in typing.get_type_hints(inspect.unwrap(method), localns={"Run": Run}).items()
    if argument not in ("run", "self", "return") and _check_of(hint) is not None
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.open(make_run(tmp_path_factory.mktemp("asked"), "asked", samples=3))


def test_these_are_all_methods_that_people_call() -> None:
    assert {
        "flow",
        "paths",
        "sample",
        "samples",
        "examples",
        "usage",
        "law",
        "search_tokens",
        "specialisation",
        "soft",
        "image",
        "similar_samples",
        "similar_tokens",
        "map",
        "compare",
        "distribution",
        "effect",
        "export",
    } <= {method for method, _ in ARGUMENTS}
    assert ("paths", "limit") in ARGUMENTS


@pytest.mark.parametrize(("method", "argument"), ARGUMENTS)
def test_what_fits_no_argument_is_named(run: Run, method: str, argument: str) -> None:
    with pytest.raises(UserError, match=rf"^{argument} is <object .*it should be") as caught:
        getattr(run, method)(**{argument: object()})
    assert caught.value.field == argument


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda run: run.paths(limit="x"), "limit is 'x', it should be a whole number"),
        (lambda run: run.paths(limit=1.5), "limit is 1.5, it should be a whole number"),
        (lambda run: run.paths(limit=None), "limit is None, it should be a whole number"),
        (lambda run: run.sample("a"), "sample is 'a', it should be a whole number"),
        (lambda run: run.flow(steps="0:3"), "steps is '0:3', it should be two whole numbers such as (0, 3)"),
        (lambda run: run.flow(steps=(1,)), "steps is (1,), it should be two whole numbers"),
        (lambda run: run.flow(paths="1,2"), "paths is '1,2', it should be a list of whole numbers"),
        (lambda run: run.flow(through=[(1, "a")]), "through is [(1, 'a')], it should be a list of pairs"),
        (lambda run: run.flow(through=[3]), "through is [3], it should be a list of pairs"),
        (lambda run: run.frames.paths(label=3), "label is 3, it should be text"),
        (lambda run: run.compare("other"), "other is 'other', it should be an opened run"),
        (lambda run: compare(run, None), "b is None, it should be an opened run"),
        (lambda run: compare_runs([run, "other"]), "runs[1] is 'other', it should be an opened run"),
        (lambda run: compare_runs(run), "runs is <Run 'asked': 3 samples, "),
        (lambda run: explore("asked"), "run is 'asked', it should be an opened run"),
        (lambda run: Run.open(None), "file is None, it should be the path of a run file"),
        (lambda run: trace(nn.Linear(2, 2), ["a"]), "model is a Linear, it should be the name or the folder"),
        (lambda run: trace("dna-text-top1", None), "data is None, it should be a data set by path, or texts"),
        (lambda run: trace("dna-text-top1", ["a"], limit=-1), "limit is -1, it should be a whole number from 1 on"),
        (lambda run: trace("dna-text-top1", ["a"], limit="3"), "limit is '3', it should be a whole number from 1 on"),
        (lambda run: trace("dna-text-top1", ["a"], controls=["ban"]), "controls is ['ban'], it should be a mapping"),
    ],
)
def test_slips_of_a_notebook_are_sentences(run: Run, ask, words: str) -> None:
    with pytest.raises(UserError) as caught:
        ask(run)
    assert words in str(caught.value)


def test_numbers_of_numpy_and_lists_of_any_kind_are_as_good() -> None:
    """Asked of the table: the type checker of the tests is stricter than Python."""
    good: dict[Any, list[Any]] = {
        int: [1, np.int64(1), np.uint8(1)],
        int | float: [0.5, 1, np.float32(0.5), np.int16(1)],
        tuple[int, int]: [(0, 3), [0, 3], np.array([0, 3])],
        tuple[int | float, int | float]: [(0, 0.5), [np.float64(0.5), 1]],
        Sequence[int]: [(), [1, 2], range(3), {1, 2}, np.array([1, 2]), iter([1, 2])],
        Sequence[tuple[int, int]]: [(), [(1, 2), [1, 2]], np.array([[1, 2]]), zip([1], [2], strict=True)],
    }
    for kind, values in good.items():
        assert all(KINDS[kind][0](value) for value in values), kind
    once = iter([1, 2])
    assert KINDS[Sequence[int]][0](once)
    assert list(once) == [1, 2], "looking at it must not use it up"


def test_what_numpy_and_pandas_count_with_is_asked_for(run: Run) -> None:
    row = run.frames.samples().iloc[-1]
    for number in (np.int64(2), np.uint8(2), row["sample"]):
        answer = run.sample(number)
        assert json.loads(json.dumps(answer)) == json.loads(json.dumps(run.sample(2)))
    ranks = run.frames.paths(limit=np.int32(2))["rank"].to_numpy()
    assert run.flow(paths=ranks, steps=np.array([0, 2])) == run.flow(paths=ranks.tolist(), steps=(0, 2))
    assert run.flow(paths=list(ranks)) == run.flow(paths=ranks.tolist())


@pytest.mark.parametrize("labels", [None, "merged"])
def test_a_run_is_pickled_as_its_file(run: Run, labels: str | None) -> None:
    again = pickle.loads(pickle.dumps(run.labelled(labels)))
    try:
        assert again.paths() == run.paths(labels=labels)
        assert (again.file, again.run_id) == (run.file.absolute(), "asked")
        assert repr(again) == repr(run) == f"<Run 'asked': 3 samples, {run.row['num_tokens']:,} tokens>"
    finally:
        again.close()
    assert run.card()["run"] == "asked", "its own connection stays open"


def test_signatures_are_those_of_the_methods() -> None:
    assert list(inspect.signature(Run.examples).parameters) == ["self", "rank", "limit", "seed", "labels"]
    assert Run.examples.__doc__
