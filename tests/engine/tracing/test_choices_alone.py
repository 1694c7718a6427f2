"""The untrained twin is run for its choices alone: these are those of a whole pass, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.tracing.loaded_model import LoadedModel, load_model
from tokenpaths.engine.tracing.text_windows import padded
from tokenpaths.engine.tracing.traceable import ModelInput, TextWindow

MODELS = sorted(path.parent.name for path in SHIPPED_MODELS.glob("*/config.json"))


def batch_of(model: LoadedModel) -> ModelInput:
    """Two images, or two texts of different length, of random content."""
    rng = np.random.default_rng(5)
    if model.modality == "vision":
        size = model.image_size
        channels = model.checkpoint.config.channels
        raw = torch.from_numpy(rng.integers(0, 256, (2, channels, size, size), dtype=np.uint8))
        return ModelInput(raw, torch.zeros(2, dtype=torch.long), None)
    lengths = (model.context, model.context // 3)
    vocabulary = model.checkpoint.config.vocab_size
    return padded([TextWindow(rng.integers(0, vocabulary, length), None) for length in lengths])


@pytest.mark.parametrize("name", MODELS)
def test_choices_alone_are_those_of_a_whole_pass(name: str) -> None:
    model = load_model(name, [SHIPPED_MODELS], "cpu")
    batch = batch_of(model)
    for one in (model, model.untrained()):
        whole, alone = batch.ribbons(one.run(batch)), one.choose(batch)
        assert alone.dtype == whole.dtype
        np.testing.assert_array_equal(alone, whole)


def test_controls_are_heeded() -> None:
    model = load_model("dna-vision-top1", [SHIPPED_MODELS], "cpu")
    batch = batch_of(model)
    banned = model.with_controls(
        {"edits": [{"edit": "ban", "modules": [int(model.choose(batch)[0, 0, 0])], "step": 0}]}
    )
    np.testing.assert_array_equal(banned.choose(batch), batch.ribbons(banned.run(batch)))
    assert (banned.choose(batch) != model.choose(batch)).any()
