"""``tokenpaths train`` from the command line: train, stop, resume, export, refuse."""

from __future__ import annotations

import os

import pytest

from tests.engine.train.test_training import data, vision_recipe  # noqa: F401
from tokenpaths.cli.main import main
from tokenpaths.engine.base.files import HolderLock
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.train import recipes

OPTIONS = ["--device", "cpu", "--threads", "1"]


@pytest.fixture
def tiny(monkeypatch):
    recipe = vision_recipe(iterations=4)
    twin = recipe.dense_twin().model_copy(update={"name": "v-dense"})
    monkeypatch.setattr(recipes, "RECIPES", {"v": recipe, "v-dense": twin})


def test_train_writes_a_checkpoint_with_its_dense_twin_on_the_card(tiny, data, tmp_path, capsys):  # noqa: F811
    common = ["--data", str(data), "--work", str(tmp_path / "work"), *OPTIONS]
    assert main(["train", "v-dense", "--out", str(tmp_path / "dense"), *common]) == 0
    out = tmp_path / "models" / "v"
    assert main(["train", "v", "--out", str(out), "--dense-twin", str(tmp_path / "dense"), *common]) == 0
    build_model(read_checkpoint(out))
    assert "dense twin, same recipe" in (out / "card.md").read_text(encoding="utf-8")
    assert "accuracy" in capsys.readouterr().out
    # Again: nothing is left to train, the same checkpoint comes out.
    before = (out / "model.safetensors").read_bytes()
    assert main(["train", "v", "--out", str(out), *common]) == 0
    assert (out / "model.safetensors").read_bytes() == before


def test_list_shows_the_recipes(tiny, capsys):
    assert main(["train", "--list"]) == 0
    assert "4 modules, 2 steps, top-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "no recipe is called 'nothing'; there are: v, v-dense"),
        (["v", "--data", "/does/not/exist"], "there is no folder"),
        (["v", "--data", "."], "v.parquet is not in the folder"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_exit_code_two(tiny, arguments, words, capsys, tmp_path):
    assert main(["train", *arguments, "--work", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_two_trainings_in_one_folder_are_refused(tiny, data, tmp_path, capsys):  # noqa: F811
    command = ["train", "v", "--out", str(tmp_path / "v"), "--data", str(data), "--work", str(tmp_path), *OPTIONS]
    lock = HolderLock(tmp_path / ".v.lock")
    lock.acquire()
    assert main(command) == 75
    said = capsys.readouterr().err
    assert f"held by process {os.getpid()}" in said
    assert "give another folder for --work" in said
    assert not (tmp_path / "v").exists()
    lock.release()
    assert main(command) == 0
    assert not (tmp_path / ".v.lock").exists()
