"""Row gathering with gradients, and attention over segments of rows.

Shapes: E entries, D width, Q = 3·D, R rows in segments, P their places with padding.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.models.bank.dispatch import Bucket
from tokenpaths.engine.models.bank.modules import attend


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
    num_rows, width = qkv.shape[0], qkv.shape[1] // 3
    sizes = [bucket.row_GL.numel() for bucket in segments]
    # Once for all buckets: pieces of many sizes would leave holes in memory that nothing fits into.
    row_P = torch.cat([bucket.row_GL.reshape(-1) for bucket in segments])
    source_R = torch.cat([bucket.source_R for bucket in segments])
    place_R = torch.cat(
        [bucket.place_R + start for bucket, start in zip(segments, accumulate(sizes, initial=0), strict=False)]
    )
    place_E = torch.full((num_rows,), -1, dtype=torch.long, device=qkv.device)
    place_E[source_R] = place_R
    source_P = torch.full((row_P.numel(),), -1, dtype=torch.long, device=qkv.device)
    source_P[place_R] = source_R
    gaps, padded = source_R.numel() < num_rows, source_R.numel() < row_P.numel()
    parts = []
    for bucket, packed in zip(segments, TakeRows.apply(qkv, row_P, place_E, False, gaps).split(sizes), strict=True):
        groups, size = bucket.row_GL.shape
        if size == 1:
            parts.append(packed[:, 2 * width :])  # a token alone attends to itself
            continue
        allowed = None
        if not causal and bucket.valid_GL is not None:
            allowed = bucket.valid_GL[:, None, None, :].expand(-1, 1, size, -1)
        parts.append(attend(packed.view(groups, size, -1), heads, causal, allowed).reshape(-1, width))
    return TakeRows.apply(torch.cat(parts), place_E, source_P, gaps, padded)


def masked_attention(
    qkv: Float[Tensor, "E Q"], group_E: Int[Tensor, " E"], heads: int, *, causal: bool
) -> Float[Tensor, "E D"]:
    """The same in one call over all entries, masked to pairs of one group: quicker where there are few."""
    allowed = group_E[:, None] == group_E[None, :]
    if causal:
        allowed = allowed.tril()
    return attend(qkv.unsqueeze(0), heads, False, allowed[None, None]).squeeze(0)


def attention_loop(
    q: Float[Tensor, "P H E"],
    k: Float[Tensor, "P H E"],
    v: Float[Tensor, "P H E"],
    bounds: Int[Tensor, " G1"],
    causal: bool,
) -> Float[Tensor, "P H E"]:
    """Attention inside each segment ``bounds[g] … bounds[g + 1]``, one after the other; zeros behind the last one."""
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
