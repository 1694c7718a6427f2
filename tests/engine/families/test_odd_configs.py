"""Configurations of strangers: whatever a ``config.json`` is, reading it ends at once, in values or in a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tokenpaths.engine.adapters.huggingface.config import layout_of, list_checkpoints, read_config
from tokenpaths.engine.base import model_folders
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.model_folders import MOST_NESTED, read_model_config, subfolders
from tokenpaths.engine.families.checkpoint_config import CheckpointError, list_models, read_checkpoint
from tokenpaths.engine.jobs.model_outline import FamilyOutline

DEEP = b'{"a": ' * 100_000
NESTED = b'{"a": ' * (MOST_NESTED + 1) + b"1" + b"}" * (MOST_NESTED + 1)


def config_in(folder: Path, content: bytes | str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (DEEP, "nested more than 32 deep"),
        (NESTED, "nested more than 32 deep"),
        (b"[]", "no JSON object"),
        (b"\xff", "utf-8"),
        (b'{"a": "\\ud800"}', "surrogates"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300"),
        (b"{" + b" " * 1000, "larger than"),
    ],
)
def test_what_is_no_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
) -> None:
    if problem == "larger than":
        monkeypatch.setattr(model_folders, "MOST_CONFIG_BYTES", 1000)
    folder = config_in(tmp_path / "m", content)
    with pytest.raises(ValueError, match=problem):
        read_model_config(folder)
    with pytest.raises(CheckpointError, match="m: config.json cannot be used"):
        read_checkpoint(folder)
    with pytest.raises(UserError, match=r"config\.json of m"):
        read_config(folder)
    assert [row["model"] for row in list_models([tmp_path]) if row["problem"]] == ["m"]
    assert list_checkpoints(tmp_path) == []


def test_a_configuration_can_be_answered(tmp_path: Path) -> None:
    """Numbers that JSON lacks become texts; what is as deep as may be is read."""
    deepest = json.loads(NESTED.replace(b'{"a": ', b"", 1).removesuffix(b"}"))
    content = f'{{"family": "dna", "validation": {{"loss": NaN, "odd": -1e999, "plain": 1e3}}, "x": {json.dumps("é")}}}'
    config = read_model_config(config_in(tmp_path / "m", content))
    assert config["validation"] == {"loss": "NaN", "odd": "-1e999", "plain": 1000.0}
    json.dumps(config, allow_nan=False)
    assert read_model_config(config_in(tmp_path / "deep", json.dumps(deepest))) == deepest


def test_a_pipe_and_a_folder_are_no_configurations(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")  # opening it would wait for a writer
    (tmp_path / "folder" / "config.json").mkdir(parents=True)
    for name in ("pipe", "folder"):
        with pytest.raises(ValueError, match="no file"):
            read_model_config(tmp_path / name)
    assert list_checkpoints(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    "about",
    [
        {"family": ["dna"], "config": {}},
        {"family": {"dna": 1}, "config": {}},
        {"family": "dna", "config": []},
        {"family": "dna", "config": {"steps": "x"}},
        {"family": "raytracing", "config": {"layers": 10**12, "blocks": 10**12}},
        {"family": "dna", "config": {"transformers": 10**12, "router": "expert"}},
    ],
)
def test_odd_values_are_a_sentence(tmp_path: Path, about: dict) -> None:
    with pytest.raises(CheckpointError, match="cannot be used"):
        read_checkpoint(config_in(tmp_path / "m", json.dumps(about)))


def test_numbers_that_nothing_can_be_counted_by_are_refused() -> None:
    """Checks of a request loop over some of them."""
    for config in ({"num_experts": 8, "num_hidden_layers": 10**15}, {"num_experts": 10**15}):
        with pytest.raises(UserError, match="at most 65,536"):
            layout_of(config)
    for family, config in (("dipaco", {"levels": [10**12]}), ("dna", {"transformers": 10**12})):
        with pytest.raises(UserError, match="the most that is built here") as caught:
            FamilyOutline("m", {"family": family, "config": config}).check_controls(None)
        assert caught.value.field == "model"


def test_folders_that_cannot_be_read_or_vanish_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a", "gone"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    is_dir = Path.is_dir

    def vanishing(self: Path) -> bool:
        if self.name == "gone":
            raise PermissionError(13, "Permission denied")
        return is_dir(self)

    monkeypatch.setattr(Path, "is_dir", vanishing)
    assert [folder.name for folder in subfolders(tmp_path)] == ["a", "b"]
    assert subfolders(tmp_path / "nowhere") == subfolders(tmp_path / "file") == []
