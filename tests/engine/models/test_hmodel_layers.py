"""H-Models of several inputs and outputs, and layers of other kinds: convolutions, pretrained and foreign ones."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.engine.models.test_hmodel import BOTH, IMAGE, TEXT, make, tokens
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.families.hmodel_config import HiddenLayerConfig
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.models.hmodel.hmodel import HModel, HModelConfig
from tokenpaths.engine.models.hmodel.pretrained_layers import check_layer, take_layer


def test_image_and_text_feed_one_model_and_either_output_trains():
    model = make(hidden=("convolution", "transformer"), **BOTH)
    images, ids = torch.randn(2, 3, 16, 16), tokens(2)
    output = model({"image": images, "text": ids})
    assert output.all_logits["predict"].shape == (2, 12, 40)
    assert output.all_logits["classify"].shape == (2, 3)
    assert (output.edges[:, 0, 2:] > 0).all()
    assert not torch.allclose(output.logits, model({"image": images + 1, "text": ids}).logits, atol=1e-3)
    loss, _ = model.training_loss({"image": images, "text": ids}, {"predict": ids, "classify": torch.tensor([0, 2])})
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    traced = model.trace({"image": images, "text": ids})
    assert traced.module_ids.shape[1] == 12  # the text's tokens: modality is text


def test_an_input_alone_does_without_the_other():
    model = make(hidden=("convolution", "transformer"), **BOTH)
    ids = tokens(2)
    edges = model(ids).edges
    assert (edges[:, 0, 2] > 0).all()
    assert (edges[:, 0, 3] == 0).all()
    with pytest.raises(UserError, match="always needs text") as error:
        model({"image": torch.randn(1, 3, 16, 16)})
    assert error.value.field == "inputs"


def test_text_after_an_image_stays_causal():
    model = make(hidden=("convolution", "transformer"), **BOTH)
    images, ids = torch.randn(1, 3, 16, 16), tokens(1)
    changed = ids.clone()
    changed[0, 6:] = (changed[0, 6:] + 3) % 40
    a, b = (model({"image": images, "text": x}).logits for x in (ids, changed))
    assert torch.allclose(a[:, :6], b[:, :6], atol=1e-6)
    assert not torch.allclose(a[:, 6:], b[:, 6:])


def test_an_input_is_no_contributor_at_the_others_positions():
    model = make(hidden=("transformer",), iterations=1, **BOTH)
    c = torch.ones(2, 3, 3)
    settings = model._settings({"connections": c})
    starts, layout = model._start({"image": torch.randn(1, 3, 16, 16), "text": tokens(1)}, None)
    _, incoming, _ = model._send_inputs(starts, layout, settings)
    assert (incoming == 1).all()  # never 2, which would halve the state


def test_images_are_convolved_over_their_grid_and_classified():
    model = make(**IMAGE, hidden=("convolution", "transformer"))
    images = torch.randn(2, 3, 16, 16)
    traced = model.trace(images)
    assert traced.logits.shape == (2, 3)
    assert traced.module_ids.shape == (2, 16, 3, 1)
    layer, layout = model.hidden[0], model._start(images, None)[1]
    x = torch.randn(1, 16, 16)
    x2 = x.clone()
    x2[0, 0] += 1  # the patch in the upper left corner reaches two patches down and right, kernel 5
    moved = (layer(x, layout) - layer(x2, layout)).abs().amax(dim=2).view(4, 4) > 1e-6
    assert moved.nonzero().amax(dim=0).tolist() == [2, 2]
    assert int(moved.sum()) == 9


def test_a_run_says_whether_tokens_or_sequences_decide():
    assert make(pooling="prefix").weight_semantics["unit"] == "token"
    assert make(pooling="sequence").weight_semantics["unit"] == "sequence"


def test_a_layer_of_another_width_works_through_projections():
    model = make(hidden=("transformer", {"kind": "transformer", "width": 24, "projection": True}))
    loss, _ = model.training_loss(tokens(), tokens())
    loss.backward()
    assert model.hidden[1].project_in.weight.grad.abs().sum() > 0
    assert model.module_table()[1].num_params > model.module_table()[0].num_params


@pytest.fixture
def bert(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "bert")
    return transformers.AutoModel.from_pretrained(tmp_path / "bert")


def test_a_layer_of_a_hugging_face_model_joins_ships_and_comes_back(bert, tmp_path):
    spec, layer = take_layer(bert, "encoder.layer.1")
    assert (spec.width, spec.projection) == (24, True)
    model = make(hidden=("transformer", spec, "convolution"), pretrained={1: layer})
    own = dict(bert.encoder.layer[1].named_parameters())
    assert all(torch.equal(p, own[n]) for n, p in model.hidden[1].layer.layer.named_parameters())
    ids = tokens()
    changed = ids.clone()
    changed[:, 8:] = (changed[:, 8:] + 5) % 40
    assert torch.equal(model(ids).logits[:, :8], model(changed).logits[:, :8])  # BERT alone looks both ways
    with torch.autocast("cpu", torch.bfloat16):
        model.training_loss(ids, ids)[0].backward()
    assert model.hidden[1].project_out.weight.grad.abs().sum() > 0
    save_checkpoint(tmp_path / "with-bert", model, dtype=torch.float32)
    again = build_model(read_checkpoint(tmp_path / "with-bert"))
    assert torch.equal(again(ids).logits, model.eval()(ids).logits)
    assert model.module_table()[1].name == "bert encoder.layer.1"
    fresh = HModel(model.config)
    assert all(torch.isfinite(p).all() for p in fresh.parameters())


def test_a_bidirectional_pretrained_layer_ignores_padding(bert):
    spec, layer = take_layer(bert, "encoder.layer.0")
    model = make(hidden=("transformer", spec), pretrained={1: layer}, task="classify", num_classes=3)
    ids, valid = tokens(2), torch.ones(2, 12, dtype=torch.bool)
    valid[0, 9:] = False
    assert torch.allclose(model(ids, valid=valid).logits[0], model(ids[:1, :9]).logits[0], atol=1e-4)


def test_pretrained_layers_that_cannot_join_are_refused(bert):
    with pytest.raises(UserError, match="no layer 'encoder.layers.0'; its layers are named like 'encoder.layer.0'"):
        take_layer(bert, "encoder.layers.0")
    with pytest.raises(UserError, match="keeps tensors that no checkpoint would hold"):
        take_layer(bert, "embeddings")
    with pytest.raises(UserError, match="cannot run on a state alone"):
        take_layer(bert, "embeddings.word_embeddings")
    spec, layer = take_layer(bert, "encoder.layer.0", projection=False)
    with pytest.raises(ValidationError, match=r"hidden.0.projection is off, but the layer's width 24"):
        HModelConfig(**TEXT, hidden=(spec,), iterations=1)
    layer.attention.self.query.weight.data[0, 0] = float("nan")
    with pytest.raises(UserError, match="holds NaN"):
        take_layer(bert, "encoder.layer.0")


def test_without_transformers_the_refusal_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    spec = HiddenLayerConfig(kind="pretrained", width=16, path="layer.0", architecture={"model_type": "bert"})
    with pytest.raises(UserError, match="run `pip install transformers`") as error:
        HModel(HModelConfig(**TEXT, hidden=(spec,), iterations=1))
    assert error.value.field == "hidden"


class Foreign(nn.Module):
    """Called as Hugging Face calls its layers; ``wrong`` makes it unfit."""

    def __init__(self, wrong: str = ""):
        super().__init__()
        self.weight, self.wrong = nn.Parameter(torch.ones(16)), wrong

    def forward(self, hidden_states, attention_mask=None):
        x = hidden_states * self.weight
        if self.wrong == "looks ahead":
            x = x + x.mean(dim=1, keepdim=True)
        return (torch.cat((x, x), dim=2) if self.wrong == "wider" else x,)


FOREIGN = dict(kind="pretrained", width=16, path="x", architecture={"model_type": "foreign"})


def test_a_foreign_layer_needs_no_transformers_when_it_is_given():
    model = make(hidden=("transformer", FOREIGN), pretrained={1: Foreign()})
    model.training_loss(tokens(), tokens())[0].backward()
    assert model.hidden[1].layer.layer.weight.grad.abs().sum() > 0
    with pytest.raises(UserError, match="hidden.0 is not of kind 'pretrained'"):
        make(hidden=("transformer",), pretrained={0: Foreign()})


def test_a_foreign_layer_must_keep_the_width_and_the_order_of_time():
    with pytest.raises(UserError, match="turns 16 values into 32"):
        check_layer(Foreign("wider"), HiddenLayerConfig(**FOREIGN))
    with pytest.raises(UserError, match="cannot be a hidden layer of a next-token model"):
        make(hidden=("transformer", FOREIGN), pretrained={1: Foreign("looks ahead")})
    make(hidden=("transformer", FOREIGN), pretrained={1: Foreign("looks ahead")}, task="classify", num_classes=3)
