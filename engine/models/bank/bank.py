"""The routed step: every token through the modules that its router chose.

``naive_step`` and ``grouped_step`` implement one rule, equation 3 of "Distributed Neural Architectures",

    h'_t = h_t + Σ_{i in chosen(t)} ρ_i (M_i(h)_t − h_t),

where the attention inside M_i sees only the tokens of the same sample that M_i received at this step. ``naive_step``
is written to be read, ``grouped_step`` to be fast; they agree to 1e-5 in float32, forward and backward
(``tests/engine/models/bank/test_bank.py``). README.md says which execution runs when.

Shapes: B samples, T tokens each, N = B·T, K choices, E = entries: (token, slot) pairs whose
module does work, sorted by module and then by sample; D width, Q = 3·D.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.models.bank.device_step import device_step, fits_step
from tokenpaths.engine.models.bank.dispatch import plan_dispatch
from tokenpaths.engine.models.bank.inference_step import fits_frozen, frozen_step
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.bank.onednn_linear import MOST_ROWS, Linear, orders
from tokenpaths.engine.models.bank.recompute import finish, fits_lean, project_in, trained
from tokenpaths.engine.models.bank.varlen import TakeRows, masked_attention, segment_attention
from tokenpaths.engine.models.typed_containers import ModuleListOf


def naive_step(
    modules: ModuleListOf[Block],
    h: Float[Tensor, "B T D"],
    module_ids: Int[Tensor, "B T K"],
    weights: Float[Tensor, "B T K"],
    *,
    causal: bool,
) -> Float[Tensor, "B T D"]:
    """One routed step, module by module: mask, pad to the longest sample, attend, blend."""
    batch, tokens, width = h.shape
    result = h
    for index, module in enumerate(modules):
        chose_BTK = module_ids == index
        received_BT = chose_BTK.any(dim=-1)
        if module.kind == "identity" or not received_BT.any():
            continue
        longest = int(received_BT.sum(dim=1).max())
        # Received tokens first, in their order; the rest of the row is padding.
        order_BL = (~received_BT).to(torch.int8).argsort(dim=1, stable=True)[:, :longest]
        valid_BL = received_BT.gather(1, order_BL)
        gather_BLD = order_BL.unsqueeze(-1).expand(-1, -1, width)
        x_BLD = h.gather(1, gather_BLD)
        allowed = valid_BL[:, None, None, :].expand(-1, 1, longest, -1)
        if causal:
            allowed = allowed & torch.ones(longest, longest, dtype=torch.bool, device=h.device).tril()
        # A padding row may be left with nothing to look at; let it see itself.
        allowed = allowed | torch.eye(longest, dtype=torch.bool, device=h.device)
        change_BLD = module(x_BLD, causal=False, allowed=allowed) - x_BLD
        weight_BL = (weights * chose_BTK).sum(dim=-1).gather(1, order_BL) * valid_BL
        blended = (weight_BL.unsqueeze(-1) * change_BLD).to(h.dtype)
        result = result.scatter_add(1, gather_BLD, blended)
    return result


def grouped_step(
    modules: ModuleListOf[Block],
    h: Float[Tensor, "B T D"],
    module_ids: Int[Tensor, "B T K"],
    weights: Float[Tensor, "B T K"],
    *,
    causal: bool,
) -> Float[Tensor, "B T D"]:
    """One routed step on tokens sorted by module and sample: each module sees one slice.

    The projections run slice by slice (each slice stays in cache), attention runs once for all
    modules together, in segments of one module and one sample.
    """
    if fits_step(modules, h):
        return device_step(modules, h, module_ids, weights, causal=causal)
    if fits_frozen(modules, h, weights):
        return frozen_step(modules, h, module_ids, weights, causal=causal)
    batch, tokens, width = h.shape
    top_k = module_ids.shape[-1]
    ids_NK = module_ids.reshape(batch * tokens, top_k)
    h_ND = h.reshape(batch * tokens, width)
    plan = plan_dispatch(ids_NK, modules, batch, tokens, *_row_shapes(modules, h))
    if not plan.rows:
        return h
    x_ED = TakeRows.apply(h_ND, plan.token_E, plan.entry_NK, plan.padded, not plan.complete)

    lean = fits_lean(h)
    # Split, not sliced: the backward of n slices fills n buffers of all rows with zeros.
    sizes = [end - start for _, start, end in plan.rows]
    xs = x_ED.split(sizes)
    mixed: Sequence[Tensor | None] = [None] * len(xs)
    if plan.segments or plan.group_E is not None:
        heads = next(m.attention.heads for m in modules if m.attention is not None)
        qkv = torch.cat([_projected(modules[m], x, lean) for (m, _, _), x in zip(plan.rows, xs, strict=True)])
        if plan.group_E is not None:
            mixed_ED = masked_attention(qkv, plan.group_E, heads, causal=causal)
        else:
            mixed_ED = segment_attention(qkv, plan.segments, heads, causal=causal)
        mixed = mixed_ED.split(sizes)
    changes = [_finished(modules[m], x, y, lean) for (m, _, _), x, y in zip(plan.rows, xs, mixed, strict=True)]
    change_ED = torch.cat(changes)
    change_PD = TakeRows.apply(change_ED, plan.entry_NK.reshape(-1), plan.slot_E, not plan.complete, plan.padded)
    weights_NK = weights.reshape(batch * tokens, top_k).to(change_PD.dtype)
    if top_k == 1:
        blended = weights_NK * change_PD
    else:
        blended = torch.einsum("nk,nkd->nd", weights_NK, change_PD.view(-1, top_k, width))
    return (h_ND + blended).view(batch, tokens, width)


def _projected(module: Block, x: Tensor, lean: bool) -> Tensor:
    if module.attention is None:
        return x.new_zeros(x.shape[0], 3 * x.shape[1])
    return project_in(module.attention, x) if lean and trained(module) else module.attention.project_in(x)


def _finished(module: Block, x: Tensor, mixed: Tensor | None, lean: bool) -> Tensor:
    return finish(module, x, mixed) if lean and trained(module) else module.finish(x, mixed)


def _row_shapes(modules: ModuleListOf[Block], h: Tensor) -> tuple[int, int | None]:
    """To what multiple of rows each module's slice is padded, and into what pieces it is cut.

    On a CPU, oneDNN compiles a product anew for every row count it has not seen, which fresh routing makes each
    time; multiples keep the number of shapes small. It does so for bfloat16, and for weights that are ordered
    beforehand (``tokenpaths.engine.models.bank.onednn_linear``), which are for pieces of few rows.
    """
    if h.device.type != "cpu":
        return 1, None
    low_precision = h.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    weight = next((m.weight for m in modules.modules() if isinstance(m, Linear)), None)
    ordered = weight is not None and orders(h, weight)
    return (32 if low_precision else 4 if ordered else 1), (MOST_ROWS if ordered else None)
