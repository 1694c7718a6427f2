"""Directional Routing on English text: the paper's pooling, the causal one, and no routing at all.

    python -m tokenpaths.engine.train.train_directional --data <data folder> --work <folder> [--export data/models]
    [recipe …]

Width, layers, data, batch and rates are those of the dna-text recipes, and so is the untied unembedding;
the paper's baseline, too, is the same network without routers, a few per cent smaller, not one of equal
size. Every recipe sees the same batches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tokenpaths.engine.base.files import SHIPPED_MODELS, write_atomically
from tokenpaths.engine.models.checkpoint import CARD, CONFIG, WEIGHTS, build_model, read_checkpoint
from tokenpaths.engine.models.directional import Directional, DirectionalConfig
from tokenpaths.engine.train.corpora import TextCorpus
from tokenpaths.engine.train.finish import TOKENIZER, load_corpora
from tokenpaths.engine.train.loop import Progress, TrainingRun, evaluate, export, train
from tokenpaths.engine.train.recipes import Recipe

SEQUENCE, PREFIX, UNROUTED = "directional-text", "directional-text-prefix", "directional-text-unrouted"
SHIPPED = (SEQUENCE, PREFIX)
SHARED_TOKENIZER = SHIPPED_MODELS / "dna-text-top1" / TOKENIZER
COMMAND = (
    "python -m tokenpaths.engine.train.train_directional --data <data folder> --work <folder> --export <folder> {}"
)
SOURCES = (
    "OLMoE routing-analysis texts: C4, books, Wikipedia, GitHub, arXiv; WikiText-2, GSM8K, HumanEval, Tiny "
    "Shakespeare, NLTK corpora"
)

_MODEL = DirectionalConfig(
    width=160,
    heads=5,
    mlp_width=640,
    layers=6,
    directions=4,
    router_width=64,
    temperature=0.5,
    tied=False,
    vocab_size=8192,
    context=256,
)
_TRAIN = dict(
    family="directional",
    train_file="text/english_train.parquet",
    val_file="text/english_val.parquet",
    batch_size=32,
    iterations=700,  # 5.7 M tokens, half a pass
    learning_rate=1.5e-3,
    warmup=100,
    schedule="constant-linear",
    weight_decay=0.1,
    betas=(0.9, 0.95),
    eps=1e-15,
)

DIRECTIONAL_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name=SEQUENCE, model=_MODEL, **_TRAIN),
        Recipe(name=PREFIX, model=_MODEL.model_copy(update={"pooling": "prefix"}), **_TRAIN),
        Recipe(name=UNROUTED, model=_MODEL.unrouted_twin(), **_TRAIN),
    )
}


def num_params(config: DirectionalConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Directional(config).parameters())


def ship(run: TrainingRun, val: TextCorpus, folder: Path, command: str) -> Path:
    """Export, read the export back, measure *it* on all validation text in float32, write the card."""
    out = export(run, folder / run.recipe.name, (), {}, command)
    val.tokenizer.save(out / TOKENIZER)
    numbers = evaluate(build_model(read_checkpoint(out)), val, torch.device("cpu"), precise=True)
    note(out, {k: round(v, 4) for k, v in numbers.items()} | {"file": run.recipe.val_file})
    return out


def note(folder: Path, validation: dict) -> None:
    """Add numbers to the checkpoint's validation, and write its card again."""
    about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    about["validation"] |= validation
    write_atomically(folder / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    write_card(folder)


POOLINGS = {
    "sequence": "Each router reads the mean of the residual stream over the **whole sequence**, one decision a "
    "sequence: equation 1 of the paper as it stands, which says nothing of hiding the tokens to be predicted. So every "
    "position can learn something of the tokens behind it, the one it is asked for included, and the validation loss "
    "is **not** that of a model that writes text from left to right.",
    "prefix": "Each router reads the running mean of the residual stream **up to the position** that it decides for: "
    "strictly causal, so its loss is comparable with that of any causal model. The gates of a sequence are the means "
    "over its positions.",
}


def write_card(folder: Path) -> Path:
    """``card.md`` from what the checkpoint's configuration says of itself."""
    checkpoint = read_checkpoint(folder)
    config, training, numbers = checkpoint.config, checkpoint.training, checkpoint.validation
    recipe, routed, plain = training["recipe"], num_params(config), num_params(config.unrouted_twin())
    size = (folder / WEIGHTS).stat().st_size
    lines = [
        f"# {checkpoint.name}",
        "",
        f"A transformer with directional routing for English text: {config.layers} layers of {config.heads} heads, "
        f"{config.directions} directions a head ({config.layers * config.top_k} gates), one router a layer, width "
        f"{config.width}, τ {config.temperature:g}.",
        "",
        POOLINGS[config.pooling],
        "",
        f"- weights: bfloat16 safetensors, {size / 2**20:.1f} MiB; {routed / 1e6:.2f} M parameters, "
        f"{routed / plain - 1:.1%} more than without routing",
        f"- data: `{recipe['train_file']}`, validated on `{recipe['val_file']}` ({SOURCES})",
        f"- command: `{training['command']}`",
        f"- trained {training['iterations']:,} iterations of {recipe['batch_size']} × {config.context} tokens in "
        f"{training['wall_seconds'] / 60:.0f} minutes on {training['machine']}, finished {training['date']}",
        f"- {recipe['schedule']} schedule, peak rate {recipe['learning_rate']:g}, AdamW {tuple(recipe['betas'])}, "
        f"weight decay {recipe['weight_decay']:g}, seed {recipe['seed']}",
        "",
        "## Validation",
        "",
        *_beside(checkpoint.name, numbers),
        *_ahead(numbers.get("lookahead")),
        *_ablations(numbers.get("ablations")),
        *_domains(numbers.get("domains")),
        "",
        "## Curve",
        "",
        *_curve(training["history"]),
        "",
        "## Limits",
        "",
        "A small model for looking at routing, not for use: a context of 256 tokens, a vocabulary of 8 192, one "
        "training run." + _copying(numbers.get("induction")),
        "",
    ]
    write_atomically(folder / CARD, "\n".join(lines).encode())
    return folder / CARD


def _beside(name: str, numbers: dict) -> list[str]:
    rows = numbers.get("beside") or {name: numbers}
    return [
        "| model | sees ahead | loss (nats) | perplexity | top-1 accuracy |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {'yes' if name == SEQUENCE else 'no'} | {row['loss']:.3f} | {row['perplexity']:.1f} | "
            f"{row['accuracy']:.1%} |"
            for name, row in rows.items()
        ),
        "",
        f"Float32, {numbers['count']:,} tokens; same recipe, batches and seed.",
    ]


def _ahead(row: dict | None) -> list[str]:
    """What seeing ahead is worth, as ``benchmarks/directional.py`` measured it."""
    if not row:
        return []
    return [
        "",
        f"The same predictions with the tokens behind each position hidden: loss {row['hidden']:.3f} instead "
        f"of {row['in_view']:.3f}, a difference of {row['gain']:.3f} ± {row['standard_error']:.3f} nats "
        f"({row['rows']} windows, {row['positions']} positions of each).",
    ]


def _ablations(rows: Sequence[dict] | None) -> list[str]:
    if not rows:
        return []
    return [
        "",
        "## Routing changed",
        "",
        "| gates | perplexity | Δ loss (nats) | KL (nats) | likeliest token changed |",
        "|---|---|---|---|---|",
        *(
            f"| {row['name']} | {row['perplexity']:.1f} | {row['delta_loss']:+.3f} | {row['kl']:.3f} | "
            f"{row['top1_changed']:.1%} |"
            for row in rows
        ),
    ]


def _domains(row: dict | None) -> list[str]:
    if not row:
        return []
    return [
        "",
        "## Domains",
        "",
        f"- nearest-centroid accuracy of the routing vector, leave-one-out, mean over domains: "
        f"{row['balanced']:.1%} (untrained twin {row['untrained_balanced']:.1%}, shuffled {row['null_mean']:.1%}, "
        f"p = {row['p_value']:.3f}; {row['num_samples']} documents)",
        f"- specialist heads per layer: {', '.join(map(str, row['specialists']))}",
    ]


def _copying(row: dict | None) -> str:
    if not row:
        return ""
    return f" Of repeated random tokens it continues {row['period 64']:.1%}: no induction at this scale."


def _curve(history: Sequence[dict]) -> list[str]:
    keys = [
        k
        for k in ("iteration", "train_loss", "val_loss", "val_accuracy", "mean_gate", "gate_spread")
        if k in history[-1]
    ]
    return [
        "| " + " | ".join(k.replace("_", " ") for k in keys) + " |",
        "|" + "---|" * len(keys),
        *("| " + " | ".join(str(entry[k]) for k in keys) + " |" for entry in history),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with text/english_*.parquet")
    parser.add_argument("--work", type=Path, required=True, help="states and logs; continues what it holds")
    parser.add_argument("--export", type=Path, help="write the checkpoints of the routed models below this folder")
    parser.add_argument("--tokenizer", type=Path, default=SHARED_TOKENIZER, help="default: the shipped text models'")
    parser.add_argument("recipes", nargs="*", choices=[[], *DIRECTIONAL_RECIPES], help="default: all")
    arguments = parser.parse_args()
    for name in arguments.recipes or DIRECTIONAL_RECIPES:
        recipe = DIRECTIONAL_RECIPES[name]
        corpus, val = load_corpora(recipe, arguments.data, arguments.tokenizer, arguments.work)
        run = train(
            recipe, corpus, val, arguments.work / name, check_every=100, on_progress=lambda p, name=name: _tell(name, p)
        )
        if arguments.export and name in SHIPPED:
            print(ship(run, val, arguments.export, COMMAND.format(name)))


def _tell(name: str, progress: Progress) -> None:
    if progress.iteration % 10 == 0:
        print(
            f"{name} {progress.iteration}/{progress.iterations} loss {progress.loss:.3f} "
            f"{progress.rate_per_s:.2f} it/s {progress.note}",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
