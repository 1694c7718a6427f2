"""RayTracing: a network worked out by hand, the batched path against its naive twin, and what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tokenpaths.engine.analysis.ribbon_costs import compute, module_units
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import CONFIG, read_checkpoint
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.models.raytracing import MLPTwin, RayTracing, trainable_params
from tokenpaths.engine.tracing.loaded_model import to_host

SMALL = dict(
    image_size=4,
    conv_channels=(4,),
    conv_kernel=3,
    conv_pools=(),
    input_neurons=(2, 3),
    input_density=0.1,
    layers=3,
    blocks=3,
    width=4,
    num_classes=3,
)


def small(**changes) -> RayTracingConfig:
    return RayTracingConfig(**(SMALL | changes))


def images(count: int, config: RayTracingConfig, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, config.channels, config.image_size, config.image_size, generator=generator) * 3


def lively(config: RayTracingConfig, execution="batched", seed=0) -> RayTracing:
    """Weights large enough for samples to take different ways."""
    torch.manual_seed(seed)
    model = RayTracing(config, execution)
    for parameter in model.parameters():
        parameter.data.mul_(4)
    return model


def by_hand(execution, **changes) -> RayTracing:
    """Two blocks: 0 reads input neuron 0; 1 reads input neuron 1 and the first wire of block 0."""
    config = RayTracingConfig(
        **dict(
            image_size=1,
            conv_channels=(1,),
            conv_pools=(),
            input_neurons=(2,),
            input_density=1,
            layers=2,
            blocks=1,
            width=2,
            num_classes=2,
            decay=0.5,
            theta_out=1.3,
            input_wires=((0, 1),),
            block_wires=((1, 2), (2, 2)),
        )
        | changes
    )
    model = RayTracing(config, execution)
    model.convolutions.requires_grad_(False)
    with torch.no_grad():
        model.input_weight.zero_()
        model.input_bias.copy_(torch.tensor([math.log(3), 0]))  # signals 2 · (3/4, 1/4)
        ln3 = math.log(3)
        # Rows: block 0 from input 0; block 1 from input 1; block 1 from the first wire of block 0.
        model.gate_weight.copy_(torch.tensor([[ln3 / 1.5, 0], [0, 0], [ln3 / 0.75, 0]]))
        model.gate_bias.zero_()
        model.readout.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1, 10]]))
        model.readout.bias.zero_()
    return model


@pytest.mark.parametrize("execution", ["batched", "naive"])
def test_a_network_of_two_blocks_is_what_the_equations_give_by_hand(execution):
    """Gates of block 0 are always (3/4, 1/4).

    θ = 1: r = (1.5, 0.5), block 0 sends 0.5·(3/4, 1/4), block 1 is silent; 0.125 reaches the output.
    θ = 1/2: block 1 reads 0.5 + 0.375 and sends 0.375 in all; 0.25 + 0.375 reach the output.
    θ = 1/4: block 1 reads 0.5 + 0.75, sends 1.0·(3/4, 1/4); 0.3125 + 1 reach the output, over 1.3.
    """
    model = by_hand(execution)
    output = model(torch.zeros(1, 3, 1, 1), keep_steps=True)
    assert output.theta_steps.tolist() == [3]
    assert output.reached.tolist() == [True]
    expected = torch.zeros(1, 44, 2)
    expected[0, :3] = torch.tensor([[1.5, 0], [1.5, 0.875], [1.5, 1.25]])
    torch.testing.assert_close(output.rates, expected)
    torch.testing.assert_close(output.last_rates, torch.tensor([[1.5, 1.25]]))
    torch.testing.assert_close(output.logits, torch.tensor([[0.3125, 0.75 + 10 * 0.25]]))
    gate = 3**0.5 / (3**0.5 + 1)  # at θ = 1/2 block 1 reads half as much: logits (ln 3)/2 and 0
    halfway = [0.25, 0.375 * gate + 10 * 0.375 * (1 - gate)]
    torch.testing.assert_close(output.step_logits[0, :2], torch.tensor([[0.125, 0], halfway]))
    torch.testing.assert_close(output.step_logits[0, 3:], output.logits.expand(41, 2))


@pytest.mark.parametrize("execution", ["batched", "naive"])
def test_where_signals_cross_all_layers_in_a_step_block_1_hears_block_0_at_once(execution):
    """The same network: block 1 reads what block 0 sends at this θ, not at the one before.

    θ = 1: r = (1.5, 0.5 + 0.375), block 1 is silent; 0.125 reach the output.
    θ = 1/2: block 0 sends 1·(3/4, 1/4), block 1 reads 1.25 and sends 0.75·(3/4, 1/4); 1 reaches the output.
    θ = 1/4: block 1 reads 0.5 + 1.25·3/4; 0.3125 + 1.1875 reach the output, over 1.3.
    """
    output = by_hand(execution, crossing="all")(torch.zeros(1, 3, 1, 1), keep_steps=True)
    assert output.theta_steps.tolist() == [3]
    torch.testing.assert_close(output.rates[0, :3], torch.tensor([[1.5, 0], [1.5, 1.25], [1.5, 1.4375]]))
    torch.testing.assert_close(output.step_logits[0, :2], torch.tensor([[0.125, 0], [0.25, 0.5625 + 1.875]]))


@pytest.mark.parametrize("execution", ["batched", "naive"])
def test_an_output_that_never_fires_stops_at_the_cap_and_says_so(execution):
    model = by_hand(execution, theta_steps=2)
    output = model(torch.zeros(2, 3, 1, 1))
    assert output.theta_steps.tolist() == [2, 2]
    assert output.reached.tolist() == [False, False]
    assert output.logits[0, 0].item() == pytest.approx(0.25)


@pytest.mark.parametrize("execution", ["batched", "naive"])
def test_where_nothing_fires_only_the_outputs_bias_speaks(execution):
    model = by_hand(execution, theta_steps=1)
    with torch.no_grad():
        model.input_bias.zero_()  # a rate of exactly 1 does not exceed a threshold of 1
        model.readout.bias.copy_(torch.tensor([2.0, 3.0]))
    output = model(torch.zeros(1, 3, 1, 1))
    assert output.logits.tolist() == [[2.0, 3.0]]
    assert not output.fired.any()
    assert output.last_rates.tolist() == [[1.0, 1.0]]


CASES = {
    "paper's rules": dict(theta_out=0.5),
    "long relaxation": dict(theta_out=4.0, decay=0.8),
    "cap before the output": dict(theta_out=4.5, theta_steps=3),
    "low start": dict(theta=0.6, theta_out=3.0),
    "one layer": dict(layers=1, theta_out=2.3),
    "no skips": dict(next_layer=1.0, theta_out=3.5),
    "all skip": dict(next_layer=0.0, theta_out=3.5),
    "all layers in a step": dict(theta_out=2.0, crossing="all"),
    "all layers in each of many steps": dict(theta_out=4.0, decay=0.8, next_layer=0.3, crossing="all"),
    "a block without wires": dict(blocks=6, theta_out=3.5, next_layer=0.2),
}


def gradients(model: RayTracing, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss, _ = model.training_loss(x, torch.arange(len(x)) % model.config.num_classes)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_the_batched_path_equals_the_naive_one_forward_and_backward(case, seed):
    config = small(**CASES[case], seed=seed)
    fast, slow = lively(config, "batched", seed), lively(config, "naive", seed)
    x = images(12, config, seed)
    a, b = fast(x, keep_steps=True), slow(x, keep_steps=True)
    assert a.theta_steps.tolist() == b.theta_steps.tolist()
    assert a.reached.tolist() == b.reached.tolist()
    for name in ("logits", "rates", "last_rates", "step_logits"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), atol=1e-5, rtol=1e-5)
    left, right = gradients(fast, x), gradients(slow, x)
    assert left.keys() == right.keys()
    assert "input_weight" in left
    assert float(left["gate_weight"].abs().sum()) > 0
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-5, rtol=1e-5, msg=name)


def test_each_sample_stops_at_its_own_step_whoever_stands_beside_it():
    config = small(theta_out=4.0, decay=0.8)
    model = lively(config)
    x = images(40, config)
    together = model(x)
    assert len(set(together.theta_steps.tolist())) >= 3, "the case says nothing where all stop together"
    for i in range(len(x)):
        alone = model(x[i : i + 1])
        assert int(alone.theta_steps) == int(together.theta_steps[i])
        torch.testing.assert_close(alone.logits[0], together.logits[i], atol=1e-5, rtol=1e-5)
        stop = int(together.theta_steps[i])
        assert not together.rates[i, stop:].any()
        assert together.rates[i, stop - 1].any()


def test_the_papers_network_has_its_modules_blocks_and_sparse_inputs():
    config = RayTracingConfig()
    assert config.input_neurons == tuple(5 * j for j in range(1, 7))
    assert (config.layers, config.blocks, config.width) == (4, 16, 16)
    assert (config.theta, config.decay, config.theta_out, config.next_layer) == (1.0, 0.9, 0.5, 0.5)
    model = RayTracing(config)
    assert config.fan_in == round(0.01 * config.num_features) == 10
    assert model.input_features.shape == (105, 10)
    assert all(len(set(row)) == 10 for row in model.input_features.tolist())
    signals = model.inputs(torch.randn(3, config.num_features))
    sums = [part.sum(dim=1) for part in signals.split(list(config.input_neurons), dim=1)]
    torch.testing.assert_close(torch.stack(sums, dim=1), torch.tensor([config.input_neurons] * 3).float())


def test_wires_are_drawn_as_the_paper_draws_them():
    inputs, blocks = Counter(), {layer: Counter() for layer in range(4)}
    within = Counter()
    for seed in range(40):
        config = RayTracingConfig(seed=seed)
        for module in config.input_wires:
            inputs.update(end // 16 for end in module)
            within.update(end % 16 for end in module)
        for block, ends in enumerate(config.block_wires):
            blocks[block // 16].update(end // 16 for end in ends)
    share = lambda counts: {k: v / counts.total() for k, v in sorted(counts.items())}  # noqa: E731
    assert share(inputs) == pytest.approx({0: 1 / 2, 1: 1 / 6, 2: 1 / 6, 3: 1 / 6}, abs=0.02)
    assert share(blocks[0]) == pytest.approx({1: 1 / 2, 2: 1 / 6, 3: 1 / 6, 4: 1 / 6}, abs=0.02)
    assert share(blocks[1]) == pytest.approx({2: 1 / 2, 3: 1 / 4, 4: 1 / 4}, abs=0.02)
    assert share(blocks[2]) == pytest.approx({3: 1 / 2, 4: 1 / 2}, abs=0.02)
    assert share(blocks[3]) == {4: 1.0}
    assert share(within) == pytest.approx(dict.fromkeys(range(16), 1 / 16), abs=0.015)
    assert RayTracingConfig(seed=3) == RayTracingConfig(seed=3)
    assert RayTracingConfig(seed=3).block_wires != RayTracingConfig(seed=4).block_wires


GOOD_WIRES = dict(
    layers=2, blocks=2, width=2, input_neurons=(2,), input_wires=((0, 3),), block_wires=((2, 3), (4, 4), (4, 4), (4, 4))
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(theta=0.0), "theta"),
        (dict(theta=1.2), "theta"),
        (dict(decay=1.0), "decay"),
        (dict(decay=0.0), "decay"),
        (dict(theta_out=0.0), "theta_out"),
        (dict(theta_out=math.nan), "theta_out"),
        (dict(theta_out=2.0), "theta_out 2 is not below 2"),
        (dict(theta_steps=0), "theta_steps"),
        (dict(next_layer=1.5), "next_layer"),
        (dict(input_density=0.0), "input_density"),
        (dict(input_density=0.001), "input_density 0.001 of 64 features"),
        (dict(input_neurons=(2, 0), input_wires=()), "input_neurons"),
        (dict(input_neurons=(3,)), r"input_wires has \(2,\) wires by module"),
        (dict(input_wires=((0, 4),)), "input_wires: module 0 has a wire to 4"),
        (dict(width=3), "block 0 has 2 wires, width is 3"),
        (dict(block_wires=((2, 3), (4,), (4, 4), (4, 4))), "block 1 has 1 wires, width is 2"),
        (dict(block_wires=((2, 3), (4, 4))), "block_wires has 2 blocks"),
        (dict(block_wires=((2, 3), (4, 4), (0, 4), (4, 4))), "block 2 of layer 1 has a wire to block 0 of layer 0"),
        (dict(block_wires=((1, 3), (4, 4), (4, 4), (4, 4))), "block 0 of layer 0 has a wire to block 1 of layer 0"),
        (dict(block_wires=((2, 5), (4, 4), (4, 4), (4, 4))), "block 0 has a wire to 5"),
        (dict(conv_kernel=4), "conv_kernel 4 is even"),
        (dict(conv_pools=(0, 0)), "conv_pools"),
        (dict(conv_pools=(1,)), "conv_pools"),
        (dict(image_size=5, conv_pools=(0,)), "image_size 5"),
        (dict(conv_channels=(0,)), "conv_channels"),
        (dict(surprise=1), "surprise"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_words(changes, words):
    small(**GOOD_WIRES)
    with pytest.raises(ValidationError, match=words):
        small(**(GOOD_WIRES | changes))


def test_images_of_another_size_are_refused():
    with pytest.raises(UserError, match="do not fit") as error:
        RayTracing(small())(torch.zeros(1, 3, 5, 4))
    assert error.value.field == "inputs"


def test_only_blocks_that_fired_learn_and_the_convolutions_never_do():
    config = small(theta_out=2.0)
    model = lively(config)
    x = images(1, config)
    fired = model(x).fired[0]
    assert 0 < int(fired.sum()) < config.num_blocks
    found = gradients(model, x)
    moved = found["gate_bias"].abs().sum(dim=1) > 0
    assert not moved[~fired].any()
    assert moved.any()
    assert not any(name.startswith("convolutions") for name in found)


def test_a_higher_limit_lets_theta_fall_further():
    config = small(theta_out=0.5)
    model = lively(config)
    x = images(30, config)
    steps = [model(x, theta_out=limit).theta_steps for limit in (0.5, 2.0, 4.0, math.inf)]
    assert all(bool((a <= b).all()) for a, b in zip(steps, steps[1:], strict=False))
    assert float(steps[2].float().mean()) > float(steps[0].float().mean())
    assert steps[3].tolist() == [config.theta_steps] * 30
    # The words on the way are those of a network that stops there.
    full = model(x, theta_out=math.inf, keep_steps=True)
    stopped = model(x, theta_out=4.0)
    at = torch.arange(30), stopped.theta_steps - 1
    torch.testing.assert_close(full.step_logits[at], stopped.logits, atol=1e-5, rtol=1e-5)
    third = model(x, theta_out=math.inf, theta_steps=3)
    torch.testing.assert_close(third.logits, full.step_logits[:, 2], atol=1e-5, rtol=1e-5)
    assert third.theta_steps.tolist() == [3] * 30


def test_controls_end_the_relaxation_of_a_trace():
    model = lively(small(theta_out=0.5)).eval()
    x = images(4, model.config)
    held = model.trace_with(x, None, model.read_controls({"theta_out": 900, "theta_steps": 2}))
    assert (held.blocks[:, 2:] == 0).all()
    assert held.blocks.shape == (4, 44, 9)
    torch.testing.assert_close(held.logits, model(x, theta_out=900.0, theta_steps=2).logits)
    plain = model.trace_with(x, None, model.read_controls(None))
    torch.testing.assert_close(plain.logits, model(x).logits)
    with pytest.raises(UserError, match="theta_out") as error:
        model.read_controls({"theta_out": -1})
    assert error.value.field == "theta_out"
    with pytest.raises(UserError, match="theta_steps 45 is not between 1 and 44"):
        model.trace(x, theta_steps=45)


def test_the_trace_reads_every_block_as_on_or_off():
    config = small(theta_out=4.0, decay=0.8)
    model = lively(config).eval()
    x = images(20, config)
    traced = to_host(model.trace(x))
    output = model(x)
    assert traced.module_ids.shape == (20, 1, 3, 3)
    for i in range(20):
        for layer in range(3):
            ids = traced.module_ids[i, 0, layer].tolist()
            assert sorted(b % 3 for b in ids) == [0, 1, 2]
            fired = output.fired[i, 3 * layer : 3 * layer + 3]
            assert {b for b in ids if b < 3} == set(fired.nonzero().flatten().tolist())
            assert sorted(ids, key=lambda b: b >= 3) == ids, "blocks that fired come first"
    assert (traced.weights.diff(dim=-1) <= 0).all()
    assert float(traced.weights.max()) <= 1
    _, units = module_units(model.module_table(), config.num_steps, config.num_modules)
    shares = compute(traced.module_ids[:, 0].numpy(), units)
    np.testing.assert_allclose(shares, output.fired.float().mean(dim=1).numpy(), rtol=1e-6)
    assert 0 < shares.min() < shares.max() <= 1
    assert traced.blocks.shape == (20, config.theta_steps, 9)
    assert torch.isnan(traced.gate_entropy).all()
    once = model.token_flops(traced.module_ids)
    assert (traced.flops >= once).all()
    by_block = torch.tensor([m.flops_per_token for m in model.module_table() if m.kind == "block"])
    torch.testing.assert_close(once[:, 0], (output.fired * by_block).sum(dim=1).float())
    assert {k: len(v) for k, v in model.axis_names().items()} == {"threshold_step": 44, "block": 9}


def test_a_nan_weight_never_becomes_a_run():
    model = lively(small())
    model.input_weight.data[0, 0] = math.nan
    with pytest.raises(UserError, match="NaN"):
        to_host(model.trace(images(2, model.config)))


def test_parameters_of_blocks_that_fired():
    model = by_hand("batched")
    # Block 0: 1 wire × 2 + 2; block 1: 2 × 2 + 2; inputs: 2 × 1 + 2; output: 3 × 2 + 2.
    assert model.block_params().tolist() == [4, 6]
    fired = torch.tensor([[False, False], [True, False], [True, True]])
    assert model.lit_params(fired).tolist() == [12, 16, 22]
    assert trainable_params(model.config) == model.trainable_params == 22
    table = {(m.step, m.module): (m.kind, m.num_params) for m in model.module_table()}
    assert table == {(0, 0): ("block", 4), (0, 1): ("identity", 0), (1, 0): ("block", 6), (1, 1): ("identity", 0)}


def signal_parameters(model: RayTracing, features: torch.Tensor) -> set[tuple]:
    """Parameters through which a signal went, each by name and index: one sample, wire by wire."""
    config, limit = model.config, model.config.theta_out
    *sources, ends = config.sources()
    signal = [*model.inputs(features[None])[0].tolist(), *[0.0] * (config.num_blocks * config.width)]
    used = {("input_weight", *at) for at in np.ndindex(*model.input_weight.shape)}
    used |= {("input_bias", at) for at in range(config.signal)}
    used |= {("readout.bias", at) for at in range(config.num_classes)}
    theta = config.theta
    for _ in range(config.theta_steps):
        before = list(signal) if config.crossing == "one" else signal
        row = 0
        for block, wires in enumerate(sources):
            z = [before[wire] for wire in wires]
            sent = [0.0] * config.width
            if sum(z) > theta:
                used |= {("gate_bias", block, neuron) for neuron in range(config.width)}
                used |= {
                    ("gate_weight", row + i, neuron) for i, x in enumerate(z) if x for neuron in range(config.width)
                }
                weight = model.gate_weight[row : row + len(wires)]
                gates = (torch.tensor(z) @ weight + model.gate_bias[block]).softmax(dim=0)
                sent = ((sum(z) - theta) * gates).tolist()
            row += len(wires)
            first = config.signal + block * config.width
            signal[first : first + config.width] = sent
        arrived = [signal[wire] for wire in ends]
        if sum(arrived) > limit:
            break
        theta *= config.decay
    columns = [column for column, x in enumerate(arrived) if x]
    return used | {("readout.weight", label, column) for column in columns for label in range(config.num_classes)}


@pytest.mark.parametrize("crossing", ["one", "all"])
@pytest.mark.parametrize("theta_out", [0.5, 3.0])
def test_used_are_the_parameters_through_which_a_signal_went(crossing, theta_out):
    config = small(theta_out=theta_out, decay=0.8, next_layer=0.4, crossing=crossing, theta_steps=8)
    model = lively(config)
    features = model.features(images(12, config))
    with torch.no_grad():
        output = model.relax(features)
        ways = [signal_parameters(model, one) for one in features]
    assert model.used_params(output.rates).tolist() == [len(way) for way in ways]
    assert model.reachable_params(output.rates) == len(set.union(*ways))
    lit = model.lit_params(output.fired)
    assert (model.used_params(output.rates) <= lit).all()
    assert (model.used_params(output.rates) < lit).any()
    # What learns from a sample has been used by it.
    for i, way in enumerate(ways):
        for name, gradient in gradients_of(model, features[i : i + 1]).items():
            assert {(name, *at) for at in gradient.nonzero().tolist()} <= way


def gradients_of(model: RayTracing, features: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model.relax(features).logits.square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def test_with_the_papers_limit_no_weight_between_blocks_ever_learns():
    """Every sample stops at the first threshold, when no wire between blocks carries anything."""
    model = RayTracing(RayTracingConfig())
    features = torch.randn(64, model.config.num_features, generator=torch.Generator().manual_seed(0)).relu()
    assert model.relax(features).theta_steps.tolist() == [1] * 64
    of_inputs, row = torch.zeros(len(model.gate_weight), dtype=torch.bool), 0
    for wires in model.config.sources()[:-1]:
        of_inputs[row : row + len(wires)] = torch.tensor(wires, dtype=torch.long) < model.config.signal
        row += len(wires)
    assert int((~of_inputs).sum()) * 16 == 8_416
    assert not gradients_of(model, features)["gate_weight"][~of_inputs].any()
    through = RayTracing(RayTracingConfig(crossing="all"))
    assert gradients_of(through, features)["gate_weight"][~of_inputs].any()


@pytest.mark.parametrize("changes", [dict(), dict(seed=5, num_classes=50), dict(image_size=8, conv_pools=(0,))])
def test_the_mlp_twin_has_as_many_parameters_as_fit(changes):
    config = RayTracingConfig(**changes)
    twin = MLPTwin(config)
    one_unit = config.num_features + 1 + config.num_classes
    assert abs(twin.trainable_params - trainable_params(config)) <= one_unit / 2
    size = config.image_size
    assert twin(torch.randn(2, 3, size, size)).shape == (2, config.num_classes)


def test_a_checkpoint_carries_the_wires_and_gives_the_same_numbers(tmp_path):
    config = small(theta_out=4.0, seed=7)
    model = lively(config).eval()
    save_checkpoint(tmp_path / "m", model, classes=("a", "b", "c"), dtype=torch.float32)
    kept = json.loads((tmp_path / "m" / CONFIG).read_text())["config"]
    assert kept["block_wires"] == [list(row) for row in config.block_wires]
    again = build_model(read_checkpoint(tmp_path / "m"))
    x = images(10, config)
    assert again.config == config
    torch.testing.assert_close(again(x).logits, model(x).logits)
    assert torch.equal(again(x).theta_steps, model(x).theta_steps)
