"""The untrained twin as a run of its own: the same that is kept as numbers beside the trained run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.jobs.registry import JobContext, Progress, find_kind, read_request
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.traceable import as_untrained


def traced(tmp_path: Path, **request: object) -> Path:
    """The run of a trace job over six scenes, and of the jobs that follow."""
    context = JobContext(tmp_path, (SHIPPED_MODELS,), lambda name: load_model(name, [SHIPPED_MODELS], "cpu"))
    wanted = {"model": "dna-vision-top1", "data": "bundled:scenes", "limit": 6, **request}
    jobs = [("trace", wanted)]
    for number, (name, values) in enumerate(jobs):
        kind = find_kind(name)
        folder = tmp_path / f"{request['run']}-{number}"
        folder.mkdir()
        job = kind.start(read_request(kind, values), folder, context)
        progress = Progress(0, None, "")
        while not progress.finished:
            progress = job.advance()
        job.close()
        jobs += progress.following
    return context.runs_dir / f"{progress.result['run']}.duckdb"


def test_its_run_is_the_twin_that_the_trained_run_keeps(tmp_path: Path) -> None:
    with Run.open(traced(tmp_path, run="trained")) as run, Run.open(traced(tmp_path, run="u", untrained=True)) as twin:
        own, kept = twin.fit()["observed"], run.fit()["untrained"]
        assert [point["count"] for point in own.pop("points")] == [point["count"] for point in kept.pop("points")]
        assert own == kept
        assert twin.fit()["untrained"] is None
        assert twin.row["model"] == "dna-vision-top1-untrained"
        assert twin.row["checkpoint_sha256"] == ""
        assert "validation" not in twin.info()["findings"]
        answer = run.compare(twin)
        assert answer["matched"]["num"] == 6
        assert not answer["flow"]["same_numbering"]
        untrained = {row["name"]: (row["untrained_a"], row["b"]) for row in answer["summary"]}
        for name in ("num_paths", "effective_paths", "effective_top_k", "max_violation", "load_entropy"):
            assert untrained[name][0] == pytest.approx(untrained[name][1])


def test_edits_and_an_untrained_model_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load_model("dna-vision-top1", [SHIPPED_MODELS], "cpu")
    edited = loaded.with_controls({"edits": [{"edit": "ban", "modules": [0], "step": 1}]})
    with pytest.raises(UserError, match="no edits") as caught:
        as_untrained(edited)
    assert caught.value.field == "untrained"
    command = ["trace", "--model", "dna-vision-top1", "--data", "bundled:scenes", "--data-dir", str(tmp_path)]
    code = main([*command, "--untrained", "--controls", '{"edits": [{"edit": "ban", "modules": [0], "step": 1}]}'])
    assert code == 2
    assert "--untrained is for models as they are" in capsys.readouterr().err
