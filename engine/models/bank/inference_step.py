"""The routed step without gradients, for frozen weights: tracing, uploads, forward passes.

Nothing is kept for a backward pass, so each piece of a module's slice is gathered, run and written back while it is
in the cache (``frozen_step``). Few entries fit the cache whole, and the number of operations dominates instead
(``few_step``). Both equal ``bank.naive_step`` (``tests/engine/models/bank/test_inference_step.py``).

Shapes: B samples, T tokens, N = B·T, K choices, E entries, D width, Q = 3·D.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.models.bank.dispatch import MASKED_ROWS, Bucket, plan_dispatch
from tokenpaths.engine.models.bank.modules import MLP, Block, SelfAttention
from tokenpaths.engine.models.bank.onednn_linear import MOST_ROWS, Linear, orders, reorders
from tokenpaths.engine.models.bank.varlen import masked_attention
from tokenpaths.engine.models.typed_containers import ModuleListOf

ALIGN = 4
"""row counts of products by ordered weights are multiples of it"""


def fits_frozen(modules: ModuleListOf[Block], h: Tensor, weights: Tensor) -> bool:
    """Whether nobody asks for a gradient, and the modules' products go by ordered weights."""
    if torch.is_grad_enabled() and (
        h.requires_grad or weights.requires_grad or any(p.requires_grad for p in modules.parameters())
    ):
        return False
    weight = next((m.weight for m in modules.modules() if isinstance(m, Linear)), None)
    return h.dtype == weights.dtype == torch.float32 and weight is not None and orders(h, weight)


def frozen_step(
    modules: ModuleListOf[Block],
    h: Float[Tensor, "B T D"],
    module_ids: Int[Tensor, "B T K"],
    weights: Float[Tensor, "B T K"],
    *,
    causal: bool,
) -> Float[Tensor, "B T D"]:
    """One routed step, a piece at a time."""
    batch, tokens, width = h.shape
    top_k = module_ids.shape[-1]
    if batch * tokens * top_k <= MASKED_ROWS and all(isinstance(m, Block) for m in modules):
        return few_step(modules, h, module_ids, weights, causal=causal)
    h_ND = h.reshape(batch * tokens, width)
    ordered = any(reorders(m.weight) for m in modules.modules() if isinstance(m, Linear))
    plan = plan_dispatch(
        module_ids.reshape(batch * tokens, top_k), modules, batch, tokens, ALIGN if ordered else 1, MOST_ROWS
    )
    if not plan.rows:
        return h
    token_E = plan.token_E.clamp(min=0) if plan.padded else plan.token_E  # what a padding row holds, nobody reads
    mixed_RD, row_E = None, None
    if plan.segments or plan.group_E is not None:
        heads = next(m.attention.heads for m in modules if m.attention is not None)
        qkv_EQ = h.new_empty(len(token_E), 3 * width)
        for module, start, end in plan.rows:
            attention, rows = modules[module].attention, qkv_EQ[start:end]
            if attention is None:
                rows.zero_()
            else:
                rows.copy_(attention.project_in(h_ND.index_select(0, token_E[start:end])))
        if plan.group_E is not None:
            mixed_RD = masked_attention(qkv_EQ, plan.group_E, heads, causal=causal)
        else:
            mixed_RD, row_E = _attended(qkv_EQ, plan.segments, heads, causal)
        del qkv_EQ
    change_ED = h.new_empty(len(token_E) + 1, width)
    change_ED[-1] = 0  # for slots without an entry
    for module, start, end in plan.rows:
        mixed = None if mixed_RD is None else mixed_RD[start:end]
        if mixed_RD is not None and row_E is not None:
            mixed = mixed_RD.index_select(0, row_E[start:end])
        change_ED[start:end] = modules[module].finish(h_ND.index_select(0, token_E[start:end]), mixed)
    return _blended(h_ND, change_ED, plan.entry_NK, weights.reshape(-1, top_k), plan.complete).view(h.shape)


def _attended(
    qkv_EQ: Tensor, segments: list[Bucket], heads: int, causal: bool
) -> tuple[Float[Tensor, "R D"], Int[Tensor, " E"]]:
    """``segment_attention`` left where it was worked out, padding included, and the row of each entry in it."""
    width = qkv_EQ.shape[1] // 3
    mixed_RD = qkv_EQ.new_empty(sum(bucket.row_GL.numel() for bucket in segments), width)
    row_E = torch.zeros(len(qkv_EQ), dtype=torch.long)
    first = 0
    for bucket in segments:
        groups, size = bucket.row_GL.shape
        room = mixed_RD[first : first + groups * size]
        row_E[bucket.source_R] = bucket.place_R + first
        first += groups * size
        if size == 1:
            torch.index_select(qkv_EQ[:, 2 * width :], 0, bucket.row_GL.reshape(-1), out=room)
            continue
        packed = qkv_EQ.index_select(0, bucket.row_GL.reshape(-1))
        q, k, v = packed.view(groups, size, 3, heads, -1).permute(2, 0, 3, 1, 4)
        allowed = None
        if not causal and bucket.valid_GL is not None:
            allowed = bucket.valid_GL[:, None, None, :].expand(-1, 1, size, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal)
        room.view(groups, size, heads, -1).copy_(mixed.transpose(1, 2))
    return mixed_RD, row_E


def _blended(h_ND: Tensor, change_ED: Tensor, entry_NK: Tensor, weights_NK: Tensor, complete: bool) -> Tensor:
    """h + Σ ρ (M(h) − h), without a gather of its own where every token has one entry or several."""
    if not complete:
        weights_NK = weights_NK.masked_fill(entry_NK < 0, 0)
        # Nothing of another token, whose NaN a weight of 0 would not keep out.
        entry_NK = entry_NK.masked_fill(entry_NK < 0, len(change_ED) - 1)
    # A weighted bag of rows: gathered, weighed and summed in one pass.
    return F.embedding_bag(entry_NK, change_ED, mode="sum", per_sample_weights=weights_NK).add_(h_ND)


def few_step(
    modules: ModuleListOf[Block],
    h: Float[Tensor, "B T D"],
    module_ids: Int[Tensor, "B T K"],
    weights: Float[Tensor, "B T K"],
    *,
    causal: bool,
) -> Float[Tensor, "B T D"]:
    """One routed step of few entries: all operations but the products run once for all modules."""
    batch, tokens, width = h.shape
    top_k, idle = module_ids.shape[-1], len(modules)
    h_ND, id_P = h.reshape(batch * tokens, width), module_ids.reshape(-1)
    if any(m.kind == "identity" for m in modules):
        place_M = torch.tensor([idle if m.kind == "identity" else i for i, m in enumerate(modules)])
        id_P = place_M[id_P]  # identities are sorted to the end and cut off
    group_P = id_P
    if batch > 1:
        group_P = id_P * batch + torch.arange(batch).repeat_interleave(tokens * top_k)
    group_P, order_P = group_P.sort(stable=True)
    counts = torch.bincount(id_P, minlength=idle + 1).tolist()[:idle]
    entries = sum(counts)
    if not entries:
        return h
    group_E, order_E = group_P[:entries], order_P[:entries]
    token_E = order_E if top_k == 1 else order_E // top_k
    ends = list(accumulate(counts))
    parts = [
        (module, slice(end - count, end)) for module, count, end in zip(modules, counts, ends, strict=True) if count
    ]
    x_ED = h_ND.index_select(0, token_E)
    change_ED = None
    if any(m.attention is not None for m, _ in parts):
        normed = _normed(x_ED, parts, lambda m: m.attention)
        heads = next(m.attention.heads for m, _ in parts if m.attention is not None)
        qkv = _by_module(normed, parts, lambda m: m.attention.qkv if m.attention is not None else None, 3 * width)
        mixed_ED = masked_attention(qkv, group_E, heads, causal=causal)
        change_ED = _by_module(mixed_ED, parts, lambda m: m.attention.proj if m.attention is not None else None, width)
    if any(m.mlp is not None for m, _ in parts):
        z_ED = x_ED if change_ED is None else x_ED + change_ED
        normed = _normed(z_ED, parts, lambda m: m.mlp)
        hidden = next(m.mlp.up.out_features for m, _ in parts if m.mlp is not None)
        up = F.gelu(_by_module(normed, parts, lambda m: m.mlp.up if m.mlp is not None else None, hidden))
        down_ED = _by_module(up, parts, lambda m: m.mlp.down if m.mlp is not None else None, width)
        change_ED = down_ED if change_ED is None else down_ED.add_(change_ED)
    assert change_ED is not None
    weight_E1 = weights.reshape(-1, 1).index_select(0, order_E)
    return h_ND.index_add(0, token_E, change_ED.mul_(weight_E1)).view(h.shape)


Parts = list[tuple[Block, slice]]


def _normed(x_ED: Tensor, parts: Parts, half: Callable[[Block], SelfAttention | MLP | None]) -> Tensor:
    """LayerNorm of all rows in one call, each by its module's gain."""
    norms = [None if (one := half(m)) is None else one.norm for m, _ in parts]
    epsilon = next(norm.eps for norm in norms if norm is not None)
    plain = x_ED.new_ones(x_ED.shape[1])
    gain_GD = torch.stack([plain if norm is None else norm.weight for norm in norms])
    sizes = torch.tensor([rows.stop - rows.start for _, rows in parts])
    gain_ED = gain_GD.repeat_interleave(sizes, dim=0, output_size=len(x_ED))
    return F.layer_norm(x_ED, x_ED.shape[1:], eps=epsilon).mul_(gain_ED)


def _by_module(x: Tensor, parts: Parts, layer: Callable[[Block], Linear | None], outputs: int) -> Tensor:
    """Each module's product of its rows; zeros where it has no such layer."""
    made = []
    for module, rows in parts:
        one = layer(module)
        count = rows.stop - rows.start
        if one is None:
            made.append(x.new_zeros(count, outputs))
        elif count % ALIGN and reorders(one.weight):
            # Some rows of the neighbours go along: oneDNN compiles for every row count that it has not seen.
            more = min(len(x), count + -count % ALIGN)
            first = min(rows.start, len(x) - more)
            made.append(one(x[first : first + more])[rows.start - first : rows.stop - first])
        else:
            made.append(one(x[rows]))
    return torch.cat(made)
