"""Modules of a DNA bank and the floating-point operations that its tokens spend on them.

Shapes: B samples, T tokens, S steps, M modules, K choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from tokenpaths.engine.base.records import NOT_OFFERED_KIND, ModuleInfo
from tokenpaths.engine.families.dna_config import DNAConfig


def module_flops(config: DNAConfig, kind: str) -> int:
    """FLOPs of one module's projections for one token (2 a multiply-add)."""
    attention = 8 * config.width**2 if kind in ("transformer", "attention") else 0
    mlp = 4 * config.width * config.mlp_width if kind in ("transformer", "mlp") else 0
    return attention + mlp


def dna_module_table(config: DNAConfig, num_params: Sequence[int]) -> list[ModuleInfo]:
    """The modules of a bank; one that a single step may choose belongs to that step. Behind them stand the steps that
    do not offer one of the others, so that a module which several steps share remains one module.

    Args:
        config: the model's configuration.
        num_params: parameters of each module, in order.
    """
    offered = {m: [s for s in range(config.steps) if m in config.choices_of(s)] for m in range(config.num_modules)}
    rows, seen = [], dict.fromkeys(config.kinds, 0)
    for index, (kind, params) in enumerate(zip(config.kinds, num_params, strict=True)):
        steps = offered[index]
        rows.append(
            ModuleInfo(
                step=steps[0] if config.choices is not None and len(steps) == 1 else None,
                module=index,
                name=f"{kind} {seen[kind]}",
                kind=kind,
                num_params=params,
                flops_per_token=module_flops(config, kind),
            )
        )
        seen[kind] += 1
    shared = [row for row in rows if row.step is None]
    return rows + [
        ModuleInfo(step, row.module, row.name, NOT_OFFERED_KIND, 0, 0)
        for row in shared
        for step in range(config.steps)
        if step not in offered[row.module]
    ]


def token_flops(
    module_ids: Integer[Tensor, "B T S K"], config: DNAConfig, valid: Bool[Tensor, "B T"] | None = None
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
    pair_M = torch.tensor([4.0 * config.width * (k in ("transformer", "attention")) for k in config.kinds] + [0.0])
    # Each step of each sample is a group of rows of its own: R = B·S.
    ids_RTK = ids.transpose(1, 2).reshape(batch * steps, tokens, top_k)
    modules = config.num_modules + 1
    key_P = (torch.arange(batch * steps)[:, None, None] * modules + ids_RTK).reshape(-1)
    counts_RM = torch.bincount(key_P, minlength=batch * steps * modules).view(-1, modules)
    if config.modality == "text":
        flops_P = projections_M[ids_RTK.reshape(-1)] + pair_M[ids_RTK.reshape(-1)] * _keys_so_far(key_P, counts_RM)
    else:
        flops_P = (projections_M + pair_M * counts_RM).reshape(-1).index_select(0, key_P)
    return flops_P.view(batch, steps, tokens, top_k).sum(dim=(1, 3))


def _keys_so_far(key_P: Tensor, counts_RM: Tensor) -> Tensor:
    """How many entries of its group (sample, step, module) stand up to each entry, itself included."""
    # Position within the group: place in a stable sort minus the group's start.
    order = key_P.sort(stable=True).indices
    counts = counts_RM.reshape(-1)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(key_P)
    place[order] = torch.arange(key_P.numel())
    return place - starts[key_P] + 1
