"""Choice of the compute device, and mixed precision on it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator

import torch

from tokenpaths.engine.base.errors import UserError

TURNS, MARGIN = 15, 0.8


def pick_device(name: str | None = None) -> torch.device:
    """``name`` if given, else CUDA, else MPS, else the CPU.

    Raises:
        UserError: there is no such device here.
    """
    if name:
        return _named(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"{name[:40]!r} is no device: use cuda, cuda:1, mps or cpu", field="device") from None
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type):
        have = ", ".join(kind for kind, present in there.items() if present and kind != device.type)
        raise UserError(f"this machine, or its torch, has no {name!r}; it has {have}", field="device")
    return device


@contextlib.contextmanager
def mixed_precision(device: torch.device, enabled: bool | None = None) -> Iterator[None]:
    """bfloat16 autocast: on CUDA by default, elsewhere when asked for."""
    lower = device.type == "cuda" if enabled is None else enabled
    if not lower or device.type == "mps":
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        yield


def gains_by_bfloat16(device: torch.device) -> bool:
    """Whether mixed precision pays on this device.

    On a processor the clock decides, and another process may find another answer: whoever needs equal numbers later,
    or from several processes, asks once and keeps it.
    """
    return device.type == "cuda" or device.type == "cpu" and cpu_gains_by_bfloat16()


@functools.cache
def cpu_gains_by_bfloat16() -> bool:
    """Whether products in bfloat16 are quicker here than in float32: asked of the clock, once a process.

    The processor's flags do not tell: AVX512-BF16 takes 0.6 of float32's time on some and twice as long on others.
    Taken in turns and with a margin, so that other work on the machine does not decide.
    """
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    turns = [[_product_time(dtype) for dtype in (torch.bfloat16, torch.float32)] for _ in range(TURNS)]
    low, full = (min(times) for times in zip(*turns, strict=True))
    return bool(low < MARGIN * full)


def _product_time(dtype: torch.dtype) -> float:
    """Seconds of a product as a module of the shipped networks has them."""
    left, right = torch.ones(2048, 256, dtype=dtype), torch.ones(256, 512, dtype=dtype)
    started = time.perf_counter()
    left @ right
    return time.perf_counter() - started
