"""Interventions of Directional Routing, and the controls of a trace that become them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.engine.models.test_directional import POOLINGS, lively, small, tokens
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.directional import Directional
from tokenpaths.engine.models.directional_gates import FULL, NEUTRAL, OFF, GateEdit, Interventions, mean_gates


def gates_under(model: Directional, interventions: Interventions | None) -> torch.Tensor:
    return model(tokens(), interventions=interventions).gates


@pytest.mark.parametrize("value", [OFF, NEUTRAL, FULL])
def test_everywhere_sets_all_gates_or_those_of_some_layers(value):
    model = lively(small())
    assert (gates_under(model, Interventions.everywhere(value)) == value).all()
    gates = gates_under(model, Interventions.everywhere(value, (1,)))
    assert (gates[:, :, 1] == value).all()
    assert torch.equal(gates[:, :, 0], gates_under(model, None)[:, :, 0])
    assert not (gates[:, :, 2] == value).any()


def test_edits_reach_one_layer_head_and_direction_and_later_ones_win():
    model = lively(small())
    edits = (GateEdit(FULL, layer=0), GateEdit(OFF, layer=0, head=2), GateEdit(NEUTRAL, layer=0, head=2, direction=1))
    gates = gates_under(model, Interventions(edits))[:, :, 0]
    assert (gates[:, :, :2] == 1).all()
    assert (gates[:, :, 2, 0] == 0).all()
    assert (gates[:, :, 2, 1] == 0.5).all()


def test_a_knocked_out_head_adds_nothing():
    """The same as a head whose columns of the output projection are zero."""
    model, twin = lively(small()), lively(small())
    with torch.no_grad():
        twin.layers[1].attention.proj.weight[:, 8:16] = 0
    out = model(tokens(), interventions=Interventions(knocked_out=((1, 1),))).logits
    assert torch.allclose(out, twin(tokens()).logits, atol=1e-5)
    assert not torch.allclose(out, model(tokens()).logits, atol=1e-3)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_swapped_gates_are_the_other_inputs(pooling):
    model = lively(small(pooling=pooling))
    a, b = tokens(1), tokens(1, seed=5)
    own, other = model(a), model(b)
    swapped = model(a, interventions=Interventions.swapped(other.gates))
    assert torch.equal(swapped.gates, other.gates)
    assert not torch.allclose(swapped.logits, own.logits, atol=1e-4)
    assert torch.allclose(model(a, interventions=Interventions.swapped(own.gates)).logits, own.logits, atol=1e-6)
    late = model(a, interventions=Interventions.swapped(other.gates, (2,)))
    assert torch.equal(late.gates[:, :, :2], own.gates[:, :, :2])
    assert torch.equal(late.gates[:, :, 2], other.gates[:, :, 2])


def test_a_sequence_pooled_model_can_be_run_causally():
    leaking, causal = lively(small()), lively(small(pooling="prefix"))
    asked = leaking(tokens(), interventions=Interventions(pooling="prefix"))
    assert torch.equal(asked.logits, causal(tokens()).logits)
    assert torch.equal(asked.gates, causal(tokens()).gates)
    assert torch.equal(
        leaking.trace(tokens(), None, Interventions(pooling="prefix")).flops, causal.trace(tokens()).flops
    )


def test_mean_gates_fit_a_text_of_another_length():
    model = lively(small(pooling="prefix"))
    other = mean_gates(model(tokens(1, 9)).gates)[:, None]
    gates = model(tokens(1, 12), interventions=Interventions.swapped(other, (0,))).gates
    assert torch.allclose(gates[:, :, 0], other[:, :, 0].expand(-1, 12, -1, -1))


def test_interventions_cannot_be_changed_and_the_default_does_nothing():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Interventions().edits = ()
    model = lively(small())
    assert torch.equal(model(tokens(), interventions=Interventions()).logits, model(tokens()).logits)


@pytest.mark.parametrize(
    ("interventions", "field", "words"),
    [
        (Interventions((GateEdit(1.5),)), "value", "between 0 and 1, not at 1.5"),
        (Interventions((GateEdit(float("nan")),)), "value", "not at nan"),
        (Interventions((GateEdit(OFF, layer=3),)), "layer", "layer 3 is not one of 0 to 2"),
        (Interventions((GateEdit(OFF, head=-1),)), "head", "head -1"),
        (Interventions((GateEdit(OFF, direction=2),)), "direction", "0 to 1"),
        (Interventions(knocked_out=((0, 3),)), "head", "head 3"),
        (Interventions(knocked_out=((9, 0),)), "layer", "layer 9"),
        (Interventions(gates=torch.zeros(2, 1, 3, 3, 4)), "gates", "this model has"),
        (Interventions(gates=torch.full((2, 1, 3, 3, 2), float("nan"))), "gates", "NaN"),
        (Interventions(gates=torch.zeros(5, 1, 3, 3, 2)), "gates", "5"),
        (Interventions(gates=torch.zeros(2, 7, 3, 3, 2)), "gates", "average them"),
        (Interventions(gates=torch.zeros(2, 1, 3, 3, 2), gate_layers=(4,)), "gate_layers", "4 is not"),
    ],
)
def test_an_intervention_that_fits_nothing_is_refused_by_name(interventions, field, words):
    with pytest.raises(UserError, match=words) as caught:
        lively(small())(tokens(), interventions=interventions)
    assert caught.value.field == field


def test_the_unrouted_twin_refuses_gate_edits_and_traces_but_loses_heads():
    twin = Directional(small(directions=0)).eval()
    with pytest.raises(UserError, match="no gates") as caught:
        twin(tokens(), interventions=Interventions.everywhere(OFF))
    assert caught.value.field == "edits"
    with pytest.raises(UserError, match="no decisions") as caught:
        twin.trace(tokens())
    assert caught.value.field == "directions"
    assert twin(tokens(), interventions=Interventions(knocked_out=((0, 0),))).logits.shape == (2, 12, 31)


def test_controls_become_interventions_and_reach_the_trace():
    model = lively(small())
    controls = Directional.read_controls({"gate": 1, "gate_layer": 1, "gate_head": 2, "knocked_out": [[0, 1]]})
    wanted = Interventions((GateEdit(1.0, 1, 2),), ((0, 1),))
    assert controls.interventions() == wanted
    traced = model.trace_with(tokens(), None, controls)
    assert torch.equal(traced.logits, model(tokens(), interventions=wanted).logits)
    assert (traced.gates[:, 1, 2] == 1).all()
    assert model.trace_with(tokens(), None, Directional.read_controls(None)).logits.equal(model(tokens()).logits)
    other = model(tokens(seed=9)).gates[:1]
    swapped = model.trace_with(tokens(), None, Directional.read_controls({"gates": other[0, 0].tolist()}))
    assert torch.allclose(swapped.logits, model(tokens(), interventions=Interventions.swapped(other)).logits)
    assert not torch.allclose(swapped.logits, model(tokens()).logits, atol=1e-4)
    causal = model.trace_with(tokens(), None, Directional.read_controls({"pooling": "prefix"}))
    assert torch.equal(causal.logits, model(tokens(), interventions=Interventions(pooling="prefix")).logits)


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"gate": 2}, "gate", "gate is 2"),
        ({"gate_layer": 1}, "gate", "gate_layer 1 needs a value"),
        ({"gate": 0, "gate_layer": 3}, "layer", "layer 3 is not one of 0 to 2"),
        ({"alpha": 1}, "alpha", "it has: gate, gate_layer"),
        ({"pooling": "future"}, "pooling", "future"),
        ({"gates": [[[0.5, 0.5]], [[0.5]]]}, "gates", "ragged"),
        ({"gates": [[[0.5, 1.5]]]}, "gates", "between 0 and 1"),
        ({"gates": [[[0.5, 0.5]]]}, "gates", "this model has"),
    ],
)
def test_controls_that_fit_nothing_are_refused_by_name(values, field, words):
    model = lively(small())
    with pytest.raises(UserError, match=words) as caught:
        model.trace_with(tokens(), None, model.read_controls(values))
    assert caught.value.field == field
