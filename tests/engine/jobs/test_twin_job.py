"""The job ``twin``: the run is then what it would be had its twin been traced in one pass; shared, killed, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.engine.store.write.test_shards import everything
from tests.support.checkpoints import save_tiny
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import run_file
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.jobs.registry import JobContext, Progress, find_kind, read_request
from tokenpaths.engine.jobs.titles import job_title
from tokenpaths.engine.jobs.traces.trace_twin import following_twin
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing import kept_twins
from tokenpaths.engine.tracing.loaded_model import LoadedModel, load_model
from tokenpaths.engine.tracing.trace_run import trace_samples

WORDS = "the cat sat on the mat and a dog looked at the moon "


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    """A data folder with two checkpoints of one architecture, one for images, and both kinds of data."""
    home = tmp_path / "home"
    save_tiny(home / "models" / "one", "text", seed=1)
    save_tiny(home / "models" / "two", "text", seed=2)
    save_tiny(home / "models" / "sees", "vision")
    write_texts(home / "inbox" / "words.jsonl")
    rng = np.random.default_rng(0)
    for number in range(6):
        file = home / "inbox" / "pictures" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(file)
    return JobContext(home, (home / "models",), lambda name: load_model(name, [home / "models"], "cpu"))


def write_texts(file: Path, *, samples: int = 11, words: str = WORDS) -> None:
    """Texts of very different lengths, several windows long."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"text": words * (1 + 5 * (number % 3)), "label": "ab"[number % 2]} for number in range(samples)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def work(context: JobContext, name: str, request: dict[str, Any], folder: str = "job") -> Progress:
    """The last progress of a job."""
    kind = find_kind(name)
    place = context.data_dir / "jobs" / folder
    place.mkdir(parents=True, exist_ok=True)
    job = kind.start(read_request(kind, request), place, context)
    progress = Progress(0, None, "")
    while not progress.finished:
        progress = job.advance()
    job.close()
    return progress


def traced(context: JobContext, run: str, **request: Any) -> Progress:
    wanted = {"model": "one", "data": "words.jsonl", "run": run, "batch_size": 2} | request
    return work(context, "trace", wanted, run)


def has_twin(context: JobContext, run: str) -> bool:
    with context.open_run(run) as opened:
        return opened.fit()["untrained"] is not None


def twins(context: JobContext) -> list[Path]:
    return sorted((context.data_dir / "twins").glob("*")) if (context.data_dir / "twins").is_dir() else []


@pytest.mark.parametrize("request_", [{}, {"passage_chars": 60, "limit": 7}, {"model": "sees", "data": "pictures"}])
def test_the_run_is_that_of_a_twin_traced_in_the_same_pass(
    context: JobContext, tmp_path: Path, request_: dict[str, Any]
) -> None:
    progress = traced(context, "r", **request_)
    assert not has_twin(context, "r")
    ((kind, request),) = progress.following
    assert kind == "twin"
    assert request["run"] == "r"
    last = work(context, kind, request, "twin")
    assert last.result["run"] == "r"
    assert last.done == last.total == progress.done
    loaded = context.load_model(request_.get("model", "one"))
    options = {name: request_[name] for name in ("passage_chars", "limit") if name in request_}
    dataset = open_dataset(context.inbox_dir / request_.get("data", "words.jsonl"), loaded.modality, **options)
    # Not in a data folder, so that nothing kept is used.
    about: Any = {"run_id": "r", "dataset": dataset.name, "split": dataset.split, "batch_size": 2, "twin": True}
    findings = {"job": "r", "data_sha256": dataset.identity()}
    whole = trace_samples(loaded, dataset, tmp_path / "plain", findings=findings, **about)
    by_job, at_once = everything(run_file(context.runs_dir, "r")), everything(whole)
    for table in at_once:
        assert by_job[table] == at_once[table], table
    assert has_twin(context, "r")


def test_a_file_that_took_the_place_of_the_run_is_not_opened(
    context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came from elsewhere is copied by a process of its own before anything reads it (the threat model)."""
    from tokenpaths.engine.store.ask import run_file as files

    ((kind, request),) = traced(context, "r").following
    file = run_file(context.runs_dir, "r")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    opened: list[Path] = []
    own, open_run = files.RunFile.open, Run.open
    monkeypatch.setattr(
        files.RunFile, "open", lambda file, *args, **more: opened.append(file) or own(file, *args, **more)
    )
    monkeypatch.setattr(JobContext, "open_run", lambda self, name: open_run(file))  # what the gate would have taken in
    with pytest.raises(UserError, match="came from elsewhere"):
        work(context, kind, request, "twin")
    assert file not in opened


def test_runs_of_one_architecture_and_data_share_a_twin(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    untrained = LoadedModel.untrained

    def counted(self: LoadedModel, seed: int = 0) -> LoadedModel:
        asked.append(self.name)
        return untrained(self, seed)

    monkeypatch.setattr(LoadedModel, "untrained", counted)
    following = traced(context, "first").following
    work(context, *following[0], "twin-1")
    assert asked == ["one"]
    assert len(twins(context)) == 1
    assert traced(context, "second", model="two").following == ()  # another checkpoint: nothing to trace again
    assert asked == ["one"]
    with context.open_run("first") as first, context.open_run("second") as second:
        assert first.fit()["observed"] != second.fit()["observed"]
        assert first.fit()["untrained"] == second.fit()["untrained"]
        assert [row["untrained_effective_top_k"] for row in first.usage()["steps"]] == [
            row["untrained_effective_top_k"] for row in second.usage()["steps"]
        ]
    for run, other in {"batch": {"batch_size": 3}, "fewer": {"limit": 5}, "cut": {"passage_chars": 50}}.items():
        assert traced(context, run, **other).following, run
    write_texts(context.inbox_dir / "words.jsonl", words=WORDS.upper())
    assert traced(context, "changed").following
    assert traced(context, "without", twin=False).following == ()
    ban = {"edits": [{"edit": "ban", "modules": [0], "step": 1}]}
    assert traced(context, "edited", controls=ban).following == ()
    assert traced(context, "itself", untrained=True).following == ()
    assert not any(has_twin(context, run) for run in ("batch", "changed", "without", "edited", "itself"))


def test_a_twin_traced_in_the_same_pass_is_kept_for_the_next(context: JobContext) -> None:
    loaded = context.load_model("one")
    dataset = open_dataset(context.inbox_dir / "words.jsonl", "text")
    path = trace_samples(loaded, dataset, context.runs_dir, run_id="now", dataset=dataset.name, batch_size=2)
    assert len(twins(context)) == 1
    assert traced(context, "next").following == ()
    with Run.open(path) as now, context.open_run("next") as later:
        assert now.fit()["untrained"] == later.fit()["untrained"]
        assert now.knowledge()["properties"] == later.knowledge()["properties"]
    twins(context)[0].write_bytes(b"damaged")
    assert traced(context, "damaged").following
    work(context, *traced(context, "again").following[0], "twin")
    assert has_twin(context, "again")


def test_a_killed_job_goes_on_and_a_second_one_has_nothing_to_do(context: JobContext) -> None:
    ((name, request),) = traced(context, "r").following
    kind = find_kind(name)
    folder = context.data_dir / "jobs" / "twin"
    folder.mkdir()
    job = kind.start(read_request(kind, request), folder, context)
    next(job.parts)
    del job  # no close: as if it was killed
    assert not has_twin(context, "r")
    (context.runs_dir / ".r.partial").write_bytes(b"left by a killed worker")
    assert work(context, name, request).result["samples"] == 11
    assert [file.name for file in context.runs_dir.iterdir()] == ["r.duckdb"]
    assert work(context, name, request).result == {"run": "r", "note": "the run has its twin"}
    run_file(context.runs_dir, "r").unlink()
    assert work(context, name, request).result == {"run": "r", "note": "the run was deleted"}


def test_a_cancelled_job_leaves_the_run(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, request),) = traced(context, "r").following
    kind = find_kind(name)
    folder = context.data_dir / "jobs" / "twin"
    folder.mkdir()
    job = kind.start(read_request(kind, request), folder, context)
    while "untrained twin" not in (progress := next(job.parts)).message:
        assert progress.unit == "samples"
    job.close()
    assert not has_twin(context, "r")
    assert [file.name for file in context.runs_dir.iterdir()] == ["r.duckdb"]
    assert len(twins(context)) == 1  # traced it was, and the next need not


def test_what_cannot_be_is_refused(context: JobContext) -> None:
    ((name, request),) = traced(context, "r").following
    kind = find_kind(name)

    def refused(match: str, field: str, **changes: Any) -> None:
        with pytest.raises(UserError, match=match) as caught:
            kind.check(read_request(kind, request | changes), context)
        assert caught.value.field == field

    refused("no run 'gone'", "run", run="gone")
    refused("no model 'none'", "model", model="none")
    refused("nothing.jsonl", "data", data="nothing.jsonl")
    kind.check(read_request(kind, request), context)
    with pytest.raises(UserError, match="not of the unedited model sees"):
        work(context, name, request | {"model": "sees", "data": "pictures"})
    write_texts(context.inbox_dir / "words.jsonl", samples=7)
    with pytest.raises(UserError, match="data have changed"):
        work(context, name, request)
    write_texts(context.inbox_dir / "words.jsonl")
    work(context, name, request)
    refused("already", "run")
    (context.runs_dir / "copied.duckdb").write_bytes(run_file(context.runs_dir, "r").read_bytes())
    traced(context, "plain", limit=2)
    (context.runs_dir / "given.duckdb").write_bytes(run_file(context.runs_dir, "plain").read_bytes())
    refused("came from elsewhere", "run", run="given")


def test_the_title_names_model_and_run() -> None:
    assert job_title("twin", {"model": "tiny", "run": "seen"}) == "Untrained twin of tiny for run seen"
    assert job_title("twin", {}) == "Untrained twin of a model for run of its data"


def test_a_model_of_another_rounding_has_a_twin_of_its_own(
    context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = context.load_model("one")
    dataset = open_dataset(context.inbox_dir / "words.jsonl", "text")
    data = kept_twins.data_of_run(dataset)
    assert data is not None
    place = kept_twins.twin_file(context.runs_dir, loaded, data, 2)
    assert place == kept_twins.twin_file(context.runs_dir, context.load_model("two"), data, 2)
    assert place != kept_twins.twin_file(context.runs_dir, loaded, data, 3)
    assert kept_twins.twin_file(context.data_dir / "elsewhere", loaded, data, 2) is None
    assert kept_twins.data_of_run(dataset.shard(1, 2, 4)) is None
    monkeypatch.setattr(torch, "__version__", "another")
    assert place != kept_twins.twin_file(context.runs_dir, loaded, data, 2)


def test_a_twin_of_other_data_of_the_same_size_is_refused(context: JobContext) -> None:
    """Neither data that were replaced, nor a run that was traced anew over others, get another's twin."""
    file = context.inbox_dir / "words.jsonl"
    ((name, request),) = traced(context, "r").following
    before = file.read_bytes()
    file.write_bytes(before.replace(b"cat", b"dog"))
    assert len(file.read_bytes()) == len(before)
    with pytest.raises(UserError, match="data have changed since run 'r'"):
        work(context, name, request)
    run_file(context.runs_dir, "r").unlink()
    ((_, anew),) = traced(context, "r").following
    file.write_bytes(before)
    with pytest.raises(UserError, match="data have changed since run 'r'"):
        work(context, name, anew)
    assert not has_twin(context, "r")
    file.write_bytes(before.replace(b"cat", b"dog"))
    work(context, name, anew)
    assert has_twin(context, "r")


def test_nothing_follows_a_run_that_is_gone(context: JobContext) -> None:
    ((_, request),) = traced(context, "r").following
    run_file(context.runs_dir, "r").unlink()
    assert following_twin(context, "r", request) == ()
