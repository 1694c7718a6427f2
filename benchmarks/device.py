"""The routed step on a GPU in bfloat16, over the dense twin: forward and training step; no figure without a GPU.

    python -m benchmarks.device [--repeats 15]

``execution="device"`` (``engine/models/bank/device_step.py``) with imposed skewed routing, matched active blocks, clock
with the device waited for at both ends. The forward runs under ``torch.cuda.set_sync_debug_mode("error")``, which
raises at any synchronisation with the host. Compute capability 9.0 or later.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.imposed import ImposedDNA, forward, make_inputs, training_step
from benchmarks.measure import interleaved, ratio, report
from benchmarks.table import Row, worst
from tokenpaths.engine.models.bank.device_step import fits_device
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


def waited(run: Callable[..., Any], *arguments: Any, strict: bool = False) -> Callable[[], None]:
    def timed() -> None:
        if strict:
            torch.cuda.set_sync_debug_mode("error")
        try:
            run(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()

    return timed


def measure(size: str, repeats: int) -> dict[str, Any]:
    config, batch = SIZES[size]
    torch.manual_seed(0)
    routed = ImposedDNA(config, execution="device").to("cuda", torch.bfloat16)
    dense = DNA(config.dense_twin()).to("cuda", torch.bfloat16)
    routed.how = "skewed"
    routed.draw(["skewed"], batch, config.num_tokens)
    routed.drawn = {how: [[s.cuda() for s in call] for call in calls] for how, calls in routed.drawn.items()}
    inputs, targets = (x.cuda() for x in make_inputs(config, batch))
    inputs = inputs.bfloat16() if inputs.is_floating_point() else inputs
    made = {}
    for what, run, arguments in (("forward", forward, (inputs,)), ("training", training_step, (inputs, targets))):
        variants = {
            "dense": waited(run, dense, *arguments),
            "ours": waited(run, routed, *arguments, strict=what == "forward"),
        }
        made[what] = ratio(interleaved(variants, repeats, 3, time.perf_counter), "ours", "dense")
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
    if torch.cuda.is_available() and fits_device(torch.device("cuda"), torch.bfloat16):
        results: dict[str, Any] = {"sizes": {size: measure(size, arguments.repeats) for size in SIZES}}
    elif torch.cuda.is_available():
        results = {"note": "not measured here: the GPU is older than compute capability 9.0"}
    else:
        results = {"note": NO_GPU}
    report("device", "python -m benchmarks.device", results)


if __name__ == "__main__":
    main()
