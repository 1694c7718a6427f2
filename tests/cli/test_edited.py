"""``tokenpaths trace --controls`` for our own families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenpaths.cli.main import main
from tokenpaths.cli.support import edited
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run

BAN = {"edits": [{"edit": "ban", "modules": [1], "step": 1}]}


@pytest.fixture
def home(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENPATHS_MODELS_DIRS", str(models_dir))
    return tmp_path


def trace(home: Path, model: str, data: str, *more: str) -> int:
    options = ["--model", model, "--data", data, "--limit", "3", "--data-dir", str(home), "--device", "cpu"]
    return main(["trace", *options, *more])


@pytest.mark.parametrize(("model", "data"), [("tiny-vision", "bundled:scenes"), ("tiny-text", "bundled:texts")])
def test_both_runs_and_the_effect(home: Path, capsys: pytest.CaptureFixture[str], model: str, data: str) -> None:
    assert trace(home, model, data, "--controls", json.dumps(BAN), "--beside", "--run", "mine") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "edits: ban module 1 at step 1"
    assert [line.split(" is in ")[0] for line in said[-2:]] == ["run mine-before", "run mine"]
    with Run.open(home / "runs" / "mine-before.duckdb") as old, Run.open(home / "runs" / "mine.duckdb") as new:
        found, info, before = new.effect(old), new.info(), old.info()
        counts = [{(u["step"], u["module"]): u["count"] for u in run.usage()["usage"]}[1, 1] for run in (old, new)]
    assert counts[0] > 0 == counts[1]
    assert info["config"]["controls"] == BAN
    assert "controls" not in before["config"]
    assert f"paths changed: {100 * found['paths_changed']:.1f} % of {found['num_tokens']:,} tokens" in said[-3]
    assert f"KL {found['outputs']['kl']:.4f} nats" in said[-4]
    assert any(line.startswith("loss ") for line in said) == (model == "tiny-text")  # the tiny classes are no labels


def test_the_edited_run_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controls = json.dumps({"edits": [{"edit": "top_k", "k": 1}]})
    assert trace(home, "tiny-text", "bundled:texts", "--controls", controls, "--run", "one") == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert [file.name for file in (home / "runs").iterdir()] == ["one.duckdb"]
    with Run.open(home / "runs" / "one.duckdb") as run:
        assert run.info()["top_k"] == 1


@pytest.mark.parametrize(
    ("controls", "said"),
    [
        ("ban:1.2", "--controls is no JSON"),
        ('{"edits": [{"edit": "vanish"}]}', "has no edit 'vanish'"),
        ('{"edits": [{"edit": "ban", "modules": [1], "step": 99}]}', "there is no step 99"),
        ('{"alpha": 0.5}', "has no control 'alpha'"),
        ('{"edits": {"edit": "ban"}}', "edits is a dict; give a list of edits"),
        ('{"edits": []}', "the list of edits is empty"),
        ('{"edits": null}', "--controls changes nothing"),
        ("[" * 100_000, "--controls is "),
    ],
)
def test_what_cannot_be_is_one_line_and_code_2(
    home: Path, capsys: pytest.CaptureFixture[str], controls: str, said: str
) -> None:
    assert trace(home, "tiny-text", "bundled:texts", "--controls", controls, "--beside", "--run", "r") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 1, lines
    assert said in lines[0]
    assert not list(home.glob("runs/*"))


def test_a_failure_after_the_unchanged_run_leaves_none_behind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edited run is the second one; the first is of no use without it."""
    from tokenpaths.engine.tracing import trace_run

    made = trace_run.trace_samples

    def trace_samples(loaded, samples, runs_dir, **options):
        if loaded.controls is not None:
            assert list(home.glob("runs/*")), "the unchanged run comes first"
            raise UserError("the disk is on fire")
        return made(loaded, samples, runs_dir, **options)

    monkeypatch.setattr(trace_run, "trace_samples", trace_samples)
    assert trace(home, "tiny-text", "bundled:texts", "--controls", json.dumps(BAN), "--beside", "--run", "r") == 2
    assert not list(home.glob("runs/*"))


def test_too_many_samples_to_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edited, "MOST_BESIDE", 2)
    assert edited.held([1, 2]) == [1, 2]  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at most 2 samples") as refused:
        edited.held([1, 2, 3])  # type: ignore[arg-type]
    assert refused.value.field == "limit"
