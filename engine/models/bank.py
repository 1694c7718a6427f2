"""The module bank: run every token through the modules that its router chose.

Two implementations of one rule, equation 3 of Distributed Neural Architectures,

    h'_t = h_t + Σ_{i in chosen(t)} ρ_i (M_i(h)_t − h_t),

where the attention inside M_i sees only the tokens of the same sample that M_i received at this
step. ``naive_step`` is written to be read; ``grouped_step`` is the one that runs. They agree to
1e-5 in float32, forward and backward (``tests/engine/test_bank.py``).

Shapes: B samples, T tokens each, N = B·T, K choices, E = entries: (token, slot) pairs whose
module does work, sorted by module and then by sample; D width, Q = 3·D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from engine.models.blocks import Block, attend
from engine.models.packed import MOST_ROWS, Linear, orders

MASKED_ROWS = 256
"""up to so many entries one masked attention over all of them is quicker than one call for each bucket of segments"""


def naive_step(
    modules: nn.ModuleList,
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


@dataclass(frozen=True)
class Dispatch:
    """Where every entry goes: the bookkeeping of one step, no floating-point number in it."""

    token_E: Int[Tensor, " E"]
    """token of each entry; −1 where the entry only pads a module's slice"""
    slot_E: Int[Tensor, " E"]
    """flat (token, slot) position of each entry; −1 for padding"""
    entry_NK: Int[Tensor, "N K"]
    """entry of each token's slot; −1 where the module is an identity"""
    padded: bool
    """some −1 in ``token_E`` and ``slot_E``"""
    complete: bool
    """no −1 in ``entry_NK``"""
    rows: list[tuple[int, int, int]]
    """(module, first entry, one past the last) of each piece of the modules that received tokens, in order"""
    segments: list[Bucket]
    """what attends to each other; empty where ``group_E`` says it"""
    group_E: Int[Tensor, " E"] | None
    """module · B + sample of each entry, −1 for padding; only where there are few entries and some attend"""


@dataclass(frozen=True)
class Bucket:
    """Attention segments (one module, one sample) of similar length, padded to a power of two."""

    row_GL: Int[Tensor, "G L"]
    """row to read; padding repeats the segment's last row"""
    valid_GL: Tensor | None
    """which of them may be attended to; None where all may"""
    place_R: Int[Tensor, " R"]
    """the flat G·L position of each real row"""
    source_R: Int[Tensor, " R"]
    """the row that each real position was read from"""


def plan_dispatch(
    module_ids: Int[Tensor, "N K"],
    modules: nn.ModuleList,
    batch: int,
    tokens: int,
    align: int = 1,
    piece: int | None = None,
) -> Dispatch:
    """Sort the (token, slot) pairs by module and sample, and find the attention segments.

    Each module's slice is padded to a multiple of ``align`` rows, and cut into even pieces of at most ``piece``.
    """
    num_tokens, top_k = module_ids.shape
    device = module_ids.device
    num_modules = len(modules)
    flat_P = module_ids.reshape(-1)
    token_P = torch.arange(num_tokens, device=device)
    if top_k > 1:
        token_P = token_P.repeat_interleave(top_k)
    key_P = flat_P * batch + token_P // tokens
    idle = [i for i, m in enumerate(modules) if m.kind == "identity"]
    if idle:
        # Identity entries sort to the end and are cut off.
        idle_M = torch.zeros(num_modules, dtype=torch.bool, device=device)
        idle_M[idle] = True
        key_P = torch.where(idle_M[flat_P], num_modules * batch, key_P)
    order_P = key_P.sort(stable=True).indices
    counts_MB = torch.bincount(key_P, minlength=num_modules * batch + 1)[:-1].view(num_modules, batch)

    counts_M = counts_MB.sum(dim=1)
    room_M = (counts_M + align - 1) // align * align
    counts, room = torch.stack([counts_M, room_M]).tolist()
    num_real, num_entries = sum(counts), sum(room)
    start_M = room_M.cumsum(0) - room_M
    slot_R = order_P[:num_real]
    entry_R = torch.arange(num_real, device=device)
    if num_entries != num_real:
        shift_M = start_M - (counts_M.cumsum(0) - counts_M)
        entry_R = entry_R + shift_M.repeat_interleave(counts_M, output_size=num_real)
    slot_E = torch.full((num_entries,), -1, device=device)
    slot_E[entry_R] = slot_R
    token_E = torch.full_like(slot_E, -1)
    token_E[entry_R] = token_P[slot_R]
    entry_P = torch.full_like(flat_P, -1)
    entry_P[slot_R] = entry_R

    ends = list(accumulate(room))
    attends = [m.attention is not None for m in modules]
    segments, group_E = [], None
    if num_entries <= MASKED_ROWS:
        if any(attends[m] for m, count in enumerate(counts) if count):
            group_E = torch.full_like(slot_E, -1)
            group_E[entry_R] = key_P[slot_R]
    else:
        attends_M = torch.tensor(attends, device=device)
        start_MB = start_M[:, None] + counts_MB.cumsum(dim=1) - counts_MB
        segments = _buckets(start_MB.reshape(-1), (counts_MB * attends_M[:, None]).reshape(-1), align)
    return Dispatch(
        token_E=token_E,
        slot_E=slot_E,
        entry_NK=entry_P.view(num_tokens, top_k),
        padded=num_entries != num_real,
        complete=num_real == num_tokens * top_k,
        rows=[(m, *part) for m in range(num_modules) for part in _pieces(ends[m] - room[m], ends[m], align, piece)],
        segments=segments,
        group_E=group_E,
    )


def _pieces(start: int, end: int, align: int, longest: int | None) -> list[tuple[int, int]]:
    """A slice in even pieces of at most ``longest`` rows, each but the last a multiple of ``align``."""
    if longest is None or end - start <= longest:
        return [(start, end)] if end > start else []
    each = -(-(end - start) // -(-(end - start) // longest))
    each = -(-each // align) * align
    return [(first, min(first + each, end)) for first in range(start, end, each)]


def _buckets(start_S: Tensor, length_S: Tensor, align: int) -> list[Bucket]:
    """Group the segments (first row, length) by the power of two that holds them.

    With ``align`` the number of segments of a bucket is padded too, with copies of the first one that
    nobody reads; buckets of long segments less, where a copy would cost more than a new shape.
    """
    present = length_S > 0
    length_S, start_S = length_S[present], start_S[present]
    if length_S.numel() == 0:
        return []
    size_S = 2 ** torch.ceil(torch.log2(length_S.double())).long()
    buckets = []
    for size in size_S.unique().tolist():
        member = size_S == size
        length_G, start_G = length_S[member], start_S[member]
        size = size if align > 1 else min(size, int(length_G.max()))
        groups = length_G.numel()
        if spare := -groups % max(1, min(align, 256 // size)):
            length_G = torch.cat([length_G, length_G[:1].expand(spare)])
            start_G = torch.cat([start_G, start_G[:1].expand(spare)])
        offset_L = torch.arange(size, device=length_G.device)
        valid_GL = offset_L < length_G[:, None]
        row_GL = start_G[:, None] + torch.minimum(offset_L, length_G[:, None] - 1)
        place_R = valid_GL[:groups].reshape(-1).nonzero().squeeze(1)
        full = place_R.numel() == groups * size
        buckets.append(
            Bucket(row_GL, None if full else valid_GL, place_R, row_GL.reshape(-1)[place_R])
        )
    return buckets


class TakeRows(torch.autograd.Function):
    """``x[index]`` whose backward is a gather too, because the caller knows the inverse.

    PyTorch's own backward of indexing is a scatter with accumulation, several times slower on a
    CPU and not reproducible on a GPU. ``back`` (rows of x × uses) lists the positions in ``index``
    that read each row; −1 reads (or sends back) zeros, and is allowed only where a flag says so.
    """

    @staticmethod
    def forward(ctx, x, index, back, index_has_gaps, back_has_gaps):
        ctx.save_for_backward(back)
        ctx.back_has_gaps = back_has_gaps
        return _take(x, index, index_has_gaps)

    @staticmethod
    def backward(ctx, grad):
        (back,) = ctx.saved_tensors
        rows = _take(grad, back.reshape(-1), ctx.back_has_gaps)
        if back.ndim == 2:
            rows = rows.view(*back.shape, -1).sum(dim=1) if back.shape[1] > 1 else rows
        return rows, None, None, None, None


def _take(x: Tensor, index: Tensor, has_gaps: bool) -> Tensor:
    if not has_gaps:
        return x.index_select(0, index)
    taken = x.index_select(0, index.clamp(min=0))
    if x.device.type == "cpu":
        return taken.index_fill_(0, (index < 0).nonzero().squeeze(1), 0)
    return taken.masked_fill_((index < 0).unsqueeze(1), 0)  # no host synchronisation


def segment_attention(
    qkv: Float[Tensor, "E Q"], segments: list[Bucket], heads: int, *, causal: bool
) -> Float[Tensor, "E D"]:
    """Attention inside each segment and nowhere else, one padded call per bucket.

    Padding stands last, so a causal mask already hides it; otherwise a key mask does. Rows of
    modules without attention come back undefined (zeros).
    """
    width = qkv.shape[1] // 3
    parts, sources = [], []
    for bucket in segments:
        groups, size = bucket.row_GL.shape
        back_E = torch.full((qkv.shape[0],), -1, dtype=torch.long, device=qkv.device)
        back_E[bucket.source_R] = bucket.place_R
        packed = TakeRows.apply(qkv, bucket.row_GL.reshape(-1), back_E, False, True)
        if size == 1:
            mixed = packed[:, 2 * width :]  # a token alone attends to itself
        else:
            allowed = None
            if not causal and bucket.valid_GL is not None:
                allowed = bucket.valid_GL[:, None, None, :].expand(-1, 1, size, -1)
            mixed = attend(packed.view(groups, size, -1), heads, causal, allowed).reshape(-1, width)
        if bucket.place_R.numel() < groups * size:
            back_P = torch.full((groups * size,), -1, dtype=torch.long, device=qkv.device)
            back_P[bucket.place_R] = torch.arange(bucket.place_R.numel(), device=qkv.device)
            mixed = TakeRows.apply(mixed, bucket.place_R, back_P, False, True)
        parts.append(mixed)
        sources.append(bucket.source_R)
    mixed, source_R = torch.cat(parts), torch.cat(sources)
    inverse_E = torch.full((qkv.shape[0],), -1, dtype=torch.long, device=qkv.device)
    inverse_E[source_R] = torch.arange(source_R.numel(), device=qkv.device)
    gaps = source_R.numel() < qkv.shape[0]
    return TakeRows.apply(mixed, inverse_E, source_R, gaps, False)


def masked_attention(
    qkv: Float[Tensor, "E Q"], group_E: Int[Tensor, " E"], heads: int, *, causal: bool
) -> Float[Tensor, "E D"]:
    """The same in one call over all entries, masked to pairs of one group: quicker where there are few."""
    allowed = group_E[:, None] == group_E[None, :]
    if causal:
        allowed = allowed.tril()
    return attend(qkv.unsqueeze(0), heads, False, allowed[None, None]).squeeze(0)


def grouped_step(
    modules: nn.ModuleList,
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
    batch, tokens, width = h.shape
    top_k = module_ids.shape[-1]
    ids_NK = module_ids.reshape(batch * tokens, top_k)
    h_ND = h.reshape(batch * tokens, width)
    plan = plan_dispatch(ids_NK, modules, batch, tokens, *_row_shapes(modules, h))
    if not plan.rows:
        return h
    x_ED = TakeRows.apply(h_ND, plan.token_E, plan.entry_NK, plan.padded, not plan.complete)

    # Split, not sliced: the backward of n slices fills n buffers of all rows with zeros.
    sizes = [end - start for _, start, end in plan.rows]
    xs = x_ED.split(sizes)
    mixed: Sequence[Tensor | None] = [None] * len(xs)
    if plan.segments or plan.group_E is not None:
        heads = next(m.attention.heads for m in modules if m.attention is not None)
        qkv = torch.cat([_projected(modules[m], x) for (m, _, _), x in zip(plan.rows, xs, strict=True)])
        if plan.group_E is not None:
            mixed_ED = masked_attention(qkv, plan.group_E, heads, causal=causal)
        else:
            mixed_ED = segment_attention(qkv, plan.segments, heads, causal=causal)
        mixed = mixed_ED.split(sizes)
    changes = [modules[m].finish(x, y) for (m, _, _), x, y in zip(plan.rows, xs, mixed, strict=True)]
    change_ED = torch.cat(changes)
    change_PD = TakeRows.apply(
        change_ED, plan.entry_NK.reshape(-1), plan.slot_E, not plan.complete, plan.padded
    )
    weights_NK = weights.reshape(batch * tokens, top_k).to(change_PD.dtype)
    if top_k == 1:
        blended = weights_NK * change_PD
    else:
        blended = torch.einsum("nk,nkd->nd", weights_NK, change_PD.view(-1, top_k, width))
    return (h_ND + blended).view(batch, tokens, width)


def _projected(module: Block, x: Tensor) -> Tensor:
    if module.attention is not None:
        return module.attention.project_in(x)
    return x.new_zeros(x.shape[0], 3 * x.shape[1])


def _row_shapes(modules: nn.ModuleList, h: Tensor) -> tuple[int, int | None]:
    """To what multiple of rows each module's slice is padded, and into what pieces it is cut.

    On a CPU, oneDNN compiles a product anew for every row count it has not seen, which fresh routing makes each
    time; multiples keep the number of shapes small. It does so for bfloat16, and for weights that are ordered
    beforehand (``engine.models.packed``), which are for pieces of few rows.
    """
    if h.device.type != "cpu":
        return 1, None
    low_precision = h.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    weight = next((m.weight for m in modules.modules() if isinstance(m, Linear)), None)
    ordered = weight is not None and orders(h, weight)
    return (32 if low_precision else 4 if ordered else 1), (MOST_ROWS if ordered else None)
