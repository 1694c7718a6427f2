"""Dispatch plan of a routed step: entries sorted by module and sample, cut into pieces and attention segments.

Shapes: N tokens, K choices, E entries: (token, slot) pairs whose module does work; G segments of length up to L.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Int
from torch import Tensor, nn

MASKED_ROWS = 256
"""up to so many entries one masked attention over all of them is quicker than one call for each bucket of segments"""

LONG = 64
"""segments whose padding costs more than another call: attention takes the square of the padded length"""
FEW_SHAPES = 32
"""rows of a slice where every new shape is compiled (bfloat16), and segments are padded to powers of two alone"""


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
    """Attention segments (one module, one sample) of similar length, padded to one of few lengths."""

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
    token_P = torch.arange(num_tokens, device=device)
    if top_k > 1:
        token_P = token_P.repeat_interleave(top_k)
    key_P = _sort_keys(module_ids.reshape(-1), token_P // tokens, modules, batch)
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
    entry_P = torch.full_like(key_P, -1)
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


def _sort_keys(
    module_P: Int[Tensor, " P"], sample_P: Int[Tensor, " P"], modules: nn.ModuleList, batch: int
) -> Int[Tensor, " P"]:
    """module · B + sample of each (token, slot) pair; identities sort to the end, where they are cut off."""
    key_P = module_P * batch + sample_P
    idle = [i for i, m in enumerate(modules) if m.kind == "identity"]
    if idle:
        idle_M = torch.zeros(len(modules), dtype=torch.bool, device=key_P.device)
        idle_M[idle] = True
        key_P = torch.where(idle_M[module_P], len(modules) * batch, key_P)
    return key_P


def _pieces(start: int, end: int, align: int, longest: int | None) -> list[tuple[int, int]]:
    """A slice in even pieces of at most ``longest`` rows, each but the last a multiple of ``align``."""
    if longest is None or end - start <= longest:
        return [(start, end)] if end > start else []
    each = -(-(end - start) // -(-(end - start) // longest))
    each = -(-each // align) * align
    return [(first, min(first + each, end)) for first in range(start, end, each)]


def _buckets(start_S: Tensor, length_S: Tensor, align: int) -> list[Bucket]:
    """Group the segments (first row, length) by the power of two that holds them, long ones by quarters between two.

    With ``align`` the number of segments of a bucket is padded too, with copies of the first one that
    nobody reads; buckets of long segments less, where a copy would cost more than a new shape.
    """
    present = length_S > 0
    length_S, start_S = length_S[present], start_S[present]
    if length_S.numel() == 0:
        return []
    size_S = 2 ** torch.ceil(torch.log2(length_S.double())).long()
    if align < FEW_SHAPES:
        unit_S = torch.where(size_S >= LONG, size_S // 8, size_S)
        size_S = -(-length_S // unit_S) * unit_S
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
        buckets.append(Bucket(row_GL, None if full else valid_GL, place_R, row_GL.reshape(-1)[place_R]))
    return buckets
