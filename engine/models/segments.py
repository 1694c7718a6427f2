"""Rows in another order, forward and backward, and attention over segments of them.

Shapes: E entries, D width, Q = 3·D.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.models.blocks import attend
from engine.models.dispatch import Bucket


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
