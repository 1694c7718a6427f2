"""Answers that are kept in the file are those that the run gives when it is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.runs import make
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.write import sealed_answers as sealed

KINDS = {
    "text": {"modality": "text"},
    "vision": {},
    "two": {"modality": "text", "top_k": 2},
    "unlabelled": {"modality": "text", "labels": False, "twin": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_answer_is_the_one_that_is_worked_out(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = make("r", **KINDS[kind])
    monkeypatch.setattr("tokenpaths.engine.store.write.writer.LEAST_TOKENS", 1)
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
        assert {"knowledge", "distribution", "map"} <= {name.split()[0] for name in names}
        asked = list(sealed.questions(run))
        assert len(names) <= len(asked)
        found = 0
        for question, arguments in asked:
            place = sealed.key(getattr(Run, question).__wrapped__, run, (), arguments)
            rows = run.rows(Query("SELECT answer FROM answer WHERE question = ? AND arguments = ?", place))
            if rows:
                found += 1
                worked_out = getattr(Run, question).__wrapped__(run, **arguments)
                assert getattr(run, question)(**arguments) == json.loads(json.dumps(worked_out)), question
        assert found == len(names)
        run.row["num_samples"] = -1  # nothing is worked out any more: it would stumble here
        assert run.map(limit=1000, thumbnails=True)["run"] == "r"


def test_an_answer_that_fails_costs_itself_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.store.write.writer.LEAST_TOKENS", 1)
    monkeypatch.setattr("tokenpaths.engine.store.ask.knowledge.what_paths_know", lambda run: 1 / 0)
    monkeypatch.setattr(
        "tokenpaths.engine.store.ask.label_specificity.most_specific",
        lambda run, *_: {"run": "r", "lift": float("nan")},
    )
    made = make("r", modality="text")
    with Run.open(made.write(tmp_path)) as run:
        kept = {name.split()[0] for (name,) in run.rows(Query("SELECT question FROM answer"))}
        assert "distribution" in kept
        assert not kept & {"knowledge", "specific"}
        with pytest.raises(ZeroDivisionError):
            run.knowledge()


def test_answers_of_another_version_are_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.store.write.writer.LEAST_TOKENS", 1)
    made = make("r", modality="text")
    with Run.open(made.write(tmp_path)) as run:
        monkeypatch.setattr(sealed, "ANSWERS_VERSION", 2)
        monkeypatch.setattr("tokenpaths.engine.store.ask.knowledge.what_paths_know", lambda run: {"asked": "anew"})
        assert run.knowledge() == {"asked": "anew"}


def test_small_runs_keep_none(tmp_path: Path):
    with Run.open(make("r").write(tmp_path)) as run:
        assert run.rows(Query("SELECT count(*) FROM answer")) == [(0,)]
