"""Products of rows with the weights of their group on any recent NVIDIA GPU, in float32 too, as two Triton kernels.

PyTorch's grouped product is for bfloat16 on GPUs of compute capability 9 and 10; elsewhere it waits for the host in its
place. Here each program finds its tile's group from the ends on the device, so nothing is read back.

Shapes: P rows sorted by group, G groups, R numbers in, C numbers out.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _product(
    x, weights, result, ends, group_stride, in_stride, out_stride,
    INNER: tl.constexpr, OUTER: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (OUTER + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0) // across
    columns = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    groups = tl.arange(0, PADDED)
    stops = tl.load(ends + groups, mask=groups < GROUPS, other=0)
    starts = tl.load(ends + groups - 1, mask=(groups > 0) & (groups < GROUPS), other=0)
    tiles = tl.where(groups < GROUPS, (stops - starts + ROWS - 1) // ROWS, 0)
    upto = tl.cumsum(tiles, 0)
    group = tl.sum(((upto <= tile) & (groups < GROUPS)).to(tl.int32), 0)
    if group < GROUPS:
        mine = groups == group
        first = tl.sum(tl.where(mine, starts + (tile - (upto - tiles)) * ROWS, 0), 0)
        stop = tl.sum(tl.where(mine, stops, 0), 0)
        rows = first + tl.arange(0, ROWS)
        left = x + rows[:, None].to(tl.int64) * INNER
        right = weights + group.to(tl.int64) * group_stride + columns[None, :] * out_stride
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for begin in range(0, INNER, DEPTH):
            depth = begin + tl.arange(0, DEPTH)
            a = tl.load(left + depth[None, :], mask=(rows < stop)[:, None] & (depth < INNER)[None, :], other=0.0)
            seen = (depth < INNER)[:, None] & (columns < OUTER)[None, :]
            b = tl.load(right + depth[:, None] * in_stride, mask=seen, other=0.0)
            total += tl.dot(a, b, input_precision=PRECISION)
        place = result + rows[:, None].to(tl.int64) * OUTER + columns[None, :]
        written = (rows < stop)[:, None] & (columns < OUTER)[None, :]
        tl.store(place, total.to(result.dtype.element_ty), mask=written)


@triton.jit
@no_type_check
def _weight_gradient(
    x, grad, result, ends, INNER: tl.constexpr, OUTER: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (OUTER + COLUMNS - 1) // COLUMNS
    down: tl.constexpr = (INNER + ROWS - 1) // ROWS
    group = tl.program_id(0) // (across * down)
    place = tl.program_id(0) % (across * down)
    inner = place // across * ROWS + tl.arange(0, ROWS)
    outer = place % across * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.load(ends + group - 1, mask=group > 0, other=0)
    stop = tl.load(ends + group)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(start, stop, DEPTH):
        rows = begin + tl.arange(0, DEPTH)
        here = (rows < stop)[:, None]
        a = tl.load(
            x + rows[:, None].to(tl.int64) * INNER + inner[None, :], mask=here & (inner < INNER)[None, :], other=0.0
        )
        g = tl.load(
            grad + rows[:, None].to(tl.int64) * OUTER + outer[None, :], mask=here & (outer < OUTER)[None, :], other=0.0
        )
        total += tl.dot(tl.trans(a), g, input_precision=PRECISION)
    put = result + group.to(tl.int64) * INNER * OUTER + inner[:, None] * OUTER + outer[None, :]
    tl.store(put, total.to(result.dtype.element_ty), mask=(inner < INNER)[:, None] & (outer < OUTER)[None, :])


def precision(dtype: torch.dtype) -> str:
    """Of products of ``dtype``, as Triton calls it: float32 is kept whole unless PyTorch was told otherwise."""
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by the newer names, which this one refuses to read
        setting = "highest"
    return "ieee" if dtype == torch.float32 and setting == "highest" else "tf32"


def _settings(dtype: torch.dtype) -> dict[str, Any]:
    """Sizes of tiles: the fastest of five in float32 and of four otherwise on an H200, of those that fit 99 KiB."""
    if dtype == torch.float32:
        return {"ROWS": 128, "COLUMNS": 64, "DEPTH": 16, "num_warps": 4, "num_stages": 2}
    return {"ROWS": 128, "COLUMNS": 128, "DEPTH": 32, "num_warps": 8, "num_stages": 3}


def _multiply(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    x = x.contiguous()
    (num_rows, inner), (groups, _, outer) = x.shape, weights.shape
    result = x.new_empty(num_rows, outer)
    settings = _settings(x.dtype)
    tiles = num_rows // settings["ROWS"] + groups
    settings |= {"INNER": inner, "OUTER": outer, "GROUPS": groups, "PADDED": triton.next_power_of_2(groups)}
    grid = (tiles * triton.cdiv(outer, settings["COLUMNS"]),)
    with torch.cuda.device_of(x):  # Triton starts a kernel on the current GPU, whichever its tensors lie on
        _product[grid](x, weights, result, ends, *weights.stride(), PRECISION=precision(x.dtype), **settings)
    return result


class GroupedProduct(torch.autograd.Function):
    """``x[rows of g] @ weights[g]``; rows behind the last end come back undefined, and so do their gradients."""

    @staticmethod
    def forward(ctx, x, weights, ends):
        ctx.save_for_backward(x, weights, ends)
        return _multiply(x, weights, ends)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weights, ends = ctx.saved_tensors
        grad_x = _multiply(grad, weights.transpose(1, 2), ends) if ctx.needs_input_grad[0] else None
        return grad_x, _gradient(x, grad, ends) if ctx.needs_input_grad[1] else None, None


def _gradient(x: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    x, grad = x.contiguous(), grad.contiguous()
    inner, outer, groups = x.shape[1], grad.shape[1], ends.numel()
    result = x.new_empty(groups, inner, outer)
    settings = _settings(x.dtype)
    across = triton.cdiv(outer, settings["COLUMNS"]) * triton.cdiv(inner, settings["ROWS"])
    settings |= {"INNER": inner, "OUTER": outer, "PRECISION": precision(x.dtype)}
    with torch.cuda.device_of(x):
        _weight_gradient[(groups * across,)](x, grad, result, ends, **settings)
    return result


def grouped_product(
    x: Float[Tensor, "P R"], weights: Float[Tensor, "G R C"], ends: Int[Tensor, " G"]
) -> Float[Tensor, "P C"]:
    """See ``GroupedProduct``; ``ends`` are int32, one past the last row of each group."""
    return GroupedProduct.apply(x, weights, ends)
