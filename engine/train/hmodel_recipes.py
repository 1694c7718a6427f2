"""Six languages for the H-Model and the plain transformers beside it: data, recipes, checkpoint and card.

Sizes are those of the H-Model paper's section 6.4 (width 128, feed-forward 256) and its table 2: four hidden layers
with four iterations, six with one, and transformers of one and six layers; two more pool by the last token and mix
kinds of layers (section 6.9). Every recipe sees the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.families.hmodel_config import HiddenLayerConfig
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.hmodel.hmodel import HModel, HModelConfig
from tokenpaths.engine.models.hmodel.plain_transformer import plain_transformer
from tokenpaths.engine.train.cards import (
    curve,
    finish,
    is_of_shipped_data,
    mebibytes,
    note,
    recipe_lines,
    rounded,
    save_card,
    section,
)
from tokenpaths.engine.train.corpora import (
    TextCorpus,
    kept_tokenizer,
    label_of,
    own_tokenizer,
    read_rows,
    trained_tokenizer,
)
from tokenpaths.engine.train.loop import TrainingRun, evaluate
from tokenpaths.engine.train.recipes import Recipe

HELD_OUT = 0.1
"""share of each language's training texts that no model and no tokenizer sees"""
SEED = 0
SHIPPED = "hmodel-languages"
LANGUAGES = "six languages (Arabic, Chinese, English, German, Swahili, Ukrainian)"
SOURCES = (
    "Universal Dependencies (German GSD, Chinese GSD and PUD, English EWT, Ukrainian IU, Arabic PUD), MasakhaNEWS "
    "(Swahili), Universal Declaration of Human Rights"
)

_DEEP = HModelConfig(
    modality="text",
    hidden=(HiddenLayerConfig(kind="transformer"),) * 4,
    iterations=4,
    width=128,
    heads=4,
    mlp_width=256,
    vocab_size=4096,
    context=128,
)
_WIDE = _DEEP.model_copy(update={"hidden": _DEEP.hidden[:1] * 6, "iterations": 1})
_SEQUENCE: dict[str, Any] = {"pooling": "sequence"}
_MIXED = tuple(HiddenLayerConfig(kind=kind) for kind in ("transformer", "convolution") * 2)
_TRAIN: dict[str, Any] = dict(
    train_file="text/languages_train.parquet",
    val_file="text/languages_val.parquet",
    batch_size=32,
    iterations=1_000,  # 4.1 M tokens, ten passes; after thirty all are overfitted (docs/science/hmodel.md)
    learning_rate=3e-3,
    warmup=100,
    schedule="constant-linear",
    weight_decay=0.1,
    betas=(0.9, 0.95),
)

HMODEL_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name=SHIPPED, family="hmodel", model=_DEEP, **_TRAIN),
        Recipe(name=f"{SHIPPED}-wide", family="hmodel", model=_WIDE, **_TRAIN),
        # The paper's pooling: one c for the whole sequence, which tells every position of the tokens to come.
        Recipe(name=f"{SHIPPED}-sequence", family="hmodel", model=_DEEP.model_copy(update=_SEQUENCE), **_TRAIN),
        Recipe(name=f"{SHIPPED}-wide-sequence", family="hmodel", model=_WIDE.model_copy(update=_SEQUENCE), **_TRAIN),
        # Connections of a position by its own state instead of the mean up to it.
        Recipe(name=f"{SHIPPED}-last", family="hmodel", model=_DEEP.model_copy(update={"pooling": "last"}), **_TRAIN),
        Recipe(name=f"{SHIPPED}-mixed", family="hmodel", model=_DEEP.model_copy(update={"hidden": _MIXED}), **_TRAIN),
        Recipe(name="plain-languages-1", model=plain_transformer(_DEEP, 1), **_TRAIN),
        Recipe(name="plain-languages-6", model=plain_transformer(_DEEP, 6), **_TRAIN),
    )
}


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with their languages, sorted by language."""

    texts: tuple[str, ...]
    languages: tuple[str, ...]

    def corpus(self, tokenizer: TextTokenizer) -> TextCorpus:
        """One row of tokens; a window rarely crosses from one language into another."""
        parts = [
            part
            for ids in tokenizer.encode_batch(list(self.texts))
            for part in (ids, np.array([tokenizer.end_id], dtype=np.int32))
        ]
        return TextCorpus(torch.from_numpy(np.concatenate(parts)), tokenizer)


@dataclass(frozen=True)
class Languages:
    """What is trained on, the seeded tenth that is not, and the validation file."""

    train: LabelledTexts
    held_out: LabelledTexts
    val: LabelledTexts


def load_languages(data: Path) -> Languages:
    """Read the two files and hold out a tenth of each language.

    Raises:
        UserError: a file is missing, or a language has too few texts to hold one out.
    """
    train, val = (_read(data / _TRAIN[name]) for name in ("train_file", "val_file"))
    held: set[int] = set()
    rng = np.random.default_rng(SEED)
    for language in sorted(set(train.languages)):
        rows = np.flatnonzero(np.array(train.languages) == language)
        if len(rows) < 2:
            raise UserError(f"language {language!r} has {len(rows)} text; holding one out needs two", field="data")
        held.update(rng.permutation(rows)[: max(1, round(HELD_OUT * len(rows)))].tolist())
    return Languages(_rows(train, lambda i: i not in held), _rows(train, lambda i: i in held), val)


def _rows(texts: LabelledTexts, wanted: Callable[[int], bool]) -> LabelledTexts:
    rows = [i for i in range(len(texts.texts)) if wanted(i)]
    return LabelledTexts(tuple(texts.texts[i] for i in rows), tuple(texts.languages[i] for i in rows))


def _read(path: Path) -> LabelledTexts:
    rows = read_rows(path, "text", "language")
    pairs = sorted(((label_of(row, path, "language"), row.text or "") for row in rows), key=lambda p: p[0])
    return LabelledTexts(tuple(text for _, text in pairs), tuple(language for language, _ in pairs))


def tokenizer_for(
    languages: Languages, work: Path, vocab_size: int = _DEEP.vocab_size, given: Path | None = None
) -> TextTokenizer:
    """The tokenizer that is given, or the one in ``work``, trained on the training texts if there is none yet.

    Raises:
        UserError: these do not fill the vocabulary; or the training in ``work`` began with another tokenizer.
    """
    instead = ", or --tokenizer"
    train_own = lambda: trained_tokenizer(languages.train.texts, vocab_size, "the training file", instead)  # noqa: E731
    return kept_tokenizer(given or own_tokenizer(work, train_own), work, vocab_size)


def ship(run: TrainingRun, languages: Languages, tokenizer: TextTokenizer, out: Path, command: str) -> Path:
    """Export to ``out``, measure the export in float32 on both validation sets, write the card."""
    val, held_out = (part.corpus(tokenizer) for part in (languages.val, languages.held_out))
    finish(run, val, val, out, command)
    device = run.model.device
    numbers = evaluate(build_model(read_checkpoint(out), device), held_out, device)
    note(out, {"held_out": rounded(numbers)})
    return out


def write_card(folder: Path) -> Path:
    """``card.md`` from the checkpoint's configuration."""
    checkpoint = read_checkpoint(folder)
    config, training, numbers = checkpoint.config, checkpoint.training, checkpoint.validation
    recipe = training["recipe"]
    ours = is_of_shipped_data(training)
    with torch.device("meta"):
        params = sum(p.numel() for p in HModel(config).parameters())
    lines = [
        f"# {checkpoint.name}",
        "",
        f"An H-Model for {LANGUAGES if ours else 'several languages'}: {config.num_modules} "
        f"hidden layers ({', '.join(layer.kind for layer in config.hidden)}) that run {config.iterations} times and "
        f"choose by themselves which layers they send their state to; width {config.width}, {config.heads} heads, "
        f"connections by {config.pooling} pooling, α {config.alpha:g}, α_rate {config.alpha_rate:g}.",
        "",
        f"- weights: bfloat16 safetensors, {mebibytes(folder):.1f} MiB; {params / 1e6:.2f} M parameters",
        f"- data: `{recipe['train_file']}` without a seeded tenth of each language, which is held out, validated on "
        f"`{recipe['val_file']}`" + f": {SOURCES}" * ours,
        f"- command: `{training['command']}`",
        *recipe_lines(training, f" × {config.context} tokens"),
        *section("Validation"),
        "| | loss (nats) | perplexity | next-token accuracy | tokens |",
        "|---|---|---|---|---|",
        *(
            _row(name, row)
            for name, row in (
                ("held-out tenth" + ", six languages" * ours, numbers.get("held_out")),
                ("validation file" + ", five languages" * ours, numbers),
            )
            if row
        ),
        *_beside(numbers.get("beside")),
        *_routing(numbers.get("routing")),
        *section("Curve (on the held-out tenth)"),
        *curve(training, "mean_connection", "self_share"),
        *section("Limits"),
        "A small model for looking at routing, not for use: a context of 128 tokens, a vocabulary of 4 096"
        + (", 1.2 MB of training text." if ours else "."),
    ]
    return save_card(folder, lines)


def _row(name: str, row: dict[str, Any]) -> str:
    return f"| {name} | {row['loss']:.3f} | {row['perplexity']:.1f} | {row['accuracy']:.1%} | {row['count']:,} |"


def _beside(models: dict[str, Any] | None) -> list[str]:
    """Models of the same recipe, measured by ``benchmarks/hmodel.py``."""
    if not models:
        return []
    return [
        "",
        "Beside it, same batches, on the held-out tenth:",
        "",
        "| model | parameters | loss (nats) | accuracy |",
        "|---|---|---|---|",
        *(
            f"| {name} | {row['params'] / 1e6:.2f} M | {row['loss']:.3f} | {row['accuracy']:.1%} |"
            for name, row in models.items()
        ),
    ]


def _routing(numbers: dict[str, Any] | None) -> list[str]:
    if not numbers:
        return []
    distance, chain = numbers["distance"], numbers["chain"]
    return [
        *section("Routing"),
        f"On {numbers['texts']} held-out texts, untrained twin in brackets.",
        "",
        f"- distance of c between / within languages: {distance['ratio']:.2f} ({distance['untrained_ratio']:.2f}); "
        f"shuffled labels {distance['null_mean']:.2f}, p = {distance['p_value']:.3f}",
        f"- NMI of the strongest chain with the language: {chain['nmi']:.2f}, shuffled {chain['null_mean']:.2f}, "
        f"p = {chain['p_value']:.3f}",
        f"- self-connection share {numbers['self_share']:.3f} (all connections equal: "
        f"{numbers['equal_self_share']:.3f}); stability {numbers['stability']:.4f}",
    ]
