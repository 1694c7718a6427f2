"""RayTracing: the paper's claims beside our numbers, on the bundled digits and on CIFAR-10.

    python -m benchmarks.raytracing --work FOLDER [--data FOLDER] [--only RECIPE …] [--shipped]

Trains what ``--work`` does not hold yet (resumable), several seeds each: wires, weights and order differ, and for
the digits the convolutions and the validation split too. The relaxed recipes have a θ_out of 80 in place of 0.5, in the
crossing ones a signal crosses all layers within a threshold step. Without ``--data`` only the digits run. Shares are of
the parameters without the convolutions, which all share. ``--shipped`` measures the checkpoints that ship anew, on the
same test data and beside MLPs trained on the features of their own convolutions, and writes their cards.
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
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.raytracing import RayTracing
from tokenpaths.engine.train.loop import Progress
from tokenpaths.engine.train.raytracing_fit import Samples, measure
from tokenpaths.engine.train.raytracing_recipe import Corpora, RayTracingRecipe, find_recipe, load_corpora
from tokenpaths.engine.train.train_raytracing import (
    Features,
    extract_all,
    light_up,
    measure_shipped,
    summary,
    train_convolutions,
    train_network,
    train_twins,
    write_card,
)

SEEDS = {
    "raytracing-digits": 5,
    "raytracing-digits-crossing": 5,
    "raytracing-digits-relaxed": 5,
    "raytracing-cifar10": 3,
    "raytracing-cifar10-crossing": 3,
    "raytracing-cifar10-relaxed": 3,
}
CLAIMS = {
    "accuracy": "section 3, figure 2: accuracy at or above that of an MLP of as many parameters",
    "used": "section 3, figure 2: over 50 % fewer parameters used, on average",
    "as_used": "added: accuracy above that of an MLP of only as many parameters as are used",
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
    assert isinstance(model, RayTracing), "train_network makes one"
    twin, small = train_twins(recipe, model, features, work, show)
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
        "mlp_as_used": measure(small.logits_of, features.test) | {"params": small.trainable_params},
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


def remeasure(name: str, data: Path | None, work: Path) -> None:
    """Test numbers of a checkpoint that ships, beside MLPs on the same features, into its configuration and card."""
    folder, recipe = SHIPPED_MODELS / name, find_recipe(name)
    shipped, corpora = build_model(read_checkpoint(folder)), load_corpora(find_recipe(name), data)
    assert isinstance(shipped, RayTracing), "shipped as one"
    features = extract_all(shipped.convolutions, corpora)
    twins = train_twins(recipe, shipped, features, work / "shipped", _progress(name))
    measure_shipped(folder, shipped, recipe, features.test, twins, features.test)
    write_card(folder)


def averaged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of what the claims are about."""
    numbers = {
        "accuracy": [r["raytracing"]["accuracy"] for r in rows],
        "mlp_accuracy": [r["mlp"]["accuracy"] for r in rows],
        "accuracy_minus_mlp": [r["raytracing"]["accuracy"] - r["mlp"]["accuracy"] for r in rows],
        "mlp_as_used_accuracy": [r["mlp_as_used"]["accuracy"] for r in rows],
        "accuracy_minus_mlp_as_used": [r["raytracing"]["accuracy"] - r["mlp_as_used"]["accuracy"] for r in rows],
        "params": [r["raytracing"]["params"] for r in rows],
        "mlp_params": [r["mlp"]["params"] for r in rows],
        "mlp_as_used_params": [r["mlp_as_used"]["params"] for r in rows],
        "used_share": [r["raytracing"]["used_share"] for r in rows],
        "reachable_share": [r["raytracing"]["reachable_share"] for r in rows],
        "lit_params_share": [r["raytracing"]["lit_params_share"] for r in rows],
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
            f"{1 - mean['used_share']:.0%} fewer; {1 - mean['lit_params_share']:.0%} if weights of lit blocks that "
            f"carry nothing count as used; {1 - mean['reachable_share']:.0%} never used by any test sample",
            mean["used_share"] < 0.5,
        ),
        "as_used": (
            f"{mean['accuracy']:.1%} beside {mean['mlp_as_used_accuracy']:.1%} "
            f"({mean['mlp_as_used_params']:,.0f} parameters)",
            mean["accuracy_minus_mlp_as_used"] > 0,
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
    parser.add_argument("--only", nargs="+", choices=SEEDS, default=list(SEEDS), help="keep the results of the others")
    parser.add_argument("--shipped", action="store_true", help="only measure the checkpoints that ship")
    arguments = parser.parse_args()
    if arguments.shipped:
        for name in arguments.only:
            if (SHIPPED_MODELS / name).is_dir() and (arguments.data or find_recipe(name).data == "digits"):
                remeasure(name, arguments.data, arguments.work)
        return
    kept_file, command = RESULTS / "raytracing.json", _command(arguments)
    results: dict[str, Any] = {"claims": CLAIMS}
    for name, seeds in SEEDS.items():
        recipe = find_recipe(name)
        if name not in arguments.only or (recipe.data != "digits" and not arguments.data):
            continue
        rows = []
        for one in (with_seed(recipe, seed) for seed in range(seeds)):
            print(f"{one.name} …", file=sys.stderr, flush=True)
            corpora = load_corpora(one, arguments.data)
            stage = arguments.work / f"{one.data}-convolutions-{one.feature_seed}"
            convolutions = train_convolutions(one, corpora, stage, _progress(stage.name))
            rows.append(run(one, corpora, extract_all(convolutions, corpora), convolutions, arguments.work))
        results[name] = _rounded({"mean": averaged(rows), "seeds": rows}) | {"command": command}
    kept = json.loads(kept_file.read_text())["results"] if kept_file.is_file() else {}
    for name in SEEDS:
        if name not in results and name in kept:
            results[name] = kept[name]
        elif name in results:
            results[name]["verdicts"] = verdicts(results[name])
            for verdict in results[name]["verdicts"]:
                print(f"{name}: {verdict['claim']} -> {verdict['ours']}: {verdict['reproduced']}", file=sys.stderr)
    report("raytracing", command, {name: results[name] for name in ("claims", *SEEDS) if name in results})


def _command(arguments: argparse.Namespace) -> str:
    flags = "".join(
        f" --{flag} {value}"
        for flag, value in (("data", "<data folder>"), ("only", " ".join(arguments.only)))
        if getattr(arguments, flag) not in (None, list(SEEDS))
    )
    return f"python -m benchmarks.raytracing --work <folder>{flags}"


if __name__ == "__main__":
    main()
