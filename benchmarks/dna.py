"""What *Towards Distributed Neural Architectures* claims of paths, compute and reuse, on the shipped checkpoints.

    python -m benchmarks.dna --data <data folder> [--twins 5] [--models NAME …] [--anew FOLDER]

Each checkpoint, and untrained networks of the same architecture, route the validation file of its recipe; every figure
is worked out from the choices of all tokens. Intervals are of 95 %, by resampling samples, and of one trained network:
they say nothing about others trained alike. ``--anew`` measures those too: checkpoints of the same recipes under other
seeds (``tokenpaths train NAME --seed 1``), which are not shipped. ``docs/science/dna.md`` is written from the result by
``make science``.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dna_choices import observe
from benchmarks.dna_figures import image_figures, kinds_of_modules, text_figures
from benchmarks.measure import kept_document, report
from benchmarks.resampling import interval, weighted_correlation
from benchmarks.science.dna_rows import TEXT, VISION
from benchmarks.trainings import read_trainings
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.families.checkpoint_config import CONFIG, TOKENIZER, read_checkpoint
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.train.recipes import RECIPES

COMMAND = "python -m benchmarks.dna --data <data folder>"

TRAINED_SO = "tokenpaths train {} --data <data folder> --threads 1 --tokenizer <dna-text-top1's tokenizer.json>"


SEEDED = re.compile(r"(?P<name>.+)-seed(?P<seed>[0-9]+)")


def measure(name: str, folder: Path, num_twins: int, models: Path = SHIPPED_MODELS) -> dict[str, Any]:
    """Every figure of one checkpoint in ``models``, from the samples in ``folder``."""
    began = time.monotonic()
    model = load_model(name, [models], device="cpu")
    samples = list(open_dataset(str(folder / model.checkpoint.validation["file"]), model.modality))
    data = prepare(model, samples)
    trained = observe(model, data, outputs=True)
    twins = [observe(model.untrained(seed), data, outputs=False) for seed in range(num_twins)]
    if model.modality == "vision":
        found = image_figures(model, samples, trained, twins)
    else:
        found = text_figures(model, samples, data, trained, twins)
    attention_M = np.array([module.kind == "attention" for module in model.module_table()])
    if attention_M.any():
        found |= kinds_of_modules(trained, twins, attention_M)
    return found | {
        "sha256": model.sha256,
        "validation": model.checkpoint.validation,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "command": COMMAND,
    }


def trained_anew(folder: Path, models: Path, kept: dict[str, Any]) -> dict[str, Any]:
    """By seed, the figures of the checkpoints in ``models`` whose names end in ``-seed1`` and the like.

    Untrained networks are those of the shipped checkpoint: none is routed here.
    """
    found = {seed: dict(of_seed) for seed, of_seed in kept.items()}
    for checkpoint in sorted(models.iterdir()):
        if not (match := SEEDED.fullmatch(checkpoint.name)) or not (checkpoint / CONFIG).exists():
            continue
        print(f"measuring {checkpoint.name} …", file=sys.stderr, flush=True)
        training = check_anew(checkpoint, SHIPPED_MODELS / match["name"], int(match["seed"]))
        figures = measure(checkpoint.name, folder, 0, models)
        found.setdefault(match["seed"], {})[match["name"]] = figures | {
            "training": {key: training[key] for key in ("machine", "wall_seconds", "command")}
            | {"seed": int(match["seed"])}
        }
    return found


def check_anew(folder: Path, shipped: Path, seed: int) -> dict[str, Any]:
    """What the checkpoint says of its training.

    Raises:
        UserError: it is not the shipped network's recipe under this seed, or has another tokenizer.
    """
    own, other = (read_checkpoint(at) for at in (folder, shipped))
    recipes = [dict(one.training["recipe"]) for one in (own, other)]
    seeds = [recipe.pop("seed") for recipe in recipes]
    tokenizers = [(at / TOKENIZER).read_bytes() if (at / TOKENIZER).exists() else b"" for at in (folder, shipped)]
    told = recipes[0].keys() & recipes[1].keys()  # cards of earlier versions lack what was added since
    if (
        any(recipes[0][key] != recipes[1][key] for key in told)
        or own.config != other.config
        or tokenizers[0] != tokenizers[1]
    ):
        raise UserError(f"{folder.name} is no network of {other.name}'s recipe, size and tokenizer")
    if seeds[0] != seed or seeds[1] == seed:
        raise UserError(f"{folder.name} was trained under seed {seeds[0]}, {other.name} under {seeds[1]}")
    return own.training


def skipping(folder: Path, without: Path) -> dict[str, Any]:
    """The loss of the text network that skips less that of the one in ``without``, which does not."""
    skips = load_model("dna-text-top2-skip", [SHIPPED_MODELS], device="cpu")
    other = load_model(without.name, [without.parent], device="cpu")
    samples = list(open_dataset(str(folder / skips.checkpoint.validation["file"]), skips.modality))
    losses, predictions_b = [], None
    for model in (skips, other):
        data = prepare(model, samples)
        observed = observe(model, data, outputs=True)
        losses.append(observed.loss_b)
        # A text's last token has no next one; texts longer than a window are cut, and every window ends so.
        predictions_b = np.bincount(observed.sample_n, minlength=observed.num_samples).astype(float)
    return paired_loss(losses[0], losses[1], predictions_b) | {
        "loss": [model.checkpoint.validation["loss"] for model in (skips, other)],
        "accuracy": [model.checkpoint.validation["accuracy"] for model in (skips, other)],
        "predictions": other.checkpoint.validation["count"],
        "samples": len(samples),
        "training": {key: other.checkpoint.training[key] for key in ("machine", "wall_seconds")}
        | {"command": TRAINED_SO.format(other.name)},
        "sha256": other.sha256,
    }


def paired_loss(first_b: np.ndarray, second_b: np.ndarray, tokens_b: np.ndarray) -> dict[str, float]:
    """Mean over tokens of the first loss less the second, with the interval over samples, in nats."""
    known = np.isfinite(first_b) & np.isfinite(second_b)
    apart, tokens = (first_b - second_b)[known], tokens_b[known]
    value, low, high = interval(lambda c: float((apart * tokens * c).sum() / (tokens * c).sum()), len(apart))
    return {"value": value, "low": low, "high": high}


def between(results: dict[str, Any]) -> dict[str, Any]:
    """Whether two models of one modality reuse modules on the same samples."""
    found = {}
    for kind, names in (("vision", VISION), ("text", TEXT)):
        if all(name in results for name in names):
            x, y = (np.array(results[name]["reuse_b"]) for name in names)
            value, low, high = interval(lambda c, x=x, y=y: weighted_correlation(x, y, c), len(x))
            found[kind] = {"value": value, "low": low, "high": high, "samples": len(x)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--twins", type=int, default=5, help="untrained networks of each architecture")
    parser.add_argument("--models", nargs="*", help="measure only these, keep the others; none: read the cards anew")
    parser.add_argument("--without-skip", type=Path, help="folder of a trained dna-text-top2")
    parser.add_argument("--anew", type=Path, help="folder of checkpoints under other seeds: NAME-seed1 …")
    parser.add_argument("--trainings", type=Path, help="folder of their cards, where the weights are not there")
    arguments = parser.parse_args()
    checkpoints = [read_checkpoint(p.parent) for p in sorted(SHIPPED_MODELS.glob(f"*/{CONFIG}"))]
    document = kept_document("dna")
    kept = document["results"]
    results, skips, anew = kept.get("models", {}), kept.get("skipping"), kept.get("anew", {})
    if arguments.anew:
        anew = trained_anew(arguments.data, arguments.anew, anew)
    trainings = kept.get("trainings", {})
    if arguments.trainings:
        trainings = read_trainings(arguments.trainings, RECIPES)
    if arguments.without_skip:
        skips = skipping(arguments.data, arguments.without_skip)
    for name in (c.name for c in checkpoints if c.family == "dna"):
        if name in arguments.models if arguments.models is not None else not arguments.anew:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            results[name] = measure(name, arguments.data, arguments.twins)
    for checkpoint in checkpoints:  # a card may have got the numbers of a dense twin since
        if checkpoint.name in results:
            results[checkpoint.name]["validation"] = checkpoint.validation
    found = {
        "models": results,
        "between": between(results),
        "skipping": skips,
        "anew": anew,
        "trainings": trainings,
        "between_anew": {seed: between(models) for seed, models in anew.items()},
    }
    measured = arguments.models != [] or arguments.anew or arguments.without_skip
    report("dna", COMMAND, found, quiet=True, measured_on=None if measured else document["machine"])


if __name__ == "__main__":
    main()
