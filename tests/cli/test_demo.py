"""``tokenpaths demo``: two runs at once, jobs for the rest, nothing twice, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import save_tiny
from tokenpaths.backend.jobs.rows import JobRow
from tokenpaths.backend.jobs.service import job_table
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.demo import FIRST, alone
from tokenpaths.cli.main import main
from tokenpaths.engine.tracing import trace_run

QUEUED = {"photos-dna-vision-top1", "scenes-dna-vision-top1", "texts-dna-text-top1"}


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command over three tiny models that are called like shipped ones."""
    for name, modality in {"dna-vision-top1": "vision", "hmodel-languages": "text", "dna-text-top1": "text"}.items():
        save_tiny(tmp_path / "shipped" / name, modality)
    folders = (tmp_path / "shipped",)
    monkeypatch.setattr("tokenpaths.engine.base.model_folders.installed_folders", lambda: folders)
    return ["demo", "--data-dir", str(tmp_path / "data")]


def sealed(tmp_path: Path) -> dict[str, int]:
    """Runs and their times."""
    return {file.stem: file.stat().st_mtime_ns for file in (tmp_path / "data" / "runs").glob("*.duckdb")}


def jobs_of(tmp_path: Path, kind: str = "trace") -> list[JobRow]:
    table = job_table(load_settings(data_dir=tmp_path / "data"))
    rows = table.page(kinds=[kind])
    table.close()
    return rows


def test_the_first_runs_are_traced_and_the_others_queued_once(demo: list[str], tmp_path: Path) -> None:
    assert main(demo) == 0
    runs = sealed(tmp_path)
    assert set(runs) == set(FIRST)
    rows = jobs_of(tmp_path)
    assert {row.request["run"] for row in rows} == QUEUED
    assert {row.state for row in rows} == {"waiting"}
    twins = jobs_of(tmp_path, "twin")
    assert sorted(row.request["run"] for row in twins) == sorted(FIRST)
    assert main(demo) == 0
    assert sealed(tmp_path) == runs
    assert [row.job for row in jobs_of(tmp_path)] == [row.job for row in rows]
    assert [row.job for row in jobs_of(tmp_path, "twin")] == [row.job for row in twins]


def test_what_was_given_up_is_queued_again_and_what_was_deleted_made_again(demo: list[str], tmp_path: Path) -> None:
    assert main(demo) == 0
    rows = jobs_of(tmp_path)
    table = job_table(load_settings(data_dir=tmp_path / "data"))
    table.cancel(rows[0].job)
    table.close()
    (tmp_path / "data" / "runs" / f"{FIRST[1]}.duckdb").unlink()
    kept = sealed(tmp_path)
    assert main(demo) == 0
    again = jobs_of(tmp_path)
    assert {row.job for row in again} == {row.job for row in rows}
    assert {row.state for row in again} == {"waiting"}
    assert set(sealed(tmp_path)) == set(FIRST)
    assert kept.items() <= sealed(tmp_path).items()


def test_a_run_of_older_weights_is_made_anew(demo: list[str], tmp_path: Path) -> None:
    assert main(demo) == 0
    before = sealed(tmp_path)
    save_tiny(tmp_path / "shipped" / "dna-vision-top1", "vision", seed=1)
    assert main(demo) == 0
    after = sealed(tmp_path)
    assert after[FIRST[0]] > before[FIRST[0]]
    assert after[FIRST[1]] == before[FIRST[1]]


def test_ctrl_c_half_way_loses_nothing(
    demo: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_run.trace_samples

    def interrupted(*arguments: object, **options: object) -> Path:
        if options["run_id"] == FIRST[1]:
            options["on_progress"] = press_ctrl_c
        return trace(*arguments, **options)  # type: ignore[arg-type]

    def press_ctrl_c(progress: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trace_run, "trace_samples", interrupted)
        assert main(demo) == 130
    assert "Stopped." in capsys.readouterr().err
    runs = sealed(tmp_path)
    assert set(runs) == {FIRST[0]}
    assert {file.name for file in (tmp_path / "data" / "runs").iterdir() if file.name.endswith(".partial")} == set()
    assert main(demo) == 0
    assert sealed(tmp_path)[FIRST[0]] == runs[FIRST[0]]
    assert set(sealed(tmp_path)) == set(FIRST)
    assert {row.request["run"] for row in jobs_of(tmp_path)} == QUEUED
    assert sorted(row.request["run"] for row in jobs_of(tmp_path, "twin")) == sorted(FIRST)


def test_two_at_the_same_time_do_not_work_twice(
    demo: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone(load_settings(data_dir=tmp_path / "data")):
        assert main(demo) == 75
    assert ".demo.lock is held by process" in capsys.readouterr().err
    assert sealed(tmp_path) == {}
