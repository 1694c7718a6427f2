"""Dreaming speed beside a loop that works as lucent does: CPU time of an iteration for each image, as ratios.

    python -m benchmarks.dream_speed [--repeats 7] [--only shipped|paper|promise|precision]

The twin below is our own and follows lucent's way of working: one image at a time, a forward pass through the whole
network with a hook on every layer, a chain of separate transforms, ``loss.backward()`` on a model in ``eval`` mode
whose weights still collect gradients (*frozen* is the same without those). Both dream with the same network, images,
objectives, parametrisation and optimiser; the twin runs the same fast path of the module bank. One thread; the variants
take turns, and process time is counted, because the cores of the machine may be shared.

*promise*: the row of ``make bench``, milliseconds on the clock with all cores for an image and an iteration of eight
dreams of all eleven steps at 224×224, beside the twin's one image.

*precision*: the same batch of eight in bfloat16 beside float32: time, the gradient of each dream's picture at the
start, and what dreams of the shipped network have reached in the end, measured in float32.

*strip*: the dreams of S = 1 … S_max, which is what a figure is made of; *deepest*: those of S_max alone, where there is
little to stop early. Batches of eight are eight images of one S.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import RESULTS, interleaved, ratio, report
from benchmarks.table import Row
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.model_folders import models_folders
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams
from tokenpaths.engine.dream.objectives import Choices
from tokenpaths.engine.dream.parametrisation import start_spectrum, to_pictures, total_variation
from tokenpaths.engine.dream.settings import ImageSettings
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.tracing.loaded_model import load_model

BATCH = 8
PRECISIONS = ("float32", "bfloat16")
REACHED, REACHED_ITERATIONS = 16, 256
"""images dreamt to compare what is reached in both precisions, and for how long"""
SETTINGS = ImageSettings()
PAPER = DNAConfig(
    modality="vision", width=384, heads=6, mlp_width=1536, backbone=1, steps=11, transformers=18, num_classes=1000
)
"""table 1 of the paper: 18 modules, 11 steps, 224 pixels"""


def shipped() -> DNA:
    return load_model("dna-vision-top1", models_folders(), "cpu").model


def paper() -> DNA:
    """Random weights; routers scaled up so that a sample's patches spread over modules as they do once trained."""
    torch.manual_seed(0)
    model = DNA(PAPER).eval().requires_grad_(False)
    for router in model.routers:
        router.weight.data.mul_(20)
    return model


SIZES: dict[str, tuple[Callable[[], DNA], int, tuple[int, ...]]] = {
    "shipped": (shipped, 4, (1, 2, 3, 4, 5)),
    "paper": (paper, 1, (1, 3, 6, 9, 11)),
}
"""how to make the model, iterations of a timed piece, the S of the strip"""


class HookedLoop:
    """One image, the way lucent works."""

    def __init__(self, model: DNA, ids: Tensor, steps: int, settings: ImageSettings) -> None:
        self.model, self.ids, self.steps, self.settings = model, ids, steps, settings
        self.side = model.config.image_size
        self.jitter = round(settings.jitter * model.config.patch_size)
        generator = torch.Generator().manual_seed(0)
        self.spectrum = start_spectrum(self.side, generator, settings.spread)[None].requires_grad_()
        self.optimiser = torch.optim.Adam([self.spectrum], lr=settings.rate)
        self.features: dict[str, Tensor] = {}

    def _keep(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
            self.features[name] = output

        return hook

    def run(self, iterations: int) -> None:
        """Hooks are there while it runs: loops that take turns must not pay for each other's."""
        layers = [(name, layer) for name, layer in self.model.named_modules() if name]
        handles = [layer.register_forward_hook(self._keep(name)) for name, layer in layers]
        self._climb(iterations)
        for handle in handles:
            handle.remove()

    def _climb(self, iterations: int) -> None:
        for _ in range(iterations):
            self.optimiser.zero_grad()
            pictures = to_pictures(self.spectrum)
            self.model(self._transformed(normalise(pictures)))
            value = 0.0
            for step in range(self.steps):
                probs = self.features[f"routers.{step}"].softmax(dim=-1)
                value = value + probs.gather(-1, self.ids[:, step]).sum()
            (self.settings.total_variation * total_variation(pictures).sum() - value).backward()
            self.optimiser.step()

    def _transformed(self, x: Tensor) -> Tensor:
        """Pad, jitter, scale, rotate, crop to size, recolour, add noise: each a pass of its own."""
        settings = self.settings
        x = F.pad(x, (self.jitter,) * 4, mode="reflect")
        across, down = (int(torch.randint(2 * self.jitter + 1, (1,))) for _ in range(2))
        x = x[..., down : down + self.side, across : across + self.side]
        scale = 1 + settings.scaling * float(torch.rand(1) * 2 - 1)
        x = F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)
        angle = math.radians(settings.rotation * float(torch.rand(1) * 2 - 1))
        matrix = torch.tensor([[math.cos(angle), math.sin(angle), 0], [-math.sin(angle), math.cos(angle), 0]])[None]
        grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        x = F.interpolate(x, size=(self.side, self.side), mode="bilinear", align_corners=False)
        x = x * torch.randn(1, 3, 1, 1).exp() + torch.randn(1, 3, 1, 1)
        return x + torch.randn_like(x)


def measure(name: str, repeats: int) -> dict[str, Any]:
    make, iterations, strip = SIZES[name]
    model, unfrozen = make(), make().requires_grad_(True)
    torch.manual_seed(1)
    side, deepest = model.config.image_size, model.config.steps
    with torch.no_grad():
        ids = model.trace(torch.randn(BATCH, 3, side, side)).module_ids.long()

    def ours(s: int, count: int) -> Callable[[], None]:
        dreams = [Dream(Choices(ids[i], range(s)), number=i) for i in range(count)]
        at_work = ImageDreams(model, dreams, SETTINGS)
        return lambda: at_work.run(iterations)

    variants: dict[str, Callable[[], None]] = {}
    for s in strip:
        for kind, network in (("hooked", unfrozen), ("hooked, frozen", model)):
            loop = HookedLoop(network, ids[0], s, SETTINGS)
            variants[f"{kind}, S = {s}"] = partial(loop.run, iterations)
        variants[f"one, S = {s}"] = ours(s, 1)
        variants[f"batch, S = {s}"] = ours(s, BATCH)
    seconds = in_turn(variants, repeats, iterations)
    for s in strip:
        seconds[f"batch, S = {s}"] = [t / BATCH for t in seconds[f"batch, S = {s}"]]
    for kind in ("hooked", "hooked, frozen", "one", "batch"):
        of_strip = [seconds[f"{kind}, S = {s}"] for s in strip]
        seconds[f"{kind}, strip"] = [sum(turn) / len(strip) for turn in zip(*of_strip, strict=True)]
        seconds[f"{kind}, deepest"] = seconds[f"{kind}, S = {deepest}"]
    rows = {}
    for form in ("strip", "deepest"):
        rows[form] = {
            "one image": ratio(seconds, f"hooked, {form}", f"one, {form}"),
            "one image, weights frozen": ratio(seconds, f"hooked, frozen, {form}", f"one, {form}"),
            "batch of eight": ratio(seconds, f"hooked, {form}", f"batch, {form}"),
            "batch of eight, weights frozen": ratio(seconds, f"hooked, frozen, {form}", f"batch, {form}"),
            "milliseconds an image": {
                kind: round(1000 * sorted(seconds[f"{kind}, {form}"])[repeats // 2], 1)
                for kind in ("hooked", "hooked, frozen", "one", "batch")
            },
        }
        print(name, form, rows[form], file=sys.stderr, flush=True)
    return {"strip": strip, "config": model.config.model_dump(exclude_defaults=True), "speed-up": rows}


def measure_promise(repeats: int) -> dict[str, Any]:
    """Milliseconds on the clock, with as many threads as PyTorch takes by itself."""
    model = paper()
    torch.manual_seed(1)
    side, deepest = model.config.image_size, model.config.steps
    with torch.no_grad():
        ids = model.trace(torch.randn(BATCH, 3, side, side)).module_ids.long()
    wanted = [Dream(Choices(ids[i], range(deepest)), number=i) for i in range(BATCH)]
    batch = ImageDreams(model, wanted, SETTINGS)
    hooked = HookedLoop(model, ids[0], deepest, SETTINGS)
    variants = {"batch": lambda: batch.run(1), "hooked, frozen": lambda: hooked.run(1)}
    with suppress(UserError):  # a processor without quick products in it
        half = ImageDreams(model, wanted, SETTINGS.model_copy(update={"precision": "bfloat16"}))
        variants["bfloat16"] = lambda: half.run(1)
    seconds = interleaved(variants, repeats)
    images = {"hooked, frozen": 1}
    per_image = {name: [1000 * t / images.get(name, BATCH) for t in times] for name, times in seconds.items()}
    low, middle, high = statistics.quantiles(per_image["batch"], n=4, method="inclusive")
    return {
        "milliseconds": {"median": round(middle, 1), "q25": round(low, 1), "q75": round(high, 1), "repeats": repeats},
        **{
            f"{name}, milliseconds": round(statistics.median(per_image[name]), 1)
            for name in ("bfloat16", "hooked, frozen")
            if name in per_image
        },
        "threads": torch.get_num_threads(),
    }


def measure_precision(repeats: int) -> dict[str, Any]:
    """Dreams in bfloat16 beside those in float32, of both networks."""
    return {name: _precisions(name, repeats) for name in SIZES}


def _precisions(name: str, repeats: int) -> dict[str, Any]:
    make, iterations, _ = SIZES[name]
    model = make()
    torch.manual_seed(1)
    side, deepest = model.config.image_size, model.config.steps
    originals = _originals(side) if name == "shipped" else torch.randn(BATCH, 3, side, side)
    with torch.no_grad():
        ids = model.trace(originals).module_ids.long()
    wanted = [Dream(Choices(row, range(deepest)), number=i) for i, row in enumerate(ids)]

    def batch(precision: str, dreams: list[Dream], count: int = 2048) -> ImageDreams:
        return ImageDreams(model, dreams, SETTINGS.model_copy(update={"precision": precision, "iterations": count}))

    at_work = {precision: batch(precision, wanted[:BATCH]) for precision in PRECISIONS}
    seconds = in_turn({p: partial(one.run, iterations) for p, one in at_work.items()}, repeats, iterations * BATCH)
    gradients = []
    for precision in PRECISIONS:
        begun = batch(precision, wanted[:BATCH])
        begun.run(1)
        # Adam's mean after one iteration is a tenth of the gradient.
        mean = torch.view_as_real(begun.mean) if begun.mean.is_complex() else begun.mean
        gradients.append(mean.flatten(1))
    cosines = F.cosine_similarity(*gradients).tolist()
    found: dict[str, Any] = {
        "bfloat16 / float32": ratio(seconds, "bfloat16", "float32"),
        "milliseconds an image": {p: round(1000 * statistics.median(seconds[p]), 1) for p in PRECISIONS},
        "gradient cosine": {"least": round(min(cosines), 4), "median": round(statistics.median(cosines), 4)},
    }
    if name == "shipped":
        for precision in PRECISIONS:
            reached = []
            for start in range(0, len(wanted), BATCH):
                dreams = batch(precision, wanted[start : start + BATCH], REACHED_ITERATIONS)
                dreams.run(REACHED_ITERATIONS)
                reached += dreams.examine()
                print(f"{precision} {start + BATCH}/{len(wanted)}", file=sys.stderr, flush=True)
            found[precision] = {
                "dreams": len(reached),
                "iterations": REACHED_ITERATIONS,
                "objective": round(statistics.fmean(row["objective"] for row in reached), 4),
                "matched": round(statistics.fmean(row["matched_choices"] for row in reached), 4),
            }
    return found


def _originals(side: int) -> Tensor:
    """The bundled scenes, as a network of this size of picture sees them."""
    samples = list(open_dataset("bundled:scenes", "vision"))[:REACHED]
    views = [torch.from_numpy(model_view(sample.image, side)) for sample in samples]
    return normalise(torch.stack(views).permute(0, 3, 1, 2))


def rows(document: dict[str, Any]) -> list[Row]:
    """The table's row of a kept result."""
    one = document["results"].get("promise")
    if one is None:
        return []
    cell = one["milliseconds"]
    peers: dict[str, float | str] = {"a loop that works as lucent does, one image": one["hooked, frozen, milliseconds"]}
    return [Row("dream", cell["median"], (cell["q25"], cell["q75"]), peers, note=f"{one['threads']} threads")]


def in_turn(variants: dict[str, Callable[[], None]], repeats: int, iterations: int) -> dict[str, list[float]]:
    """Process seconds an iteration; every round runs all variants in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name, run in variants.items():
            started = time.process_time()
            run()
            if turn:  # the first round warms up
                seconds[name].append((time.process_time() - started) / iterations)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parts = (*SIZES, "promise", "precision")
    parser.add_argument("--only", choices=parts, help="only this; the kept result keeps the others")
    arguments = parser.parse_args()
    kept = RESULTS / "dream_speed.json"
    results = json.loads(kept.read_text())["results"] if kept.is_file() and arguments.only else {}
    if arguments.only in (None, "promise"):
        results["promise"] = measure_promise(arguments.repeats)
        if arguments.only:
            report("dream_speed", f"python -m benchmarks.dream_speed --repeats {arguments.repeats}", results)
            return
    torch.set_num_threads(1)
    if arguments.only in (None, "precision"):
        results["precision"] = measure_precision(arguments.repeats)
        if arguments.only:
            report("dream_speed", f"python -m benchmarks.dream_speed --repeats {arguments.repeats}", results)
            return
    for name in (arguments.only,) if arguments.only else SIZES:
        results[name] = measure(name, arguments.repeats)
    report("dream_speed", f"python -m benchmarks.dream_speed --repeats {arguments.repeats}", results)


if __name__ == "__main__":
    main()
