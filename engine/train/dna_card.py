"""Card of a distributed neural architecture: size, training, validation beside the dense twin, paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.families.dna_config import DNAConfig
from tokenpaths.engine.train.cards import (
    ENGLISH,
    curve,
    is_of_shipped_data,
    mebibytes,
    recipe_lines,
    save_card,
    section,
)

SOURCES = {
    "vision/tiny_imagenet_50_train.parquet": "50 classes of Tiny-ImageNet (Stanford CS231n), 64×64",
    "text/english_train.parquet": ENGLISH,
}


def read_twin(folder: Path, of: DNAConfig) -> dict[str, Any]:
    """Active parameters and validation numbers of the dense twin in ``folder``; or of a routed model that has the twin
    of ``of``, which is not trained again then.

    Raises:
        UserError: the model in ``folder`` has another twin, or none, or is of another family or modality.
    """
    checkpoint = read_checkpoint(folder)
    wanted = f"give the folder of a trained dense DNA of {of.modality}"
    if checkpoint.family != "dna":
        raise UserError(f"{checkpoint.name} is of the family {checkpoint.family}; {wanted}", field="dense_twin")
    if checkpoint.config.steps:
        twin: dict[str, Any] | None = checkpoint.validation.get("dense_twin")
        if twin is None or checkpoint.config.dense_twin() != of.dense_twin():
            raise UserError(
                f"{checkpoint.name} is routed, and its card has no numbers of the dense twin of this model; give the "
                "folder of the twin itself",
                field="dense_twin",
            )
        return twin
    if checkpoint.config.modality != of.modality:
        raise UserError(f"{checkpoint.name} is for {checkpoint.config.modality}; {wanted}", field="dense_twin")
    if "loss" not in checkpoint.validation:
        raise UserError(f"{checkpoint.name} has no validation numbers; {wanted}", field="dense_twin")
    numbers = {name: value for name, value in checkpoint.validation.items() if name != "file"}
    return {"active_params": active_params(checkpoint.config)} | numbers


def active_params(config: DNAConfig) -> int:
    """Block parameters that a token meets, re-use counted again: N_b + S·K·(1−r) blocks."""
    block = 4 * config.width**2 + 2 * config.width * config.mlp_width + 2 * config.width
    return round(config.active_blocks * block)


def write_card(folder: Path) -> Path:
    """``card.md`` from the checkpoint's configuration."""
    checkpoint = read_checkpoint(folder)
    config, training = checkpoint.config, checkpoint.training
    recipe = training["recipe"]
    vision, ours = config.modality == "vision", is_of_shipped_data(training)
    sources = SOURCES.get(recipe["train_file"]) if ours else None
    kinds = ", ".join(f"{config.kinds.count(kind)} {kind}" for kind in dict.fromkeys(config.kinds))
    lines = [
        f"# {checkpoint.name}",
        "",
        f"A distributed neural architecture for {'images' if vision else 'text' if sources is None else 'English text'}"
        f": {config.num_modules} modules ({kinds}), {config.backbone} backbone block(s), {config.steps} routed steps, "
        f"top-{config.top_k}, width {config.width}, {config.heads} heads."
        + (f" Skips {config.skip_ratio:.0%} of its module slots." if config.skip_ratio else ""),
        "",
        f"- weights: bfloat16 safetensors, {mebibytes(folder):.1f} MiB; "
        f"{active_params(config) / 1e6:.2f} M active block parameters a token",
        f"- data: `{recipe['train_file']}`, validated on `{recipe['val_file']}`" + (f" ({sources})" if sources else ""),
        f"- command: `{training['command']}`",
        *recipe_lines(training),
        *section("Validation"),
        *_validation_table(checkpoint.name, config, checkpoint.validation),
        *_path_table(checkpoint.validation.get("paths")),
        *section("Curve"),
        *curve(training, "skipped_share"),
        *section("Limits"),
        "Small models for looking at routing, not for use: "
        + (
            f"{config.image_size}×{config.image_size} pixels and {config.num_classes} classes."
            + " The image data is for research use." * ours
            if vision
            else f"a context of {config.context} tokens and a vocabulary of {config.vocab_size:,}.".replace(",", " ")
        ),
    ]
    return save_card(folder, lines)


def _validation_table(name: str, config: DNAConfig, numbers: dict[str, Any]) -> list[str]:
    columns = ["loss", "accuracy"] if config.modality == "vision" else ["loss", "perplexity", "accuracy"]
    heads = {"loss": "loss (nats)", "perplexity": "perplexity", "accuracy": "top-1 accuracy"}
    show = lambda c, row: f"{row[c]:.1%}" if c == "accuracy" else f"{row[c]:.3f}"  # noqa: E731
    lines = [
        "| model | active block parameters | " + " | ".join(heads[c] for c in columns) + " |",
        "|---|---|" + "---|" * len(columns),
        f"| {name} | {active_params(config) / 1e6:.2f} M | " + " | ".join(show(c, numbers) for c in columns) + " |",
    ]
    twin = numbers.get("dense_twin")
    if twin:
        lines.append(
            f"| dense twin, same recipe | {twin['active_params'] / 1e6:.2f} M | "
            + " | ".join(show(c, twin) for c in columns)
            + " |"
        )
    count = "images" if config.modality == "vision" else "tokens"
    return [*lines, "", f"Measured on the shipped weights in float32, {numbers['count']:,} {count}."]


def _path_table(paths: dict[str, Any] | None) -> list[str]:
    """Path statistics beside the untrained twin, as ``benchmarks/checkpoints.py`` measured them."""
    if not paths:
        return []
    lines = [
        *section("Paths"),
        f"Traced over {paths['dataset']}, {paths['num_tokens']:,} tokens.",
        "",
        "| | distinct paths | effective paths | log–log slope (r²) | in ranks 10–1,000 | effective top-k per step |",
        "|---|---|---|---|---|---|",
    ]
    for name, whose in (("trained", "observed"), ("untrained", "untrained")):
        row = paths[name]
        growth = paths.get("slopes", {}).get(whose)
        window = f"{growth[-1]['window_slope']:.2f}" if growth and growth[-1]["window_slope"] is not None else "–"
        steps = ", ".join(f"{k:.1f}" for k in row["effective_top_k"])
        lines.append(
            f"| {name} | {row['num_paths']:,} | {row['effective_paths']:,.0f} | "
            f"{row['slope']:.2f} ({row['r2']:.2f}) | {window} | {steps} |"
        )
    return lines
