"""Names, folders, files that appear at once, and locks that die with their holder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import (
    HolderLock,
    atomic_file,
    atomic_folder,
    check_name,
    data_dir,
    is_name,
    replace_folder,
    restore_folder,
    run_file,
    runs_dir,
    write_atomically,
    write_new,
)


@pytest.mark.parametrize("name", ["a", "run-1", "A_b-C9", "0", "x" * 64])
def test_names_that_are_names(name: str):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a\0",
        "a\n",
        "-a",
        "_a",
        ".a",
        "a.duckdb",
        "é",
        "x" * 65,
        "a b",
        "CON",
        "nul",
        "Com1",
        "%2e",
        "~",
        "$HOME",
    ],
)
def test_names_that_are_not(name: str, tmp_path: Path):
    assert not is_name(name)
    with pytest.raises(UserError, match="1 to 64 letters"):
        run_file(tmp_path, name)


def test_the_flag_beats_the_environment_beats_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path / "env"))
    assert data_dir(tmp_path / "flag") == tmp_path / "flag"
    assert data_dir() == tmp_path / "env"
    assert runs_dir() == tmp_path / "env" / "runs"
    monkeypatch.delenv("TOKENPATHS_DATA_DIR")
    assert data_dir().name == "tokenpaths"
    assert not (tmp_path / "env").exists()


def test_a_failed_write_keeps_the_old_file(tmp_path: Path):
    file = tmp_path / "deep" / "x.json"
    write_atomically(file, b"old")
    with pytest.raises(RuntimeError), atomic_file(file) as temporary:  # noqa: PT012
        temporary.write_bytes(b"half of the n")
        raise RuntimeError
    assert file.read_bytes() == b"old"
    assert [p.name for p in file.parent.iterdir()] == ["x.json"]
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


@pytest.mark.skipif(os.name == "nt", reason="no umask")
@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_who_may_read_what_is_written_is_the_umasks_to_say(tmp_path: Path, umask: int, mode: int):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "x.json", b"x")
        write_new(tmp_path / "y.json", b"y")
        with atomic_folder(tmp_path / "z"):
            pass
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {"x.json": mode, "y.json": mode, "z": 0o777 & ~umask}


def test_a_lock_is_held_once_and_can_be_taken_again(tmp_path: Path):
    first, second = HolderLock(tmp_path / "l"), HolderLock(tmp_path / "l")
    first.acquire()
    with pytest.raises(UserError, match="held by process"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_takes_the_place_of_another_and_a_kill_between_loses_neither(tmp_path: Path, monkeypatch):
    old, new = tmp_path / "shard", tmp_path / "partial"
    for folder in (old, new):
        folder.mkdir()
        (folder / "of.txt").write_text(folder.name)
    replace, moved = os.replace, []

    def killed_at_the_second(source, target):
        if moved:
            raise KeyboardInterrupt
        moved.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(new, old)
    monkeypatch.undo()
    assert not old.exists()
    assert (new / "of.txt").read_text() == "partial"
    restore_folder(old)
    assert (old / "of.txt").read_text() == "shard"
    replace_folder(new, old)
    assert (old / "of.txt").read_text() == "partial"
    assert [file.name for file in tmp_path.iterdir()] == ["shard"]
    restore_folder(old)
    assert (old / "of.txt").read_text() == "partial"
