"""The routed step for a GPU: fixed shapes, counts that stay on the device, no host synchronisation.

``bank.grouped_step`` asks the host once a step how many tokens each module received, which on a GPU waits for all
queued work. Here every shape follows from B, T, K and the bank alone: all (token, slot) pairs are sorted by
(module, sample), group ends are found by binary search on the device, products run as grouped matrix products and
attention as variable-length attention over a list of segments, empty ones included. Identity entries sort to the
end; what a kernel leaves undefined there is replaced by zeros on both passes. Weights lie stacked
(``stacked_bank``), once a pass: what costs most on a GPU is the number of kernels, not their size.

On an H200 it equals the others and waits for nothing (``tests/engine/models/bank/test_on_gpu.py``). On a CPU it
equals them with a loop in place of the attention kernel (``test_device_step.py``), and a pass with fake tensors shows
that no value is read back.

Shapes: N = B·T tokens, P = N·K entries, D width, Q = 3·D, F hidden width, W working modules, A of them with attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.models.bank.kernels.trial import kernels_hold
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.bank.stacked_bank import Projections, StackedBank, product_dtype, stack_bank
from tokenpaths.engine.models.bank.varlen import TakeRows, attention_loop
from tokenpaths.engine.models.typed_containers import ModuleListOf

GENERATIONS = (9, 10)
"""of compute capability; others lack the grouped kernels, or wait for the host in their place"""
ROW, WIDEST_HEAD = 8, 256
"""numbers in 16 bytes of bfloat16, and in a head that variable-length attention takes"""


def fits_device(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch's grouped products have kernels here: bfloat16, NVIDIA, compute capability 9 or 10."""
    if device.type != "cuda" or dtype != torch.bfloat16 or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] in GENERATIONS


def fits_step(modules: ModuleListOf[Block], h: Float[Tensor, "B T D"]) -> bool:
    """Whether ``device_step`` can run these modules on ``h`` where it is, by our kernels or by PyTorch's."""
    if h.device.type != "cuda":
        return False
    dtype = product_dtype(h)
    heads = {m.attention.proj.weight.shape[0] // m.attention.heads for m in modules if m.attention is not None}
    if kernels_hold(h.device, dtype, None) and all(kernels_hold(h.device, dtype, head) for head in heads):
        return True
    hidden = [m.mlp.up.weight.shape[0] for m in modules if m.mlp is not None]
    even = not any(size % ROW for size in (h.shape[-1], *heads, *hidden))  # rows of 16 bytes
    return fits_device(h.device, dtype) and even and max(heads, default=0) <= WIDEST_HEAD


@dataclass(frozen=True)
class Groups:
    """Where the entries of each working module lie; tensors on the device, no number is known to the host."""

    order_P: Int[Tensor, " P"]
    """(token, slot) of each entry"""
    back_P: Int[Tensor, " P"]
    """entry of each (token, slot)"""
    bounds: Int[Tensor, " WB1"]
    """W·B + 1 ends of the segments (module, sample), the first is 0"""
    ends_W: Int[Tensor, " W"]
    """one past the last entry of each working module"""


@dataclass(frozen=True)
class Indices:
    """What depends on shapes alone: sent to the device once, because each small kernel costs the host as much as a
    large one, and a copy would be a synchronisation."""

    key_M: Int[Tensor, " M"]
    """first key of each module, place · B"""
    sample_P: Int[Tensor, " P"]
    entry_P: Int[Tensor, " P"]
    """0, 1, 2, …"""
    segment_G: Int[Tensor, " WB1"]
    """the W·B + 1 keys that segments begin at"""


@lru_cache(maxsize=16)
def indices(places: tuple[int, ...], working: int, batch: int, entries: int, device: torch.device) -> Indices:
    """The ``Indices`` of ``batch`` samples with so many entries in all. Keys are as narrow as fits: sorting reads them
    once a byte."""
    most = (working + 1) * batch
    narrow = torch.int16 if most <= torch.iinfo(torch.int16).max else torch.int32
    with torch.inference_mode(False):
        return Indices(
            _keys(places, batch, narrow, device),
            (torch.arange(entries, device=device) // (entries // batch)).to(narrow),
            torch.arange(entries, device=device),
            torch.arange(working * batch + 1, dtype=narrow, device=device),
        )


@lru_cache(maxsize=1024)
def _keys(places: tuple[int, ...], batch: int, dtype: torch.dtype, device: torch.device) -> Int[Tensor, " M"]:
    """``Indices.key_M``, whose copy from the host is the one that waits; texts have more lengths than batches sizes."""
    with torch.inference_mode(False):
        return torch.tensor([place * batch for place in places], dtype=dtype, device=device)


def group_entries(module_ids: Int[Tensor, "N K"], fixed: Indices, batch: int) -> Groups:
    """Sort the (token, slot) pairs by module place and sample; pairs of identities come last."""
    key_P = fixed.key_M.index_select(0, module_ids.reshape(-1)) + fixed.sample_P
    sorted_P, order_P = key_P.sort(stable=True)
    back_P = torch.empty_like(order_P).scatter_(0, order_P, fixed.entry_P)
    bounds = torch.searchsorted(sorted_P, fixed.segment_G, out_int32=True)
    return Groups(order_P, back_P, bounds, bounds[batch::batch].contiguous())


def varlen_attention(
    qkv: Float[Tensor, "P Q"], bounds: Int[Tensor, " G1"], longest: int, heads: int, *, causal: bool
) -> Float[Tensor, "P D"]:
    """Attention inside each segment ``bounds[g] … bounds[g + 1]``; what lies behind the last one is undefined."""
    q, k, v = qkv.view(qkv.shape[0], 3, heads, -1).unbind(1)
    if qkv.device.type == "cpu":
        return attention_loop(q, k, v, bounds, causal).flatten(1)
    if kernels_hold(qkv.device, qkv.dtype, q.shape[-1]):
        from tokenpaths.engine.models.bank.kernels.segment_kernels import segment_attention

        return segment_attention(qkv, bounds, heads, causal=causal)
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    mixed = varlen_attn(q, k, v, bounds, bounds, longest, longest, window_size=window)
    assert isinstance(mixed, Tensor), "no log-sum-exp was asked for"
    return mixed.flatten(1)


def device_step(
    modules: ModuleListOf[Block] | StackedBank,
    h: Float[Tensor, "B T D"],
    module_ids: Int[Tensor, "B T K"],
    weights: Float[Tensor, "B T K"],
    *,
    causal: bool,
) -> Float[Tensor, "B T D"]:
    """One routed step; equal to ``bank.naive_step``. Shapes depend on B, T, K and the bank alone."""
    bank = modules if isinstance(modules, StackedBank) else stack_bank(modules, h)
    if not bank.working or not h.numel():
        return h
    batch, tokens, width = h.shape
    top_k = module_ids.shape[-1]
    fixed = indices(bank.places, bank.working, batch, batch * tokens * top_k, h.device)
    groups = group_entries(module_ids.reshape(-1, top_k), fixed, batch)
    h_ND = h.reshape(-1, width)
    token_P = groups.order_P // top_k if top_k > 1 else groups.order_P
    if fits_fused(bank, h):
        result = _fused(bank, h_ND, token_P, weights.reshape(-1, top_k), groups, batch, tokens, causal)
        return result.view(batch, tokens, width)
    x_PD = TakeRows.apply(h_ND, token_P, groups.back_P.view(-1, top_k), False, False)
    change_PD = _changes(bank, x_PD, groups, fixed.entry_P, batch, tokens, causal)
    change_PD = TakeRows.apply(change_PD, groups.back_P, groups.order_P, False, False)
    weights_NK = weights.reshape(-1, top_k).to(change_PD.dtype)
    if top_k == 1:
        blended = weights_NK * change_PD
    else:
        blended = torch.einsum("nk,nkd->nd", weights_NK, change_PD.view(-1, top_k, width))
    return (h_ND + blended.to(h.dtype)).view(batch, tokens, width)


def fits_fused(bank: StackedBank, h: Tensor) -> bool:
    """Whether kernels of our own do what lies between the products: transformer blocks and identities, no gradient."""
    whole = bank.attending == bank.thinking == bank.working
    return whole and not torch.is_grad_enabled() and kernels_hold(h.device, bank.dtype, h.shape[-1] // bank.heads)


def _fused(
    bank: StackedBank,
    h_ND: Tensor,
    token_P: Tensor,
    weights_NK: Tensor,
    groups: Groups,
    batch: int,
    tokens: int,
    causal: bool,
) -> Float[Tensor, "N D"]:
    from tokenpaths.engine.models.bank.kernels.rows import blend_rows, norm_rows

    assert bank.attention is not None, "fits_fused"
    assert bank.perceptron is not None, "fits_fused"
    h_ND, weights_NK = h_ND.contiguous(), weights_NK.contiguous()
    qkv = _grouped(norm_rows(h_ND, token_P, None, bank.dtype), bank.attention.enter, groups.ends_W)
    mixed = varlen_attention(qkv, groups.bounds, tokens, bank.heads, causal=causal)
    change = _grouped(mixed, bank.attention.leave, groups.ends_W)
    up = _grouped(norm_rows(h_ND, token_P, change, bank.dtype), bank.perceptron.enter, groups.ends_W)
    down = _grouped(F.gelu(up), bank.perceptron.leave, groups.ends_W)
    return blend_rows(h_ND, groups.back_P, weights_NK, change, down, groups.ends_W)


def _changes(
    bank: StackedBank, x_PD: Tensor, groups: Groups, entry_P: Tensor, batch: int, tokens: int, causal: bool
) -> Float[Tensor, "P D"]:
    """M(x) − x of every entry, zeros for identities.

    Kernels leave rows behind the last group undefined, and their gradients too. No row sees another one but inside its
    group, so such rows are replaced by zeros where entries come in (for the gradient) and where they leave.
    """
    working = None if bank.complete else (entry_P < groups.ends_W[-1]).unsqueeze(1)
    x_PD = _only(x_PD, working)
    change = None
    if bank.attention is not None:
        ends = groups.ends_W[: bank.attending]
        mine = None if bank.attending == bank.working else (entry_P < ends[-1]).unsqueeze(1)
        bounds = groups.bounds[: bank.attending * batch + 1]
        qkv = _grouped(_normed(_only(x_PD, mine), bank.dtype), bank.attention.enter, ends)
        mixed = varlen_attention(qkv, bounds, tokens, bank.heads, causal=causal)
        change = _only(_grouped(mixed, bank.attention.leave, ends), mine)
    if bank.perceptron is not None:
        z_PD = x_PD if change is None else x_PD + change.to(x_PD.dtype)
        if bank.skipped:
            # Modules with a perceptron lie side by side, but not at the front: roll them there.
            first = groups.ends_W[bank.skipped - 1]
            ends = groups.ends_W[bank.skipped :] - first
            mine = (entry_P < ends[-1]).unsqueeze(1)
            there, back = (entry_P + first) % entry_P.numel(), (entry_P - first) % entry_P.numel()
            z_PD = _only(TakeRows.apply(z_PD, there, back, False, False), mine)
            down = _only(_perceptron(bank.perceptron, z_PD, ends, bank.dtype), mine)
            down = TakeRows.apply(down, back, there, False, False)
        else:
            down = _perceptron(bank.perceptron, z_PD, groups.ends_W, bank.dtype)
        change = down if change is None else change + down
    assert change is not None, "a working module has attention or a perceptron"
    return _only(change, working)


def _perceptron(weights: Projections, z_PD: Tensor, ends: Tensor, dtype: torch.dtype) -> Tensor:
    return _grouped(F.gelu(_grouped(_normed(z_PD, dtype), weights.enter, ends)), weights.leave, ends)


def _only(x: Float[Tensor, "P D"], mine: Bool[Tensor, "P 1"] | None) -> Float[Tensor, "P D"]:
    """Zeros in the place of other rows, on both passes; None: every row is."""
    return x if mine is None else torch.where(mine, x, 0)


def _normed(x: Float[Tensor, "P D"], dtype: torch.dtype) -> Float[Tensor, "P D"]:
    """LayerNorm without its gain, which the weights behind it hold; its sums are in float32 whatever ``x`` is in."""
    return F.layer_norm(x, x.shape[-1:]).to(dtype)


def _grouped(x: Float[Tensor, "P R"], weights: Float[Tensor, "W R C"], ends: Int[Tensor, " W"]) -> Float[Tensor, "P C"]:
    # PyTorch's kernel reads the ends from one place to the next, whatever their stride.
    ends = ends.contiguous()
    even = x.shape[1] % ROW == 0 and weights.shape[2] % ROW == 0
    if x.device.type != "cuda" or (even and fits_device(x.device, x.dtype)):
        return F.grouped_mm(x, weights, offs=ends)
    from tokenpaths.engine.models.bank.kernels.product import grouped_product

    return grouped_product(x, weights, ends)
