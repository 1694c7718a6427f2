"""Where the engine runs, and how that machine is set up for it."""

from __future__ import annotations

import contextlib
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


