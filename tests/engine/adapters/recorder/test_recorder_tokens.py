"""Which tokens a pass is about: ids and masks among the inputs of the layouts that people use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.adapters.recorder.test_recorder import expected, recorded
from tests.support.recorder_models import VOCABULARY, WIDTH, Language, LinearMoE, language, tokens
from tokenpaths.engine.adapters.recorder.forward_pass import _has_events
from tokenpaths.engine.adapters.recorder.recorder import record

KEEP = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Translator(nn.Module):
    """An encoder and a decoder; both have routers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Language(layers=1), Language(layers=1)

    def forward(self, input_ids=None, attention_mask=None, decoder_input_ids=None, decoder_attention_mask=None):
        if input_ids is not None:
            self.encoder(input_ids)
        return self.decoder(tokens(seed=9) if decoder_input_ids is None else decoder_input_ids)


@pytest.fixture
def translator() -> Translator:
    torch.manual_seed(0)
    return Translator()


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_ids_of_an_encoder_and_a_decoder_of_one_length_are_not_guessed(tmp_path, translator, part):
    ids, answers = tokens(), tokens(seed=2)
    with record(translator, run="mine", routers=f"{part}.*.gate", runs_dir=tmp_path) as rec:
        translator(ids, attention_mask=KEEP, decoder_input_ids=answers)
        translator(ids, attention_mask=KEEP)  # its own ids, made of labels
    assert rec.run.row["num_tokens"] == 42
    assert (recorded(rec.run)[2] == -1).all()
    (note,) = rec.notes
    assert note.startswith(
        "the model has an encoder and a decoder, and shapes do not tell whose tokens the routers saw"
    )
    with record(translator, run="said", routers=f"{part}.*.gate", runs_dir=tmp_path) as rec:
        rec.batch(input_ids=answers, mask=KEEP)
        translator(ids, decoder_input_ids=answers)
    assert rec.notes == []
    assert np.array_equal(recorded(rec.run)[2], answers[KEEP.bool()].numpy())


def test_ids_of_an_encoder_and_a_decoder_of_two_lengths_are_told_apart(tmp_path, translator):
    ids, answers = tokens(), tokens(3, 5, seed=2)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 3:] = False
    with record(translator, run="d", routers="decoder.*.gate", runs_dir=tmp_path) as rec:
        translator(ids, KEEP, answers, mask)
        translator(attention_mask=KEEP, decoder_input_ids=answers, decoder_attention_mask=mask, input_ids=ids)
    assert np.array_equal(recorded(rec.run)[2], answers[mask].repeat(2).numpy())
    with record(translator, run="e", routers="encoder.*.gate", runs_dir=tmp_path) as rec:
        translator(ids, KEEP, answers, mask)
    assert np.array_equal(recorded(rec.run)[2], ids[KEEP.bool()].numpy())
    assert rec.notes == []


class TimeFirst(Language):
    """Takes (T, B) ids, and a mask of either order."""

    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids)


@pytest.mark.parametrize("mask", [KEEP, KEEP.T], ids=["B T", "T B"])
def test_a_mask_of_a_model_that_runs_time_first(tmp_path, mask):
    torch.manual_seed(0)
    model, ids = TimeFirst(layers=1), tokens(3, 7)
    with record(model, run="mine", batch_first=False, runs_dir=tmp_path) as rec:
        model(ids.T, attention_mask=mask)
    assert rec.notes == []
    assert rec.run.row["num_tokens"] == 15
    assert np.array_equal(recorded(rec.run)[2], ids[KEEP.bool()].numpy())


class Prompted(Language):
    """Puts two vectors before every text."""

    def forward(self, input_ids, attention_mask=None):
        prompt = torch.zeros(input_ids.shape[0], 2, dtype=torch.long)
        return super().forward(torch.cat([prompt, input_ids], dim=1))


@pytest.mark.parametrize(
    ("model", "mask", "what"),
    [
        (Prompted, KEEP, r"of shape (3, 7) does not fit the 3 × 9 tokens that the routers saw"),
        (Language, torch.ones(3, 2, 7, 7), "has shape (3, 2, 7, 7), not (B, T)"),
        (Language, torch.ones(3, 6), "of shape (3, 6) does not fit the 3 × 7 tokens that the routers saw"),
        (Language, KEEP.tolist(), "is list, not (B, T)"),
        (Language, {"full_attention": object(), "sliding_attention": None}, "is object, not (B, T)"),
    ],
    ids=["prompt", "four axes", "shorter", "list", "mapping"],
)
def test_a_mask_that_does_not_fit_is_noted(tmp_path, model, mask, what):
    torch.manual_seed(0)
    model = model(layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens(), attention_mask=mask)
        model(tokens(seed=2), attention_mask=mask)
    assert rec.notes[-1].startswith(f"the model's attention_mask {what}: padding, if there is any, was recorded too")
    assert rec.run.info()["findings"]["notes"] == rec.notes
    assert rec.run.row["num_tokens"] >= 42


def test_a_mask_that_is_added_to_the_scores_of_all_heads(tmp_path):
    model = language(layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens(), attention_mask=torch.where(KEEP == 1, 0.0, float("-inf"))[:, None, None])
    assert rec.notes == []
    assert np.array_equal(recorded(rec.run)[2], tokens()[KEEP.bool()].numpy())


def test_padding_is_what_no_token_of_a_causal_mask_looks_at(tmp_path):
    model = language(layers=1)
    may_look = torch.ones(7, 7, dtype=torch.bool).tril() & KEEP.bool()[:, None] & KEEP.bool()[:, :, None]
    for run, mask in (("bool", may_look[:, None]), ("added", torch.where(may_look, 0.0, -1e9)[:, None])):
        with record(model, run=run, runs_dir=tmp_path) as rec:
            model(tokens(), attention_mask=mask)
        assert rec.notes == []
        assert np.array_equal(recorded(rec.run)[2], tokens()[KEEP.bool()].numpy())


def test_the_end_of_a_mask_is_that_of_tokens_behind_a_cache(tmp_path):
    """A prompt in two chunks; the mask of the second holds the first as well."""
    model, ids = language(layers=1), tokens(3, 7)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(ids[:, :4], attention_mask=KEEP[:, :4])
        model(ids[:, 4:], attention_mask=KEEP)
    own = torch.cat([ids[:, :4][KEEP[:, :4].bool()], ids[:, 4:][KEEP[:, 4:].bool()]])
    assert np.array_equal(recorded(rec.run)[2], own.numpy())
    (note,) = rec.notes
    assert "its last columns were taken for theirs" in note


def test_the_end_of_a_mask_of_vectors_behind_a_cache(tmp_path):
    class Vectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.moe = LinearMoE()

        def forward(self, attention_mask, inputs_embeds):
            return self.moe(inputs_embeds)

    model, x = Vectors(), torch.randn(3, 2, WIDTH)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(KEEP, x)
    assert np.array_equal(recorded(rec.run)[0][:, 0], model.moe.choose(x[KEEP[:, 5:].bool()])[0].numpy())


def test_notes_of_changing_shapes_are_said_once(tmp_path):
    model = language(layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for length in range(2, 7):
            model(tokens(3, 7), attention_mask=torch.ones(3, length))
    assert len(rec.notes) == 1


# What of the model is written -------------------------------------------------------------------------------------


class Config:
    def __init__(self, name: str) -> None:
        self.name_or_path = self._name_or_path = name
        self.hidden_size, self.pad_token_id, self.eos_token = WIDTH, 0, "</s>"
        self.api_key = self.HF_TOKEN = "sk-123"
        self.data = {"cache_dir": "/home/somebody/cache/", "files": ["C:\\data\\a.txt"], "password": "sk-123"}
        self.text_config = {"_name_or_path": name, "vocab_size": VOCABULARY, "odd": object()}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("/home/somebody/models/tiny/", "tiny"),
        ("somebody/tiny", "somebody/tiny"),
        ("C:\\models\\tiny", "tiny"),
        ("./tiny", "tiny"),
        ("../..", "Language"),
    ],
)
def test_a_run_says_nothing_of_folders_and_secrets(tmp_path, name, kept):
    model = language(layers=1)
    model.config = Config(name)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    info = rec.run.info()
    assert info["model"] == kept
    assert "sk-123" not in str(info)
    config = rec.run.info()["config"]
    config.pop("recorder")
    assert config == {
        "hidden_size": WIDTH,
        "pad_token_id": 0,
        "eos_token": "</s>",
        "data": {"cache_dir": "cache", "files": ["a.txt"]},
        "text_config": {"vocab_size": VOCABULARY},
    }


def test_a_copy_that_no_event_tells_of_is_waited_for():
    """On Apple GPUs a copy that does not block is read before it has arrived."""
    assert not _has_events(torch.zeros(2))
    assert not _has_events(torch.zeros(2, device="meta"))


def test_a_configuration_that_holds_itself(tmp_path):
    model = language(layers=1)
    model.config = Config("a")
    model.config.data["again"] = model.config.data
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert rec.run.info()["config"]["hidden_size"] == WIDTH
    assert np.array_equal(recorded(rec.run)[0], expected(model, [tokens()])[0])
