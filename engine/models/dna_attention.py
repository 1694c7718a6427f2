"""Who attends to whom inside the modules of a DNA: a token attends to those alone that chose the same module at the
same step (Distributed Neural Architectures, section 2).

Shapes: T tokens of one sample, D width, n tokens that one module received, H heads, W width of a head, K slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.models.bank.modules import SelfAttention
from tokenpaths.engine.models.dna import DNA


@dataclass(frozen=True)
class ModuleAttention:
    """The attention of one module at one step."""

    step: int
    module: int
    tokens: Int[Tensor, " n"]
    """positions in the sample"""
    weights: Float[Tensor, "n n"]
    """mean over heads; row: who attends, column: to whom; rows sum to 1"""


@torch.inference_mode()
def attention_within(model: DNA, inputs: Tensor) -> tuple[list[ModuleAttention], Int[Tensor, "T S K"]]:
    """Attention of every module with attention at every step, and the choices, of one sample (batch of 1)."""
    causal = model.config.modality == "text"
    h, found, chosen = model.enter(inputs), [], []
    bank = model.ready_bank(h)
    for step in range(model.config.steps):
        h, decision = model.approach(h, step)
        ids_TK = decision.module_ids.view(h.shape[1], -1)
        chosen.append(ids_TK)
        for module, block in enumerate(model.bank):
            tokens = (ids_TK == module).any(dim=1).nonzero().squeeze(1)
            if block.attention is not None and len(tokens):
                weights = head_weights(block.attention, h[0, tokens], causal=causal).mean(dim=0)
                found.append(ModuleAttention(step, module, tokens, weights))
        h = model.visit(h, decision, bank)
    return found, torch.stack(chosen, dim=1)


def head_weights(attention: SelfAttention, rows: Float[Tensor, "n D"], *, causal: bool) -> Float[Tensor, "H n n"]:
    """Softmax(q kᵀ/√W) of each head over the rows that a module received; ``causal``: later rows are hidden."""
    n, width = rows.shape
    q, k, _ = attention.project_in(rows).view(n, 3, attention.heads, width // attention.heads).permute(1, 2, 0, 3)
    scores = (q @ k.transpose(1, 2)).float() * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=rows.device).triu(1), float("-inf"))
    return scores.softmax(dim=-1)
