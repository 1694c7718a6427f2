"""One call from a model or a log to an open run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tokenpaths
from tests.backend.conftest import make_models
from tokenpaths.engine.base.errors import UserError


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


def test_texts_given_as_a_list_become_the_samples(models, tmp_path):
    texts = ["the cat sat on the mat", "the moon looked at the cat", "the end"]
    run = tokenpaths.trace(models / "tiny-text", texts, run="mine", folder=tmp_path, limit=2)
    assert run.file == tmp_path / "mine.duckdb"
    assert run.frames.table("sample")["text"].tolist() == texts[:2]
    assert run.fit()["untrained"]["num_tokens"] == run.row["num_tokens"]


@pytest.fixture
def settings(models, tmp_path, monkeypatch) -> Path:
    """A settings file that names a data folder and a folder of models."""
    file = tmp_path / "settings.toml"
    file.write_text(f"data_dir = '{tmp_path / 'chosen'}'\nmodels_dirs = ['{models}']\n")
    monkeypatch.setenv("TOKENPATHS_SETTINGS_FILE", str(file))
    return file


def test_folders_of_the_settings_file_are_those_of_the_command_line(settings, models, tmp_path):
    from tests.support.recorder_models import language, tokens
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.engine.base.files import data_dir
    from tokenpaths.engine.base.model_folders import models_folders

    command_line = load_settings()
    assert data_dir() == command_line.data_dir
    assert models_folders(data_dir()) == command_line.all_models_dirs
    run = tokenpaths.trace("tiny-text", ["the cat sat"], run="mine", twin=False)
    assert run.file == tmp_path / "chosen" / "runs" / "mine.duckdb"
    model = language()
    with tokenpaths.record(model, run="recorded"):
        model(tokens(seed=1))
    assert {row.run for row in tokenpaths.runs()} == {"mine", "recorded"}


def test_folders_of_the_environment_come_before_the_file(settings, tmp_path, monkeypatch):
    from tokenpaths.engine.base.files import data_dir
    from tokenpaths.settings_file import folders_setting

    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("TOKENPATHS_MODELS_DIRS", os.pathsep.join(["/a", "", "/b"]))
    assert data_dir() == tmp_path / "other"
    assert folders_setting("models_dirs") == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("data_dir = 3", "data_dir", "should name a folder; given 3"),
        ("data_dir = ''", "data_dir", "should name a folder; given ''"),
        ("models_dirs = [1]", "models_dirs", r"should be a list of folders; given \[1\]"),
        ("data_dir = ", "settings_file", "cannot be read"),
    ],
)
def test_settings_files_that_give_no_folder_are_explained(settings, text, field, words):
    from tokenpaths.engine.base.model_folders import models_folders

    settings.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        models_folders() if field == "models_dirs" else tokenpaths.runs()
    assert caught.value.field == field


def test_controls_and_the_untrained_twin_are_runs_without_a_null(models, tmp_path):
    ask = {"edits": [{"edit": "ban", "modules": [0]}]}
    banned = tokenpaths.trace(models / "tiny-text", ["the cat sat"], folder=tmp_path, run="banned", controls=ask)
    twin = tokenpaths.trace(models / "tiny-text", ["the cat sat"], folder=tmp_path, run="twin", untrained=True)
    assert not (banned.frames.flow()[["source", "target"]] == 0).to_numpy().any()
    assert twin.row["model"] == "tiny-text-untrained"
    assert banned.fit()["untrained"] is None
    assert twin.fit()["untrained"] is None


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda models, folder: tokenpaths.trace(models / "tiny-vision", ["a text"], folder=folder), "takes images"),
        (lambda models, folder: tokenpaths.trace(models / "tiny-text", [3], folder=folder), "holds a int"),
        (lambda models, folder: tokenpaths.trace(models / "tiny-text", [], folder=folder), "no sample"),
        (lambda models, folder: tokenpaths.trace("no-such-model", ["a"], folder=folder), "no model is called"),
        (lambda models, folder: tokenpaths.trace("hf:x/y", ["a"], untrained=True, folder=folder), "cannot be fetched"),
        (lambda models, folder: tokenpaths.import_log(models / "nothing.npz", folder=folder), "nothing.npz"),
    ],
)
def test_what_makes_no_sense_is_said_and_nothing_is_left(models, tmp_path, ask, words):
    with pytest.raises(UserError, match=words):
        ask(models, tmp_path)
    assert not list(tmp_path.rglob("*.duckdb"))


@pytest.mark.parametrize("table", [pd.DataFrame({"text": ["the cat", "the end"]}), {"text": ["the cat"]}], ids=type)
def test_a_table_is_not_taken_for_the_names_of_its_columns(models, tmp_path, table):
    with pytest.raises(UserError, match=r"give the column that holds them, such as data\[\"text\"\]"):
        tokenpaths.trace(models / "tiny-text", table, run="mine", folder=tmp_path)
    assert not list(tmp_path.iterdir())
    run = tokenpaths.trace(models / "tiny-text", table["text"], run="mine", folder=tmp_path)
    assert run.row["num_samples"] == len(table["text"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"experts": "8"}, "experts is '8', it should be a whole number"),
        ({"run": 5}, "run is 5, it should be a text"),
        ({"folder": 5}, "folder is 5, it should be a path"),
        ({"file": 5}, "file is 5, it should be a path"),
        ({"file": None}, "file is None, it should be the path of a log"),
    ],
)
def test_an_argument_of_another_kind_is_no_damaged_log(tmp_path, given, words):
    np.save(tmp_path / "log.npy", np.zeros((4, 2, 1), dtype=np.uint8))
    with pytest.raises(UserError, match=words):
        tokenpaths.import_log(**{"file": tmp_path / "log.npy", "folder": tmp_path / "runs"} | given)


def test_a_log_is_a_run_at_once(tmp_path):
    ids = np.random.default_rng(0).random((50, 3, 8)).argsort(axis=2)[:, :, :2].astype(np.uint8)
    np.savez(tmp_path / "log.npz", ids=ids, num_experts=8)
    run = tokenpaths.import_log(tmp_path / "log.npz", run="log", folder=tmp_path)
    assert run.row["num_tokens"] == 50
    assert run.frames.usage()["count"].sum() == 50 * 3 * 2


def test_an_object_that_meets_the_protocol_is_traced_like_a_checkpoint(models, tmp_path):
    """A model of one's own: whatever offers what ``Traceable`` asks for."""
    from tokenpaths.engine.tracing.loaded_model import load_model
    from tokenpaths.engine.tracing.traceable import Traceable

    inner = load_model(models / "tiny-text", [], "cpu")

    class Mine:
        """Passes everything on, under a name of its own, and brings no twin."""

        name, has_small_twin = "mine", False

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def run_fields(self) -> dict:
            return inner.run_fields() | {"model": self.name}

    assert isinstance(Mine(), Traceable)
    texts = ["the cat sat on the mat"]
    run = tokenpaths.trace(Mine(), texts, folder=tmp_path, run="own")
    same = tokenpaths.trace(models / "tiny-text", texts, folder=tmp_path, run="same", device="cpu")
    assert run.row["model"] == "mine"
    assert run.paths(limit=20)["paths"] == same.paths(limit=20)["paths"]
    assert run.fit()["untrained"] is None
    assert same.fit()["untrained"] is not None
