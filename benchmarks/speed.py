"""Routed forward and training step, as ratios to the dense twin and to the naive routed loop.

    python -m benchmarks.speed [--quick] [--only vision|text] [--repeats N]

float32, matched active blocks, imposed routing (the router's cost is still paid): "uniform", or
"skewed", where every sample strongly prefers a few modules. A fresh routing is drawn for each call.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.measure import interleaved, ratio, report
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

    def decide(self, h: Tensor, step: int, valid: Tensor | None = None) -> Decision:
        decision = super().decide(h, step, valid)
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


def measure(name: str, repeats: int) -> dict:
    config, batch = SIZES[name]
    torch.manual_seed(0)
    routed, dense = ImposedDNA(config), DNA(config.dense_twin())
    inputs, targets = make_inputs(config, batch)

    def routed_as(how: str, execution: str, step):
        def run() -> None:
            routed.how, routed.execution = how, execution
            step(routed)

        return run

    rows = {}
    for what, step in (
        ("forward", lambda m: forward(m, inputs)),
        ("training", lambda m: training_step(m, inputs, targets)),
    ):
        variants = {"dense": lambda step=step: step(dense)}
        for how in ("uniform", "skewed"):
            for execution in ("grouped", "naive"):
                variants[f"{execution} {how}"] = routed_as(how, execution, step)
        seconds = interleaved(variants, repeats)
        for how in ("uniform", "skewed"):
            rows[f"{what} {how}"] = {
                "grouped/dense": ratio(seconds, f"grouped {how}", "dense"),
                "naive/dense": ratio(seconds, f"naive {how}", "dense"),
                "naive/grouped": ratio(seconds, f"naive {how}", f"grouped {how}"),
            }
            print(name, what, how, rows[f"{what} {how}"], file=sys.stderr, flush=True)
    return {"config": config.model_dump(exclude_defaults=True), "batch": batch, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repeats instead of seven")
    parser.add_argument("--only", choices=SIZES)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else arguments.repeats
    names = [arguments.only] if arguments.only else list(SIZES)
    results = {name: measure(name, repeats) for name in names}
    report("speed", f"python -m benchmarks.speed --repeats {repeats}", results)


if __name__ == "__main__":
    main()
