"""Naive twin of the adapter: what a model really did at its gates, for the tests and the benchmark.

Three ways independent of the adapter: the inputs of the experts (or, for the four architectures where these are not
enough, their routing written out by hand), the weights computed from ``WeightSemantics`` alone, and the output of a
block computed token by token from the recorded ids and weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.adapters.expert_runs import WeightSemantics
from tokenpaths.engine.adapters.huggingface.gates import Gate

BY_HAND = ("Llama4Router", "JetMoeTopKGating", "ZayaRouter")
SCALED_BEHIND = (
    "BeamMoE",
    "LagunaSparseMoeBlock",
    "MiniMaxM3VLSparseMoeBlock",
    "Step3p7SparseMoeBlock",
    "Cohere2MoeSparseMoeBlock",
)
"""blocks that scale the output of their experts"""


@dataclass
class Seen:
    """Tensors of one gate and its block in one pass."""

    gate_output: Any = None
    called_with: tuple[Tensor, Tensor, Tensor] | None = None
    experts_output: Tensor | None = None
    block_input: Tensor | None = None
    block_output: Tensor | None = None
    shared_output: Tensor | None = None
    handles: list[Any] = field(default_factory=list)


def watch(gates: list[Gate], run: Callable[[], Any]) -> list[Seen]:
    """Run with hooks of our own on each gate, its experts and its block."""
    all_seen = []
    for gate in gates:
        seen = Seen()
        hooks = [gate.module.register_forward_hook(lambda m, a, out, s=seen: setattr(s, "gate_output", out))]
        experts = getattr(gate.block, "experts", None)
        if experts is not None:
            hooks += [
                experts.register_forward_pre_hook(
                    lambda m, a, k, s=seen: setattr(s, "called_with", (*a, *k.values())), with_kwargs=True
                ),
                experts.register_forward_hook(lambda m, a, out, s=seen: setattr(s, "experts_output", out)),
            ]
        shared = getattr(gate.block, "shared_experts", None) or getattr(gate.block, "shared_expert", None)
        if shared is not None:
            # Llama 4 adds to this very tensor afterwards.
            hooks.append(
                shared.register_forward_hook(lambda m, a, out, s=seen: setattr(s, "shared_output", out.clone()))
            )
        hooks.append(gate.block.register_forward_hook(lambda m, a, out, s=seen: _block(s, a, out)))
        seen.handles = hooks
        all_seen.append(seen)
    try:
        with torch.inference_mode():
            run()
    finally:
        for seen in all_seen:
            for handle in seen.handles:
                handle.remove()
    return all_seen


def _block(seen: Seen, args: tuple[Any, ...], output: Any) -> None:
    seen.block_input = args[0] if args else None
    seen.block_output = output[0] if isinstance(output, tuple) else output


def own_decisions(gate: Gate, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights (n, K) as the model's experts received them, largest weight first, without learned scales."""
    ids, weights = _by_hand(gate, seen) if type(gate.module).__name__ in BY_HAND else _from_call(seen)
    weights = weights.float()
    if hasattr(gate.module, "per_expert_scale"):
        weights = weights / gate.module.per_expert_scale[ids]
    if hasattr(gate.module, "global_scale"):
        weights = weights / gate.module.global_scale
    order = weights.argsort(dim=1, descending=True, stable=True)
    return ids.gather(1, order).numpy(), weights.gather(1, order).numpy()


def _from_call(seen: Seen) -> tuple[Tensor, Tensor]:
    assert seen.called_with is not None
    _, ids, weights = seen.called_with
    return ids.reshape(-1, ids.shape[-1]).long(), weights.reshape(-1, ids.shape[-1])


def _by_hand(gate: Gate, seen: Seen) -> tuple[Tensor, Tensor]:
    kind = type(gate.module).__name__
    if kind == "Llama4Router":
        best = seen.gate_output[1].topk(gate.top_k, dim=1)
        return best.indices, best.values.sigmoid()
    if kind == "JetMoeTopKGating":
        best = seen.gate_output[4].topk(gate.top_k, dim=1)
        return best.indices, best.values.softmax(dim=1)
    probs = seen.gate_output[0].softmax(dim=1)
    ids = (probs.float() + gate.module.balancing_biases).argmax(dim=1, keepdim=True)
    weights = probs.gather(1, ids).masked_fill(ids == gate.module.num_experts, 0)
    return ids, weights


def weights_from_semantics(means: WeightSemantics, logits: Tensor, ids: np.ndarray) -> np.ndarray | None:
    """The weights of given ids computed from ``WeightSemantics`` in float64; None if it does not define them."""
    logits, chosen_ids = logits.double(), torch.from_numpy(ids).long()
    if means.score_function == "softmax of top-k":
        return logits.gather(1, chosen_ids).softmax(dim=1).numpy()
    if means.score_function == "unknown" or means.order == "unknown":
        return None
    scores = logits.softmax(dim=1) if means.score_function == "softmax" else logits.sigmoid()
    weights = scores.gather(1, chosen_ids)
    if means.renormalised:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights.numpy()


def logits_of(gate: Gate, seen: Seen) -> Tensor:
    """The logits over all experts at a gate."""
    kind, output = type(gate.module).__name__, seen.gate_output
    if kind == "DbrxRouter":
        return output.reshape(-1, output.shape[-1])
    if kind == "Gemma4TextRouter":  # the gate returns probabilities
        return output[0].reshape(-1, output[0].shape[-1]).log()
    position = {"Llama4Router": 1, "JetMoeTopKGating": 4}.get(kind, 0)
    return output[position].reshape(-1, output[position].shape[-1])


@torch.inference_mode()
def block_from_record(
    gate: Gate, seen: Seen, ids: np.ndarray, weights: np.ndarray, keep: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Output of the experts (n, D): recomputed from the record, and as it really was."""
    kind = type(gate.module).__name__
    if kind == "Llama4Router":
        x = seen.block_input.reshape(-1, seen.block_input.shape[-1])[keep]
        real = (seen.block_output.reshape(-1, x.shape[1]) - seen.shared_output)[keep]
        return _sum(x, ids, weights, lambda h, e, w: _llama4_expert(gate.block.experts, h * w, e)), real.numpy()
    if kind == "JetMoeTopKGating":
        x = seen.block_input.reshape(-1, seen.block_input.shape[-1])[keep]
        real = (seen.block_output.reshape(-1, x.shape[1]) - gate.block.bias)[keep]
        return _sum(x, ids, weights, lambda h, e, w: w * _jetmoe_expert(gate.block, h, e)), real.numpy()
    x = seen.called_with[0].reshape(-1, seen.called_with[0].shape[-1])[keep]
    real = seen.experts_output.reshape(-1, x.shape[1])[keep]
    scale = gate.semantics.scale
    if type(gate.block).__name__ in SCALED_BEHIND:
        real = seen.block_output.reshape(-1, x.shape[1])[keep]
        if seen.shared_output is not None:
            # Cohere averages: (routed + shared) / 2.
            part = 0.5 if type(gate.block).__name__.startswith("Cohere2") else 1.0
            real = real - part * seen.shared_output.reshape(-1, x.shape[1])[keep]
    learned = getattr(gate.module, "per_expert_scale", torch.ones(gate.num_choices))
    layer = float(getattr(gate.module, "global_scale", torch.ones(1)))

    def one(h: Tensor, e: int, w: float) -> Tensor:
        if e >= gate.num_experts and gate.skips[0] == "skip":
            return torch.zeros_like(h)
        # A second slot of weight 0: one architecture's experts cannot be called with a single one.
        slots, shares = torch.tensor([[e, (e + 1) % gate.num_experts]]), torch.tensor([[1.0, 0.0]])
        return gate.block.experts(h[None], slots, shares).reshape(-1) * (w * scale * layer * float(learned[e]))

    return _sum(x, ids, weights, one), real.numpy()


def _sum(x: Tensor, ids: np.ndarray, weights: np.ndarray, one: Callable[[Tensor, int, float], Tensor]) -> np.ndarray:
    rows = [
        sum(one(h, int(e), float(w)) for e, w in zip(of_token, weights_of, strict=True))
        for h, of_token, weights_of in zip(x, ids, weights, strict=True)
    ]
    return torch.stack(rows).numpy()


def _llama4_expert(experts: nn.Module, x: Tensor, e: int) -> Tensor:
    gate, up = (x @ experts.gate_up_proj[e]).chunk(2)
    return (up * experts.act_fn(gate)) @ experts.down_proj[e]


def _jetmoe_expert(block: nn.Module, x: Tensor, e: int) -> Tensor:
    gate, up = F.linear(x, block.input_linear.weight[e]).chunk(2)
    return F.linear(block.activation(gate) * up, block.output_linear.weight[e])
