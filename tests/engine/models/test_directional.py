"""Directional routing: the rule by hand and by loops, causality, interventions, traces, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.models.directional import Directional, DirectionalConfig, Layer, Router
from tokenpaths.engine.models.directional_gates import OFF, Interventions, naive_suppress, pool, suppress
from tokenpaths.engine.models.family import family_class
from tokenpaths.engine.tracing.loaded_model import to_host

POOLINGS = ["sequence", "prefix"]


def small(**changes) -> DirectionalConfig:
    options = dict(width=24, heads=3, mlp_width=48, layers=3, directions=2, router_width=10, vocab_size=31, context=16)
    return DirectionalConfig(**(options | changes))


def lively(config: DirectionalConfig, execution: str = "fused", seed: int = 0) -> Directional:
    """A model whose gates are far from 0.5 and differ between inputs, as after training."""
    torch.manual_seed(seed)
    model = Directional(config, execution)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router" in name:
                parameter.mul_(2.5)
            elif parameter.ndim > 1 and "directions" not in name:
                parameter.mul_(8)
    return model.eval()


def tokens(rows: int = 2, length: int = 12, seed: int = 1) -> torch.Tensor:
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(seed))


# the rule


@pytest.mark.parametrize("rule", [suppress, naive_suppress])
def test_suppression_by_hand(rule):
    # o = (2, 1); o·d1 = 2, o·d2 = 1.2 + 0.8 = 2; o − 0.5·2·d1 − 1·2·d2 = (2 − 1 − 1.2, 1 − 1.6)
    o = torch.tensor([[[2.0, 1.0]]])
    directions = torch.tensor([[[1.0, 0.0], [0.6, 0.8]]])
    gates = torch.tensor([[[[0.5, 1.0]]]])
    assert torch.allclose(rule(o, directions, gates), torch.tensor([[[-0.2, -0.6]]]))


@pytest.mark.parametrize("rule", [suppress, naive_suppress])
def test_a_full_gate_removes_its_direction_and_an_empty_one_nothing(rule):
    torch.manual_seed(0)
    mixed = torch.randn(2, 5, 3 * 4)
    directions = torch.linalg.qr(torch.randn(3, 4, 4))[0][:, :2]
    gates = torch.zeros(2, 1, 3, 2)
    assert torch.equal(rule(mixed, directions, gates), mixed)
    gates[:, :, 1, 0] = 1
    left = rule(mixed, directions, gates).unflatten(-1, (3, 4))
    along = torch.einsum("bthw,hkw->bthk", left, directions)
    assert along[:, :, 1, 0].abs().max() < 1e-5
    assert torch.equal(left[:, :, [0, 2]], mixed.unflatten(-1, (3, 4))[:, :, [0, 2]])
    assert torch.allclose(
        along[:, :, 1, 1], (mixed.unflatten(-1, (3, 4))[:, :, 1] * directions[1, 1]).sum(-1), atol=1e-5
    )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_fast_model_and_its_naive_twin_agree_forward_and_backward(pooling):
    config = small(pooling=pooling)
    inputs, targets = tokens(), tokens(seed=2)
    losses, grads, logits = [], [], []
    for execution in ("fused", "naive"):
        model = lively(config, execution)
        loss, _ = model.training_loss(inputs, targets)
        loss.backward()
        losses.append(loss.detach())
        grads.append({name: p.grad for name, p in model.named_parameters()})
        logits.append(model(inputs).logits)
    assert torch.allclose(*losses, atol=1e-5)
    assert torch.allclose(*logits, atol=1e-5)
    for name, grad in grads[0].items():
        assert grad.abs().max() > 0, name
        assert torch.allclose(grad, grads[1][name], atol=1e-5), name


def test_directions_act_with_unit_length_whatever_their_parameters_length():
    model = lively(small())
    before = model(tokens()).logits
    with torch.no_grad():
        for layer in model.layers:
            layer.directions.mul_(7.5)
    assert torch.allclose(model(tokens()).logits, before, atol=1e-5)
    assert torch.allclose(model.layers[0].unit_directions().norm(dim=-1), torch.ones(3, 2))


def test_gates_are_sigmoids_over_the_temperature_of_a_router_that_reads_the_mean():
    layer = lively(small(temperature=0.25)).layers[0]
    h = torch.randn(2, 7, 24)
    rows = [sum(h[b, t] for t in range(7)) / 7 for b in range(2)]
    x = torch.stack(rows)
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    x = x * layer.router.norm.weight + layer.router.norm.bias
    for linear in layer.router.hidden:
        x = torch.nn.functional.gelu(x @ linear.weight.T + linear.bias)
    logits = x @ layer.router.out.weight.T + layer.router.out.bias
    expected = 1 / (1 + torch.exp(-logits / 0.25))
    assert torch.allclose(layer.decide(h, None), expected.view(2, 1, 3, 2), atol=1e-5)


def test_pooling_by_hand():
    h = torch.tensor([[[1.0], [3.0], [8.0]]])
    assert pool(h, "sequence").flatten().tolist() == [4.0]
    assert pool(h, "prefix").flatten().tolist() == [1.0, 2.0, 4.0]
    assert pool(h, "sequence", torch.tensor([[True, True, False]])).flatten().tolist() == [2.0]


# causality


def test_prefix_pooling_is_causal():
    model = lively(small(pooling="prefix"))
    inputs = tokens(1)
    before = model(inputs)
    for place in range(1, 12):
        changed = inputs.clone()
        changed[0, place] = (changed[0, place] + 1) % 31
        after = model(changed)
        assert torch.equal(after.logits[:, :place], before.logits[:, :place]), place
        assert torch.equal(after.gates[:, :place], before.gates[:, :place]), place
        assert not torch.equal(after.logits[:, place:], before.logits[:, place:])


def test_sequence_pooling_lets_the_last_token_change_every_logit_before_it():
    """The leak: what a position predicts depends on the tokens that it is asked to predict."""
    model = lively(small(pooling="sequence"))
    inputs = tokens(1)
    changed = inputs.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 31
    moved = (model(changed).logits - model(inputs).logits).abs()[0].amax(dim=-1)
    assert (moved > 1e-6).all()


def test_with_its_gates_held_the_sequence_pooled_model_is_causal():
    """The router is the only way by which the future gets in."""
    model = lively(small(pooling="sequence"))
    inputs = tokens(1)
    changed = inputs.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 31
    held = Interventions.swapped(model(inputs).gates)
    a, b = (model(x, interventions=held).logits for x in (inputs, changed))
    assert torch.allclose(a[:, :-1], b[:, :-1], atol=1e-6)
    assert not torch.allclose(a[:, -1], b[:, -1], atol=1e-6)


# the twin, and training


def test_the_unrouted_twin_is_the_same_network_with_every_gate_at_zero():
    config = small()
    model = lively(config)
    twin = Directional(config.unrouted_twin()).eval()
    shared = {k: v for k, v in model.state_dict().items() if "router" not in k and "directions" not in k}
    twin.load_state_dict(shared)
    off = model(tokens(), interventions=Interventions.everywhere(OFF))
    assert torch.allclose(off.logits, twin(tokens()).logits, atol=1e-5)
    assert twin(tokens()).gates.shape == (2, 1, 3, 3, 0)
    assert (twin.config.num_steps, twin.config.num_modules) == (0, 0)
    assert twin.training_numbers(twin.training_loss(tokens(), tokens())[1]) == {}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_training_loss_is_the_cross_entropy_of_the_logits_and_falls(pooling):
    model = Directional(small(pooling=pooling))
    inputs, targets = tokens(4, 16), tokens(4, 16, seed=2)
    loss, gates = model.training_loss(inputs, targets)
    logits = model(inputs).logits
    assert torch.allclose(loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), atol=1e-5)
    assert gates.shape == (4, 1 if pooling == "sequence" else 16, 3, 3, 2)
    assert not gates.requires_grad
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(12):
        optimizer.zero_grad()
        model.training_loss(inputs, targets)[0].backward()
        optimizer.step()
        model.after_iteration(gates)
    assert float(model.training_loss(inputs, targets)[0].detach()) < float(loss.detach()) - 0.5


def test_training_numbers_are_the_mean_gate_and_the_spread_over_sequences():
    gates = torch.tensor([0.2, 0.6]).view(2, 1, 1, 1, 1)
    numbers = Directional(small()).training_numbers(gates)
    assert numbers["mean_gate"] == pytest.approx(0.4)
    assert numbers["gate_spread"] == pytest.approx(math.sqrt(0.08))


def test_the_papers_model_has_the_papers_parameters():
    """Appendix B, one embedding table included; learned positions are ours."""
    config = DirectionalConfig(width=1536, heads=12, mlp_width=6144, layers=12, directions=4, router_width=512)
    with torch.device("meta"):
        model = Directional(config)
    count = lambda kind: sum(p.numel() for m in model.modules() if isinstance(m, kind) for p in m.parameters())  # noqa: E731
    assert count(Router) == 16_079_424
    assert sum(layer.directions.numel() for layer in model.layers) == 73_728
    layers = count(Layer)
    assert layers - 16_079_424 - 73_728 == 113_246_208 + 226_492_416 + 24 * 1536
    assert sum(p.numel() for p in model.parameters()) - model.positions.numel() == 433_124_928


def test_an_untied_unembedding_is_a_table_of_its_own():
    tied, untied = Directional(small()), Directional(small(tied=False))
    assert tied.unembedding is tied.embed.weight
    assert untied.unembedding is untied.head.weight
    with torch.no_grad():
        untied.head.weight.zero_()
    assert (untied(tokens()).logits == 0).all()
    loss, _ = untied.training_loss(tokens(), tokens(seed=2))
    assert float(loss.detach()) == pytest.approx(math.log(31), abs=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_round_trip_keeps_the_numbers(tmp_path, pooling, tied):
    model = lively(small(pooling=pooling, tied=tied))
    save_checkpoint(tmp_path / "m", model, dtype=torch.float32)
    checkpoint = read_checkpoint(tmp_path / "m")
    assert (checkpoint.family, checkpoint.config) == ("directional", model.config)
    assert family_class("directional") is Directional
    assert torch.equal(build_model(checkpoint)(tokens()).logits, model(tokens()).logits)


# interventions


# controls of a trace


# traces


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_trace_reads_every_gate_as_on_or_off_in_order(pooling):
    model = lively(small(pooling=pooling))
    inputs = tokens()
    gates, traced = model(inputs).gates, model.trace(inputs)
    assert traced.module_ids.shape == (2, 12, 3, 6)
    for b in range(2):
        for t in range(12):
            for s in range(3):
                r = gates[b, 0 if pooling == "sequence" else t, s].flatten().tolist()
                order = sorted(range(6), key=lambda i: -r[i])
                ids = [i if r[i] > 0.5 else 6 + i for i in order]
                assert traced.module_ids[b, t, s].tolist() == ids
                assert traced.weights[b, t, s].tolist() == pytest.approx([r[i] for i in order], abs=1e-3)
                entropy = sum(-p * math.log(p) for v in r for p in (v, 1 - v) if p) / 6
                assert float(traced.gate_entropy[b, t, s]) == pytest.approx(entropy, abs=1e-3)
    assert torch.allclose(traced.gates, gates.mean(dim=1), atol=1e-6)
    assert torch.equal(traced.logits, model(inputs).logits)
    on = traced.module_ids < 6
    assert 0 < on.float().mean() < 1, "the example must hold gates of both readings"
    assert model.weight_semantics["unit"] == ("sequence" if pooling == "sequence" else "token")


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_behind_a_text_changes_nothing_of_it(pooling):
    model = lively(small(pooling=pooling))
    inputs = tokens(2, 12)
    valid = torch.arange(12) < torch.tensor([[7], [12]])
    padded = model.trace(inputs, valid)
    alone = model.trace(inputs[:1, :7])
    assert torch.allclose(padded.logits[:1, :7], alone.logits, atol=1e-5)
    assert torch.equal(padded.module_ids[:1, :7], alone.module_ids)
    assert torch.allclose(padded.gates[:1], alone.gates, atol=1e-6)
    assert torch.allclose(padded.flops[:1, :7], alone.flops)
    assert (padded.flops[0, 7:] == 0).all()
    assert torch.allclose(padded.gates[1:], model.trace(inputs[1:]).gates, atol=1e-6)


def test_flops_by_hand():
    model = lively(small(layers=1, pooling="prefix"))
    traced = model.trace(tokens(1, 4))
    fixed = 8 * 24 * 24 + 4 * 24 * 48
    router = 2 * (24 * 10 + 10 * 10 + 10 * 10 + 10 * 6 + 0)
    for t in range(4):
        on = int((traced.module_ids[0, t] < 6).sum())
        assert float(traced.flops[0, t]) == fixed + 4 * 24 * (t + 1) + router + on * 4 * 8
    once = lively(small(layers=1)).trace(tokens(1, 4))
    on = int((once.module_ids[0, 0] < 6).sum())
    assert float(once.flops[0, 0]) == fixed + 4 * 24 + router / 4 + on * 4 * 8


def test_the_module_table_names_every_direction_and_its_twin():
    rows = Directional(small()).module_table()
    assert len(rows) == 3 * 12
    assert [(r.step, r.module) for r in rows] == [(s, m) for s in range(3) for m in range(12)]
    assert (rows[12 + 3].name, rows[12 + 3].kind, rows[12 + 3].num_params) == ("L1H1K1", "direction", 8)
    assert (rows[12 + 9].name, rows[12 + 9].kind, rows[12 + 9].flops_per_token) == ("L1H1K1 left alone", "identity", 0)


def test_axes_are_named_in_the_order_of_the_gates():
    names = Directional(small()).axis_names()
    assert list(names) == ["layer", "head", "direction"]
    assert tuple(len(v) for v in names.values()) == (3, 3, 2)
    assert names["head"][2] == "head 2"


def test_a_broken_router_is_refused_when_its_trace_is_read():
    model = lively(small())
    with torch.no_grad():
        model.layers[1].router.out.bias[0] = float("nan")
    with pytest.raises(UserError, match="router 1 gave NaN"):
        to_host(model.trace(tokens()))


# refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(heads=5), "width 24 is not a multiple of heads 5"),
        (dict(directions=9), "directions 9 is larger than the width of a head, 8"),
        (dict(directions=-1), "directions"),
        (dict(temperature=0), "temperature"),
        (dict(temperature=float("inf")), "temperature"),
        (dict(pooling="suffix"), "pooling"),
        (dict(layers=0), "layers"),
        (dict(surprise=1), "surprise"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_words(changes, words):
    with pytest.raises(ValidationError, match=words):
        small(**changes)


def test_too_long_a_text_and_label_smoothing_are_refused():
    with pytest.raises(UserError, match="17 tokens do not fit") as caught:
        Directional(small())(tokens(1, 17))
    assert caught.value.field == "inputs"
    with pytest.raises(UserError, match="label_smoothing 0.1") as caught:
        Directional(small()).training_loss(tokens(), tokens(), 0.1)
    assert caught.value.field == "label_smoothing"


def test_a_run_carries_the_words_of_every_direction():
    model = Directional(small())
    texts = {i: f"word {i}" for i in range(model.config.vocab_size)}
    words = model.findings(texts)["gates"]["vocabulary"]
    assert len(words) == model.config.layers * model.config.heads * model.config.directions
    first = model.layers[0].unit_directions()[0, 0]
    padded = torch.zeros(model.config.width)
    padded[: model.config.head_width] = first
    best = int((model.layers[0].attention.project_out(padded) @ model.unembedding.T).argmax())
    assert words[0]["tokens"][0] == f"word {best}"
    assert Directional(model.config.unrouted_twin()).findings(texts) == {}
