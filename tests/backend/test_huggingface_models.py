"""Hugging Face checkpoints beside our own in a worker: listed, described, traced over REST, held in one cache."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.backend.conftest import API, SECRET, Served, api_for, make_models, problem, serving
from tests.support.coroutines import run_alone
from tests.support.tiny_huggingface import TEXTS, changed_config, copied, save_tiny
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.settings import load_settings
from tokenpaths.backend.worker.loaded_models import LoadedModels
from tokenpaths.backend.worker.worker import create_worker, warm_all
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.edit_values import KINDS
from tokenpaths.engine.store.ask.run import Run

BAN = {"edits": [{"edit": "ban", "modules": [0], "step": 0}]}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("checkpoints")
    save_tiny(parent / "tiny.v1", "mixtral", num_hidden_layers=2)
    bare = copied(parent / "tiny.v1", parent / "no-weights")
    (bare / "model.safetensors").unlink()
    (parent / "dense").mkdir()
    (parent / "dense" / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    (parent / "not-a-model").mkdir()
    return parent


def models_of(folder: Path, checkpoints: Path | None, **changes: object) -> LoadedModels:
    settings = load_settings(data_dir=folder, huggingface_dir=checkpoints, worker_secret=SECRET, **changes)
    return LoadedModels(settings)


@pytest.fixture(scope="module")
def served(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data_dir = tmp_path_factory.mktemp("served")
    make_models(data_dir / "models")
    options = {"worker_secret": SECRET, "warm_models": False, "trace_seconds": 250, "huggingface_dir": checkpoints}
    worker = create_worker(load_settings(data_dir=data_dir, **options))
    with serving(worker) as url, api_for(data_dir, worker_url=url, **options) as api:
        yield api


def send(served: Served, model: str, text: str, **fields: str) -> httpx.Response:
    files = {name: (None, value) for name, value in {"model": model, "text": text, **fields}.items()}
    return served.client.post(f"{API}/traces", files=files)


def test_both_kinds_are_listed_with_what_cannot_be_used(served: Served) -> None:
    rows = {row["model"]: row for row in served.get("/models").json()["models"]}
    assert {"tiny-text", "hf:tiny.v1", "hf:dense", "hf:no-weights"} <= rows.keys()
    assert not any("not-a-model" in name for name in rows)
    tiny = rows["hf:tiny.v1"]
    assert (tiny["family"], tiny["modality"], tiny["problem"], tiny["job_only"]) == ("moe", "text", None, False)
    assert (tiny["num_steps"], tiny["num_modules"], tiny["top_k"]) == (2, 8, 2)
    assert "names no experts" in rows["hf:dense"]["problem"]
    assert "no model.safetensors" in rows["hf:no-weights"]["problem"]


def test_what_may_be_edited_is_described_from_the_configuration_alone(served: Served) -> None:
    row = served.get("/models/hf:tiny.v1").json()
    assert row["controls"]["edits"] == list(KINDS)
    assert row["config"]["model_type"] == "mixtral"
    assert served.get("/models/hf:dense").json()["controls"] is None
    for name, sentence in (("hf:tyni.v1", "did you mean 'tiny.v1'"), ("hf:not-a-model", "no config.json")):
        assert sentence in problem(served.get(f"/models/{name}"), 404)["detail"]


def test_a_text_becomes_a_run(served: Served) -> None:
    answer = send(served, "hf:tiny.v1", TEXTS[1])
    assert answer.status_code == 201, answer.text
    done = answer.json()
    assert (done["model"], done["modality"], done["effect"]) == ("hf:tiny.v1", "text", None)
    assert done["run"].startswith("try-tiny-v1-")
    sample = served.get(f"/runs/{done['run']}/samples/0").json()
    assert sample["text"] == TEXTS[1]
    assert len(sample["tokens"][0]["ribbon"]) == 2
    assert served.get(f"/runs/{done['run']}").json()["family"] == "moe"


def test_a_text_under_edits_and_under_a_counted_share(served: Served) -> None:
    answer = send(served, "hf:tiny.v1", TEXTS[0], controls=json.dumps(BAN), purpose="detour").json()
    assert answer["effect"]["edits"] == ["ban module 0 at step 0"]
    with Run.open(served.runs_dir / f"{answer['run']}.duckdb") as run:
        assert run.row["split"] == "detour"
        assert not any(row["count"] for row in run.usage()["usage"] if (row["step"], row["module"]) == (0, 0))
    share = send(served, "hf:tiny.v1", TEXTS[0], controls=json.dumps({"ban_share": 0.25, "which": "top"})).json()
    with Run.open(served.runs_dir / f"{share['run']}.duckdb") as run:
        edits = run.info()["config"]["controls"]["edits"]
    assert [(edit["edit"], edit["step"], len(edit["modules"])) for edit in edits] == [("ban", 0, 2), ("ban", 1, 2)]


def test_what_cannot_be_traced_is_refused(served: Served) -> None:
    long = "word " * 2500
    for model, text, controls, sentence, field in (
        ("hf:tyni.v1", "a", "", "did you mean 'tiny.v1'", "model"),
        ("hf:../tiny.v1", "a", "", "cannot be the name of a model", "model"),
        ("hf:dense", "a", "", "", "model"),
        ("hf:no-weights", "a", "", "holds no model.safetensors", "model"),
        ("hf:tiny.v1", " ", "", "The text is empty", "text"),
        ("hf:tiny.v1", "a", '{"alpha": 1}', "a moe model has no control 'alpha'", "alpha"),
        ("hf:tiny.v1", "a", json.dumps({"edits": [{"edit": "ban", "modules": [9]}]}), "no module 9", None),
    ):
        found = problem(send(served, model, text, **({"controls": controls} if controls else {})), 422)
        assert sentence in found["detail"]
        assert field is None or found["field"] == field
    assert "at most 2,000" in problem(send(served, "hf:tiny.v1", long), 413)["detail"]
    image = served.client.post(f"{API}/traces", files={"model": (None, "hf:tiny.v1"), "image": ("a.png", _png())})
    assert "takes a text" in problem(image, 422)["detail"]


def _png() -> bytes:
    from tests.backend.conftest import png

    return png(40, 40)


def test_a_large_model_is_for_jobs(checkpoints: Path, tmp_path: Path) -> None:
    models = models_of(tmp_path, checkpoints, trace_model_megabytes=0.001)
    assert models.row("hf:tiny.v1")["job_only"] is True
    with pytest.raises(Problem, match="submit a job") as refused:
        models.refuse_large("hf:tiny.v1")
    assert (refused.value.status, refused.value.kind, refused.value.field) == (422, "job-only", "model")
    assert models.load_for_job("hf:tiny.v1").name == "tiny.v1"


def test_a_checkpoint_is_loaded_once_and_again_when_its_files_change(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "hf" / "tiny", "mixtral", num_hidden_layers=1)
    models = models_of(tmp_path, tmp_path / "hf")
    first = models.load("hf:tiny")
    assert models.load("hf:tiny") is first
    save_tiny(folder, "mixtral", num_hidden_layers=1, seed=1)
    second = models.load("hf:tiny")
    assert second.sha256 != first.sha256
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError) as refused:
        models.load("hf:tiny")
    assert refused.value.field == "model"
    assert "\n" not in str(refused.value)


def test_the_least_recently_used_models_are_let_go(checkpoints: Path, tmp_path: Path) -> None:
    make_models(tmp_path / "models")
    copied(checkpoints / "tiny.v1", tmp_path / "second")
    (tmp_path / "hf").mkdir()
    for name in ("a", "b"):
        copied(checkpoints / "tiny.v1", tmp_path / "hf" / name)
    size = (checkpoints / "tiny.v1" / "model.safetensors").stat().st_size / 1e6
    models = models_of(tmp_path, tmp_path / "hf", held_models_megabytes=size * 1.9)
    for name in ("tiny-text", "hf:a", "tiny-text"):
        models.load(name)
    assert list(models.held) == ["hf:a", "tiny-text"]
    models.load("hf:b")
    assert list(models.held) == ["tiny-text", "hf:b"]
    models_of(tmp_path, tmp_path / "hf", held_models_megabytes=size / 100).load("hf:a")  # one is always held


def test_checkpoints_in_the_models_folder_need_no_setting(checkpoints: Path, tmp_path: Path) -> None:
    make_models(tmp_path / "models")
    copied(checkpoints / "tiny.v1", tmp_path / "models" / "moe")
    copied(checkpoints / "tiny.v1", tmp_path / "models" / "moe.v1")
    rows = {row["model"]: row for row in models_of(tmp_path, None).rows()}
    assert {"hf:moe", "hf:moe.v1", "tiny-text"} <= rows.keys()
    assert not {"moe", "moe.v1"} & rows.keys(), "each is listed once"
    assert not rows["hf:moe"]["problem"]


def test_infinities_of_a_configuration_are_answered(checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    folder = changed_config(copied(checkpoints / "tiny.v1", tmp_path / "hf" / "tiny"), limit=float("inf"))
    assert "Infinity" in (folder / "config.json").read_text()
    details = models_of(tmp_path, tmp_path / "hf").details("hf:tiny")
    json.dumps(details, allow_nan=False)


def test_large_models_are_not_warmed(checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_models(tmp_path / "models")
    app = create_worker(load_settings(data_dir=tmp_path, huggingface_dir=checkpoints, worker_secret=SECRET))
    worker, warmed = app.state.worker, []
    monkeypatch.setattr(worker, "warm", warmed.append)
    run_alone(warm_all(worker))
    worker.thread.shutdown(wait=True)
    assert "tiny-text" in warmed
    assert not any(name.startswith("hf:") for name in warmed)


def test_a_trace_job_and_one_of_the_untrained_twin(served: Served) -> None:
    inbox = served.settings.data_dir / "inbox"
    inbox.mkdir(exist_ok=True)
    (inbox / "words.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    runs = {}
    for untrained in (False, True):
        request = {"model": "hf:tiny.v1", "data": "words.jsonl", "untrained": untrained}
        answer = served.client.post(f"{API}/jobs", json={"kind": "trace", "request": request})
        assert answer.status_code == 202, answer.text
        until = time.monotonic() + 100
        while (job := served.get(f"/jobs/{answer.json()['job']}").json())["state"] not in ("succeeded", "failed"):
            assert time.monotonic() < until, job
            time.sleep(0.1)
        assert job["state"] == "succeeded", job["problem"]
        runs[untrained] = served.get(f"/runs/{job['result']['run']}").json()
    assert {untrained: run["model"] for untrained, run in runs.items()} == {False: "tiny.v1", True: "tiny.v1-untrained"}
    assert all(run["num_samples"] == len(TEXTS) for run in runs.values())
    refused = problem(
        served.client.post(
            f"{API}/jobs", json={"kind": "trace", "request": {"model": "hf:dense", "data": "words.jsonl"}}
        ),
        422,
    )
    assert refused["field"] == "request.model"


def test_a_checkpoint_that_lies_elsewhere_is_found_again(checkpoints: Path, tmp_path: Path) -> None:
    """A place that is told is kept beside the runs; one that has moved is asked for again"""
    options = {"worker_secret": SECRET, "warm_models": False, "trace_seconds": 250}
    (tmp_path / "far").mkdir()
    far = copied(checkpoints / "tiny.v1", tmp_path / "far" / "tiny.v1")
    worker = create_worker(load_settings(data_dir=tmp_path / "data", **options))
    with serving(worker) as url, api_for(tmp_path / "data", worker_url=url, **options) as api:
        place = f"{API}/models/hf:tiny.v1/folder"
        assert problem(api.get("/models/hf:tiny.v1"), 404)["field"] == "model"
        for folder, said in (
            ("far/tiny.v1", "whole path"),
            ("~nobody-of-this-name/tiny.v1", "whole path"),
            ("~\ud800/tiny.v1", "whole path"),
            (str(tmp_path), "There is no config.json"),
            (str(checkpoints / "dense"), "names no experts"),
            ("", "config.json"),
        ):
            content = json.dumps({"folder": folder})  # httpx would send no half of a pair
            headers = {"content-type": "application/json"}
            refused = problem(api.client.put(place, content=content, headers=headers), 422)
            assert said in refused["detail"], folder
        assert problem(api.client.put(place, json=[1]), 422)["field"] == "folder"
        assert problem(api.client.put(f"{API}/models/tiny/folder", json={"folder": str(far)}), 404)
        placed = api.client.put(place, json={"folder": str(far)})
        assert placed.status_code == 200, placed.text
        assert placed.json()["controls"]["edits"] == list(KINDS)
        assert [row["model"] for row in api.get("/models").json()["models"] if row["model"].startswith("hf:")] == [
            "hf:tiny.v1"
        ]
        assert send(api, "hf:tiny.v1", TEXTS[0], controls=json.dumps(BAN), purpose="detour").status_code == 201
        far.rename(tmp_path / "moved")
        moved = problem(api.get("/models/hf:tiny.v1"), 404)["detail"]
        assert "no longer in the folder" in moved
        assert str(tmp_path) not in moved
    with api_for(tmp_path / "data", **options, host="0.0.0.0", token="0123456789abcdef") as open_to_all:
        headers = {"authorization": "Bearer 0123456789abcdef"}
        refused = open_to_all.client.put(place, json={"folder": str(tmp_path / "moved")}, headers=headers)
        assert "huggingface_dir" in problem(refused, 403)["detail"]
