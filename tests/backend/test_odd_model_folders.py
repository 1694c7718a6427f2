"""Folders of models that cannot be read, or are gone when they are looked at: the others are listed all the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.conftest import SECRET
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.settings import load_settings
from tokenpaths.backend.worker.loaded_models import LoadedModels, folder_identity
from tokenpaths.engine.base.errors import UserError


@pytest.fixture
def models(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModels:
    """A folder of models on a disk of its own, with a file system's ``lost+found`` and a folder of somebody else."""
    disk = tmp_path / "disk"
    shutil.copytree(models_dir / "tiny-text", disk / "tiny-text")
    (disk / "odd").mkdir()
    (disk / "odd" / "config.json").write_bytes(b'{"family": ["dna"], "a": ' + b"[" * 100_000)
    shut = [disk / "lost+found", disk / "private"]
    for folder in shut:
        folder.mkdir()
    iterdir, stat = Path.iterdir, Path.stat

    def listed(self: Path) -> Iterator[Path]:
        if self in shut:
            raise PermissionError(13, "Permission denied", str(self))
        return iterdir(self)

    def looked_at(self: Path, **options: bool) -> object:
        if self.parent in shut:
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, **options)

    monkeypatch.setattr(Path, "iterdir", listed)
    monkeypatch.setattr(Path, "stat", looked_at)
    options = {"models_dirs": (disk, tmp_path / "nowhere"), "huggingface_dir": disk, "worker_secret": SECRET}
    return LoadedModels(load_settings(data_dir=tmp_path / "data", **options))


def test_models_beside_a_folder_that_cannot_be_read_are_listed(models: LoadedModels) -> None:
    rows = {row["model"]: row["problem"] for row in models.rows()}
    assert rows["tiny-text"] is None
    assert rows["private"] == "private: config.json cannot be read: Permission denied"
    assert "nested" in rows["odd"]
    assert not any("lost" in name for name in rows)
    assert models.rows() == models.rows()


def test_such_folders_are_described_and_refused(models: LoadedModels) -> None:
    for name in ("private", "odd"):
        details = models.details(name)
        assert (details["config"], details["card"], details["controls"]) == (None, None, None)
        json.dumps(details, allow_nan=False)
        with pytest.raises(UserError, match="config.json cannot be"):
            models.load_for_job(name)
    for name in ("hf:private", "hf:odd", "hf:lost+found"):
        with pytest.raises(Problem) as caught:
            models.row(name)
        assert caught.value.status == 404


def test_a_file_that_vanishes_while_it_is_looked_at_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model.safetensors", ".model.safetensors.x.tmp"):
        (tmp_path / name).write_bytes(b"1234")
    stat = Path.stat

    def gone(self: Path, **options: bool) -> object:
        if self.suffix == ".tmp":
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", gone)
    assert [row[:2] for row in folder_identity(tmp_path)] == [("model.safetensors", 4)]
    assert folder_identity(tmp_path / "gone") == ()
