"""The routed step on a GPU in bfloat16, over the dense twin: forward and training step; no figure without a GPU.

    python -m benchmarks.device [--repeats 15]

``execution="device"`` (``engine/models/bank/device_step.py``) with imposed skewed routing, matched active blocks, clock
with the device waited for at both ends. The forward runs under ``torch.cuda.set_sync_debug_mode("error")``, which
raises at any synchronisation with the host. A GPU that PyTorch's grouped products or our kernels run on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import torch

from benchmarks.imposed import ImposedDNA, forward, make_inputs, training_step
from benchmarks.measure import interleaved, kept_document, ratio, report
from benchmarks.table import Row, worst
from tokenpaths.engine.models.bank.device_step import fits_device
from tokenpaths.engine.models.bank.kernels.trial import kernels_hold
from tokenpaths.engine.models.dna import DNA, DNAConfig

SIZES = {
    "vision 196 × D 384": (
        DNAConfig(
            modality="vision",
            width=384,
            heads=6,
            mlp_width=1536,
            backbone=1,
            steps=11,
            transformers=18,
            num_classes=1000,
        ),
        256,
    ),
    "text 1,024 × D 1,024": (
        DNAConfig(
            modality="text",
            width=1024,
            heads=16,
            mlp_width=4096,
            backbone=1,
            steps=5,
            transformers=16,
            vocab_size=1000,
            context=1024,
        ),
        32,
    ),
}
NO_GPU = "not measured here: no GPU"
NOT_THIS_GPU = "not measured here: neither PyTorch's grouped products nor our kernels run on this GPU"


def measurable() -> bool:
    """Whether the routed step can do without the host on this GPU."""
    device = torch.device("cuda")
    return fits_device(device, torch.bfloat16) or kernels_hold(device, torch.bfloat16, 64)


def waited(run: Callable[..., Any], device: str, *arguments: Any, strict: bool = False) -> Callable[[], None]:
    """``run`` with the device waited for; ``strict``: an error where it synchronises by itself."""

    def timed() -> None:
        if device == "cpu":
            run(*arguments)
            return
        if strict:
            torch.cuda.set_sync_debug_mode("error")
        try:
            run(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()

    return timed


def peak(run: Callable[[], Any], device: str) -> int | None:
    """Most memory of the device that is allocated during ``run``, models included, in MiB; None on a CPU."""
    if device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    run()
    return round(torch.cuda.max_memory_allocated() / 2**20)


def measure(
    config: DNAConfig,
    batch: int,
    repeats: int,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    execution: Literal["grouped", "device", "naive"] = "device",
) -> dict[str, Any]:
    """Forward and training step over the dense twin: the ratio, milliseconds, tokens a second and peak memory; the
    memory is that of both models' weights and one's pass."""
    torch.manual_seed(0)
    routed = ImposedDNA(config, execution=execution).to(device, dtype)
    dense = DNA(config.dense_twin()).to(device, dtype)
    routed.how = "skewed"
    routed.draw(["skewed"], batch, config.num_tokens)
    routed.drawn = {how: [[s.to(device) for s in call] for call in calls] for how, calls in routed.drawn.items()}
    inputs, targets = (x.to(device) for x in make_inputs(config, batch))
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    forward(routed, inputs)  # the order of modules is sent to the device once, and kept
    made = {}
    for what, run, arguments in (("forward", forward, (inputs,)), ("training", training_step, (inputs, targets))):
        strict = what == "forward" and execution == "device"
        variants = {
            "dense": waited(run, device, dense, *arguments),
            "ours": waited(run, device, routed, *arguments, strict=strict),
        }
        seconds = interleaved(variants, repeats, 3 if device != "cpu" else 1, time.perf_counter)
        one = statistics.median(seconds["ours"])
        made[what] = ratio(seconds, "ours", "dense") | {
            "milliseconds": round(1000 * one, 2),
            "tokens_per_second": round(batch * config.num_tokens / one),
            "peak_mib": {name: peak(variant, device) for name, variant in variants.items()},
        }
        for model in (routed, dense):
            model.zero_grad(set_to_none=True)
    return made


def rows(document: dict[str, Any]) -> list[Row]:
    """The table's rows; without a GPU they say so."""
    results = document["results"]
    if "sizes" not in results:
        return [Row(key, None, note=results["note"]) for key in ("gpu_forward", "gpu_training")]
    sizes = results["sizes"]
    return [
        worst("gpu_forward", {size: cell["forward"] for size, cell in sizes.items()}),
        worst("gpu_training", {size: cell["training"] for size, cell in sizes.items()}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    if torch.cuda.is_available() and measurable():
        results: dict[str, Any] = {"sizes": {size: measure(*SIZES[size], arguments.repeats) for size in SIZES}}
    elif torch.cuda.is_available():
        results = {"note": NOT_THIS_GPU}
    elif "sizes" in kept_document("device")["results"]:
        print(f"{NO_GPU}; the kept figures of another machine stay", file=sys.stderr)
        return
    else:
        results = {"note": NO_GPU}
    report("device", "python -m benchmarks.device", results)


if __name__ == "__main__":
    main()
