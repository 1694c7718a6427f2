"""New kinds of data through the command, the job and the notebook: one run, and notes of what was left out."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import tokenpaths
from tests.support.saved_datasets import save_to_disk, tar
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.jobs.registry import JobContext
from tokenpaths.engine.jobs.traces.trace import TraceJob, TraceRequest
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model

WORDS = ["the cat sat on the mat.", "a dog ran home.", "the mat is red.", "a cat is a cat."]


@pytest.fixture
def home(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder whose inbox holds a saved dictionary of data sets, archives, and a table."""
    (tmp_path / "settings.toml").write_text(
        f"data_dir = {json.dumps(str(tmp_path / 'home'))}\nmodels_dirs = [{json.dumps(str(models_dir))}]\n"
    )
    monkeypatch.setenv("TOKENPATHS_SETTINGS_FILE", str(tmp_path / "settings.toml"))
    inbox = tmp_path / "home" / "inbox"
    table = pa.table({"text": WORDS, "label": [0, 1, 0, 1]})
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": ["x", "y"], "_type": "ClassLabel"}}
    save_to_disk(inbox / "saved" / "train", table, features, shards=2)
    save_to_disk(inbox / "saved" / "test", table.slice(0, 1), features)
    (inbox / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for shard in range(2):
        rows = list(enumerate(WORDS))[2 * shard : 2 * shard + 2]
        members = [
            member for i, text in rows for member in ((f"{i}.txt", text.encode()), (f"{i}.cls", b"xyxy"[i : i + 1]))
        ]
        tar(inbox / f"part-{shard:03d}.tar", members)
    lines = [f'"{text}";{label}' for text, label in zip(WORDS, "xyxy", strict=True)]
    (inbox / "table.csv").write_text("\n".join(["text;label", *lines]))
    return tmp_path / "home"


KINDS = [("saved", {"split": "train"}), ("part-{000..001}.tar", {}), ("table.csv", {})]


def answers(run: Run) -> list[object]:
    labels = {(row["label"], row["num_samples"]) for row in run.info()["labels"]}
    return [run.flow()["links"], [run.sample(i)["text"] for i in range(4)], labels]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_command_job_and_notebook_make_one_run(
    home: Path, models_dir: Path, tmp_path: Path, name: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(home / "inbox" / name)
    flags = [part for option, value in options.items() for part in (f"--{option}", value)]
    command = ["trace", "--model", "tiny-text", "--data", data, *flags, "--device", "cpu", "--batch-size", "16"]
    assert main([*command, "--run", "command"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().err
    assert ("columns are told apart by semicolons" in said) == (name == "table.csv")
    context = JobContext(home, (models_dir,), lambda model: load_model(model, [models_dir], "cpu"))
    request = TraceRequest(model="tiny-text", data=name, run="job", **options)
    TraceJob.check(request, context)
    job = TraceJob.start(request, tmp_path, context)
    assert isinstance(job, TraceJob)
    while not (progress := job.advance()).finished:
        pass
    assert ("notes" in progress.result) == (name == "table.csv")
    with (
        Run.open(home / "runs" / "command.duckdb") as by_command,
        Run.open(home / "runs" / "job.duckdb") as by_job,
        tokenpaths.trace(load_model("tiny-text", [models_dir], "cpu"), data, folder=tmp_path, **options) as by_notebook,
    ):
        assert answers(by_command) == answers(by_job) == answers(by_notebook)
        assert answers(by_command)[1:] == [WORDS, {("x", 2), ("y", 2)}]
        assert by_command.row["split"] == options.get("split", "all")


def test_shards_of_a_trace_seal_into_the_same_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(home / "inbox" / "part-{000..001}.tar")
    command = ["trace", "--model", "tiny-text", "--data", data, "--device", "cpu", "--batch-size", "1", "--twin", "no"]
    assert main([*command, "--run", "whole"]) == 0
    for shard in ("1/2", "2/2"):
        assert main([*command, "--run", "parts", "--shard", shard]) == 0, capsys.readouterr().err
    assert main(["seal", "parts"]) == 0, capsys.readouterr().err
    with Run.open(home / "runs" / "whole.duckdb") as whole, Run.open(home / "runs" / "parts.duckdb") as parts:
        assert answers(whole) == answers(parts)


def test_patterns_and_splits_in_jobs_are_checked_early(home: Path, models_dir: Path) -> None:
    context = JobContext(home, (models_dir,))
    for data, words in (
        ("part-{000..002}.tar", "There is no 'part-002.tar'"),
        ("../inbox/part-{000..001}.tar", "is no name of a file in the inbox"),
    ):
        with pytest.raises(UserError, match=words):
            TraceJob.check(TraceRequest(model="tiny-text", data=data), context)
    with pytest.raises(UserError, match="has no splits"):
        TraceJob.check(TraceRequest(model="tiny-text", data="bundled:texts", split="test"), context)
