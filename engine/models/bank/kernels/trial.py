"""Whether the Triton kernels can be used here: each is run on a few rows, and compared.

They are compiled for the GPU at hand by its user's Triton and C compiler, so nobody can have tried all of them. Where
one does not compile, does not fit or does not agree, PyTorch's own kernels are used, and the log says why.
"""

from __future__ import annotations

import logging
import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.models.bank.varlen import attention_loop

OLDEST = 8
"""compute capability: Ampere"""
HEADS = (16, 32, 64, 128)
"""numbers in a head that the kernels take"""
LONGEST_WHOLE_HEAD = 64
"""in float32, whose tiles take twice the memory"""
AGREES = 0.02
"""relative difference in norm: more than bfloat16 or TF32 round, far less than what a wrong kernel gives"""


def kernels_hold(device: torch.device, dtype: torch.dtype, head: int | None) -> bool:
    """Whether the kernels run on ``device`` and agree, attention with so many numbers in a head among them (None: there
    is none). The first call for a GPU and dtype, and for a size of head, tries them: seconds, until Triton's cache on
    the disk has them."""
    if device.type != "cuda" or torch.version.hip is not None or not has_compilers():
        return False
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return False
    if head is not None and (head not in HEADS or (dtype == torch.float32 and head > LONGEST_WHOLE_HEAD)):
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        return _tried(index, dtype, None) and (head is None or _tried(index, dtype, head))
    except torch.OutOfMemoryError:  # which passes: the next call tries again
        return False


@cache
def has_compilers() -> bool:
    """Triton, which comes with PyTorch for CUDA, and the C compiler that it calls, which does not."""
    compilers = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    return find_spec("triton") is not None and any(name and shutil.which(name) for name in compilers)


@cache
def _tried(index: int, dtype: torch.dtype, head: int | None) -> bool:
    device = torch.device("cuda", index)
    if torch.cuda.get_device_capability(device)[0] < OLDEST:
        return False
    waits = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")  # a trial waits for the GPU, whatever is watched for
    try:
        plain = torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False)
        with torch.cuda.device(device), plain[0], plain[1], plain[2]:
            worst = try_rows(device, dtype) if head is None else try_attention(device, dtype, head)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton, the compiler and the driver have errors of their own
        reason = f"{type(error).__name__}: {str(error)[:300]}"
    else:
        reason = f"one differs by {worst:.3g} from what PyTorch computes"
        if worst < AGREES:
            return True
    finally:
        torch.cuda.set_sync_debug_mode(waits)
    name = torch.cuda.get_device_name(device)
    logging.getLogger(__name__).warning("Triton kernels are not used on this %s (%s): %s", name, dtype, reason)
    return False


def try_rows(device: torch.device, dtype: torch.dtype) -> float:
    """The largest relative difference in norm of any result or gradient, of products and of what lies between them."""
    ends = _ends(device)
    return _most([_try_product(ends, dtype), _try_between(ends, dtype)])


def try_attention(device: torch.device, dtype: torch.dtype, head: int) -> float:
    """The same of attention; causal, which is all that it does otherwise and a mask."""
    from tokenpaths.engine.models.bank.kernels.segment_kernels import segment_attention

    ends = _ends(device)
    rows, bounds = int(ends[-1]), F.pad(ends, (1, 0))
    qkv = _numbers(device, dtype, rows + 9, 3 * 2 * head).requires_grad_()
    q, k, v = qkv.view(len(qkv), 3, 2, head).unbind(1)
    wanted = attention_loop(q, k, v, bounds, True).flatten(1)[:rows]
    return _worst(segment_attention(qkv, bounds, 2, causal=True), wanted, [qkv], rows)


def _ends(device: torch.device) -> Tensor:
    """Of a group of several tiles, an empty one and another."""
    return torch.tensor([70, 70, 200], dtype=torch.int32, device=device)


def _numbers(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """The same every time, and nobody's random state is touched."""
    count = torch.Size(shape).numel()
    return torch.arange(count, device=device, dtype=torch.float32).mul_(1.7).sin_().view(shape).to(dtype)


def _most(differences: list[float]) -> float:
    """Not a number where one is none, which Python's ``max`` may lose."""
    return float(torch.tensor(differences).max())


def _difference(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())


def _worst(found: Tensor, wanted: Tensor, inputs: list[Tensor], rows: int) -> float:
    """Of the result and the gradients, as far as they are defined."""
    along = _numbers(found.device, torch.float32, *wanted.shape)
    pairs = [(found[:rows], wanted)]
    grads = [torch.autograd.grad((y.float() * along).sum(), inputs) for y in (found[:rows], wanted)]
    pairs += [(a[:rows], b[:rows]) for a, b in zip(*grads, strict=True)]
    differences = [_difference(a, b) for a, b in pairs]
    return _most(differences)


def _try_product(ends: Tensor, dtype: torch.dtype) -> float:
    from tokenpaths.engine.models.bank.kernels.product import grouped_product

    rows = int(ends[-1])
    x = _numbers(ends.device, dtype, rows + 9, 40).requires_grad_()
    weights = _numbers(ends.device, dtype, len(ends), 72, 40).transpose(1, 2).requires_grad_()
    bounds = [0, *ends.tolist()]
    wanted = torch.cat([x[a:b] @ w for a, b, w in zip(bounds[:-1], bounds[1:], weights, strict=True)])
    return _worst(grouped_product(x, weights, ends), wanted, [x, weights], rows)


def _try_between(ends: Tensor, dtype: torch.dtype) -> float:
    from tokenpaths.engine.models.bank.kernels.rows import blend_rows, norm_rows

    entries, device = 210, ends.device
    h, weights = _numbers(device, dtype, 105, 40), _numbers(device, dtype, 105, 2)
    change, second = _numbers(device, dtype, entries, 40), _numbers(device, dtype, entries, 40).flip(0)
    back = torch.arange(entries - 1, -1, -1, device=device)
    token = back // 2
    # Under autocast the stream is in float32 and what is added to it is not.
    normed = [
        _difference(norm_rows(stream, token, change, dtype), F.layer_norm(h[token].float() + change.float(), (40,)))
        for stream in (h, h.float())
    ]
    summed = (change.float() + second.float()) * (torch.arange(entries, device=device) < ends[-1]).unsqueeze(1)
    wanted = h.float() + (weights.float().unsqueeze(-1) * summed[back].view(105, 2, 40)).sum(dim=1)
    blended = [
        _difference(blend_rows(stream, back, weights, change, second, ends), wanted) for stream in (h, h.float())
    ]
    return _most([*normed, *blended])
