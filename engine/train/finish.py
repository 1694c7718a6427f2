"""Before and after a training run: the data in, the checkpoint and its card out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.models.checkpoint import CARD, CONFIG, build_model, read_checkpoint
from tokenpaths.engine.train.corpora import ImageCorpus, TextCorpus, load_images, load_text, read_texts
from tokenpaths.engine.train.loop import TrainingRun, evaluate, export
from tokenpaths.engine.train.recipes import Recipe

TOKENIZER = "tokenizer.json"


def load_corpora(
    recipe: Recipe, data: Path, tokenizer_file: Path | None, work: Path
) -> tuple[ImageCorpus | TextCorpus, ImageCorpus | TextCorpus]:
    """Training and validation data of a recipe; trains a tokenizer in ``work`` if none is given."""
    train_file, val_file = data / recipe.train_file, data / recipe.val_file
    if recipe.model.modality == "vision":
        train = load_images(train_file, recipe.model.image_size)
        if len(train.classes) < 2:
            raise UserError(
                f"{recipe.train_file} has one class, {train.classes[0]!r}; telling classes apart needs two",
                field="data",
            )
        val = load_images(val_file, recipe.model.image_size, train.classes)
        _enough(train_file, len(train.labels), recipe.batch_size, "images")
        _enough(val_file, len(val.labels), 1, "images")
        return train, val
    if tokenizer_file is None:
        tokenizer_file = work / TOKENIZER
        if not tokenizer_file.exists():
            TextTokenizer.train(read_texts(train_file), recipe.model.vocab_size).save(tokenizer_file)
    tokenizer = TextTokenizer.load(tokenizer_file)
    if tokenizer.vocab_size != recipe.model.vocab_size:
        raise UserError(
            f"{tokenizer_file} has {tokenizer.vocab_size} entries, "
            f"recipe {recipe.name} expects {recipe.model.vocab_size}",
            field="tokenizer",
        )
    texts = load_text(train_file, tokenizer), load_text(val_file, tokenizer)
    context = recipe.model.context
    _enough(train_file, len(texts[0].ids), (recipe.batch_size + 1) * context + 1, "tokens")
    _enough(val_file, len(texts[1].ids), context + 1, "tokens")
    return texts


def fitted(recipe: Recipe, corpus: ImageCorpus | TextCorpus) -> Recipe:
    """The recipe with as many classes as the data have; a text recipe as it is."""
    if isinstance(corpus, TextCorpus) or len(corpus.classes) == recipe.model.num_classes:
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"num_classes": len(corpus.classes)})})


def _enough(file: Path, found: int, needed: int, what: str) -> None:
    """UserError where a file does not fill one batch."""
    if found < needed:
        raise UserError(f"{file.name} holds {found:,} {what}, one batch takes {needed:,}", field="data")


@dataclass(frozen=True)
class Twin:
    """The dense twin's numbers, for the card."""

    name: str
    active_params: int
    validation: dict[str, Any]


def read_twin(folder: Path) -> Twin:
    checkpoint = read_checkpoint(folder)
    return Twin(checkpoint.name, active_params(checkpoint.config), checkpoint.validation)


def active_params(config) -> int:
    """Block parameters that a token meets, re-use counted again: N_b + S·K·(1−r) blocks."""
    block = 4 * config.width**2 + 2 * config.width * config.mlp_width + 2 * config.width
    return round(config.active_blocks * block)


def finish(
    run: TrainingRun,
    train: ImageCorpus | TextCorpus,
    val: ImageCorpus | TextCorpus,
    out: Path,
    command: str,
    twin: Twin | None = None,
) -> dict[str, float]:
    """Export, read the export back, measure *it* on all validation data in float32, write the card."""
    classes = train.classes if isinstance(train, ImageCorpus) else ()
    export(run, out, classes, {}, command)
    if isinstance(train, TextCorpus):
        train.tokenizer.save(out / TOKENIZER)
    checkpoint = read_checkpoint(out)
    device = next(run.model.parameters()).device
    numbers = evaluate(build_model(checkpoint, device), val, device, precise=True)
    numbers = {k: round(v, 4) for k, v in numbers.items()}
    about = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    about["validation"] = numbers | {"file": run.recipe.val_file}
    if twin is not None:
        about["validation"]["dense_twin"] = {
            "active_params": twin.active_params,
            **{k: v for k, v in twin.validation.items() if k != "file"},
        }
    write_atomically(out / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    write_card(out)
    return numbers


def write_card(folder: Path) -> Path:
    """``card.md`` from what the checkpoint's configuration says; rewritten whenever that changes."""
    checkpoint = read_checkpoint(folder)
    config, training, numbers = checkpoint.config, checkpoint.training, checkpoint.validation
    recipe = training["recipe"]
    size = (folder / "model.safetensors").stat().st_size
    seconds = training["wall_seconds"]
    lines = [
        f"# {checkpoint.name}",
        "",
        f"A distributed neural architecture for {'images' if config.modality == 'vision' else 'English text'}: "
        f"{config.num_modules} modules "
        f"({', '.join(f'{config.kinds.count(k)} {k}' for k in dict.fromkeys(config.kinds))}), "
        f"{config.backbone} backbone block(s), {config.steps} routed steps, top-{config.top_k}, "
        f"width {config.width}, {config.heads} heads."
        + (f" Skips {config.skip_ratio:.0%} of its module slots." if config.skip_ratio else ""),
        "",
        f"- weights: bfloat16 safetensors, {size / 2**20:.1f} MiB; "
        f"{active_params(config) / 1e6:.2f} M active block parameters a token",
        f"- data: `{recipe['train_file']}`, validated on `{recipe['val_file']}` ({_sources(config.modality)})",
        f"- command: `{training['command']}`",
        f"- trained {training['iterations']:,} iterations of {recipe['batch_size']} in {seconds / 60:.0f} minutes "
        f"on {training['machine']}, finished {training.get('date', datetime.now(UTC).date().isoformat())}",
        f"- {recipe['schedule']} schedule, peak rate {recipe['learning_rate']:g}, AdamW {tuple(recipe['betas'])}, "
        f"weight decay {recipe['weight_decay']:g}, seed {recipe['seed']}",
        "",
        "## Validation",
        "",
        *_validation_table(checkpoint.name, config, numbers),
        *_path_table(numbers.get("paths")),
        "",
        "## Curve",
        "",
        *_curve_table(training["history"]),
        "",
        "## Limits",
        "",
        "Small models for looking at routing, not for use: "
        + (
            "64×64 pixels and 50 classes. The image data is for research use."
            if config.modality == "vision"
            else "a context of 256 tokens and a vocabulary of 8 192."
        ),
        "",
    ]
    path = folder / CARD
    write_atomically(path, "\n".join(lines).encode())
    return path


def _sources(modality: str) -> str:
    if modality == "vision":
        return "50 classes of Tiny-ImageNet (Stanford CS231n), 64×64"
    return (
        "OLMoE routing-analysis texts: C4, books, Wikipedia, GitHub, arXiv; WikiText-2, GSM8K, HumanEval, "
        "Tiny Shakespeare, NLTK corpora"
    )


def _validation_table(name: str, config, numbers: dict[str, Any]) -> list[str]:
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
        "",
        "## Paths",
        "",
        f"Traced over {paths['dataset']}, {paths['num_tokens']:,} tokens.",
        "",
        "| | distinct paths | effective paths | log–log slope (r²) | effective top-k per step |",
        "|---|---|---|---|---|",
    ]
    for name in ("trained", "untrained"):
        row = paths[name]
        steps = ", ".join(f"{k:.1f}" for k in row["effective_top_k"])
        lines.append(
            f"| {name} | {row['num_paths']:,} | {row['effective_paths']:,.0f} | "
            f"{row['slope']:.2f} ({row['r2']:.2f}) | {steps} |"
        )
    return lines


def _curve_table(history: list[dict[str, Any]]) -> list[str]:
    keys = [k for k in ("iteration", "train_loss", "val_loss", "val_accuracy", "skipped_share") if k in history[-1]]
    return [
        "| " + " | ".join(k.replace("_", " ") for k in keys) + " |",
        "|" + "---|" * len(keys),
        *("| " + " | ".join(str(entry[k]) for k in keys) + " |" for entry in history),
    ]
