"""Routed forward and training step, as ratios to the dense twin and to the naive routed loop.

    python -m benchmarks.speed [--quick] [--only vision|text] [--what forward|training]

float32, matched active blocks, imposed routing (the router's cost is still paid): "uniform", or
"skewed", where every sample strongly prefers a few modules. A fresh routing is drawn for each call.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import RESULTS, interleaved, ratio, report
from engine.models.dna import DNA, DNAConfig
from engine.routing import Decision

SIZES = {
    # 196 tokens, D 384: the paper's top-1 vision model (table 1), 18 modules; half of its steps.
    "vision": (
        DNAConfig(
            modality="vision", width=384, heads=6, mlp_width=1536, backbone=1, steps=5, transformers=18,
            num_classes=1000,
        ), 16,
    ),
    # 1 024 tokens, D 512.
    "text": (
        DNAConfig(
            modality="text", width=512, heads=8, mlp_width=2048, backbone=1, steps=3, transformers=16,
            vocab_size=1000, context=1024,
        ), 16,
    ),
}  # fmt: skip


class ImposedDNA(DNA):
    """A DNA whose choices are drawn instead of computed; its routers still run and weigh."""

    how = "uniform"

    def decide(self, h: Tensor, step: int, *rest: Any) -> Decision:
        decision = super().decide(h, step, *rest)
        batch, tokens = h.shape[:2]
        scores_BTM = torch.rand(batch, tokens, self.config.num_modules)
        if self.how == "skewed":
            favourite = torch.rand(batch, 1, self.config.num_modules)
            scores_BTM = scores_BTM + 3 * favourite.pow(3)
        ids_NK = scores_BTM.flatten(0, 1).topk(self.config.top_k).indices
        return replace(decision, module_ids=ids_NK, weights=decision.probs.gather(-1, ids_NK))


def make_inputs(config: DNAConfig, batch: int) -> tuple[Tensor, Tensor]:
    if config.modality == "vision":
        return torch.randn(batch, 3, config.image_size, config.image_size), torch.randint(1000, (batch,))
    ids = torch.randint(config.vocab_size, (batch, config.context))
    return ids, ids


def forward(model: DNA, inputs: Tensor) -> None:
    with torch.inference_mode():
        model(inputs)


def training_step(model: DNA, inputs: Tensor, targets: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model.training_loss(inputs, targets)[0].backward()


STEPS = {"forward": forward, "training": training_step}
NAIVE_TRAINING_TOKENS = 4 * 1024
"""tokens of a batch on which the naive loop is trained: its padding takes 17 GB at 16 × 1 024 of width 512"""


def measure(name: str, what: str, repeats: int) -> dict:
    """Ratios of one size; ``what`` is forward or training."""
    config, batch = SIZES[name]
    torch.manual_seed(0)
    routed, dense = ImposedDNA(config), DNA(config.dense_twin())
    inputs, targets = make_inputs(config, batch)
    few = batch if what == "forward" else min(batch, max(1, NAIVE_TRAINING_TOKENS // config.num_tokens))

    def timed(model: DNA, count: int, how: str = "", execution: str = ""):
        def run() -> None:
            if execution:
                model.how, model.execution = how, execution
            rest = () if what == "forward" else (targets[:count],)
            STEPS[what](model, inputs[:count], *rest)

        return run

    variants = {"dense": timed(dense, batch)}
    for how in ("uniform", "skewed"):
        variants[f"grouped {how}"] = timed(routed, batch, how, "grouped")
        variants[f"naive {how}"] = timed(routed, few, how, "naive")
        if few < batch:
            variants[f"grouped {how}, small batch"] = timed(routed, few, how, "grouped")
    if few < batch:
        variants["dense, small batch"] = timed(dense, few)
    seconds = interleaved(variants, repeats)
    small = ", small batch" if few < batch else ""
    rows = {
        f"{what} {how}": {
            "grouped/dense": ratio(seconds, f"grouped {how}", "dense"),
            "naive/dense": ratio(seconds, f"naive {how}", f"dense{small}"),
            "naive/grouped": ratio(seconds, f"naive {how}", f"grouped {how}{small}"),
            "batch": batch,
            "batch of the naive ratios": few,
        }
        for how in ("uniform", "skewed")
    }
    for row, ratios in rows.items():
        print(name, row, ratios, file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repeats instead of seven")
    parser.add_argument("--only", choices=SIZES)
    parser.add_argument("--what", choices=STEPS, help="only forward or only training; the kept result keeps the rest")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else arguments.repeats
    kept_file = RESULTS / "speed.json"
    partly = bool(arguments.only or arguments.what)
    kept = json.loads(kept_file.read_text(encoding="utf-8"))["results"] if partly and kept_file.exists() else {}
    results = {}
    for name in SIZES:
        rows = dict(kept.get(name, {}).get("rows", {}))
        for what in STEPS:
            if arguments.only in (None, name) and arguments.what in (None, what):
                rows |= measure(name, what, repeats)
        results[name] = {"config": SIZES[name][0].model_dump(exclude_defaults=True), "rows": rows}
        report("speed", f"python -m benchmarks.speed --repeats {repeats}", results, quiet=name != list(SIZES)[-1])


if __name__ == "__main__":
    main()
