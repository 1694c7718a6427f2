"""Attention inside many short segments on a GPU, forward and backward, as three Triton kernels.

The varlen kernels that PyTorch ships start a block for every head and 128 rows of the longest segment that there may
be, in each of the W·B segments (module, sample); most of these are empty, the others mostly shorter than a block, and
their backward pass clears a buffer padded by 128 rows a segment. Here a tile of ``ROWS`` rows exists only where a
segment has rows: tiles are counted on the device, and a fixed number of programs takes them in turn. Nothing is read
back by the host. ``device_step.varlen_attention`` chooses, and says what runs in its place.

Online softmax and the backward pass that computes probabilities again: Dao, *FlashAttention-2*, algorithms 1 and 2.

Shapes: P rows (queries, keys and values side by side, Q = 3·D), G segments, I tiles, H heads of E numbers, D = H·E.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokenpaths.engine.models.bank.kernels.product import precision

ROWS, WHOLE_ROWS = 64, 32
"""of a tile: the fewest that Hopper's matrix instructions take, and the fastest of 32, 64 and 128 there; in float32
half of them, which fit the registers"""
PROGRAMS_PER_PROCESSOR = 8
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _item(item, bounds, tile_ends, segments, HEADS: tl.constexpr, ROWS: tl.constexpr):
    """The head of a piece of work, the first row of its tile, and the bounds of the tile's segment."""
    tile = item // HEADS
    segment = tl.load(segments + tile)
    start = tl.load(bounds + segment)
    end = tl.load(bounds + segment + 1)
    tiles = (end - start + ROWS - 1) // ROWS
    first = start + (tile - (tl.load(tile_ends + segment) - tiles)) * ROWS
    return item % HEADS, first, start, end


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _scores(q, k, rows, keys, end, HEAD: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """(rows, keys) scores, as powers of 2 take them; −∞ where a row does not see a key."""
    scale: tl.constexpr = HEAD**-0.5
    seen = (keys < end)[None, :]
    if CAUSAL:
        seen = seen & (keys[None, :] <= rows[:, None])
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _block(base, rows, inside, stride, HEAD: tl.constexpr):
    """(rows, HEAD) numbers of one head; zeros for rows that are not ``inside``."""
    places = rows[:, None].to(tl.int64) * stride + tl.arange(0, HEAD)[None, :]
    return tl.load(base + places, mask=inside[:, None], other=0.0)


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _put(base, values, rows, inside, stride, HEAD: tl.constexpr):
    places = rows[:, None].to(tl.int64) * stride + tl.arange(0, HEAD)[None, :]
    tl.store(base + places, values.to(base.dtype.element_ty), mask=inside[:, None])


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _forward(
    qkv, mixed, sums, bounds, tile_ends, segments, num_segments, num_rows,
    HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = HEADS * HEAD
    work = tl.load(tile_ends + num_segments - 1) * HEADS
    for item in range(tl.program_id(0), work, tl.num_programs(0)):
        head, first, start, end = _item(item, bounds, tile_ends, segments, HEADS, ROWS)
        base = qkv + head * HEAD
        rows = first + tl.arange(0, ROWS)
        q = _block(base, rows, rows < end, 3 * width, HEAD)
        most = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        summed = tl.zeros((ROWS, HEAD), tl.float32)
        stop = tl.minimum(first + ROWS, end) if CAUSAL else end
        for begin in range(start, stop, ROWS):
            keys = begin + tl.arange(0, ROWS)
            k = _block(base + width, keys, keys < end, 3 * width, HEAD)
            scores = _scores(q, k, rows, keys, end, HEAD, CAUSAL, PRECISION)
            higher = tl.maximum(most, tl.max(scores, 1))
            probs = tl.exp2(scores - higher[:, None])
            shrink = tl.exp2(most - higher)
            v = _block(base + 2 * width, keys, keys < end, 3 * width, HEAD)
            total = total * shrink + tl.sum(probs, 1)
            summed = summed * shrink[:, None] + tl.dot(probs.to(v.dtype), v, input_precision=PRECISION)
            most = higher
        _put(mixed + head * HEAD, summed / total[:, None], rows, rows < end, width, HEAD)
        tl.store(sums + head * num_rows + rows, most + tl.log2(total), mask=rows < end)


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _backward_queries(
    qkv, mixed, grad, grad_qkv, sums, deltas, bounds, tile_ends, segments, num_segments, num_rows,
    HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = HEADS * HEAD
    scale: tl.constexpr = HEAD**-0.5
    work = tl.load(tile_ends + num_segments - 1) * HEADS
    for item in range(tl.program_id(0), work, tl.num_programs(0)):
        head, first, start, end = _item(item, bounds, tile_ends, segments, HEADS, ROWS)
        base = qkv + head * HEAD
        rows = first + tl.arange(0, ROWS)
        q = _block(base, rows, rows < end, 3 * width, HEAD)
        g = _block(grad + head * HEAD, rows, rows < end, width, HEAD)
        y = _block(mixed + head * HEAD, rows, rows < end, width, HEAD)
        delta = tl.sum(g.to(tl.float32) * y.to(tl.float32), 1)
        tl.store(deltas + head * num_rows + rows, delta, mask=rows < end)
        logsum = tl.load(sums + head * num_rows + rows, mask=rows < end, other=float("inf"))
        summed = tl.zeros((ROWS, HEAD), tl.float32)
        stop = tl.minimum(first + ROWS, end) if CAUSAL else end
        for begin in range(start, stop, ROWS):
            keys = begin + tl.arange(0, ROWS)
            k = _block(base + width, keys, keys < end, 3 * width, HEAD)
            v = _block(base + 2 * width, keys, keys < end, 3 * width, HEAD)
            probs = tl.exp2(_scores(q, k, rows, keys, end, HEAD, CAUSAL, PRECISION) - logsum[:, None])
            change = probs * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - delta[:, None])
            summed += tl.dot(change.to(k.dtype), k, input_precision=PRECISION)
        _put(grad_qkv + head * HEAD, summed * scale, rows, rows < end, 3 * width, HEAD)


@triton.jit
@no_type_check  # a checker's wrapper has no source that Triton could read
def _backward_keys(
    qkv, grad, grad_qkv, sums, deltas, bounds, tile_ends, segments, num_segments, num_rows,
    HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = HEADS * HEAD
    scale: tl.constexpr = HEAD**-0.5
    work = tl.load(tile_ends + num_segments - 1) * HEADS
    for item in range(tl.program_id(0), work, tl.num_programs(0)):
        head, first, start, end = _item(item, bounds, tile_ends, segments, HEADS, ROWS)
        base = qkv + head * HEAD
        keys = first + tl.arange(0, ROWS)
        k = _block(base + width, keys, keys < end, 3 * width, HEAD)
        v = _block(base + 2 * width, keys, keys < end, 3 * width, HEAD)
        grad_k = tl.zeros((ROWS, HEAD), tl.float32)
        grad_v = tl.zeros((ROWS, HEAD), tl.float32)
        for begin in range(first if CAUSAL else start, end, ROWS):
            rows = begin + tl.arange(0, ROWS)
            q = _block(base, rows, rows < end, 3 * width, HEAD)
            g = _block(grad + head * HEAD, rows, rows < end, width, HEAD)
            # A row that is none has an infinite sum: its probabilities are zeros.
            logsum = tl.load(sums + head * num_rows + rows, mask=rows < end, other=float("inf"))
            delta = tl.load(deltas + head * num_rows + rows, mask=rows < end, other=0.0)
            probs = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * LOG2_E) - logsum[None, :])
            if CAUSAL:
                probs = tl.where(keys[:, None] <= rows[None, :], probs, 0.0)
            grad_v += tl.dot(probs.to(g.dtype), g, input_precision=PRECISION)
            change = probs * (tl.dot(v, tl.trans(g), input_precision=PRECISION) - delta[None, :])
            grad_k += tl.dot(change.to(q.dtype), q, input_precision=PRECISION)
        _put(grad_qkv + head * HEAD + width, grad_k * scale, keys, keys < end, 3 * width, HEAD)
        _put(grad_qkv + head * HEAD + 2 * width, grad_v, keys, keys < end, 3 * width, HEAD)


class SegmentAttention(torch.autograd.Function):
    """Attention inside each segment ``bounds[g] … bounds[g + 1]``; rows behind the last one come back undefined."""

    @staticmethod
    def forward(ctx, qkv, bounds, tile_ends, segments, heads, causal):
        width = qkv.shape[1] // 3
        mixed = qkv.new_empty(qkv.shape[0], width)
        sums = qkv.new_empty(heads, qkv.shape[0], dtype=torch.float32)
        shared = (bounds, tile_ends, segments, bounds.numel() - 1, qkv.shape[0])
        settings = _settings(heads, width // heads, causal, qkv.dtype)
        with torch.cuda.device_of(qkv):  # see kernels.product
            _forward[(programs(qkv.device),)](qkv, mixed, sums, *shared, **settings)
        ctx.save_for_backward(qkv, mixed, sums, bounds, tile_ends, segments)
        ctx.heads, ctx.causal = heads, causal
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        qkv, mixed, sums, bounds, tile_ends, segments = ctx.saved_tensors
        heads, width = ctx.heads, mixed.shape[1]
        grad = grad.contiguous()
        grad_qkv, deltas = torch.empty_like(qkv), torch.empty_like(sums)
        shared = (bounds, tile_ends, segments, bounds.numel() - 1, qkv.shape[0])
        settings = _settings(heads, width // heads, ctx.causal, qkv.dtype)
        grid = (programs(qkv.device),)
        with torch.cuda.device_of(qkv):
            _backward_queries[grid](qkv, mixed, grad, grad_qkv, sums, deltas, *shared, **settings)
            _backward_keys[grid](qkv, grad, grad_qkv, sums, deltas, *shared, **settings)
        return grad_qkv, None, None, None, None, None


def _settings(heads: int, head: int, causal: bool, dtype: torch.dtype) -> dict[str, Any]:
    given = {"HEADS": heads, "HEAD": head, "ROWS": tile_rows(dtype), "CAUSAL": causal, "PRECISION": precision(dtype)}
    # Loads ahead of a product take memory that float32 needs for the tiles themselves.
    return given | ({"num_stages": 1} if dtype == torch.float32 else {})


def tile_rows(dtype: torch.dtype) -> int:
    """Rows of a tile of numbers of ``dtype``."""
    return WHOLE_ROWS if dtype == torch.float32 else ROWS


def programs(device: torch.device) -> int:
    """How many take tiles in turn."""
    if device.type != "cuda":
        return 3  # Triton's interpreter, in tests
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def tiles(bounds: Int[Tensor, " G1"], num_rows: int, size: int) -> tuple[Int[Tensor, " G"], Int[Tensor, " I"]]:
    """Tiles of ``size`` rows up to the end of each segment, and the segment of each tile, for as many tiles as
    ``num_rows`` rows may need."""
    tile_ends = ((bounds[1:] - bounds[:-1] + (size - 1)) // size).cumsum(0, dtype=torch.int32)
    numbers = _numbers(num_rows // size + bounds.numel() - 1, bounds.device)
    return tile_ends, torch.searchsorted(tile_ends, numbers, right=True, out_int32=True)


@lru_cache(maxsize=16)
def _numbers(count: int, device: torch.device) -> Int[Tensor, " I"]:
    with torch.inference_mode(False):
        return torch.arange(count, dtype=torch.int32, device=device)


def segment_attention(
    qkv: Float[Tensor, "P Q"], bounds: Int[Tensor, " G1"], heads: int, *, causal: bool
) -> Float[Tensor, "P D"]:
    """See ``SegmentAttention``; heads of a power of two numbers, 16 at least."""
    tile_ends, segments = tiles(bounds, qkv.shape[0], tile_rows(qkv.dtype))
    return SegmentAttention.apply(qkv.contiguous(), bounds.contiguous(), tile_ends, segments, heads, causal)
