"""Answers that are kept in the file are those that the run gives when it is asked."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support.runs import make
from tokenpaths.engine.store.ask import sealed_answers
from tokenpaths.engine.store.ask.questions import page_questions
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Query

KINDS = {
    "text": {"modality": "text"},
    "vision": {},
    "two": {"modality": "text", "top_k": 2},
    "unlabelled": {"modality": "text", "labels": False, "twin": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_answer_is_the_one_that_is_worked_out(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = make("r", **KINDS[kind])
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.LEAST_TOKENS", 1)
    stages: list[tuple[str, int, int]] = []
    from tokenpaths.engine.store.write.writer import RunWriter

    writer = RunWriter(tmp_path, made.info, made.modules)
    for batch in made.batches:
        writer.write(batch)
    writer.seal(lambda *stage: stages.append(stage))
    of = stages[0][2]
    assert sorted({done for _, done, _ in stages}) == list(range(of))
    told = [name for name, done, _ in stages if done == of - 1]
    assert told == [f"answers that take long: {done} of {len(told)}" for done in range(len(told))]
    with Run.open(tmp_path / "r.duckdb") as run:
        names = [name for (name,) in run.rows(Query("SELECT question FROM answer"))]
        assert {"knowledge", "distribution", "map", "at_equal_tokens"} <= {name.split()[0] for name in names}
        questions = list(page_questions(run))
        assert len(names) <= len(questions)
        num_sealed = 0
        for function, arguments in questions:
            key = sealed_answers.answer_key(function.question, function.__wrapped__, run, (), arguments)
            rows = run.rows(Query("SELECT answer FROM answer WHERE question = ? AND arguments = ?", key))
            if rows:
                num_sealed += 1
                fresh = function.__wrapped__(run, **arguments)
                asked = getattr(run, function.question, partial(function, run))
                assert asked(**arguments) == json.loads(json.dumps(fresh)), function
        assert num_sealed == len(names)
        run.row["num_samples"] = -1  # nothing is worked out any more: it would stumble here
        assert run.map(limit=1000, thumbnails=True)["run"] == "r"


def test_an_answer_that_fails_costs_itself_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.LEAST_TOKENS", 1)
    monkeypatch.setattr("tokenpaths.engine.store.ask.topics.knowledge._properties", lambda *_: 1 / 0)
    monkeypatch.setattr("tokenpaths.engine.store.ask.topics.label_specificity._row", lambda *_: {"lift": float("nan")})
    made = make("r", modality="text", samples=30)
    with Run.open(made.write(tmp_path)) as run:
        kept = {name.split()[0] for (name,) in run.rows(Query("SELECT question FROM answer"))}
        assert "distribution" in kept
        assert not kept & {"knowledge", "specific"}
        with pytest.raises(ZeroDivisionError):
            run.knowledge()


def test_answers_of_another_version_are_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.LEAST_TOKENS", 1)
    made = make("r", modality="text")
    with Run.open(made.write(tmp_path)) as run:
        assert run.knowledge()["properties"]
        monkeypatch.setattr("tokenpaths.engine.store.ask.topics.knowledge._properties", lambda *_: [])
        assert run.knowledge()["properties"]
        monkeypatch.setattr(sealed_answers, "ANSWERS_VERSION", sealed_answers.ANSWERS_VERSION + 1)
        assert not run.knowledge()["properties"]


def test_small_runs_keep_none(tmp_path: Path):
    with Run.open(make("r").write(tmp_path)) as run:
        assert run.rows(Query("SELECT count(*) FROM answer")) == [(0,)]


def test_no_vocabulary_is_sealed_where_none_is_known(tmp_path: Path) -> None:
    for kind, known in (("text", True), ("vision", False)):
        with Run.open(make(kind, **KINDS[kind]).write(tmp_path)) as run:
            asked = [function.__name__ for function, _ in page_questions(run)]
        assert ("specialisation" in asked) == known
