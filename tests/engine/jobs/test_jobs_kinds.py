"""What a long job is to the engine: kinds by name, requests, names of files, the kinds ``trace`` and ``import``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import CountJob, CountRequest, counted
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.jobs.registry import (
    KINDS,
    MOST_NAME,
    JobContext,
    Progress,
    find_kind,
    is_artifact_name,
    known_kinds,
    list_artifacts,
    read_request,
    register,
    write_artifact,
)
from tokenpaths.engine.jobs.titles import job_title


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    (tmp_path / "inbox").mkdir()
    return JobContext(tmp_path, (SHIPPED_MODELS,))


def refused(call, field: str) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert caught.value.field == field
    return str(caught.value)


def test_no_kind_needs_torch_before_it_starts() -> None:
    code = (
        "import sys\nfrom tokenpaths.engine.jobs.registry import find_kind, known_kinds\n"
        "for name in known_kinds():\n    kind = find_kind(name)\n"
        "    assert kind.kind == name and kind.Request.model_config['extra'] == 'forbid', name\n"
        "    assert 'torch' not in sys.modules, name\n"
        "print(*known_kinds())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"trace", "import"} <= set(done.stdout.split())


def test_a_kind_that_is_not_there_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'trace'" in refused(lambda: find_kind("tracce"), "kind")
    monkeypatch.setitem(KINDS, "gone", "tokenpaths.engine.nothing_here.job:Job")
    assert "gone" not in known_kinds()
    refused(lambda: register("../up", "a:B"), "kind")


def test_requests_name_the_field_at_fault() -> None:
    assert "given '0'" in refused(lambda: read_request(CountJob, {"iterations": 0}), "iterations")
    said = refused(lambda: read_request(CountJob, {"iterations": 1, "evry": 2}), "evry")
    assert "did you mean 'every'" in said
    refused(lambda: read_request(CountJob, [1]), "request")
    assert "object" in refused(lambda: read_request(CountJob, None), "request")


@pytest.mark.parametrize(
    "name",
    [
        "../a.png",
        "a/b.png",
        ".a.png",
        "a.PNG",
        "a.py",
        "a.png.exe",
        "con.png",
        "",
        "a",
        "a.png\n",
        "x" * 65 + ".png",
        "a\0.png",
        "ä.png",
    ],
)
def test_names_of_artifacts_that_are_none(name: str, tmp_path: Path) -> None:
    assert not is_artifact_name(name)
    with pytest.raises(ValueError, match="no name of an artifact"):
        write_artifact(tmp_path, name, b"")
    assert list_artifacts(tmp_path) == []


def test_a_job_goes_on_where_its_folder_stands(tmp_path: Path, context: JobContext) -> None:
    request = CountRequest(iterations=150, seconds=0.005)
    job = CountJob.start(request, tmp_path, context)
    while job.advance().done < 70:
        pass
    del job  # no close: as if it was killed
    job = CountJob.start(request, tmp_path, context)
    assert job.done == 64
    progress = Progress(0, None, "")
    while not progress.finished:
        progress = job.advance()
    job.close()
    assert progress.result == {"value": counted(150)}
    assert list_artifacts(tmp_path) == ["curve.json", "frame-000064.png", "frame-000128.png", "frame-000150.png"]


def test_the_inbox_gives_files_by_plain_name_only(context: JobContext, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("no")
    (context.inbox_dir / "log.jsonl").write_text("{}")
    (context.inbox_dir / "link.txt").symlink_to(secret)
    assert context.inbox_file("log.jsonl", field="file") == context.inbox_dir / "log.jsonl"
    for name in ("../secret.txt", str(secret), "..", ".", "", "a\0b", "C:x", "\\\\host\\x", ".hidden", "link.txt"):
        refused(lambda name=name: context.inbox_file(name, field="file"), "file")
    assert "did you mean 'log.jsonl'" in refused(lambda: context.inbox_file("log.json", field="file"), "file")
    apart = context.inbox_dir / "cafe\u0301.jsonl"  # as macOS writes it
    apart.write_text("{}")
    assert context.inbox_file("caf\u00e9.jsonl", field="file").samefile(apart)
    os.mkfifo(context.inbox_dir / "pipe.jsonl")  # reading it would keep the worker waiting for a writer
    assert "neither" in refused(lambda: context.inbox_file("pipe.jsonl", field="file"), "file")


def test_a_pattern_of_the_inbox_leads_nowhere_else(context: JobContext, tmp_path: Path) -> None:
    (context.inbox_dir / "photos").mkdir()
    (tmp_path / "x1.csv").write_text("no")
    for name in ("a-0.csv", "a-1.csv"):
        (context.inbox_dir / name).write_text("text\nyes")
    assert context.data_source("a-{0..1}.csv") == context.inbox_dir / "a-{0..1}.csv"
    long = "{photos,photos" + " " * (MOST_NAME - 15) + "}"
    for data in ("{photos,photos}/../../x{1,1}.csv", f"{long}/../../x{{1,1}}.csv", "../x{1,1}.csv"):
        refused(lambda data=data: context.data_source(data), "data")


def test_models_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    for name, config in (("bare", None), ("cut", "{"), ("good", "{}"), ("list", "[]"), ("deep", '{"a":' * 9999)):
        (folder / name).mkdir(parents=True)
        if config is not None:
            (folder / name / "config.json").write_text(config)
    (folder / "SHA256SUMS").write_text("")
    context = JobContext(tmp_path, (folder,))
    assert context.model_config("good") == {}
    assert refused(lambda: context.model_dir("zebra"), "model").endswith("there are: bare, cut, deep, good, list.")
    assert "has no config.json" in refused(lambda: context.model_config("bare"), "model")
    assert "line 1 column 2" in refused(lambda: context.model_config("cut"), "model")
    assert "no JSON object" in refused(lambda: context.model_config("list"), "model")
    assert "nested more than" in refused(lambda: context.model_config("deep"), "model")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "dna-vision-top"}, "model"),
        ({"model": "../models"}, "model"),
        ({"data": "bundled:texts"}, "data"),
        ({"data": "http://example.org/x.parquet"}, "data"),
        ({"data": "/etc"}, "data"),
        ({"run": "taken"}, "run"),
        ({"text_column": "words"}, "text_column"),
        ({"image_column": "picture"}, "image_column"),
        ({"label_column": "class"}, "label_column"),
    ],
)
def test_a_trace_is_refused_before_it_is_queued(context: JobContext, changes: dict, field: str) -> None:
    context.runs_dir.mkdir()
    (context.runs_dir / "taken.duckdb").touch()
    kind = find_kind("trace")
    good = {"model": "dna-vision-top1", "data": "bundled:scenes"}
    kind.check(read_request(kind, good), context)
    refused(lambda: kind.check(read_request(kind, good | changes), context), field)


def test_a_killed_trace_leaves_no_half_run_and_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.tracing.loaded_model import load_model

    context = JobContext(tmp_path, (SHIPPED_MODELS,), lambda name: load_model(name, [SHIPPED_MODELS], "cpu"))
    kind = find_kind("trace")
    request = read_request(
        kind, {"model": "dna-vision-top1", "data": "bundled:scenes", "limit": 6, "batch_size": 2, "twin": False}
    )
    folder = tmp_path / "job"
    folder.mkdir()
    monkeypatch.setattr("tokenpaths.engine.jobs.traces.trace.SLICE_SECONDS", 0.0001)
    job = kind.start(request, folder, context)
    assert job.advance().done == 2
    job.close()
    assert [file.name for file in context.runs_dir.iterdir()] == []
    job = kind.start(request, folder, context)
    progress = Progress(0, None, "")
    while not progress.finished:
        progress = job.advance()
    job.close()
    runs = [file.stem for file in context.runs_dir.iterdir()]
    assert runs == [progress.result["run"]]
    # Killed after the run was sealed and before anybody was told: found, not made twice.
    again = kind.start(request, folder, context)
    assert again.advance() == Progress(6, 6, "samples", finished=True, result=progress.result)
    assert progress.result == {"run": runs[0], "samples": 6}
    assert [file.stem for file in context.runs_dir.iterdir()] == runs
    with Run.open(context.runs_dir / f"{runs[0]}.duckdb") as run:
        assert run.card()["num_samples"] == 6


@pytest.mark.parametrize("kind", ["trace", "import"])
def test_a_job_that_is_tried_again_does_not_pass_off_the_run_of_another(
    context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Two jobs that want one name: the first stops before its run is sealed, the second is quicker."""
    from tokenpaths.engine.tracing.loaded_model import load_model

    context = JobContext(tmp_path, (SHIPPED_MODELS,), lambda name: load_model(name, [SHIPPED_MODELS], "cpu"))
    line = {"prompt_token_ids": [1, 2], "routed_experts": [[[0, 3]], [[2, 1]]]}
    (context.inbox_dir / "log.jsonl").write_text(json.dumps(line))
    found = find_kind(kind)
    request = read_request(
        found,
        {
            "trace": {"model": "dna-vision-top1", "data": "bundled:scenes", "limit": 4, "batch_size": 2, "twin": False},
            "import": {"file": "log.jsonl"},
        }[kind]
        | {"run": "mine"},
    )
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(
            {"trace": "tokenpaths.engine.jobs.traces.trace", "import": "tokenpaths.engine.jobs.import_log"}[kind]
            + ".SLICE_SECONDS",
            0.0001,
        )
        first = found.start(request, folders[0], context)
        first.close()
    second = found.start(request, folders[1], context)
    while not (last := second.advance()).finished:
        pass
    second.close()
    assert "'mine' already" in refused(lambda: found.start(request, folders[0], context), "run")
    assert found.start(request, folders[1], context).advance().result == last.result


def test_a_trace_takes_so_few_at_once_that_a_cancel_acts() -> None:
    kind = find_kind("trace")
    good = {"model": "dna-vision-top1", "data": "bundled:scenes"}
    assert read_request(kind, good).model_dump()["batch_size"] <= 16
    assert "less than or equal to 64" in refused(lambda: read_request(kind, good | {"batch_size": 65}), "batch_size")


def test_an_import_counts_experts_and_makes_a_run(context: JobContext, tmp_path: Path) -> None:
    lines = [{"prompt_token_ids": [1, 2], "routed_experts": [[[0, 3]], [[2, 1]]]}] * 3
    (context.inbox_dir / "log.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    (context.inbox_dir / "bad.jsonl").write_text("hello\n")
    kind, folder = find_kind("import"), tmp_path / "job"
    folder.mkdir()
    refused(lambda: kind.check(read_request(kind, {"file": "bad.jsonl"}), context), "file")
    request = read_request(kind, {"file": "log.jsonl", "run": "served"})
    kind.check(request, context)
    job = kind.start(request, folder, context)
    while not (progress := job.advance()).finished:  # on a busy machine it takes more than one slice
        assert progress.done in (0, 6)  # while it counts, and after
    job.close()
    assert progress.result["run"] == "served"
    assert any("4 experts a layer" in note for note in progress.result["notes"])


@pytest.mark.parametrize("given", [{"columns": {"expert": "e"}}, ["map.toml"], 3])
def test_the_map_of_an_import_is_a_name(given: object) -> None:
    kind = find_kind("import")
    said = refused(lambda: read_request(kind, {"file": "table.csv", "map": given}), "map")
    assert "it should be the name of a TOML file in the inbox, for example `map.toml`" in said
    assert read_request(kind, {"file": "table.csv", "map": "map.toml"}).model_dump()["map"] == "map.toml"


def test_an_import_of_counts_makes_a_run_of_loads(context: JobContext, tmp_path: Path) -> None:
    (context.inbox_dir / "counts.json").write_text(json.dumps({"0": {"0": 6, "3": 2}, "1": {"1": 8}}))
    kind, folder = find_kind("import"), tmp_path / "job"
    folder.mkdir()
    request = read_request(kind, {"file": "counts.json", "run": "counted", "top_k": 2})
    kind.check(request, context)
    for _ in range(2):  # a killed job finds the run that it sealed
        job = kind.start(request, folder, context)
        progress = job.advance()
        job.close()
        assert progress.finished
        assert progress.result == {"run": "counted"}
    with context.open_run("counted") as run:
        assert (run.card()["kind"], run.card()["num_tokens"]) == ("load", 4)


def test_jobs_of_one_kind_have_titles_of_their_own() -> None:
    """Whatever differs in a request differs in its title, and a request of another version has one too."""
    edit = {"edits": [{"edit": "force", "module": 2, "step": 1, "tokens": [4, 5]}]}
    ban = {"edits": [{"edit": "ban", "modules": [3]}]}
    one = {"model": "tiny", "run": "seen", "limit": 64}
    titles = [
        job_title(kind, request)
        for kind, request in (
            ("reroute", one | {"controls": edit}),
            ("reroute", one | {"controls": ban}),
            ("reroute", one | {"controls": {"alpha": 0.1}}),
            ("reroute", one | {"sweep": "modules"}),
            ("reroute", one | {"sweep": "shares", "shares": [0.5]}),
            ("reroute", one | {"controls": ban, "limit": 1}),
            ("reroute", one | {"controls": ban, "run": None, "data": "bundled:texts"}),
            ("trace", {"model": "tiny", "data": "bundled:texts"}),
            ("trace", {"model": "big", "data": "bundled:texts"}),
            ("trace", {"model": "tiny", "data": "bundled:texts", "controls": ban}),
            ("import", {"file": "a.npz"}),
            ("trace", {"model": "tiny", "data": "bundled:texts", "untrained": True}),
            ("map", {"run": "seen"}),
            ("gates", one),
            ("gates", one | {"sample": 3, "position": 5}),
            ("gates", one | {"sample": 3, "position": 5, "word": "sea"}),
            ("gates", one | {"sample": 3, "position": 5, "other": 4}),
        )
    ]
    assert len(set(titles)) == len(titles)
    assert titles[0] == "Force 2 tokens to module 2 at step 1: tiny over 64 samples of seen"
    assert titles[5] == "Ban module 3 at every step: tiny over one sample of seen"
    assert job_title("reroute", {"controls": {"edits": [{"edit": "gone"}]}}) == "Gone: a model over its data"


@pytest.mark.parametrize(
    ("kind", "request_", "title"),
    [
        ("trace", {"model": "tiny", "limit": "a"}, "Trace"),
        ("trace", {"controls": [1]}, "Trace"),
        ("reroute", {"sweep": "shares", "shares": ["x"]}, "Reroute"),
        ("reroute", {"sweep": "shares", "shares": 2}, "Reroute"),
        ("dream", {"target": {"of": "choices"}, "image": {"iterations": None}}, "Dream"),
        ("gates", {"position": "x"}, "Gates"),
    ],
)
def test_a_stored_request_of_any_shape_has_a_title(kind: str, request_: dict, title: str) -> None:
    """One odd job must not hide the list of all."""
    assert job_title(kind, request_) == title
