"""Recipes and card of Directional Routing on English text: the paper's pooling, a causal one, no routing at all.

Width, layers, data, batch, rates and length are those of dna-text-top1-long, and so is the untied unembedding. The
baseline of "Directional Routing in Transformers" is likewise the same network without routers: a few per cent
smaller, not one of equal size. Every recipe sees the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.families.checkpoint_config import TOKENIZER, read_checkpoint
from tokenpaths.engine.models.directional import Directional, DirectionalConfig
from tokenpaths.engine.train.cards import (
    ENGLISH,
    curve,
    is_of_shipped_data,
    mebibytes,
    recipe_lines,
    save_card,
    section,
)
from tokenpaths.engine.train.recipes import Recipe

SEQUENCE, PREFIX, UNROUTED = "directional-text", "directional-text-prefix", "directional-text-unrouted"
SHIPPED = (SEQUENCE, PREFIX)
SHARED_TOKENIZER = SHIPPED_MODELS / "dna-text-top1" / TOKENIZER

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
_TRAIN: dict[str, Any] = dict(
    family="directional",
    train_file="text/english_train.parquet",
    val_file="text/english_val.parquet",
    batch_size=32,
    iterations=5_200,  # 42.6 M tokens, four passes
    learning_rate=1.5e-3,
    warmup=400,
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
    """Parameters of a model of this configuration."""
    with torch.device("meta"):
        return sum(p.numel() for p in Directional(config).parameters())


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
    """``card.md`` from the checkpoint's configuration."""
    checkpoint = read_checkpoint(folder)
    config, training, numbers = checkpoint.config, checkpoint.training, checkpoint.validation
    recipe, routed, plain = training["recipe"], num_params(config), num_params(config.unrouted_twin())
    ours = is_of_shipped_data(training)
    lines = [
        f"# {checkpoint.name}",
        "",
        f"A transformer with directional routing for {'English ' * ours}text: {config.layers} layers of "
        f"{config.heads} heads, {config.directions} directions a head ({config.layers * config.top_k} gates), one "
        f"router a layer, width {config.width}, τ {config.temperature:g}.",
        "",
        POOLINGS[config.pooling],
        "",
        f"- weights: bfloat16 safetensors, {mebibytes(folder):.1f} MiB; {routed / 1e6:.2f} M parameters, "
        f"{routed / plain - 1:.1%} more than without routing",
        f"- data: `{recipe['train_file']}`, validated on `{recipe['val_file']}`" + f" ({ENGLISH})" * ours,
        f"- command: `{training['command']}`",
        *recipe_lines(training, f" × {config.context} tokens"),
        *section("Validation"),
        *_beside(checkpoint.name, numbers),
        *_ahead(numbers.get("lookahead")),
        *_ablations(numbers.get("ablations")),
        *_domains(numbers.get("domains")),
        *section("Curve"),
        *curve(training, "mean_gate", "gate_spread"),
        *section("Limits"),
        "A small model for looking at routing, not for use: a context of 256 tokens, a vocabulary of 8 192, one "
        "training run." + _copying(numbers.get("induction")),
    ]
    return save_card(folder, lines)


def _beside(name: str, numbers: dict[str, Any]) -> list[str]:
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


def _ahead(row: dict[str, Any] | None) -> list[str]:
    """What seeing ahead is worth, as ``benchmarks/directional.py`` measured it."""
    if not row:
        return []
    return [
        "",
        f"The same predictions with the tokens behind each position hidden: loss {row['hidden']:.3f} instead "
        f"of {row['in_view']:.3f}, a difference of {row['gain']:.3f} ± {row['standard_error']:.3f} nats "
        f"({row['rows']} windows, {row['positions']} positions of each).",
    ]


def _ablations(rows: Sequence[dict[str, Any]] | None) -> list[str]:
    if not rows:
        return []
    return [
        *section("Routing changed"),
        "| gates | perplexity | Δ loss (nats) | KL (nats) | likeliest token changed |",
        "|---|---|---|---|---|",
        *(
            f"| {row['name']} | {row['perplexity']:.1f} | {row['delta_loss']:+.3f} | {row['kl']:.3f} | "
            f"{row['top1_changed']:.1%} |"
            for row in rows
        ),
    ]


def _domains(row: dict[str, Any] | None) -> list[str]:
    if not row:
        return []
    return [
        *section("Domains"),
        f"- nearest-centroid accuracy of the routing vector, leave-one-out, mean over domains: "
        f"{row['balanced']:.1%} (untrained twin {row['untrained_balanced']:.1%}, shuffled {row['null_mean']:.1%}, "
        f"p = {row['p_value']:.3f}; {row['num_samples']} documents)",
        f"- specialist heads per layer: {', '.join(map(str, row['specialists']))}",
    ]


def _copying(row: dict[str, Any] | None) -> str:
    if not row:
        return ""
    return f" Of repeated random tokens it continues {row['period 64']:.1%}: no induction at this scale."
