"""One call from a model or a log to an open run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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
