"""Trace jobs over Hugging Face checkpoints: the run of the command, the untrained twin, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tokenpaths
from tests.engine.jobs.test_reroute_experts import SAMPLES, context_of, make_home
from tests.support.tiny_huggingface import changed_config, copied
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.registry import JobContext, read_request
from tokenpaths.engine.jobs.traces.trace import TraceJob
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.traceable import as_untrained

MODEL = "hf:tiny-mixtral.v1"
BAN = {"edits": [{"edit": "ban", "modules": [0], "step": 1}]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = make_home(tmp_path_factory.mktemp("traced"), ["mixtral"])
    changed_config(copied(home / "checkpoints" / "tiny-mixtral.v1", home / "checkpoints" / "none"), num_local_experts=0)
    return home


def request_of(**values: Any) -> Any:
    return read_request(TraceJob, {"model": MODEL, "data": "words.jsonl", **values})


def traced(home: Path, folder: Path, **values: Any) -> Run:
    """The run of a job, open."""
    request = request_of(**values)
    TraceJob.check(request, JobContext(home, huggingface_dir=home / "checkpoints"))
    folder.mkdir()
    job = TraceJob.start(request, folder, context_of(home))
    while not (progress := job.advance()).finished:
        pass
    job.close()
    return Run.open(home / "runs" / f"{progress.result['run']}.duckdb")


def answers(run: Run) -> list[Any]:
    """What a run says of its tokens and paths, without its name."""
    said = [run.flow(), run.usage(), run.paths(limit=50), run.fit(), *map(run.sample, range(len(SAMPLES)))]
    return [{name: value for name, value in answer.items() if name != "run"} for answer in said]


def test_a_job_makes_the_run_of_the_command_and_of_the_notebook(home: Path, tmp_path: Path) -> None:
    folder, data = home / "checkpoints" / "tiny-mixtral.v1", home / "inbox" / "words.jsonl"
    command = ["trace", "--model", f"hf:{folder}", "--data", str(data), "--data-dir", str(home), "--run", "by-command"]
    assert main([*command, "--batch-size", "16", "--device", "cpu"]) == 0
    with traced(home, tmp_path / "job") as job, Run.open(home / "runs" / "by-command.duckdb") as command_run:
        assert answers(job) == answers(command_run)
        assert job.info()["num_samples"] == len(SAMPLES)
        assert job.fit()["untrained"] is not None, "the paths of the twin are counted too"
        with tokenpaths.trace(f"hf:{folder}", data, folder=home / "runs", device="cpu") as notebook:
            assert notebook.fit()["untrained"] == job.fit()["untrained"]


def test_a_command_takes_the_name_that_the_list_of_models_shows(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENPATHS_HUGGINGFACE_DIR", str(home / "checkpoints"))
    assert main(["ls", "models", "--data-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert MODEL in shown
    assert "! hf:none: " in shown
    data = str(home / "inbox" / "words.jsonl")
    command = ["trace", "--model", MODEL, "--data", data, "--data-dir", str(tmp_path), "--run", "named"]
    assert main([*command, "--device", "cpu", "--twin", "no"]) == 0
    with Run.open(tmp_path / "runs" / "named.duckdb") as run:
        assert run.row["model"] == "tiny-mixtral.v1"


def test_the_untrained_twin_is_a_run_of_its_own_in_jobs_commands_and_notebooks(home: Path, tmp_path: Path) -> None:
    folder, data = home / "checkpoints" / "tiny-mixtral.v1", home / "inbox" / "words.jsonl"
    command = ["trace", "--model", f"hf:{folder}", "--data", str(data), "--data-dir", str(home), "--untrained"]
    assert main([*command, "--run", "twin-by-command", "--batch-size", "16", "--device", "cpu"]) == 0
    with (
        traced(home, tmp_path / "trained") as trained,
        traced(home, tmp_path / "twin", untrained=True) as twin,
        Run.open(home / "runs" / "twin-by-command.duckdb") as command_run,
        tokenpaths.trace(f"hf:{folder}", data, folder=home / "runs", untrained=True, device="cpu") as notebook,
    ):
        assert answers(twin) == answers(command_run)
        assert answers(twin)[0] != answers(trained)[0]
        own, kept = twin.fit()["observed"], trained.fit()["untrained"]
        assert [point["count"] for point in own.pop("points")] == [point["count"] for point in kept.pop("points")]
        assert own == kept
        for run in (twin, command_run, notebook):
            assert run.row["model"] == "tiny-mixtral.v1-untrained"
            assert run.row["checkpoint_sha256"] == ""
            assert run.fit()["untrained"] is None
            assert run.paths(limit=50)["paths"] == twin.paths(limit=50)["paths"]


def test_a_twin_is_seeded_and_leaves_the_trained_model_alone(home: Path) -> None:
    loaded = context_of(home).load_model(MODEL)
    first, again, other = loaded.untrained(), loaded.untrained(), loaded.untrained(seed=1)
    weights = [model.model.get_input_embeddings().weight for model in (first, again, other, loaded)]
    assert (weights[0] == weights[1]).all()
    assert (weights[0] != weights[2]).any()
    assert (weights[0] != weights[3]).any()
    with pytest.raises(UserError, match="no edits") as refused:
        as_untrained(loaded.with_controls(BAN))
    assert refused.value.field == "untrained"


def test_an_edited_run(home: Path, tmp_path: Path) -> None:
    with traced(home, tmp_path / "job", controls=BAN, twin=False) as run:
        assert run.info()["config"]["controls"] == BAN
        counts = {(row["step"], row["module"]): row["count"] for row in run.usage()["usage"]}
    assert counts[1, 0] == 0 < counts[1, 1]


@pytest.mark.parametrize(
    ("values", "sentence", "field"),
    [
        ({"model": "hf:tiny"}, "There is no checkpoint 'tiny'", "model"),
        ({"model": "hf:none"}, "names no experts", "model"),
        ({"data": "bundled:scenes"}, "is nothing for this model", "data"),
        ({"controls": {"edits": [{"edit": "ban", "modules": [8]}]}}, "no module 8", "controls.edits.0.modules"),
        ({"controls": {"alpha": 1}}, "no control 'alpha'", "controls.alpha"),
        ({"controls": {"ban_share": 0.25}}, "submit a job of kind reroute", "controls.ban_share"),
    ],
)
def test_what_is_refused_when_it_is_submitted(home: Path, values: dict[str, Any], sentence: str, field: str) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        TraceJob.check(request_of(**values), JobContext(home, huggingface_dir=home / "checkpoints"))
    assert refused.value.field == field


def test_a_dream_of_a_hugging_face_model_is_refused_with_the_reason(home: Path) -> None:
    request = read_request(DreamJob, {"model": MODEL, "target": {"of": "module", "module": 1}})
    with pytest.raises(UserError, match="read without gradients") as refused:
        DreamJob.check(request, context_of(home))
    assert refused.value.field == "model"


def test_what_is_submitted_is_checked_without_torch(home: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tokenpaths.engine.jobs.traces.trace import TraceJob\n"
        "from tokenpaths.engine.jobs.registry import *\n"
        f"context = JobContext(Path({str(home)!r}), huggingface_dir=Path({str(home / 'checkpoints')!r}))\n"
        f"request = read_request(TraceJob, {{'model': {MODEL!r}, 'data': 'words.jsonl', 'controls': {BAN!r}}})\n"
        "TraceJob.check(request, context); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[3]).returncode == 0
