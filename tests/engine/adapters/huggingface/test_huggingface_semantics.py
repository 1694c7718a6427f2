"""What is said of the weights of well-known architectures, beside expectations written by hand from their papers
and code: a value that is always the same, or read from the wrong attribute, is seen here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.tiny_huggingface import tiny_model
from tokenpaths.engine.adapters.expert_runs import WeightSemantics
from tokenpaths.engine.adapters.huggingface.gate_hooks import GateRecorder, Recorded
from tokenpaths.engine.adapters.huggingface.gates import Gate, find_gates
from tokenpaths.engine.adapters.huggingface.semantics import semantics_of

S, G = "softmax, then top-k", "sigmoid, then top-k"
EXPECTED: dict[tuple[str, tuple[tuple[str, Any], ...]], dict[str, Any]] = {
    ("mixtral", ()): dict(
        score_function="softmax", order=S, renormalised=True, bias=False, groups=None, scale=1.0, shared_experts=0
    ),
    ("qwen2_moe", ()): dict(
        score_function="softmax", order=S, renormalised=False, bias=False, groups=None, scale=1.0, shared_experts=1
    ),
    ("qwen2_moe", (("norm_topk_prob", True),)): dict(order=S, renormalised=True, shared_experts=1),
    # Limited to groups, without a bias; the number of shared experts is the configuration's.
    ("deepseek_v2", (("n_shared_experts", 2),)): dict(
        score_function="softmax", order=S, renormalised=False, bias=False, groups=(2, 1), scale=1.5, shared_experts=2
    ),
    ("deepseek_v2", (("topk_method", "greedy"),)): dict(bias=False, groups=None, shared_experts=1),
    ("deepseek_v3", (("n_group", 4), ("topk_group", 2), ("n_shared_experts", 3))): dict(
        score_function="sigmoid", order=G, renormalised=True, bias=True, groups=(4, 2), scale=2.5, shared_experts=3
    ),
    # All groups may be used, so there is no limit.
    ("deepseek_v3", (("n_group", 2), ("topk_group", 2))): dict(bias=True, groups=None),
    ("deepseek_v3", (("n_group", 1), ("topk_group", 1))): dict(groups=None),
    ("gpt_oss", ()): dict(
        score_function="softmax of top-k",
        order="top-k, then softmax",
        renormalised=False,
        bias=False,
        groups=None,
        scale=1.0,
        shared_experts=0,
    ),
    ("glm4_moe", (("norm_topk_prob", False), ("n_shared_experts", 4))): dict(
        score_function="sigmoid", order=G, renormalised=False, bias=True, groups=(2, 1), scale=2.0, shared_experts=4
    ),
    ("ernie4_5_moe", (("moe_num_shared_experts", 2),)): dict(
        score_function="softmax", order=S, renormalised=True, bias=True, groups=None, shared_experts=2
    ),
    ("ernie4_5_moe", (("moe_num_shared_experts", 0),)): dict(shared_experts=0),
    ("longcat_flash", ()): dict(
        score_function="softmax", order=S, renormalised=False, bias=True, groups=None, scale=2.0, shared_experts=0
    ),
    ("granitemoeshared", ()): dict(order="top-k, then softmax", bias=False, groups=None, shared_experts=1),
    ("llama4_text", ()): dict(
        score_function="sigmoid",
        order="top-k, then sigmoid",
        renormalised=False,
        bias=False,
        groups=None,
        scale=1.0,
        shared_experts=1,
    ),
    ("jamba", ()): dict(score_function="softmax", order=S, renormalised=False, bias=False, shared_experts=0),
    ("dbrx", ()): dict(score_function="softmax", order=S, renormalised=True, bias=False, shared_experts=0),
}
"""(model type, what its configuration has beyond the tiny one): the fields of ``WeightSemantics``"""


def semantics(model_type: str, changes: dict[str, Any]) -> list[WeightSemantics]:
    model = tiny_model(model_type, **changes)
    ids = torch.arange(3, 11)[None]
    with torch.inference_mode():
        gates = find_gates(model, lambda: model(input_ids=ids, use_cache=False), model.config)
    return [gate.semantics for gate in gates]


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: " ".join([case[0], *(f"{k}={v}" for k, v in case[1])]))
def test_what_is_said_of_the_weights_is_what_is_known_of_the_architecture(case) -> None:
    said = semantics(case[0], dict(case[1]))
    assert said
    for means in said:
        assert {name: getattr(means, name) for name in EXPECTED[case]} == EXPECTED[case]


@pytest.mark.parametrize("field", ["bias", "groups", "shared_experts", "renormalised", "scale", "order"])
def test_no_field_is_the_same_everywhere(field: str) -> None:
    assert len({expected[field] for expected in EXPECTED.values() if field in expected}) > 1


def test_probabilities_in_the_place_of_logits_are_no_logits() -> None:
    """As the gates of Mixtral and Qwen3-MoE give them in some releases of the library."""
    model = tiny_model("mixtral")
    ids = torch.arange(3, 11)[None]

    def recorded() -> tuple[list[Gate], Recorded]:
        gates = find_gates(model, lambda: model(input_ids=ids, use_cache=False), model.config)
        with GateRecorder(gates) as recorder:
            model(input_ids=ids, use_cache=False)
            return gates, recorder.take(torch.ones(8, dtype=torch.bool))

    with torch.inference_mode():
        plain, right = recorded()
        for gate in plain:
            gate.module.register_forward_hook(lambda _m, _args, out: (out[0].softmax(dim=-1), *out[1:]))
        gates, found = recorded()
    assert [gate.gives_probabilities for gate in plain + gates] == [False] * len(plain) + [True] * len(gates)
    assert torch.allclose(found.gate_entropy, right.gate_entropy, atol=1e-6)
    assert torch.allclose(found.margin, right.margin, atol=1e-6)


def test_a_gate_that_is_not_told_of_the_division_by_the_sum() -> None:
    """As DeepSeek-V3's in some releases, where the block divides."""
    gate = type("DeepseekV3TopkRouter", (torch.nn.Module,), {})()
    block, config = torch.nn.Module(), SimpleNamespace()
    assert semantics_of(gate, block, torch.nn.Module(), config).renormalised is None
    config.norm_topk_prob = True
    assert semantics_of(gate, block, torch.nn.Module(), config).renormalised is True
    block.norm_topk_prob = False
    assert semantics_of(gate, block, torch.nn.Module(), config).renormalised is False
