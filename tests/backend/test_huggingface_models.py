"""Hugging Face checkpoints in a worker: loaded once, again when their files change, and described without weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_huggingface import save_tiny
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.worker.huggingface import HuggingFaceModels, huggingface_details
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.edit_values import KINDS


def test_a_checkpoint_is_loaded_once_and_again_when_its_files_change(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "tiny", "mixtral", num_hidden_layers=1)
    models = HuggingFaceModels(tmp_path)
    first = models.load("hf:tiny")
    assert models.load("hf:tiny") is first
    assert first.twin is None, "a sweep needs no untrained twin"
    save_tiny(folder, "mixtral", num_hidden_layers=1, seed=1)
    second = models.load("hf:tiny")
    assert second.sha256 != first.sha256
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError) as refused:
        models.load("hf:tiny")
    assert refused.value.field == "model"
    assert "\n" not in str(refused.value)


def test_what_jobs_may_edit_is_described_from_the_configuration_alone(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "tiny", "qwen2_moe")
    (folder / "model.safetensors").unlink()
    row = huggingface_details(tmp_path, "hf:tiny")
    assert (row["family"], row["num_steps"], row["num_modules"], row["top_k"]) == ("moe", 3, 8, 2)
    assert row["controls"]["edits"] == list(KINDS)
    for parent, name, sentence in (
        (None, "hf:tiny", "huggingface_dir"),
        (tmp_path, "hf:tyni", "did you mean 'tiny'"),
        (tmp_path / "gone", "hf:tiny", "that folder is not there"),
        (tmp_path, "hf:../tiny", "without a path"),
    ):
        with pytest.raises(Problem, match=sentence) as refused:
            huggingface_details(parent, name)
        assert (refused.value.status, refused.value.field) == (404, "model")
