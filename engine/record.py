"""From a model's decisions to a trace batch: what every token did, and what it cost.

Shapes: B samples, T tokens each, N = B·T, S steps, M modules, K choices, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from engine.errors import UserError
from engine.models.dna import DNA, DNAConfig
from engine.routing import Decision
from engine.trace import ModuleInfo


@dataclass(frozen=True)
class Recording:
    """The decisions of one forward pass, compact and on the host."""

    module_ids: Integer[Tensor, "B T S K"]
    """uint8 up to 256 modules, else int16"""
    weights: Float[Tensor, "B T S K"]
    """float16: 11 bits, three more than the store keeps"""
    gate_entropy: Float[Tensor, "B T S"]


def record(decisions: list[Decision], batch: int) -> Recording:
    """Copy what a trace keeps off the device: ids, weights, entropy; not the full probabilities.

    Raises:
        UserError: a router gave NaN or infinite values (top-k would silently pick them first).
    """
    ids, weights, entropies = [], [], []
    narrow = torch.uint8 if decisions[0].probs.shape[1] <= 256 else torch.int16
    for decision in decisions:
        ids.append(decision.module_ids.to(narrow))
        weights.append(decision.weights.to(torch.float16))
        entropies.append(torch.special.entr(decision.probs).sum(dim=-1).to(torch.float16))
    module_ids_NSK = torch.stack(ids, dim=1)
    weights_NSK = torch.stack(weights, dim=1)
    entropy_NS = torch.stack(entropies, dim=1)
    # Copies from a GPU run beside the next batch; one synchronisation for all three.
    host = [t.to("cpu", non_blocking=True) for t in (module_ids_NSK, weights_NSK, entropy_NS)]
    if module_ids_NSK.is_cuda:
        torch.cuda.current_stream().synchronize()
    if not torch.isfinite(host[2]).all():
        step = int((~torch.isfinite(host[2])).any(dim=0).nonzero()[0])
        raise UserError(
            f"router {step} gave NaN or infinite scores; the checkpoint or the input is damaged, "
            "nothing of this run was written"
        )
    return Recording(*(t.view(batch, -1, *t.shape[1:]) for t in host))


def module_flops(config: DNAConfig, kind: str) -> int:
    """FLOPs of one module's projections for one token (2 a multiply-add)."""
    attention = 8 * config.width**2 if kind in ("transformer", "attention") else 0
    mlp = 4 * config.width * config.mlp_width if kind in ("transformer", "mlp") else 0
    return attention + mlp


def module_table(model: DNA) -> list[ModuleInfo]:
    """The modules of a bank; any step can choose any of them."""
    rows, seen = [], dict.fromkeys(model.config.kinds, 0)
    for index, block in enumerate(model.bank):
        rows.append(
            ModuleInfo(
                step=None,
                module=index,
                name=f"{block.kind} {seen[block.kind]}",
                kind=block.kind,
                num_params=sum(p.numel() for p in block.parameters()),
                flops_per_token=module_flops(model.config, block.kind),
            )
        )
        seen[block.kind] += 1
    return rows


def token_flops(
    module_ids: Integer[Tensor, "B T S K"],
    config: DNAConfig,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """FLOPs that the visited modules spent on each token.

    Projections, plus attention over the tokens that the module really received: 4·D for every
    (query, key) pair, keys being all tokens of the sample at that module, or for text those up to
    the token itself. Padding (``valid`` False) attracts no attention and costs nothing.
    """
    batch, tokens, steps, top_k = module_ids.shape
    ids = module_ids.long()
    if valid is not None:
        ids = torch.where(valid[:, :, None, None], ids, config.num_modules)
    projections_M = torch.tensor([module_flops(config, k) for k in config.kinds] + [0], dtype=torch.float32)
    attends_M = torch.tensor([k in ("transformer", "attention") for k in config.kinds] + [False])
    total = projections_M[ids].sum(dim=(2, 3))
    for step in range(steps):
        keys_BTK = _visible_keys(ids[:, :, step], config.num_modules + 1, config.modality == "text")
        total += (4.0 * config.width * keys_BTK * attends_M[ids[:, :, step]]).sum(dim=-1)
    return total


def _visible_keys(ids_BTK: Tensor, num_modules: int, causal: bool) -> Tensor:
    """How many tokens each token attends to in the module of each of its slots (itself included)."""
    batch, tokens, top_k = ids_BTK.shape
    sample = torch.arange(batch)[:, None, None]
    key_P = (sample * num_modules + ids_BTK).reshape(-1)
    counts = torch.bincount(key_P, minlength=batch * num_modules)
    if not causal:
        return counts[key_P].view_as(ids_BTK)
    # Position within the (sample, module) group: rank in a stable sort minus the group's start.
    order = key_P.sort(stable=True).indices
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(key_P)
    place[order] = torch.arange(key_P.numel())
    return (place - starts[key_P] + 1).view_as(ids_BTK)
