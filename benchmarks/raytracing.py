"""RayTracing: the paper's claims beside our numbers, on the bundled digits and on CIFAR-10.

    python -m benchmarks.raytracing --work FOLDER [--data FOLDER] [--only digits|cifar10]

Trains what ``--work`` does not hold yet (resumable), several seeds each: wires, weights and order differ, and for
the digits the convolutions and the validation split too. The relaxed recipes have a θ_out of 80 in place of 0.5.
Without ``--data`` only the digits run. Shares are of the parameters without the convolutions, which both share.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, report
from tokenpaths.engine.analysis.families.lights import correlation, share_by_class
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.raytracing import RayTracing
from tokenpaths.engine.train.loop import Progress
from tokenpaths.engine.train.raytracing_fit import Samples, measure
from tokenpaths.engine.train.raytracing_recipe import Corpora, RayTracingRecipe, find_recipe, load_corpora
from tokenpaths.engine.train.train_raytracing import (
    Features,
    extract_all,
    light_up,
    summary,
    train_convolutions,
    train_network,
)

SEEDS = {
    "raytracing-digits": 5,
    "raytracing-digits-relaxed": 5,
    "raytracing-cifar10": 3,
    "raytracing-cifar10-relaxed": 1,
}
CLAIMS = {
    "accuracy": "section 3, figure 2: accuracy at or above that of an MLP of as many parameters",
    "used": "section 3, figure 2: over 50 % fewer parameters used, on average",
    "difficulty": "section 3, figure 3: easy images activate fewer blocks than hard ones",
    "classes": "section 3, figure 3: of CIFAR-10, automobiles activate the fewest blocks, dogs and birds the most",
    "sharpens": "section 1: the first solution is the most approximate, later ones are more precise",
}


def with_seed(recipe: RayTracingRecipe, seed: int) -> RayTracingRecipe:
    """The same recipe with other wires, weights and order; seed 0 is the recipe itself."""
    if not seed:
        return recipe
    plain = recipe.model.model_dump(exclude={"input_wires", "block_wires"})
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-{seed}",
            "seed": seed,
            "model": RayTracingConfig(**(plain | {"seed": seed})),
            # Convolutions of CIFAR-10 cost ten minutes: one set of them for all seeds.
            "feature_seed": seed if recipe.data == "digits" else 0,
        }
    )


def run(recipe: RayTracingRecipe, corpora: Corpora, features: Features, convolutions, work: Path) -> dict[str, Any]:
    """One seed: network and twin trained as ``train_raytracing.train`` would, and measured on the test data."""
    show = _progress(recipe.name)
    model, fitted = train_network(recipe, convolutions, features, work / recipe.name, on_progress=show)
    twin, _ = train_network(recipe, convolutions, features, work / f"{recipe.name}-twin", twin=True, on_progress=show)
    lights = light_up(model, features.test)
    share = lights.fired.double().mean(dim=1).numpy()
    names = [corpora.test.classes[label] for label in features.test.labels]
    classes = share_by_class(share, names)
    right = lights.logits.argmax(dim=1) == features.test.labels
    labels = features.test.labels
    return {
        "seed": recipe.seed,
        "raytracing": summary(model, features.test) | {"epochs": len(fitted.history), "seconds": fitted.seconds},
        "mlp": measure(twin.logits_of, features.test) | {"params": twin.trainable_params},
        "difficulty": asdict(correlation(share, lights.losses.numpy())),
        "active_share_right": float(share[right].mean()),
        "active_share_wrong": float(share[~right].mean()) if (~right).any() else None,
        "classes": [
            {
                "class": c.label,
                "active_share": c.mean,
                "low": c.low,
                "high": c.high,
                "accuracy": float(right[labels == corpora.test.classes.index(c.label)].double().mean()),
            }
            for c in classes
        ],
        "by_threshold_step": by_threshold_step(model, features.test),
    }


@torch.inference_mode()
def by_threshold_step(model: RayTracing, samples: Samples, most: int = 2000, steps: int = 16) -> list[dict[str, float]]:
    """Accuracy, loss and active share if every sample stopped at the same step, on the first samples."""
    inputs, labels = samples.inputs[:most], samples.labels[:most]
    rows = []
    output = [
        model.relax(part, theta_out=float("inf"), theta_steps=steps, keep_steps=True) for part in inputs.split(250)
    ]
    logits = torch.cat([part.step_logits for part in output])
    lit = (torch.cat([part.rates for part in output]) > 0).cummax(dim=1).values
    for step in range(steps):
        own = logits[:, step]
        rows.append(
            {
                "theta": model.config.theta * model.config.decay**step,
                "accuracy": float((own.argmax(dim=1) == labels).double().mean()),
                "loss": float(torch.nn.functional.cross_entropy(own, labels)),
                "lit_share": float(lit[:, step].double().mean()),
            }
        )
    return rows


def averaged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of what the claims are about."""
    numbers = {
        "accuracy": [r["raytracing"]["accuracy"] for r in rows],
        "mlp_accuracy": [r["mlp"]["accuracy"] for r in rows],
        "accuracy_minus_mlp": [r["raytracing"]["accuracy"] - r["mlp"]["accuracy"] for r in rows],
        "params": [r["raytracing"]["params"] for r in rows],
        "mlp_params": [r["mlp"]["params"] for r in rows],
        "used_share": [r["raytracing"]["used_share"] for r in rows],
        "used_share_sparse_readout": [r["raytracing"]["used_share_sparse_readout"] for r in rows],
        "active_share": [r["raytracing"]["active_share"] for r in rows],
        "theta_steps": [r["raytracing"]["theta_steps"] for r in rows],
        "reached_share": [r["raytracing"]["reached_share"] for r in rows],
        "pearson": [r["difficulty"]["pearson"] for r in rows],
        "spearman": [r["difficulty"]["spearman"] for r in rows],
    }
    spread = lambda values: statistics.stdev(values) if len(values) > 1 else None  # noqa: E731
    return {name: {"mean": statistics.fmean(values), "std": spread(values)} for name, values in numbers.items()}


def verdicts(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Claim, our number, and whether the number says the same."""
    mean, seeds = {name: value["mean"] for name, value in row["mean"].items()}, row["seeds"]
    clear = [one["difficulty"]["pearson_low"] > 0 for one in seeds]
    first = statistics.fmean(one["by_threshold_step"][0]["accuracy"] for one in seeds)
    last = statistics.fmean(one["by_threshold_step"][-1]["accuracy"] for one in seeds)
    said = {
        "accuracy": (f"{mean['accuracy']:.1%} beside {mean['mlp_accuracy']:.1%}", mean["accuracy_minus_mlp"] >= 0),
        "used": (
            f"{1 - mean['used_share']:.0%} fewer; {1 - mean['used_share_sparse_readout']:.0%} where the output layer "
            "counts only what comes from blocks that fired",
            mean["used_share"] < 0.5,
        ),
        "difficulty": (
            f"correlation of active share and loss {mean['pearson']:.2f} (ranks {mean['spearman']:.2f}), above 0 with "
            f"95 % confidence in {sum(clear)} of {len(clear)} seeds; {mean['theta_steps']:.2f} threshold steps",
            all(clear),
        ),
        "sharpens": (
            f"accuracy {first:.1%} if all samples stop at the first threshold step, {last:.1%} at the 16th",
            last > first,
        ),
    }
    orders = [[c["class"] for c in one["classes"]] for one in seeds]
    if "automobile" in orders[0]:
        ends = "; ".join(f"fewest {order[0]}, most {', '.join(order[:-4:-1])}" for order in orders)
        first_is = [order[0] == "automobile" and {"dog", "bird"} & set(order[-3:]) for order in orders]
        said["classes"] = (ends, all(first_is))
    return [{"claim": CLAIMS[name], "ours": text, "reproduced": bool(held)} for name, (text, held) in said.items()]


def _progress(name: str):
    def show(progress: Progress) -> None:
        if progress.iteration % 1000 == 0:
            print(f"{name} {progress.iteration:,} {progress.note}", file=sys.stderr, flush=True)

    return show


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="states of all runs; give it again to resume")
    parser.add_argument("--data", type=Path, help="folder with vision/cifar10_train.parquet")
    parser.add_argument("--only", choices=("digits", "cifar10"), help="keep the kept results of the other")
    arguments = parser.parse_args()
    kept_file, command = RESULTS / "raytracing.json", _command(arguments)
    results: dict[str, Any] = {"claims": CLAIMS}
    for name, seeds in SEEDS.items():
        recipe = find_recipe(name)
        if (arguments.only and recipe.data != arguments.only) or (recipe.data != "digits" and not arguments.data):
            kept = json.loads(kept_file.read_text())["results"] if kept_file.is_file() else {}
            if name in kept:
                results[name] = kept[name]
            continue
        rows = []
        for one in (with_seed(recipe, seed) for seed in range(seeds)):
            print(f"{one.name} …", file=sys.stderr, flush=True)
            corpora = load_corpora(one, arguments.data)
            stage = arguments.work / f"{one.data}-convolutions-{one.feature_seed}"
            convolutions = train_convolutions(one, corpora, stage, _progress(stage.name))
            rows.append(run(one, corpora, extract_all(convolutions, corpora), convolutions, arguments.work))
        results[name] = _rounded({"mean": averaged(rows), "seeds": rows}) | {"command": command}
    for name in SEEDS:
        if name in results:
            results[name]["verdicts"] = verdicts(results[name])
            for verdict in results[name]["verdicts"]:
                print(f"{name}: {verdict['claim']} -> {verdict['ours']}: {verdict['reproduced']}", file=sys.stderr)
    report("raytracing", command, results)


def _command(arguments: argparse.Namespace) -> str:
    flags = "".join(
        f" --{flag} {value}"
        for flag, value in (("data", "<data folder>"), ("only", arguments.only))
        if getattr(arguments, flag)
    )
    return f"python -m benchmarks.raytracing --work <folder>{flags}"


if __name__ == "__main__":
    main()
