"""The routed step for a GPU: fixed shapes, counts that stay on the device, no host synchronisation.

``bank.grouped_step`` asks the host once a step how many tokens each module received, which on a GPU waits for all
queued work. Here every shape follows from B, T, K and the bank alone: all (token, slot) pairs are sorted by
(module, sample), group ends are found by binary search on the device, products run as grouped matrix products and
attention as variable-length attention over a list of segments, empty ones included. Identity entries sort to the
end; what a kernel leaves undefined there is replaced by zeros on both passes.

On an H200 it equals the others and waits for nothing (``tests/engine/models/bank/test_on_gpu.py``). On a CPU it
equals them with a loop in place of the attention kernel (``test_device_step.py``), and a pass with fake tensors shows
that no value is read back.

Shapes: N = B·T tokens, P = N·K entries, D width, Q = 3·D, F hidden width, W working modules, A of them with attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.bank.varlen import TakeRows
from tokenpaths.engine.models.typed_containers import ModuleListOf

ORDER = {"attention": 0, "transformer": 1, "mlp": 2, "identity": 3}
"""modules are sorted so that those with attention come first, and those with a perceptron lie side by side"""
GENERATIONS = (9, 10)
"""of compute capability; others lack the grouped kernels, or wait for the host in their place"""
ROW, WIDEST_HEAD = 8, 256
"""numbers in 16 bytes of bfloat16, and in a head that variable-length attention takes"""


def fits_device(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether grouped products have kernels here: bfloat16 on an NVIDIA GPU of compute capability 9 or 10."""
    if device.type != "cuda" or dtype != torch.bfloat16 or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] in GENERATIONS


def fits_step(modules: ModuleListOf[Block], h: Float[Tensor, "B T D"]) -> bool:
    """Whether ``device_step`` can run these modules on ``h`` where it is; its kernels read rows of 16 bytes."""
    if h.device.type != "cuda" or not fits_device(h.device, product_dtype(h)):
        return False
    heads = [m.attention.proj.weight.shape[0] // m.attention.heads for m in modules if m.attention is not None]
    hidden = [m.mlp.up.weight.shape[0] for m in modules if m.mlp is not None]
    return max(heads, default=0) <= WIDEST_HEAD and not any(size % ROW for size in (h.shape[-1], *heads, *hidden))


def product_dtype(h: Tensor) -> torch.dtype:
    """What products of ``h`` are computed in."""
    return torch.get_autocast_dtype(h.device.type) if torch.is_autocast_enabled(h.device.type) else h.dtype


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


def group_entries(module_ids: Int[Tensor, "N K"], place_M: Int[Tensor, " M"], working: int, batch: int) -> Groups:
    """Sort the (token, slot) pairs by module place and sample; pairs of identities (place ``working``) come last."""
    num_tokens, top_k = module_ids.shape
    device = module_ids.device
    sample_P = torch.arange(num_tokens * top_k, device=device) // (num_tokens // batch * top_k)
    place_P = place_M[module_ids.reshape(-1)]
    key_P = torch.where(place_P < working, place_P * batch + sample_P, working * batch)
    sorted_P, order_P = key_P.sort(stable=True)
    back_P = torch.empty_like(order_P).scatter_(0, order_P, torch.arange(order_P.numel(), device=device))
    bounds = torch.searchsorted(sorted_P, torch.arange(working * batch + 1, device=device)).to(torch.int32)
    return Groups(order_P, back_P, bounds, bounds[batch::batch].contiguous())


def varlen_attention(
    qkv: Float[Tensor, "P Q"], bounds: Int[Tensor, " G1"], longest: int, heads: int, *, causal: bool
) -> Float[Tensor, "P D"]:
    """Attention inside each segment ``bounds[g] … bounds[g + 1]``; what lies behind the last one is undefined."""
    q, k, v = qkv.view(qkv.shape[0], 3, heads, -1).unbind(1)
    if qkv.device.type == "cpu":
        return _attention_loop(q, k, v, bounds, causal).flatten(1)
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    mixed = varlen_attn(q, k, v, bounds, bounds, longest, longest, window_size=window)
    assert isinstance(mixed, Tensor), "no log-sum-exp was asked for"
    return mixed.flatten(1)


def _attention_loop(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, causal: bool) -> Tensor:
    """The same, a segment at a time: there is no such kernel for a CPU."""
    ends = bounds.tolist()
    parts = [
        _attend_segment(q[start:end], k[start:end], v[start:end], causal)
        for start, end in zip(ends[:-1], ends[1:], strict=True)
        if end > start
    ]
    rest = q.new_zeros(q.shape[0] - ends[-1], *q.shape[1:])
    return torch.cat([*parts, rest])


def _attend_segment(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).squeeze(0).transpose(0, 1)


def device_step(
    modules: ModuleListOf[Block],
    h: Float[Tensor, "B T D"],
    module_ids: Int[Tensor, "B T K"],
    weights: Float[Tensor, "B T K"],
    *,
    causal: bool,
) -> Float[Tensor, "B T D"]:
    """One routed step; equal to ``bank.naive_step``. Shapes depend on B, T, K and the bank alone."""
    batch, tokens, width = h.shape
    top_k = module_ids.shape[-1]
    order = sorted(range(len(modules)), key=lambda m: (ORDER[modules[m].kind], m))
    working = [m for m in order if modules[m].kind != "identity"]
    if not working:
        return h
    dtype = product_dtype(h)
    place_M = _places(tuple(min(order.index(m), len(working)) for m in range(len(modules))), h.device)
    groups = group_entries(module_ids.reshape(batch * tokens, top_k), place_M, len(working), batch)
    h_ND = h.reshape(batch * tokens, width)
    x_PD = TakeRows.apply(h_ND, groups.order_P // top_k, groups.back_P.view(-1, top_k), False, False)
    change_PD = _changes([modules[m] for m in working], x_PD, groups, batch, tokens, causal, dtype)
    change_PD = TakeRows.apply(change_PD, groups.back_P, groups.order_P, False, False)
    weights_NK = weights.reshape(batch * tokens, top_k).to(change_PD.dtype)
    blended = torch.einsum("nk,nkd->nd", weights_NK, change_PD.view(-1, top_k, width))
    return (h_ND + blended.to(h.dtype)).view(batch, tokens, width)


@cache
def _places(places: tuple[int, ...], device: torch.device) -> Int[Tensor, " M"]:
    """Cached on the device: a copy from the host each step would be a synchronisation too."""
    with torch.inference_mode(False):
        return torch.tensor(places, device=device)


def _changes(
    bank: list[Block], x_PD: Tensor, groups: Groups, batch: int, tokens: int, causal: bool, dtype: torch.dtype
) -> Float[Tensor, "P D"]:
    """M(x) − x of every entry, zeros for identities. ``bank`` is in the order of the groups."""
    attending = [m.attention for m in bank if m.attention is not None]
    thinking = [m.mlp for m in bank if m.mlp is not None]
    entry_P = torch.arange(x_PD.shape[0], device=x_PD.device)
    change = torch.zeros_like(x_PD, dtype=dtype)
    if attending:
        ends, heads = groups.ends_W[: len(attending)], attending[0].heads
        mine = entry_P < ends[-1]
        bounds = groups.bounds[: len(attending) * batch + 1].contiguous()
        qkv = _product(_only(x_PD, mine), [(a.norm.weight, a.qkv.weight) for a in attending], ends, dtype)
        mixed = _only(varlen_attention(qkv, bounds, tokens, heads, causal=causal), mine)
        change = _only(_grouped(mixed, _stack([a.proj.weight for a in attending], dtype), ends), mine)
    if thinking:
        # Modules with a perceptron lie side by side, but not at the front: roll them there.
        skipped = len(bank) - len(thinking)
        first = groups.ends_W[skipped - 1] if skipped else torch.zeros((), dtype=torch.int32, device=x_PD.device)
        ends = groups.ends_W[skipped:] - first
        mine = entry_P < ends[-1]
        z_PD = x_PD + change.to(x_PD.dtype)
        rolled = (entry_P + first) % entry_P.numel(), (entry_P - first) % entry_P.numel()
        if skipped:
            z_PD = TakeRows.apply(z_PD, rolled[0], rolled[1], False, False)
        up = _product(_only(z_PD, mine), [(m.norm.weight, m.up.weight) for m in thinking], ends, dtype)
        down = _only(_grouped(F.gelu(up), _stack([m.down.weight for m in thinking], dtype), ends), mine)
        if skipped:
            down = TakeRows.apply(down, rolled[1], rolled[0], False, False)
        change = change + down
    return change


def _only(x: Float[Tensor, "P D"], mine: Bool[Tensor, " P"]) -> Float[Tensor, "P D"]:
    """Zeros in the place of other rows: kernels leave theirs, and their gradients, undefined."""
    return torch.where(mine.unsqueeze(1), x, 0)


def _product(x: Tensor, pairs: list[tuple[Tensor, Tensor]], ends: Tensor, dtype: torch.dtype) -> Tensor:
    """LayerNorm and the projection behind it. The norm's gain is folded into the weights: no row looks it up."""
    normed = F.layer_norm(x.float(), x.shape[-1:]).to(dtype)
    folded = torch.stack([gain.unsqueeze(0) * weight for gain, weight in pairs]).to(dtype)
    return _grouped(normed, folded.transpose(-2, -1), ends)


def _stack(weights: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack(list(weights)).to(dtype).transpose(-2, -1)


def _grouped(x: Float[Tensor, "P R"], weights: Float[Tensor, "W R C"], ends: Int[Tensor, " W"]) -> Float[Tensor, "P C"]:
    # The kernel of a GPU reads the ends from one place to the next, whatever their stride.
    return F.grouped_mm(x, weights, offs=ends.to(torch.int32).contiguous())
