"""``tokenpaths doctor`` on a folder where something of everything is spoiled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.jobs import picture
from tests.support.runs import make_run
from tokenpaths.backend.jobs.table import JobTable
from tokenpaths.backend.settings import Settings, load_settings
from tokenpaths.cli.main import main
from tokenpaths.cli.support.doctor_files import Finding, jobs, models, runs
from tokenpaths.cli.support.progress_bar import Bar
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.seal_marks import FOLDER, identity_of
from tokenpaths.engine.jobs.registry import write_artifact
from tokenpaths.engine.store.file.verification import verify_run


def spoil(file: Path, place: float = 0.5) -> None:
    """Flip a byte somewhere in the file."""
    data = bytearray(file.read_bytes())
    data[int(len(data) * place)] ^= 0xFF
    file.write_bytes(data)


def found(what: str, findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if finding.state == what]


@pytest.fixture
def settings(tmp_path: Path, models_dir: Path) -> Settings:
    data_dir = tmp_path / "data"
    shutil.copytree(models_dir, data_dir / "models")
    return load_settings(data_dir=data_dir)


def test_a_spoiled_run_is_found_wherever_the_byte_is(settings: Settings) -> None:
    file = make_run(settings.runs_dir, "whole", samples=20)
    assert verify_run(file)["token"] == 20 * 64
    whole, refused = file.read_bytes(), 0
    for place in range(8):
        file.write_bytes(whole)
        spoil(file, 0.3 + place / 12)
        try:
            verify_run(file)
        except UserError as error:
            refused += "whole.duckdb" in str(error)
    assert refused >= 4, "the other bytes belong to no value"
    shutil.copy(file, settings.runs_dir / "no name.duckdb")
    file.write_bytes(whole)
    (settings.runs_dir / ".killed.partial").write_bytes(b"x")
    findings = list(runs(settings))
    assert found("ok", findings) == ["1 whole, 1,280 tokens read"]
    assert "`no name` cannot be the name" in found("broken", findings)[0]
    assert "mv -- 'no name.duckdb'" in found("broken", findings)[0]
    assert ".killed.partial" in found("note", findings)[0]


def test_a_link_to_nowhere_keeps_no_other_run_from_being_read(settings: Settings) -> None:
    make_run(settings.runs_dir, "whole", samples=3)
    (settings.runs_dir / "gone.duckdb").symlink_to(settings.runs_dir / "nowhere.duckdb")
    findings = list(runs(settings))
    assert found("broken", findings) == ["gone.duckdb cannot be read: No such file or directory"]
    assert found("ok", findings)[0].startswith("1 whole")


@pytest.mark.timeout(60)
def test_what_is_no_file_is_said_and_waited_for_by_nobody(settings: Settings) -> None:
    make_run(settings.runs_dir, "whole", samples=3)
    (settings.runs_dir / "folder.duckdb").mkdir()
    os.mkfifo(settings.runs_dir / "pipe.duckdb")  # reading it would wait for a writer
    findings = list(runs(settings))
    assert [text.split(" ", 1)[0] for text in found("note", findings)] == ["folder.duckdb", "pipe.duckdb"]
    assert found("ok", findings) == ["1 whole, 192 tokens read"]
    assert not found("broken", findings)


def test_spoiled_weights_are_found(settings: Settings) -> None:
    spoil(settings.data_dir / "models" / "tiny-text" / "model.safetensors", 0.9)
    findings = list(models(settings))
    assert len(found("broken", findings)) == 1
    assert "tiny-text: model.safetensors is damaged" in found("broken", findings)[0]
    assert "tiny-vision" in found("ok", findings)[0]


def test_a_model_of_texts_without_its_tokenizer_is_broken(settings: Settings) -> None:
    (settings.data_dir / "models" / "tiny-text" / "tokenizer.json").unlink()
    assert found("broken", list(models(settings))) == ["tiny-text: tokenizer.json is missing, a text model needs it"]


def test_jobs_are_explained_and_their_files_read(settings: Settings) -> None:
    assert found("ok", list(jobs(settings))) == ["none yet"]
    table = JobTable(settings.jobs_file)
    failed, lost = (table.submit("count", {}).job for _ in range(2))
    lease = table.lease("w")
    assert lease is not None
    table.end(lease, "failed", problem={"detail": "It was too much."})
    old = JobTable(settings.jobs_file, clock=lambda: 1_000.0)
    old.lease("dead")
    old.close()
    table.close()
    folder = settings.data_dir / "jobs" / failed
    for name in ("good.png", "bad.png"):
        folder.mkdir(parents=True, exist_ok=True)
        write_artifact(folder, name, picture(1)[: None if name == "good.png" else 60])
    write_artifact(folder, "curve.json", b'{"x": ')
    (settings.data_dir / "jobs" / "forgotten").mkdir()
    findings = list(jobs(settings))
    assert len(found("broken", findings)) == 2
    assert all(name in " ".join(found("broken", findings)) for name in ("bad.png", "curve.json"))
    notes = " ".join(found("note", findings))
    told = (f"{failed} failed: It was too much.", f"{lost}: its worker is gone", "forgotten")
    assert all(words in notes for words in told)
    assert found("ok", findings) == ["2 in the list, 3 files of theirs"]
    with open(settings.jobs_file, "r+b") as file:
        data = file.read().replace(b"It was too much", b"It was too mucH")
        file.seek(0)
        file.write(data)
    assert "damaged" in found("broken", list(jobs(settings)))[0]


def test_marks_of_runs_deleted_by_hand_are_cleared_away(settings: Settings) -> None:
    kept, gone, young = (make_run(settings.runs_dir, n, samples=2, twin=False) for n in ("kept", "gone", "young"))
    marks = settings.data_dir / FOLDER
    kept_mark, gone_mark, young_mark = (identity_of(file.stat()) for file in (kept, gone, young))
    gone.unlink()
    young.unlink()
    os.utime(marks / gone_mark, (1, 1))
    os.utime(marks / kept_mark, (1, 1))
    assert "1 run was deleted by hand" in found("note", list(runs(settings)))[0]
    assert {mark.name for mark in marks.iterdir()} == {kept_mark, young_mark}, "the young one may be of a run to come"


def test_runs_of_a_copied_data_folder_are_not_said_to_be_deleted(settings: Settings, tmp_path: Path) -> None:
    for name in ("one", "two", "gone"):
        make_run(settings.runs_dir, name, samples=2, twin=False)
    copy = settings.model_copy(update={"data_dir": tmp_path / "copy"})
    shutil.copytree(settings.data_dir, copy.data_dir)
    (copy.runs_dir / "gone.duckdb").unlink()
    for mark in (copy.data_dir / FOLDER).iterdir():
        os.utime(mark, (1, 1))
    deleted, copied = found("note", list(runs(copy)))
    assert "1 run was deleted by hand" in deleted
    assert "2 runs were copied here" in copied
    assert list((copy.data_dir / FOLDER).iterdir()) == []
    assert found("note", list(runs(copy))) == []


def test_doctor_says_how_far_it_is(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """On a pipe in lines; for programs not at all, and what they get is one JSON object."""
    seen: list[tuple[str, int | None, int, str]] = []

    @contextmanager
    def heard(label: str, total: int | None, unit: str) -> Iterator[Bar]:
        class Heard(Bar):
            def update(self, done: int, note: str = "") -> None:
                seen.append((unit, total, done, note))

        yield Heard(label, total, unit)

    for name in ("a", "b"):
        make_run(settings.runs_dir, name, samples=2, twin=False)
    assert found("ok", list(runs(settings, heard)))[0].startswith("2 whole")
    assert [row[:3] for row in seen] == [("runs", 2, 0), ("runs", 2, 1), ("runs", 2, 2)]
    assert seen[0][3].startswith("a (")
    list(models(settings, heard))
    assert seen[-1] == ("models", seen[-1][2], seen[-1][2], "")
    capsys.readouterr()
    main(["doctor", "--json", "--data-dir", str(settings.data_dir)])
    out, err = capsys.readouterr()
    assert {row["what"] for row in json.loads(out)["findings"]} >= {"runs", "models", "jobs"}
    assert err == ""
