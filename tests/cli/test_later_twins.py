"""``tokenpaths trace --twin``: now, later by a job, or not at all; kept ones are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import save_tiny
from tokenpaths.backend.jobs.rows import JobRow
from tokenpaths.backend.jobs.service import job_table
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.main import main
from tokenpaths.engine.store.ask.run import Run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_tiny(tmp_path / "models" / "tiny", "text")
    (tmp_path / "inbox").mkdir()
    for folder in (tmp_path / "inbox", tmp_path):
        (folder / "words.txt").write_text("the cat sat on the mat and looked at the moon")
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    return tmp_path


def trace(home: Path, run: str, *more: str, data: str = "inbox/words.txt", batch: str = "2") -> int:
    place = data if data.startswith("bundled:") else str(home / data)
    return main(["trace", "--model", "tiny", "--data", place, "--run", run, "--batch-size", batch, *more])


def jobs(home: Path) -> list[JobRow]:
    table = job_table(load_settings(data_dir=home))
    rows = table.page()
    table.close()
    return rows


def has_twin(home: Path, run: str) -> bool:
    with Run.open(home / "runs" / f"{run}.duckdb") as opened:
        return opened.has_twin


def test_later_leaves_it_to_a_job_that_knows_the_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(home, "later", "--twin", "later") == 0
    (row,) = jobs(home)
    assert f"waits for `tokenpaths up` or `tokenpaths worker` (job {row.job})" in capsys.readouterr().out
    wanted = {"run": "later", "model": "tiny", "data": "words.txt", "batch_size": 2, "skip_bad": False}
    assert row.kind == "twin"
    assert wanted.items() <= row.request.items()
    assert not has_twin(home, "later")
    assert trace(home, "none", "--twin", "no") == 0
    assert not has_twin(home, "none")
    assert len(jobs(home)) == 1
    assert trace(home, "now") == 0  # kept from here on
    assert has_twin(home, "now")
    assert trace(home, "again", "--twin", "later") == 0
    assert has_twin(home, "again")
    assert len(jobs(home)) == 1
    with Run.open(home / "runs" / "now.duckdb") as now, Run.open(home / "runs" / "again.duckdb") as again:
        assert now.fit()["untrained"] == again.fit()["untrained"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"data": "words.txt"}, "jobs read bundled sets and what lies in"),
        ({"batch": "65"}, "batch_size"),
        ({"more": ("--device", "cpu")}, "has no --device"),
        ({"more": ("--shard", "1/2")}, "has no --shard"),
        ({"more": ("--shards", "2")}, "has no --shards"),
        ({"more": ("--controls", '{"edits": [{"edit": "ban", "modules": [0], "step": 1}]}')}, "has no --controls"),
    ],
)
def test_what_a_job_could_not_trace_is_refused_before_the_trace(
    home: Path, capsys: pytest.CaptureFixture[str], options: dict, told: str
) -> None:
    more = options.pop("more", ())
    assert trace(home, "later", "--twin", "later", *more, **options) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert not list((home / "runs").glob("*")) if (home / "runs").is_dir() else True
    assert jobs(home) == []
