"""Where the engine runs, and how that machine is set up for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

import torch


def pick_device(name: str | None = None) -> torch.device:
    """``name`` if given, else CUDA, else MPS, else the CPU."""
    if name:
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


@contextlib.contextmanager
def mixed_precision(device: torch.device, enabled: bool | None = None) -> Iterator[None]:
    """bfloat16 autocast: on CUDA by default, elsewhere when asked for."""
    wanted = device.type == "cuda" if enabled is None else enabled
    if not wanted or device.type == "mps":
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        yield


def cpu_has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively (AVX512-BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def tune_cpu_process() -> None:
    """Keep freed memory and compiled products; call once, before the first tensor.

    glibc returns every large block to the kernel and faults it in again, page by page; training
    steps here are about a tenth faster when it does not. Memory in use peaks a little higher.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, top_pad, mmap_max = -1, -2, -4
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 64 * 2**20)
