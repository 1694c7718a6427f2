"""Routed forward and training step, as ratios to the dense twin, to the naive routed loop and to compiled dense.

    python -m benchmarks.speed [--repeats 5] [--only forward top2 one_sample training training_memory bfloat16]

Matched active blocks, imposed routing (``benchmarks.imposed``: uniform, skewed by sample, or as a shipped checkpoint
chose). One thread; the variants take turns, process time is counted, and each round gives one ratio. Weights of the
forward pass are frozen, as a loaded checkpoint's are; the dense twin is plain eager PyTorch. ``dense, ordered`` is the
dense twin with frozen weights that are ordered beforehand like ours (``engine/models/bank/onednn_linear.py``).

``one_sample``: batch 1, and batches of four and eight; the shipped model's size is what the page's upload runs.
``training_memory``: peak resident memory of two training steps in a process of its own, over what it held before the
model was built. ``bfloat16``: weights and activations in bfloat16, for information.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.imposed import HOW_ALL, How, ImposedDNA, active_share, forward, make_inputs, training_step
from benchmarks.measure import RESULTS, interleaved, ratio, report
from benchmarks.table import Row, worst
from tokenpaths.engine.models.dna import DNA, DNAConfig

BATCH = 16
VISION = dict(modality="vision", width=384, heads=6, mlp_width=1536, transformers=18, num_classes=1000)
"""196 tokens, D 384: table 1 of the paper"""
TEXT = dict(modality="text", transformers=16, vocab_size=1000, context=1024)


def text(width: int, **more: Any) -> DNAConfig:
    return DNAConfig(**TEXT | dict(width=width, heads=width // 64, mlp_width=4 * width) | more)


SKIP = dict(top_k=2, identities=4, skip_ratio=0.3, steps=5)
"""with K = 2 and 30 % skipped a token visits seven blocks in five steps"""
SHIPPED_SIZE = DNAConfig(
    modality="vision",
    width=192,
    heads=3,
    mlp_width=768,
    backbone=1,
    steps=5,
    transformers=12,
    image_size=64,
    patch_size=8,
    stem="conv",
    num_classes=1000,
)
SIZES: dict[str, dict[str, DNAConfig]] = {
    "forward": {
        "vision 196 × D 384": DNAConfig(**VISION, backbone=1, steps=5),
        "text 1,024 × D 256": text(256, backbone=0, steps=3),
        "text 1,024 × D 512": text(512, backbone=0, steps=2),
        "text 1,024 × D 1,024": text(1024, backbone=0, steps=1),
    },
    "top2": {
        "vision 196 × D 384": DNAConfig(**VISION, backbone=1, **SKIP),
        "text 1,024 × D 256": text(256, backbone=0, **SKIP),
    },
    "one_sample": {
        "vision 196 × D 384": DNAConfig(**VISION, backbone=1, steps=11),
        "shipped size, 64 × D 192": SHIPPED_SIZE,
        "shipped size, batch of 4": SHIPPED_SIZE,
        "shipped size, batch of 8": SHIPPED_SIZE,
        "text 64 × D 512": text(512, backbone=1, steps=5, context=64),
    },
    "training": {
        "vision 196 × D 384": DNAConfig(**VISION, backbone=1, steps=5),
        "text 1,024 × D 512": text(512, backbone=0, steps=2),
    },
    "training_memory": {
        "vision 196 × D 384": DNAConfig(**VISION, backbone=1, steps=5),
        "text 1,024 × D 256": text(256, backbone=0, steps=3),
    },
    "bfloat16": {"vision 196 × D 384": DNAConfig(**VISION, backbone=1, steps=5)},
}
HOWS = HOW_ALL
NAIVE = {"vision 196 × D 384", "text 1,024 × D 256"}
"""sizes whose naive loop is timed, once: skewed routing costs it up to ten times the dense twin"""
HEAVY = {
    ("forward", "text 1,024 × D 256"): 4,
    ("forward", "text 1,024 × D 512"): 3,
    ("forward", "text 1,024 × D 1,024"): 3,
    ("top2", "vision 196 × D 384"): 3,
    ("top2", "text 1,024 × D 256"): 3,
    ("training", "vision 196 × D 384"): 4,
    ("training", "text 1,024 × D 512"): 3,
    ("bfloat16", "vision 196 × D 384"): 3,
}
"""rounds that must do where one takes ten seconds and more"""
COMPILED = {"forward": {"vision 196 × D 384"}, "one_sample": {"vision 196 × D 384"}}


def models(config: DNAConfig, dtype: torch.dtype = torch.float32) -> tuple[ImposedDNA, DNA]:
    """The routed model and its dense twin."""
    torch.manual_seed(0)
    return ImposedDNA(config).to(dtype).eval(), DNA(config.dense_twin()).to(dtype).eval()


def has_compiler() -> bool:
    """Whether torch.compile finds what it needs here."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++"))


def routed(model: ImposedDNA, how: How, run: Callable[[], Any], execution: str = "grouped") -> Callable[[], None]:
    def timed() -> None:
        model.how, model.execution = how, execution
        run()

    return timed


def turns(
    variants: dict[str, Callable[[], Any]], repeats: int, seldom: dict[str, Callable[[], Any]] | None = None
) -> dict[str, list[float]]:
    """Process seconds by variant; ``seldom`` is what takes so long that one round must do (beside all others)."""
    seconds = interleaved(variants, 1 if seldom else 0, 1, time.process_time)
    for name, run in (seldom or {}).items():
        started = time.process_time()
        run()
        seconds[name] = [time.process_time() - started]
    for name, more in interleaved(variants, repeats - bool(seldom), 0, time.process_time).items():
        seconds[name] += more
    return seconds


def starts(run: Callable[[], Any]) -> bool:
    """Whether a variant that depends on what is installed runs at all."""
    try:
        run()
    except Exception as error:
        print(f"left out: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
        return False
    return True


def paired(seconds: dict[str, list[float]], name: str, base: str) -> dict[str, float]:
    """``ratio`` over the rounds that both were in."""
    rounds = min(len(seconds[name]), len(seconds[base]))
    return ratio({x: seconds[x][:rounds] for x in (name, base)}, name, base)


def batch_of(group: str, size: str) -> int:
    """Samples of a pass."""
    if group != "one_sample":
        return BATCH
    return int(size.rsplit(" ", 1)[1]) if "batch of" in size else 1


def measure_forward(group: str, size: str, repeats: int) -> dict[str, Any]:
    """Ratios of a forward pass for every routing; groups forward, top2, one_sample and bfloat16."""
    config, batch = SIZES[group][size], batch_of(group, size)
    dtype = torch.bfloat16 if group == "bfloat16" else torch.float32
    model, dense = models(config, dtype)
    frozen = copy.deepcopy(dense).requires_grad_(False)
    model.requires_grad_(False)
    model.draw(HOWS, batch, config.num_tokens)
    inputs, _ = make_inputs(config, batch)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    variants: dict[str, Callable[[], Any]] = {"dense": partial(forward, dense, inputs)}
    if group == "one_sample":
        variants["dense, ordered"] = partial(forward, frozen, inputs)
    if size in COMPILED.get(group, ()) and has_compiler():
        compiled = partial(forward, torch.compile(dense), inputs)
        if starts(compiled):
            variants["dense, compiled"] = compiled
    for how in HOWS:
        variants[how] = routed(model, how, partial(forward, model, inputs))
    slow = {}
    if group == "forward" and size in NAIVE:
        slow = {"naive, skewed": routed(model, "skewed", partial(forward, model, inputs), "naive")}
    seconds = turns(variants, repeats, slow)
    share = {how: active_share(config, how) for how in HOWS}
    made: dict[str, Any] = {
        how: {
            key: round(x / share[how], 3) if key != "repeats" else x for key, x in paired(seconds, how, "dense").items()
        }
        for how in HOWS
    }
    made |= {name: paired(seconds, name, "dense") for name in seconds if name not in (*HOWS, "dense")}
    made |= {"naive over ours, skewed": paired(seconds, "naive, skewed", "skewed")} if slow else {}
    made["dense milliseconds"] = round(1000 * sorted(seconds["dense"])[len(seconds["dense"]) // 2], 1)
    return made | ({"active blocks / dense": {h: round(s, 3) for h, s in share.items()}} if config.identities else {})


def measure_training(group: str, size: str, repeats: int) -> dict[str, Any]:
    config = SIZES[group][size]
    model, dense = (m.train() for m in models(config))
    model.draw(HOWS, BATCH, config.num_tokens)
    inputs, targets = make_inputs(config, BATCH)
    variants: dict[str, Callable[[], Any]] = {"dense": partial(training_step, dense, inputs, targets)}
    for how in HOWS:
        variants[how] = routed(model, how, partial(training_step, model, inputs, targets))
    slow = {}
    if size.startswith("vision"):  # the naive loop's padding would take 17 GB of texts
        slow = {"naive, skewed": routed(model, "skewed", partial(training_step, model, inputs, targets), "naive")}
    seconds = turns(variants, repeats, slow)
    made = {name: paired(seconds, name, "dense") for name in seconds if name != "dense"}
    return made | ({"naive over ours, skewed": paired(seconds, "naive, skewed", "skewed")} if slow else {})


CHILD = """
import sys, torch
from benchmarks.speed import peak_of
torch.set_num_threads(1)
peak_of(*sys.argv[1:])
"""


def measure_memory(group: str, size: str, repeats: int) -> dict[str, Any]:
    """Peak memory of a training step, each variant in a process of its own."""
    kinds = ("dense", *HOWS, *(("naive",) if size.startswith("vision") else ()))
    peaks = {}
    for kind in kinds:
        root = Path(__file__).resolve().parent.parent
        environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        wish = [SIZES[group][size].model_dump_json(), kind, str(BATCH)]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *wish], capture_output=True, text=True, check=True, env=environment, cwd=root
        )
        peaks[kind] = json.loads(done.stdout.splitlines()[-1])
    made: dict[str, Any] = {"MiB": peaks}
    for kind in kinds[1:]:
        value = round(peaks[kind]["all"] / peaks["dense"]["all"], 3)
        made[kind] = {"median": value, "q25": value, "q75": value, "repeats": 1}
        working, base = (peaks[k]["all"] - 2 * peaks[k]["weights"] for k in (kind, "dense"))
        made[f"{kind}, without weights and their gradients"] = round(working / base, 3)
    return made


def peak_of(config_json: str, kind: Any, batch: str) -> None:
    """Print the most memory that two training steps of one variant took, in MiB (in a fresh process)."""
    config = DNAConfig.model_validate_json(config_json)
    tiny = DNA(config.model_copy(update=dict(width=64, heads=1, mlp_width=64))).train()
    training_step(tiny, *make_inputs(config, 1))  # what the libraries keep for themselves
    how: How = "skewed" if kind in ("dense", "naive") else kind
    imposer = ImposedDNA(config.model_copy(update=dict(width=64, heads=1, mlp_width=64)))
    imposer.draw([how], int(batch), config.num_tokens)
    before = memory("VmRSS")
    model: DNA = DNA(config.dense_twin()) if kind == "dense" else ImposedDNA(config)
    if isinstance(model, ImposedDNA):
        model.how, model.execution = how, "naive" if kind == "naive" else "grouped"
        model.calls, model.drawn = 0, imposer.drawn
    inputs, targets = make_inputs(config, int(batch))
    for _ in range(1 if kind == "naive" else 2):  # the naive loop takes a minute, and its first step its peak
        training_step(model.train(), inputs, targets)
    weights = sum(p.numel() for p in model.parameters()) * 4 / 2**20
    print(json.dumps({"all": round(memory("VmHWM") - before), "weights": round(weights)}))


def memory(name: str) -> float:
    """A line of this process's status, in MiB; a new process image starts its peak from nothing."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) / 1024


MEASURE = {"training": measure_training, "training_memory": measure_memory}


def rows(document: dict[str, Any]) -> list[Row]:
    """The table's rows of a kept result."""
    results = document["results"]
    made = []
    for key in ("forward", "top2", "one_sample", "training", "training_memory"):
        sizes = results.get(key, {})
        hows = HOWS if key in ("training", "training_memory") else ("skewed", "trained")
        cells = {f"{size}, {how}": cell[how] for size, cell in sizes.items() for how in hows if how in cell}
        if cells:
            missing = ", ".join(size for size in SIZES[key] if size not in sizes)
            note = _aside(key, sizes)
            if key == "forward" and results.get("bfloat16"):
                low = next(iter(results["bfloat16"].values()))
                note += ", in bfloat16 " + ", ".join(f"{how} {low[how]['median']:.2f}" for how in HOWS)
            made.append(worst(key, cells, peers=_others(sizes), note=note, missing=missing))
    naive = {
        f"{size}, {what}": cell["naive over ours, skewed"]
        for what in ("forward", "training")
        for size, cell in results.get(what, {}).items()
        if "naive over ours, skewed" in cell
    }
    return made + ([worst("naive", naive)] if naive else [])


def _others(sizes: dict[str, Any]) -> dict[str, float | str]:
    """The slowest of each other way."""
    names = ("dense, compiled", "dense, ordered", "naive, skewed", "naive")
    found: dict[str, float | str] = {
        name: max(cell[name]["median"] for cell in sizes.values() if name in cell)
        for name in names
        if any(name in cell for cell in sizes.values())
    }
    return found


def _aside(key: str, sizes: dict[str, Any]) -> str:
    if key in ("forward", "top2", "one_sample"):
        best = min(cell["uniform"]["median"] for cell in sizes.values())
        most = max(cell["uniform"]["median"] for cell in sizes.values())
        return f"uniform routing {best:.2f} to {most:.2f}"
    if key == "training_memory":
        aside = [cell[f"{how}, without weights and their gradients"] for cell in sizes.values() for how in HOWS]
        return f"without weights and their gradients at most {max(aside):.2f}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SIZES, nargs="+", help="the kept result keeps the rest")
    parser.add_argument("--size", help="only sizes whose name begins so")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept_file = RESULTS / "speed.json"
    kept = json.loads(kept_file.read_text(encoding="utf-8"))["results"] if kept_file.exists() else {}
    results = {group: kept[group] for group in SIZES if group in kept}
    groups = arguments.only or list(SIZES)
    todo = [(group, size) for group in groups for size in SIZES[group] if size.startswith(arguments.size or "")]
    failed, started = [], time.monotonic()
    for number, (group, size) in enumerate(todo):
        done = results.setdefault(group, {})
        # Small models are timed more often: a round takes milliseconds.
        repeats = min(arguments.repeats, HEAVY.get((group, size), 100)) * (3 if group == "one_sample" else 1)
        try:
            done[size] = MEASURE.get(group, measure_forward)(group, size, repeats)
        except Exception as error:
            failed.append(f"{group}, {size} was not measured ({type(error).__name__}: {error}); its kept figure stays")
            print(failed[-1], file=sys.stderr, flush=True)
        else:
            found = {
                name: cell["median"] for name, cell in done[size].items() if isinstance(cell, dict) and "median" in cell
            }
            print(
                f"  [{number + 1} of {len(todo)}, {time.monotonic() - started:.0f} s] {group}, {size}: "
                + ", ".join(f"{name} {value:.3f}" for name, value in found.items()),
                file=sys.stderr,
                flush=True,
            )
        last = number == len(todo) - 1
        report("speed", f"python -m benchmarks.speed --repeats {arguments.repeats}", results, quiet=not last)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
