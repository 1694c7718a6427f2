"""From a model's decisions to a trace batch: what every token did, and what it cost.

Shapes: B samples, T tokens each, N = B·T, S steps, M modules, K choices, D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.base.routing import Decision
from tokenpaths.engine.models.family import Traced

if TYPE_CHECKING:
    from tokenpaths.engine.models.bank.modules import Block
    from tokenpaths.engine.models.dna import DNA, DNAConfig


def compact_decisions(
    decisions: list[Decision], batch: int
) -> tuple[Integer[Tensor, "B T S K"], Float[Tensor, "B T S K"], Float[Tensor, "B T S"]]:
    """Ids, weights and gate entropy of a forward pass, small, still on the device; not the full probabilities.

    Ids are uint8 up to 256 modules, else int16; weights and entropies float16: 11 bits, three more
    than the store keeps.
    """
    ids, weights, entropies = [], [], []
    narrow = torch.uint8 if decisions[0].probs.shape[1] <= 256 else torch.int16
    for decision in decisions:
        ids.append(decision.module_ids.to(narrow))
        weights.append(decision.weights.to(torch.float16))
        entropies.append(entropy(decision.probs).to(torch.float16))
    stacked = (torch.stack(part, dim=1) for part in (ids, weights, entropies))
    ids_BTSK, weights_BTSK, entropy_BTS = (t.view(batch, -1, *t.shape[1:]) for t in stacked)
    return ids_BTSK, weights_BTSK, entropy_BTS


def entropy(probs: Float[Tensor, "N M"]) -> Float[Tensor, " N"]:
    """−Σ p ln p of each row, in nats; a probability of 0 adds nothing, NaN stays NaN.

    ``torch.special.entr`` says the same, but takes its logarithms one by one: three quarters of all recording.
    """
    logarithms = probs.clamp(min=torch.finfo(probs.dtype).tiny).log_()
    return logarithms.mul_(probs).sum(dim=-1).neg_()


def to_host(traced: Traced) -> Traced:
    """The same on the host, logits excepted: they stay where the losses are worked out.

    Raises:
        UserError: a router gave NaN or infinite values (top-k would silently pick them first).
    """
    names = ("module_ids", "weights", "gate_entropy", "flops", "edges", "gates", "blocks")
    given = {name: value for name in names if (value := getattr(traced, name)) is not None}
    # Copies from a GPU run beside the next batch; one synchronisation for all of them.
    host = {name: value.to("cpu", non_blocking=True) for name, value in given.items()}
    if traced.module_ids.is_cuda:
        torch.cuda.current_stream().synchronize()
    moved = replace(traced, **host)
    _check_finite(moved)
    return moved


def _check_finite(traced: Traced) -> None:
    # A NaN weight is a broken router. An entropy may be undefined (NaN), but is never infinite, and a
    # softmax that broke has a NaN weight too.
    bad_BTSK = ~torch.isfinite(traced.weights)
    if bad_BTSK.any():
        step = int(bad_BTSK.any(dim=-1).flatten(0, 1).any(dim=0).nonzero()[0])
        raise UserError(
            f"router {step} gave NaN or infinite scores; the checkpoint or the input is damaged, "
            "nothing of this run was written"
        )
    for name in ("edges", "gates", "blocks"):
        values = getattr(traced, name)
        if values is not None and not torch.isfinite(values).all():
            raise UserError(
                f"the {name} of this model hold NaN or infinite values; the checkpoint or the input is "
                "damaged, nothing of this run was written"
            )


def module_flops(config: DNAConfig, kind: str) -> int:
    """FLOPs of one module's projections for one token (2 a multiply-add)."""
    attention = 8 * config.width**2 if kind in ("transformer", "attention") else 0
    mlp = 4 * config.width * config.mlp_width if kind in ("transformer", "mlp") else 0
    return attention + mlp


def dna_module_table(model: DNA) -> list[ModuleInfo]:
    """The modules of a bank; one that a single step may choose belongs to that step."""
    config = model.config
    offered = {m: [s for s in range(config.steps) if m in config.choices_of(s)] for m in range(config.num_modules)}
    rows, seen = [], dict.fromkeys(config.kinds, 0)
    for index, block in enumerate(cast("list[Block]", list(model.bank))):
        steps = offered[index]
        rows.append(
            ModuleInfo(
                step=steps[0] if config.choices is not None and len(steps) == 1 else None,
                module=index,
                name=f"{block.kind} {seen[block.kind]}",
                kind=block.kind,
                num_params=sum(p.numel() for p in block.parameters()),
                flops_per_token=module_flops(config, block.kind),
            )
        )
        seen[block.kind] += 1
    return rows


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
