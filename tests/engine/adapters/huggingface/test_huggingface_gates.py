"""Every routed architecture of transformers: what is recorded is what the model did."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.naive_routing import Seen, block_from_record, logits_of, own_decisions, watch, weights_from_semantics
from tests.support.tiny_huggingface import ARCHITECTURES, TEXTS, run_windows, saved_tiny
from tokenpaths.engine.adapters.huggingface.gate_hooks import Recorded
from tokenpaths.engine.adapters.huggingface.gates import common_semantics
from tokenpaths.engine.adapters.huggingface.inspection import find_model
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel
from tokenpaths.engine.analysis.distribution import margin_and_runner_up
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.tracing.traceable import ModelInput

ALL = sorted(ARCHITECTURES)
ROUNDING = dict(rtol=2e-5, atol=2e-6)
REFUSES = {"phimoe", "jetmoe", "zaya", "deepseek_v4", "longcat_flash"}
"""architectures whose gates have no arithmetic for some edit"""
UNSAID = {"phimoe", "inkling_text", "deepseek_v4"}
"""weights that the fields of WeightSemantics alone do not give: their notes say how they come about"""


@dataclass
class Traced:
    """A checkpoint from disk, its record of a padded batch, and what our own hooks saw of the same batch."""

    loaded: HuggingFaceModel
    windows: list[np.ndarray]
    keep: torch.Tensor
    recorded: Recorded
    loss: np.ndarray
    seen: list[Seen]


def padded(loaded: HuggingFaceModel, windows: list[np.ndarray]) -> tuple[torch.Tensor, ...]:
    """Inputs, attention mask, which positions are tokens of a text, targets; ``<s>`` in front."""
    shape = (len(windows), 1 + max(map(len, windows)))
    inputs, targets = torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
    attended, keep = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for i, ids in enumerate(windows):
        end = 1 + len(ids)
        inputs[i, 0], inputs[i, 1:end] = loaded.tokenizer.before[0], torch.from_numpy(ids).long()
        attended[i, :end], keep[i, 1:end] = 1, True
        targets[i, 1 : end - 1] = inputs[i, 2:end]
    return inputs, attended, keep, targets


@functools.cache
def traced(model_type: str) -> Traced:
    loaded = load(find_model(f"hf:{saved_tiny(model_type)}"), device="cpu")
    windows = [loaded.tokenizer.encode(text).ids for text in TEXTS]
    inputs, attended, keep, targets = padded(loaded, windows)
    recorded, loss = run_windows(loaded, inputs, keep, targets)
    seen = watch(loaded.gates, lambda: loaded.model(input_ids=inputs, attention_mask=attended, use_cache=False))
    return Traced(loaded, windows, keep.flatten(), recorded, loss, seen)


@pytest.mark.parametrize("model_type", ALL)
def test_decisions_and_weights_are_the_models_own(model_type: str) -> None:
    case = traced(model_type)
    for step, (gate, seen) in enumerate(zip(case.loaded.gates, case.seen, strict=True)):
        ids, weights = own_decisions(gate, seen)
        keep = case.keep.numpy()
        np.testing.assert_array_equal(case.recorded.ids[:, step].numpy(), ids[keep])
        ours = case.recorded.weights[:, step].numpy()
        if gate.divide == 1:
            np.testing.assert_array_equal(ours, weights[keep])
        else:
            np.testing.assert_allclose(ours * gate.divide, weights[keep], rtol=1e-6)
        assert ((ours >= 0) & (ours <= 1)).all()
        assert (np.diff(ours, axis=1) <= 0).all(), "the largest weight comes first"


@pytest.mark.parametrize("model_type", ALL)
def test_block_output_follows_from_the_record(model_type: str) -> None:
    case = traced(model_type)
    checked = 0
    places = np.flatnonzero(case.keep.numpy())[::4]  # one expert at a time is slow: every fourth token
    for step, (gate, seen) in enumerate(zip(case.loaded.gates, case.seen, strict=True)):
        if type(gate.block).__name__ == "JetMoeMoA":  # attention lies between its two halves
            continue
        ids, weights = case.recorded.ids[::4, step].numpy(), case.recorded.weights[::4, step].numpy()
        ours, real = block_from_record(gate, seen, ids, weights, places)
        np.testing.assert_allclose(ours, real, rtol=1e-3, atol=1e-4 * float(np.abs(real).max()))
        assert np.abs(real).max() > 0
        checked += 1
    assert checked


@pytest.mark.parametrize("model_type", ALL)
def test_semantics_give_the_weights(model_type: str) -> None:
    case = traced(model_type)
    said = 0
    for step, (gate, seen) in enumerate(zip(case.loaded.gates, case.seen, strict=True)):
        means = gate.semantics
        assert means.source.startswith("forward hooks")
        logits = logits_of(gate, seen)[case.keep]
        ids = case.recorded.ids[:, step].numpy()
        expected = weights_from_semantics(means, logits, ids)
        if expected is None or model_type in UNSAID:
            assert means.note
            continue
        if gate.skips and gate.skips[0] == "skip":
            expected = np.where(ids == gate.num_experts, 0, expected)
        np.testing.assert_allclose(case.recorded.weights[:, step].numpy(), expected, **ROUNDING)
        said += 1
        biased = bool((logits.topk(gate.top_k).indices.sort().values.numpy() != np.sort(ids, axis=1)).any())
        assert biased <= bool(means.bias or means.groups), "the choice is not the top-k of the scores, and nothing says"
    assert said or model_type in UNSAID


@pytest.mark.parametrize("model_type", ALL)
def test_a_padded_batch_equals_each_text_alone(model_type: str) -> None:
    case = traced(model_type)
    start = 0
    for ids in case.windows:
        inputs, _, keep, targets = padded(case.loaded, [ids])
        recorded, loss = run_windows(case.loaded, inputs, keep, targets)
        own = slice(start, start := start + len(ids))
        np.testing.assert_array_equal(recorded.ids.numpy(), case.recorded.ids[own].numpy())
        np.testing.assert_allclose(recorded.weights.numpy(), case.recorded.weights[own].numpy(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(recorded.gate_entropy.numpy(), case.recorded.gate_entropy[own].numpy(), atol=1e-4)
        np.testing.assert_allclose(loss, case.loss[own], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model_type", ALL)
def test_entropy_is_of_the_probabilities_over_all_experts(model_type: str) -> None:
    case = traced(model_type)
    for step, (gate, seen) in enumerate(zip(case.loaded.gates, case.seen, strict=True)):
        ours = case.recorded.gate_entropy[:, step].numpy()
        if not gate.semantics.score_function.startswith("softmax"):
            assert np.isnan(ours).all()
            continue
        probs = logits_of(gate, seen)[case.keep].double().softmax(dim=1)
        assert probs.shape[1] == gate.num_choices
        np.testing.assert_allclose(ours, torch.special.entr(probs).sum(dim=1).numpy(), atol=1e-5)


@pytest.mark.parametrize("model_type", ALL)
def test_margins_are_those_of_the_probabilities(model_type: str) -> None:
    """Unknown where another expert had a larger probability: the choice was not by probability alone."""
    case = traced(model_type)
    for step, (gate, seen) in enumerate(zip(case.loaded.gates, case.seen, strict=True)):
        margin, runner_up = case.recorded.margin[:, step].numpy(), case.recorded.runner_up[:, step].numpy()
        if not gate.semantics.score_function.startswith("softmax"):
            assert np.isnan(margin).all()
            continue
        probs = logits_of(gate, seen)[case.keep].double().softmax(dim=1).numpy()
        expected, expected_runner = margin_and_runner_up(probs, case.recorded.ids[:, step].long().numpy())
        known = expected >= 0
        np.testing.assert_allclose(margin[known], expected[known], atol=2e-6)
        assert np.isnan(margin[expected < -1e-6]).all()
        clear = expected > 1e-5
        ordered = -np.sort(-probs, axis=1)
        apart = ordered[:, gate.top_k] - ordered[:, min(gate.top_k + 1, probs.shape[1] - 1)] > 1e-5
        np.testing.assert_array_equal(runner_up[clear & apart], expected_runner[clear & apart])


def test_hash_layers_of_deepseek_v4_are_told_apart() -> None:
    case = traced("deepseek_v4")
    assert "looked up by the id of the token" in common_semantics(case.loaded.gates).note
    ids = case.recorded.ids[:, 0].numpy()
    table = case.loaded.gates[0].module.tid2eid
    for row, token in zip(ids, np.concatenate(case.windows), strict=True):
        assert sorted(row) == sorted(table[token].tolist())


def test_choices_that_cost_nothing_are_identities() -> None:
    for model_type, name, number in (("zaya", "skip", 1), ("longcat_flash", "zero expert 0", 4)):
        modules = traced(model_type).loaded.modules
        free = [m for m in modules if m.kind == "identity"]
        assert len(free) == number * len(traced(model_type).loaded.gates)
        assert free[0].name == name
        assert free[0].flops_per_token == 0
        assert free[0].module == traced(model_type).loaded.gates[0].num_experts
        assert (traced(model_type).recorded.ids >= free[0].module).any(), "the texts choose it somewhere"


def test_costs_of_an_expert() -> None:
    def cost(model_type: str) -> tuple[int, int]:
        module = traced(model_type).loaded.modules[0]
        return module.num_params, module.flops_per_token

    three = 3 * 32 * 48  # gate, up and down projection
    assert cost("mixtral") == (three, 2 * three)
    assert cost("llama4_text") == (three, 2 * three)
    assert cost("dbrx") == (3 * 32 * 24, 6 * 32 * 24)
    assert cost("longcat_flash") == (3 * 32 * 24, 6 * 32 * 24)
    assert cost("gpt_oss") == (three + 2 * 48 + 32, 2 * three), "biases are parameters, not multiplications"


@pytest.mark.parametrize("model_type", ALL)
def test_every_edit_is_made_or_refused_with_the_reason(model_type: str) -> None:
    """At the last gate: the token-wise edits touch one token, a bias of 0 nothing, k is the number of experts."""
    loaded, batch = traced(model_type).loaded, window()
    plain, last = loaded.run(batch), traced(model_type).loaded.num_steps - 1
    ids = batch.ribbons(plain)[:, last]
    here: dict[str, Any] = {"step": last, "tokens": [4]}
    gone = int(ids[4, 0])

    refused: list[str] = []

    def edited(**edit: Any) -> tuple[np.ndarray, Any]:
        try:
            changed = loaded.with_controls({"edits": [edit]}).run(batch)
        except UserError as error:
            refused.append(str(error))
            return np.empty(0), None
        return batch.ribbons(changed)[:, last], changed.logits

    changed, logits = edited(edit="bias", modules=[0, 3], value=0.0)
    assert logits is None or (np.array_equal(changed, ids) and torch.equal(logits, plain.logits))
    changed, logits = edited(edit="bias", modules=[6], value=1000.0, step=last)
    assert logits is None or (changed == 6).any(axis=1).all()
    changed, logits = edited(edit="bias", modules=[gone], value=-1000.0, step=last)
    assert logits is None or not (changed == gone).any()
    changed, logits = edited(edit="force", module=5, **here)
    if logits is not None:
        assert 5 in changed[4]
        assert np.array_equal(np.delete(changed, 4, axis=0), np.delete(ids, 4, axis=0))
    changed, logits = edited(edit="ban", modules=[gone], **here)
    assert logits is not None
    assert gone not in changed[4]
    assert np.array_equal(np.delete(changed, 4, axis=0), np.delete(ids, 4, axis=0))
    for top_k in (1, 3):
        changed, logits = edited(edit="top_k", k=top_k)
        assert logits is None or all(len(set(slots)) == top_k == len(slots) for slots in changed.tolist())
    assert bool(refused) == (model_type in REFUSES), refused
    assert all("Router) cannot" in why or "Gating) cannot" in why for why in refused), "names the gate's class"


def window() -> ModelInput:
    """``<s>`` and twelve tokens."""
    valid = torch.ones((1, 13), dtype=torch.bool)
    valid[0, 0] = False
    ids = torch.cat([torch.tensor([1]), torch.arange(3, 15)])
    return ModelInput(ids.view(1, -1), torch.full((1, 13), -100), valid)
