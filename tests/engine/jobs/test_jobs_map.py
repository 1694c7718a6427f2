"""The job ``map``: what it refuses, and that a cancelled or killed one goes on bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import make_run
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.jobs.registry import JobContext, Progress, find_kind, list_artifacts, read_request

KIND = find_kind("map")


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    make_run(tmp_path / "runs", "texts", "text", samples=24, twin=False)
    return JobContext(tmp_path)


def ask(**changes: object) -> object:
    return read_request(KIND, {"run": "texts", "perplexity": 5, "iterations": 300} | changes)


def finish(job: object) -> Progress:
    progress = Progress(0, None, "")
    while not progress.finished:
        progress = job.advance()
    job.close()
    return progress


def folder_of(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def test_a_killed_map_goes_on_bit_for_bit(context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = folder_of(tmp_path, "whole")
    done = finish(KIND.start(ask(), whole, context))
    assert done.result["map_of"] == "texts"
    assert done.result["num_samples"] == 24
    monkeypatch.setattr(
        "tokenpaths.engine.jobs.map_samples.SLICE_SECONDS", 0.0
    )  # nothing happens in a slice of no length
    stopped = folder_of(tmp_path, "stopped")
    job = KIND.start(ask(), stopped, context)
    assert job.advance().done == 0
    monkeypatch.setattr("tokenpaths.engine.jobs.map_samples.SLICE_SECONDS", 0.002)
    while (at := job.advance().done) < 130:
        pass
    assert at < 300
    job.run.close()  # no close of the job, no last state: as if it was killed
    job = KIND.start(ask(), stopped, context)
    assert job.work.iteration == at // 64 * 64
    assert job.advance().total == 300
    job.close()  # cancelled, and tried again
    assert finish(KIND.start(ask(), stopped, context)).result == done.result
    maps = [json.loads((folder / "artifacts" / "map.json").read_bytes()) for folder in (whole, stopped)]
    assert maps[0] == maps[1]
    assert list_artifacts(stopped) == ["curve.json", "map.json"]
    assert np.isfinite([[point["x"], point["y"]] for point in maps[0]["points"]]).all()
    assert maps[0]["points"][0]["snippet"]
    curve = json.loads((stopped / "artifacts" / "curve.json").read_bytes())["series"][0]
    assert curve["x"] == [64, 128, 192, 256, 300]
    assert curve["y"][-1] == pytest.approx(done.result["divergence"])


def test_a_run_that_was_replaced_is_no_longer_gone_on_with(context: JobContext, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "job")
    finish(KIND.start(ask(), folder, context))
    make_run(tmp_path / "runs", "texts", "text", samples=25, twin=False, seed=3, overwrite=True)
    with pytest.raises(UserError, match="was replaced since") as caught:
        KIND.start(ask(), folder, context)
    assert caught.value.field == "run"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"run": "nobody"}, "run", "no run 'nobody'"),
        ({"perplexity": 40}, "perplexity", "at most 15.3"),
        ({"limit": 10, "perplexity": 20}, "perplexity", "with 10 samples"),
        ({"run": "few"}, "run", "t-SNE needs four"),
        ({"run": "alike", "perplexity": 2}, "run", "would be one point"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    context: JobContext, tmp_path: Path, changes: dict, field: str, words: str
) -> None:
    if changes["run" if "run" in changes else field] == "few":
        make_run(tmp_path / "runs", "few", "text", samples=3, twin=False)
    if changes.get("run") == "alike":
        make_run(tmp_path / "runs", "alike", "text", samples=5, modules=1, identities=0, twin=False)
        with pytest.raises(UserError, match=words):
            KIND.start(ask(**changes), folder_of(tmp_path, "job"), context)
        return
    with pytest.raises(UserError, match=words) as caught:
        KIND.check(ask(**changes), context)
    assert caught.value.field == field


def test_requests_have_bounds() -> None:
    for changes in ({"method": "umap"}, {"iterations": 10}, {"limit": 3000}, {"perplexity": 1}, {"run": "../up"}):
        with pytest.raises(UserError):
            ask(**changes)
