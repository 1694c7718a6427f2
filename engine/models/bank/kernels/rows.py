"""What a routed step does between its products, row by row and without gradients, as two Triton kernels for a GPU.

PyTorch gathers, adds and normalises in kernels of their own, each of which reads and writes all entries. Here a row is
gathered, summed and normalised where it is read, and the results of a token are gathered, weighed and added where they
are needed. Sums are in float32 whatever the rows are in.

Shapes: N tokens, K choices, P = N·K entries, D width, W working modules.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

EPSILON = tl.constexpr(1e-5)
"""of LayerNorm, as PyTorch's"""


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _norm(h, tokens, change, normed, ADD: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, LANES)
    inside = columns < WIDTH
    x = tl.load(h + tl.load(tokens + row).to(tl.int64) * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(change + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x) / WIDTH, 0.0)
    scaled = centred * tl.rsqrt(tl.sum(centred * centred) / WIDTH + EPSILON)
    tl.store(normed + row * WIDTH + columns, scaled.to(normed.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _blend(
    h, back, weights, first, second, last, result, TOP_K: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, LANES)
    inside = columns < WIDTH
    entries = tl.load(last)
    x = tl.load(h + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    for slot in range(TOP_K):
        entry = tl.load(back + token * TOP_K + slot).to(tl.int64)
        weight = tl.load(weights + token * TOP_K + slot).to(tl.float32)
        real = columns < tl.where(entry < entries, WIDTH, 0)  # behind the last group nothing was computed
        change = tl.load(first + entry * WIDTH + columns, mask=real, other=0.0).to(tl.float32)
        change += tl.load(second + entry * WIDTH + columns, mask=real, other=0.0).to(tl.float32)
        x += weight * change
    tl.store(result + token * WIDTH + columns, x.to(result.dtype.element_ty), mask=inside)


def _lanes(width: int) -> tuple[dict[str, int], int]:
    """Settings of a kernel for rows of ``width`` numbers, and its warps."""
    lanes = triton.next_power_of_2(width)
    return {"WIDTH": width, "LANES": lanes}, max(1, min(8, lanes // 512))


def norm_rows(
    h: Float[Tensor, "N D"], token_P: Int[Tensor, " P"], change: Float[Tensor, "P D"] | None, dtype: torch.dtype
) -> Float[Tensor, "P D"]:
    """LayerNorm without gain of ``h[token_P] + change``, in ``dtype``; without a change, of ``h[token_P]``."""
    normed = h.new_empty(token_P.numel(), h.shape[1], dtype=dtype)
    settings, warps = _lanes(h.shape[1])
    given = normed if change is None else change
    with torch.cuda.device_of(h):  # see kernels.product
        _norm[(token_P.numel(),)](h, token_P, given, normed, ADD=change is not None, **settings, num_warps=warps)
    return normed


def blend_rows(
    h: Float[Tensor, "N D"],
    back_P: Int[Tensor, " P"],
    weights: Float[Tensor, "N K"],
    first: Float[Tensor, "P D"],
    second: Float[Tensor, "P D"],
    ends_W: Int[Tensor, " W"],
) -> Float[Tensor, "N D"]:
    """``h`` and the sum of its entries' ``first + second``, weighed; entries behind the last end count nothing."""
    result = torch.empty_like(h)
    settings, warps = _lanes(h.shape[1])
    settings["TOP_K"] = weights.shape[1]
    with torch.cuda.device_of(h):
        _blend[(h.shape[0],)](h, back_P, weights, first, second, ends_W[-1:], result, **settings, num_warps=warps)
    return result
