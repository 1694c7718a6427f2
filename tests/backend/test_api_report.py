"""GET /runs/{run}/report: a download that other origins cannot run, with the ETag of a sealed run and its dreams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.conftest import Served, api_for, png, problem
from tests.support.runs import make_run
from tokenpaths.engine.store.ask.run import Run


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("report")
    make_run(data / "runs", "demo", samples=8, steps=3)
    make_run(data / "runs", "text", "text", samples=5, steps=3)
    with api_for(data) as api:
        yield api


def test_the_report_is_a_download_with_an_etag(served: Served) -> None:
    answer = served.get("/runs/demo/report")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="demo.html"'
    assert answer.text.startswith("<!doctype html>")
    again = served.get("/runs/demo/report", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    assert served.get("/runs/text/report").headers["etag"] != answer.headers["etag"]


def test_a_finished_dream_changes_the_report(served: Served) -> None:
    before = served.get("/runs/demo/report")
    with Run.open(served.runs_dir / "demo.duckdb") as run:
        info = run.info()
    folder = served.settings.data_dir / "dreams" / "one" / "artifacts"
    dream(folder, info["model"], info["checkpoint_sha256"])
    after = served.get("/runs/demo/report", headers={"if-none-match": before.headers["etag"]})
    assert after.status_code == 200
    assert "<section id='fig4'>" in after.text
    assert "<section id='fig4'>" not in before.text
    dream(folder, info["model"], "another checkpoint")
    assert "<section id='fig4'>" not in served.get("/runs/demo/report").text


def dream(folder: Path, model: str, checkpoint: str) -> None:
    """A finished dream as ``tokenpaths dream`` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    one = {
        "name": "S = 1",
        "image": "dream-0.png",
        "steps": [0],
        "group": None,
        "context": False,
        "objective": 0.5,
        "matched_choices": 0.5,
        "matched_tokens": 0.25,
        "top": [["cat", 0.9]],
    }
    request = {"model": model, "run": "demo", "sample": 0, "target": {"of": "choices", "until": [1]}}
    result = {"model": model, "checkpoint_sha256": checkpoint, "request": request, "original": None, "dreams": [one]}
    (folder / "dream-0.png").write_bytes(png())
    (folder / "result.json").write_text(json.dumps(result))


def test_unknown_runs_and_keys_are_problems(served: Served) -> None:
    assert problem(served.get("/runs/nosuch/report"), 404, "run")
    assert problem(served.get("/runs/demo/report?theme=dark"), 422, "theme")
