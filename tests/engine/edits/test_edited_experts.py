"""Bans at the gates of Hugging Face mixtures of experts, against routing worked out from the gates' own logits."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.tiny_huggingface import TEXTS, save_tiny
from tokenpaths.engine.adapters.huggingface import tracing as hf
from tokenpaths.engine.adapters.huggingface.gate_hooks import GateRecorder
from tokenpaths.engine.adapters.huggingface.loading import HuggingFaceModel
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.edits.expert_bans import banned_experts, measure_bans, plan_bans, trace_banned, usage_of_experts
from tokenpaths.engine.edits.sweep import share_rows
from tokenpaths.engine.store.ask.run import Run

SAMPLES = [Sample(image=None, text=text, label=None, source="t") for text in TEXTS[:3]]
BY_SCORES = ["mixtral", "olmoe", "gpt_oss", "qwen3_moe"]
OTHERS = ["deepseek_v3", "dbrx", "llama4_text", "phimoe", "jetmoe", "longcat_flash", "zaya"]


@functools.cache
def loaded_of(model_type: str) -> HuggingFaceModel:
    with tempfile.TemporaryDirectory() as folder:
        source = hf.find_model(f"hf:{save_tiny(Path(folder) / model_type, model_type)}")
        return hf.load(source, device="cpu", twin=False)


def busiest(loaded: HuggingFaceModel) -> list[dict]:
    usage = usage_of_experts(loaded, SAMPLES)[:, : loaded.gates[0].num_experts]
    return [{"edit": "ban", "modules": [int(expert)], "step": step} for step, expert in enumerate(usage.argmax(axis=1))]


def passes(loaded: HuggingFaceModel, edits: list[dict]):
    """Ids, weights and the first gate's logits, unedited and edited; logits of the model."""
    inputs = torch.arange(3, 15).view(1, -1)
    found = []
    for plan in (None, plan_bans(loaded.gates, edits)):
        with GateRecorder(loaded.gates) as recorder, torch.inference_mode():
            if plan is None:
                logits = loaded.model(input_ids=inputs, use_cache=False).logits
            else:
                with banned_experts(loaded.gates, plan):
                    logits = loaded.model(input_ids=inputs, use_cache=False).logits
            said = recorder._calls[0][1]
            found.append((recorder.take(torch.ones(12, dtype=torch.bool)), said.logits, logits))
    return found


@pytest.mark.parametrize("model_type", BY_SCORES)
def test_the_first_gate_chooses_the_best_that_are_left(model_type: str) -> None:
    loaded = loaded_of(model_type)
    gate, edits = loaded.gates[0], busiest(loaded)
    (plain, scores, _), (edited, _, _) = passes(loaded, edits)
    means, gone = gate.semantics, edits[0]["modules"][0]
    assert (plain.ids[:, 0] == gone).any()
    for token in range(12):
        row = scores[token].double().numpy()
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
    (plain, _, before), (edited, _, after) = passes(loaded, edits)
    for edit in edits:
        assert not (edited.ids[:, edit["step"]] == edit["modules"][0]).any()
    assert any((plain.ids[:, edit["step"]] == edit["modules"][0]).any() for edit in edits)
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)
    untouched = ~(plain.ids[:, 0] == edits[0]["modules"][0]).any(dim=1)
    if model_type != "deepseek_v3":  # a group loses with its best expert
        assert torch.equal(edited.ids[untouched, 0], plain.ids[untouched, 0])
    again = passes(loaded, edits)[0]
    assert torch.equal(again[2], before)
    assert not any("forward" in vars(module) for module in loaded.model.modules())


def test_gates_that_look_experts_up_are_refused() -> None:
    loaded = loaded_of("deepseek_v4")
    with pytest.raises(UserError, match=r"HashRouter\) chose expert \d though it is banned"):
        measure_bans(loaded, SAMPLES, [{"edit": "ban", "modules": list(range(6)), "step": 0}])


def test_bans_that_fit_nothing_are_refused() -> None:
    loaded = loaded_of("mixtral")
    for sentence, edits in {
        "step 0 has 1 module left with 7 of 8 banned, and top-k needs 2": [{"edit": "ban", "modules": list(range(7))}],
        "there is no module 8": [{"edit": "ban", "modules": [8]}],
        "there is no step 3": [{"edit": "ban", "modules": [1], "step": 3}],
        "a moe model has no edit 'force': the model's own code chooses": [{"edit": "force", "module": 1}],
        "there is no edit": [],
    }.items():
        with pytest.raises(UserError, match=sentence):
            measure_bans(loaded, SAMPLES, edits)


def test_the_effect_and_the_run_that_carries_it(tmp_path: Path) -> None:
    loaded = loaded_of("mixtral")
    edits = busiest(loaded)[1:2]
    effect = measure_bans(loaded, SAMPLES, edits, budget=64)
    before = hf.trace_texts(loaded, SAMPLES, tmp_path, run_id="before")
    after = trace_banned(loaded, SAMPLES, tmp_path, edits, run_id="after", effect=effect)
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
    usage = usage_of_experts(loaded, SAMPLES)
    choices = [range(gate.num_choices) for gate in loaded.gates]
    rows = share_rows(usage, (0.25, 0.9), choices, loaded.gates[0].top_k)
    effects = {(row.share, row.which): measure_bans(loaded, SAMPLES, row.edits) for row in rows if row.which == "top"}
    assert [row.banned for row in rows if row.which == "top"] == [2 * len(choices), 6 * len(choices)]
    assert effects[0.9, "top"]["path_distance"] > effects[0.25, "top"]["path_distance"] > 0
