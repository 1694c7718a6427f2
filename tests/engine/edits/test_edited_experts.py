"""Edits at the gates of Hugging Face mixtures of experts, against routing worked out from the gates' own logits."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.naive_routing import logits_of, watch
from tests.support.tiny_huggingface import TEXTS, effect_over, saved_tiny
from tokenpaths.engine.adapters.huggingface.gate_hooks import GateRecorder
from tokenpaths.engine.adapters.huggingface.gates import Said
from tokenpaths.engine.adapters.huggingface.inspection import find_model
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.edits.sweep import share_rows, usage_of
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.engine.tracing.traceable import ModelInput

SAMPLES = [Sample(image=None, text=text, label=None, source="t") for text in TEXTS[:3]]
BY_SCORES = ["mixtral", "olmoe", "gpt_oss", "qwen3_moe"]
"""softmax, then top-k, renormalised and as it is; top-k, then softmax"""
OTHERS = [
    "deepseek_v2",
    "deepseek_v3",
    "dbrx",
    "llama4_text",
    "phimoe",
    "jetmoe",
    "longcat_flash",
    "gemma4_text",
    "zaya",
]
"""group-limited by softmax and by sigmoid with a bias; choices at the experts; sigmoid of top-k; one after the other;
sorted by expert; zero experts; learned scales; a choice to skip the layer"""
NEVER = -1000.0
"""the lowest bias that an edit may have"""


@functools.cache
def loaded_of(model_type: str) -> HuggingFaceModel:
    return load(find_model(f"hf:{saved_tiny(model_type)}"), device="cpu")


def busiest(loaded: HuggingFaceModel) -> list[dict]:
    usage = usage_of(loaded, prepare(loaded, SAMPLES))[:, : loaded.gates[0].num_experts]
    return [{"edit": "ban", "modules": [int(expert)], "step": step} for step, expert in enumerate(usage.argmax(axis=1))]


@dataclass
class Pass:
    """One pass over a window of 12 tokens behind ``<s>``."""

    ids: np.ndarray
    """(12, S, K)"""
    weights: np.ndarray
    logits: torch.Tensor
    """of the model"""
    said: Said
    """the first gate, ``<s>`` included"""


def window() -> ModelInput:
    """``<s>`` and twelve tokens."""
    valid = torch.ones((1, 13), dtype=torch.bool)
    valid[0, 0] = False
    ids = torch.cat([torch.tensor([1]), torch.arange(3, 15)])
    return ModelInput(ids.view(1, -1), torch.full((1, 13), -100), valid)


def run(loaded: HuggingFaceModel, *edits: dict[str, Any]) -> Pass:
    """The window under edits."""
    said: list[Said] = []
    take = GateRecorder.take

    def taken(self: GateRecorder, keep: torch.Tensor) -> Any:
        said.append(self.calls[0][1])
        return take(self, keep)

    batch, model = window(), loaded.with_controls({"edits": list(edits)} if edits else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GateRecorder, "take", taken)
        traced = model.run(batch)
    weights = batch.real_rows(traced.weights).numpy()
    return Pass(batch.ribbons(traced), weights, traced.logits, said[-1])


def same(first: Pass, second: Pass) -> bool:
    return bool(
        np.array_equal(first.ids, second.ids)
        and np.array_equal(first.weights, second.weights)
        and torch.equal(first.logits, second.logits)
    )


def is_untouched(loaded: HuggingFaceModel) -> bool:
    return not any("forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in loaded.model.modules())


# Bans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", BY_SCORES)
def test_the_first_gate_chooses_the_best_that_are_left(model_type: str) -> None:
    loaded = loaded_of(model_type)
    gate, edits = loaded.gates[0], busiest(loaded)
    plain, edited = run(loaded), run(loaded, *edits)
    means, gone = gate.semantics, edits[0]["modules"][0]
    assert (plain.ids[:, 0] == gone).any()
    for token in range(12):
        row = plain.said.logits[token + 1].double().numpy()
        left = [expert for expert in range(gate.num_experts) if expert != gone]
        best = sorted(left, key=lambda expert: -row[expert])[: gate.top_k]
        over = best if means.score_function == "softmax of top-k" else left
        exp = {expert: np.exp(row[expert]) for expert in over}
        weights = np.array([exp[expert] / sum(exp.values()) for expert in best])
        if means.renormalised:
            weights /= weights.sum()
        assert edited.ids[token, 0].tolist() == best
        np.testing.assert_allclose(edited.weights[token, 0], weights, atol=2e-5)


@pytest.mark.parametrize("model_type", BY_SCORES + OTHERS)
def test_banned_experts_are_never_chosen_and_the_model_is_left_as_it_was(model_type: str) -> None:
    loaded = loaded_of(model_type)
    edits = busiest(loaded)
    plain, edited = run(loaded), run(loaded, *edits)
    for edit in edits:
        assert not (edited.ids[:, edit["step"]] == edit["modules"][0]).any()
    assert any((plain.ids[:, edit["step"]] == edit["modules"][0]).any() for edit in edits)
    assert torch.isfinite(edited.logits).all()
    assert not torch.equal(plain.logits, edited.logits)
    untouched = ~(plain.ids[:, 0] == edits[0]["modules"][0]).any(axis=1)
    if model_type not in ("deepseek_v2", "deepseek_v3"):  # a group loses with its best expert
        assert np.array_equal(edited.ids[untouched, 0], plain.ids[untouched, 0])
    assert same(run(loaded), plain)
    assert is_untouched(loaded)


def test_gates_that_look_experts_up_are_refused() -> None:
    loaded = loaded_of("deepseek_v4")
    with pytest.raises(UserError, match=r"HashRouter\) chose expert \d though it is banned"):
        effect_over(loaded, SAMPLES, [{"edit": "ban", "modules": list(range(6)), "step": 0}])
    for edit, why in (
        (
            {"edit": "bias", "modules": [0], "value": 1.0, "step": 0},
            "cannot be biased: experts are looked up by the id",
        ),
        ({"edit": "top_k", "k": 1}, "cannot pick 1 experts: it looks a fixed number of experts up"),
    ):
        with pytest.raises(UserError, match=why):
            loaded.with_controls({"edits": [edit]})


def test_edits_that_fit_nothing_are_refused() -> None:
    loaded = loaded_of("mixtral")
    for sentence, edits in {
        "step 0 has 1 module left with 7 of 8 banned, and top-k needs 2": [{"edit": "ban", "modules": list(range(7))}],
        "there is no module 8": [{"edit": "ban", "modules": [8]}],
        "there is no step 3": [{"edit": "ban", "modules": [1], "step": 3}],
        "a moe model has no edit 'vanish'": [{"edit": "vanish"}],
        "is empty": [],
    }.items():
        with pytest.raises(UserError, match=sentence):
            loaded.with_controls({"edits": edits})


# Single tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", BY_SCORES + OTHERS)
def test_a_ban_for_one_token_leaves_all_others_as_they_are(model_type: str) -> None:
    loaded = loaded_of(model_type)
    gone = int(run(loaded).ids[4, 0, 0])
    if gone >= loaded.gates[0].num_experts:
        gone = int(run(loaded).ids[5, 0, 0])
    plain = run(loaded)
    token = int(np.flatnonzero((plain.ids[:, 0] == gone).any(axis=1))[0])
    edited = run(loaded, {"edit": "ban", "modules": [gone], "step": 0, "tokens": [token]})
    assert gone not in edited.ids[token, 0]
    others = np.arange(12) != token
    assert np.array_equal(edited.ids[others, 0], plain.ids[others, 0])
    assert np.array_equal(edited.weights[others, 0], plain.weights[others, 0])
    everybody = run(loaded, {"edit": "ban", "modules": [gone], "step": 0})
    assert np.array_equal(edited.ids[token, 0], everybody.ids[token, 0])
    assert np.array_equal(edited.weights[token, 0], everybody.weights[token, 0])
    # Tokens in front never see what comes behind them.
    torch.testing.assert_close(edited.logits[0, : token + 1], plain.logits[0, : token + 1], rtol=1e-4, atol=1e-5)


def test_a_ban_for_the_tokens_of_a_path() -> None:
    loaded = loaded_of("mixtral")
    plain = run(loaded)
    path = plain.ids[3].tolist()
    edited = run(loaded, {"edit": "ban", "modules": [path[1][0]], "step": 1, "path": path})
    on_it = (np.sort(plain.ids) == np.sort(plain.ids[3])).all(axis=(1, 2))
    assert not (edited.ids[on_it, 1] == path[1][0]).any()
    assert np.array_equal(edited.ids[~on_it, 1], plain.ids[~on_it, 1])


# Forced modules and swaps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", [*BY_SCORES, *OTHERS[:-1]])
def test_forced_experts_are_the_ones_that_are_used(model_type: str) -> None:
    loaded, forced = loaded_of(model_type), 5
    plain = run(loaded)
    edited = run(loaded, {"edit": "force", "module": forced, "step": 0, "tokens": [2, 7]})
    for token in range(12):
        there = forced in plain.ids[token, 0]
        if token in (2, 7) and not there:
            # The first choice's place and weight, the other slots as they were.
            assert edited.ids[token, 0].tolist() == [forced, *plain.ids[token, 0, 1:]]
        else:
            assert np.array_equal(edited.ids[token, 0], plain.ids[token, 0])
        np.testing.assert_allclose(edited.weights[token, 0], plain.weights[token, 0], rtol=1e-6)
    everybody = run(loaded, {"edit": "force", "module": forced})
    assert (everybody.ids == forced).any(axis=2).all()
    assert same(run(loaded), plain)
    assert is_untouched(loaded)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "deepseek_v3", "dbrx", "gemma4_text"])
def test_a_swap_gives_the_sum_of_the_experts_that_it_names(model_type: str) -> None:
    """The output of the first block, put together by hand from the given ids and the gate's own weights."""
    loaded = loaded_of(model_type)
    gate, plain = loaded.gates[0], run(loaded)
    rng = np.random.default_rng(0)
    ribbons = [[sorted(rng.permutation(8)[: gate.top_k].tolist()) for _ in loaded.gates] for _ in range(12)]
    seen: dict[str, torch.Tensor] = {}

    def keep(module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        seen["input"], seen["output"] = (*args, *kwargs.values())[0], output

    handle = gate.block.experts.register_forward_hook(keep, with_kwargs=True)
    edited = run(loaded, {"edit": "swap", "ribbons": ribbons})
    handle.remove()
    assert np.array_equal(edited.ids, np.array(ribbons))
    np.testing.assert_allclose(edited.weights[:, 0], plain.weights[:, 0], rtol=1e-6)
    states = seen["input"].reshape(13, -1)
    output = seen["output"].reshape(13, -1)
    learned = getattr(gate.module, "per_expert_scale", torch.ones(gate.num_choices))
    with torch.inference_mode():
        for token in range(12):
            expected = torch.zeros_like(output[0])
            for expert, weight in zip(ribbons[token][0], edited.weights[token, 0], strict=True):
                one = gate.block.experts(
                    states[token + 1 : token + 2],
                    torch.tensor([[expert, (expert + 1) % 8]]),
                    torch.tensor([[1.0, 0.0]]),
                )
                expected += one.reshape(-1) * (float(weight) * gate.divide * float(learned[expert]))
            torch.testing.assert_close(output[token + 1], expected, rtol=1e-3, atol=1e-5)


def test_frozen_and_shuffled_decisions() -> None:
    loaded = loaded_of("qwen3_moe")
    plain = run(loaded)
    frozen = run(loaded, {"edit": "force", "module": 5, "step": 0}, {"edit": "freeze"})
    assert np.array_equal(frozen.ids[:, 1:], plain.ids[:, 1:])
    assert not torch.equal(frozen.logits, plain.logits)
    shuffled = run(loaded, {"edit": "shuffle", "step": 0, "seed": 3})
    assert not np.array_equal(shuffled.ids[:, 0], plain.ids[:, 0])
    assert sorted(map(tuple, shuffled.ids[:, 0])) == sorted(map(tuple, plain.ids[:, 0]))


def test_a_choice_of_weight_0_cannot_be_replaced() -> None:
    with pytest.raises(UserError, match=r"ZayaRouter\) cannot be told where tokens go: skipping the layer is a choice"):
        loaded_of("zaya").with_controls({"edits": [{"edit": "force", "module": 1}]})


# Bias ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", BY_SCORES + OTHERS)
def test_a_bias_of_0_changes_nothing_and_a_very_low_one_bans(model_type: str) -> None:
    loaded = loaded_of(model_type)
    plain = run(loaded)
    assert same(run(loaded, {"edit": "bias", "modules": [0, 3], "value": 0.0}), plain)
    ban = busiest(loaded)[0]
    banned = run(loaded, ban)
    pushed = run(loaded, {"edit": "bias", "modules": ban["modules"], "value": NEVER, "step": 0})
    means = loaded.gates[0].semantics
    if means.score_function == "softmax" and means.bias:
        # A ban shares the probability of what is banned out among the others, before the gate's own bias is added.
        assert not np.isin(pushed.ids[:, 0], ban["modules"]).any()
        return
    assert np.array_equal(np.sort(pushed.ids[:, 0]), np.sort(banned.ids[:, 0]))
    if means.renormalised or means.score_function in ("sigmoid", "softmax of top-k"):
        np.testing.assert_allclose(pushed.weights, banned.weights, rtol=1e-5)
        torch.testing.assert_close(pushed.logits, banned.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["mixtral", "olmoe", "deepseek_v3", "gpt_oss", "llama4_text"])
def test_a_bias_moves_the_choice_and_never_the_weight(model_type: str) -> None:
    loaded = loaded_of(model_type)
    gate, (seen, *_) = loaded.gates[0], watch(loaded.gates, lambda: loaded.run(window()))
    pushed = run(loaded, {"edit": "bias", "modules": [6], "value": 1000.0, "step": 0})
    assert (pushed.ids[:, 0] == 6).any(axis=1).all()
    logits = logits_of(gate, seen)[1:].double().numpy()
    scores = 1 / (1 + np.exp(-logits))
    if gate.semantics.score_function.startswith("softmax"):
        scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    weights = np.take_along_axis(scores, pushed.ids[:, 0].astype(np.int64), axis=1)
    if gate.semantics.renormalised or gate.semantics.score_function == "softmax of top-k":
        weights = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(pushed.weights[:, 0], weights, atol=1e-5)


# k ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["mixtral", "olmoe", "gpt_oss", "deepseek_v3", "dbrx", "llama4_text"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_k_is_the_number_of_experts_of_a_token(model_type: str, top_k: int) -> None:
    loaded = loaded_of(model_type)
    gate, plain = loaded.gates[0], run(loaded)
    edited = run(loaded, {"edit": "top_k", "k": top_k})
    assert edited.ids.shape == (12, len(loaded.gates), top_k)
    shared = min(top_k, gate.top_k)
    for token in range(12):
        assert len(set(edited.ids[token, 0].tolist())) == top_k
        if not gate.semantics.bias:
            assert set(plain.ids[token, 0, :shared]) <= set(edited.ids[token, 0]) | set(plain.ids[token, 0, shared:])
    if gate.semantics.renormalised or gate.semantics.score_function == "softmax of top-k":
        np.testing.assert_allclose(edited.weights.sum(axis=2), 1, rtol=1e-5)
    assert same(run(loaded), plain)
    assert loaded.with_controls({"edits": [{"edit": "top_k", "k": top_k}]}).run_fields()["top_k"] == top_k


@pytest.mark.parametrize(
    ("model_type", "top_k", "why"),
    [
        ("phimoe", 3, "SparseMixer picks two experts"),
        ("zaya", 2, "it picks the one best expert"),
        ("longcat_flash", 1, "its experts cannot be called with one slot"),
        ("jetmoe", 1, "one group of heads for each chosen expert"),
        ("deepseek_v3", 5, "a token may use 1 of 2 groups, which hold 4"),
    ],
)
def test_gates_whose_arithmetic_has_one_k_are_refused_with_the_reason(model_type: str, top_k: int, why: str) -> None:
    with pytest.raises(UserError, match=why):
        loaded_of(model_type).with_controls({"edits": [{"edit": "top_k", "k": top_k}]})


# Runs ---------------------------------------------------------------------------------------------------------


def test_the_effect_and_the_run_that_carries_it(tmp_path: Path) -> None:
    loaded = loaded_of("mixtral")
    edits = busiest(loaded)[1:2]
    effect = effect_over(loaded, SAMPLES, edits)
    before = trace_samples(loaded, SAMPLES, tmp_path, run_id="before")
    edited = loaded.with_controls({"edits": edits})
    after = trace_samples(edited, SAMPLES, tmp_path, run_id="after", findings={"effect": effect})
    with Run.open(before) as old, Run.open(after) as new:
        found = new.effect(old)
        assert new.info()["config"]["controls"]["edits"][0]["modules"] == edits[0]["modules"]
    for name in ("paths_changed", "paths_changed_after", "path_distance", "flow_difference"):
        assert found[name] == pytest.approx(effect[name], abs=1e-6)
    assert found["loss"]["change"] == pytest.approx(effect["loss"]["change"], abs=1e-4)
    assert found["after_step"] == 1
    assert found["outputs"]["kl"] == pytest.approx(effect["kl"], rel=1e-3)
    assert effect["kl"] > 0


def test_the_busiest_share_of_each_layer() -> None:
    loaded = loaded_of("olmoe")
    usage = usage_of(loaded, prepare(loaded, SAMPLES))
    rows = share_rows(usage, (0.25, 0.9), loaded.choices(), loaded.must_leave)
    effects = {(row.share, row.which): effect_over(loaded, SAMPLES, row.edits) for row in rows if row.which == "top"}
    assert [row.banned for row in rows if row.which == "top"] == [2 * loaded.num_steps, 6 * loaded.num_steps]
    assert effects[0.9, "top"]["path_distance"] > effects[0.25, "top"]["path_distance"] > 0


def test_positions_mean_nothing_in_a_text_of_several_windows(tmp_path: Path) -> None:
    edited = loaded_of("mixtral").with_controls({"edits": [{"edit": "force", "module": 1, "tokens": [0]}]})
    long = Sample(image=None, text=TEXTS[0] * 40, label=None, source="long")
    with pytest.raises(UserError, match="is read in windows of"):
        trace_samples(edited, [long], tmp_path, run_id="long")
