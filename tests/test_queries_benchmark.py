"""The benchmark of queries asks everything that the page asks of one run, and each question is one that the API has."""

from __future__ import annotations

import inspect

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from benchmarks.queries import rows
from benchmarks.queries_asked import NOT_MEASURED, QUESTIONS, About
from benchmarks.queries_peers import compared
from tests.support.runs.synthetic import SyntheticRun, write_run
from tokenpaths.backend.app import create_app
from tokenpaths.backend.settings import load_settings
from tokenpaths.engine.store.ask import questions
from tokenpaths.frontend.api.client import Client


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("data")
    write_run(SyntheticRun("queried", 3000), folder / "runs")
    settings = load_settings(data_dir=folder, allowed_hosts=["testserver"])
    with TestClient(create_app(settings)) as client:
        yield client


def test_every_question_and_every_call_of_the_pages_client_is_asked_or_named() -> None:
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    declared = {question.name for question in questions.QUESTIONS}
    asked = {question.method for question in QUESTIONS}
    assert asked | NOT_MEASURED.keys() == declared | methods - {"ask"}
    assert not asked & NOT_MEASURED.keys()
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)


def test_every_question_has_an_answer(api: httpx.Client) -> None:
    about = About.of(api.get("/api/v1/runs/queried").raise_for_status().json())
    rng = np.random.default_rng(0)
    for question in QUESTIONS:
        path, query = question.ask(rng, about)
        answer = api.get(f"/api/v1/runs/queried{path}", params=query)
        assert answer.status_code == 200, (question.name, answer.text)


def test_a_smaller_run_does_not_keep_the_promise() -> None:
    times = {"flow of some paths": {"p95": 3.0}, "flow": {"p95": 2.0}}
    found = {"tokens": 10**7, "warm": times}
    assert {row.key: row.met for row in rows({"results": found})} == {
        "query_warm": "stretch, but without 100 M tokens",
        "filter_exact": "stretch, but without 100 M tokens",
    }
    assert {row.met for row in rows({"results": found | {"tokens": 10**8}})} == {"stretch"}


def test_a_first_question_for_words_has_a_goal_of_its_own() -> None:
    times = {name: {"p95": p95} for name, p95 in (("flow", 20.0), ("tokens with a word", 600.0), ("samples", 140.0))}
    found = {row.key: (row.ours, row.met, row.note) for row in rows({"results": {"tokens": 10**8, "cold": times}})}
    assert found == {
        "query_cold": (140.0, "yes", "samples; 100,000,000 tokens"),
        "word_cold": (600.0, "yes", "100,000,000 tokens"),
    }


def test_peers_answer_the_same_questions() -> None:
    found = compared(SyntheticRun("peers", 2000, steps=4, modules=6))
    for question in ("rank and frequency", "flow", "usage", "flow of a label"):
        assert set(found[question]) == {"store", "pandas", "polars", "sqlite"}
        assert found[question]["store"]["ms"] > 0
    # Fewer tokens than the run that stands beside them: the table says of how many.
    asked = {"q": {"p50": 1.0, "p95": 2.0}}
    results = {"tokens": 10**8, "warm": asked, "worst_warm": {"question": "q", "p95": 2.0}, "peers": found}
    warm = next(row for row in rows({"results": results}) if row.key == "query_warm")
    assert set(warm.peers) == {f"{side} (4 questions, 0.002 M tokens)" for side in ("pandas", "polars", "sqlite")}
