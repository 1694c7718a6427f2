"""What an H-Model refuses: configurations, controls, inputs and numbers that cannot work."""

from __future__ import annotations

import json

import pytest
import torch
from pydantic import ValidationError

from tests.engine.models.test_hmodel import BOTH, IMAGE, TEXT, make, tokens
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import CheckpointError, read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.models.hmodel.hmodel import HModel, HModelConfig
from tokenpaths.engine.models.hmodel.plain_transformer import chain_connections, plain_transformer


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(hidden=("transformer", {"width": 24})), r"hidden.1.projection is off.*width 24 .*shared width 16"),
        (dict(hidden=({"width": 15, "projection": True},)), "hidden.0.width 15 is not a multiple of heads 2"),
        (dict(hidden=()), "hidden"),
        (dict(hidden=("transformer", "perceptron")), "hidden.1.kind"),
        (dict(hidden=({"kind": "convolution", "kernel": 4},)), "kernel is 4; it must be odd"),
        (dict(hidden=({"kind": "pretrained", "width": 16},)), "needs architecture, path and width"),
        (dict(hidden=({"kind": "transformer", "path": "x"},)), "belong to pretrained layers"),
        (dict(route_top_k=5), "route_top_k is 5, but a layer has 4 targets"),
        (dict(route_top_k=0), "route_top_k"),
        (dict(alpha=0), "alpha"),
        (dict(alpha=-1.0), "alpha"),
        (dict(alpha=float("nan")), "alpha"),
        (dict(alpha_rate=0.0), "alpha_rate"),
        (dict(iterations=0), "iterations"),
        (dict(inputs=("image",)), "lack 'text'"),
        (dict(inputs=("text", "text")), "name one of them twice"),
        (dict(outputs=("classify",), num_classes=3), "task 'predict' is not among"),
        (dict(task="classify"), "num_classes is missing"),
        (dict(modality="vision"), "no input is a text"),
        (dict(pooling="median"), "pooling"),
        (dict(surprise=1), "surprise"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_words(changes, words):
    good = TEXT | dict(hidden=("transformer", "convolution", "transformer"), iterations=2)
    HModelConfig(**good)
    with pytest.raises(ValidationError, match=words):
        HModelConfig(**(good | changes))


@pytest.mark.parametrize(
    ("controls", "field"),
    [
        (dict(alpha=0.0), "alpha"),
        (dict(alpha=float("nan")), "alpha"),
        (dict(alpha_rate=-1.0), "alpha_rate"),
        (dict(alpha_rate=1e-200), "alpha_rate"),
        (dict(top_k=0), "top_k"),
        (dict(top_k=5), "top_k"),
        (dict(connections=torch.zeros(4, 4, 5)), "connections"),
        (dict(connections=torch.full((4, 4, 4), 1.5)), "connections"),
        (dict(connections=torch.full((4, 4, 4), float("nan"))), "connections"),
    ],
)
def test_a_control_that_cannot_work_is_refused_by_name(controls, field):
    with pytest.raises(UserError) as error:
        make()(tokens(), **controls)
    assert error.value.field == field
    assert field in str(error.value)


def test_the_live_controls_are_those_of_the_family():
    model = make()
    controls = HModel.read_controls({"alpha": 0.5, "top_k": 2})
    traced = model.trace_with(tokens(), None, controls)
    assert torch.equal(traced.edges, model(tokens(), alpha=0.5, top_k=2).edges)
    assert not torch.allclose(traced.edges, model.trace_with(tokens(), None, HModel.read_controls(None)).edges)
    for values, field in (({"alpha": 0}, "alpha"), ({"alpha_rate": "x"}, "alpha_rate"), ({"tau": 1}, "tau")):
        with pytest.raises(UserError) as error:
            HModel.read_controls(values)
        assert error.value.field == field


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="13 tokens do not fit the model's context of 12"):
        make()(tokens(length=13))
    with pytest.raises(UserError, match="expects 16"):
        make(**IMAGE)(torch.randn(1, 3, 12, 12))


def test_nan_in_a_gate_is_named():
    model = make()
    model.connections[1].out.bias.data[0] = float("nan")
    with pytest.raises(UserError, match="convolution 0 emitted NaN connections at iteration 1"):
        model.trace(tokens())


def test_nan_in_a_weight_is_refused_when_the_checkpoint_is_opened(tmp_path):
    model = make()
    save_checkpoint(tmp_path / "good", model, dtype=torch.float32)
    again = build_model(read_checkpoint(tmp_path / "good"))
    assert again.config == model.config
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    model.connections[0].up.weight.data[0, 0] = float("nan")
    save_checkpoint(tmp_path / "bad", model, dtype=torch.float32)
    with pytest.raises(CheckpointError, match="connections.0.up.weight holds NaN"):
        build_model(read_checkpoint(tmp_path / "bad"))


def test_a_configuration_survives_json():
    model = make(**BOTH, hidden=("transformer", {"kind": "convolution", "kernel": 3}))
    written = json.loads(model.config.model_dump_json())
    assert HModelConfig(**written) == model.config


def test_a_plain_transformer_is_refused_where_there_is_none():
    with pytest.raises(UserError, match="one input"):
        plain_transformer(make(**BOTH).config)
    with pytest.raises(UserError, match="takes 3 hidden|takes 3 iterations"):
        chain_connections(make(iterations=2).config)
    assert plain_transformer(HModelConfig(**IMAGE, hidden=("transformer",) * 2, iterations=1)).backbone == 2


def test_training_numbers_are_shares():
    model = make()
    _, edges = model.training_loss(tokens(), tokens())
    numbers = model.training_numbers(edges)
    own = sum(float(edges[:, i, h, h].sum()) for i in (1, 2) for h in range(3))
    assert numbers["self_share"] == pytest.approx(own / float(edges[:, 1:3, :3].sum()))
    once = make(iterations=1)
    assert once.training_numbers(once.training_loss(tokens(), tokens())[1]).keys() == {"mean_connection"}
