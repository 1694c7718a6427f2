"""Checkpoints with numbers and a card: export, measurement of the exported weights, and what all cards share.

``card.md`` lies beside the weights and is generated from ``config.json`` by its family's ``write_card``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.families.checkpoint_config import CARD, CONFIG, TOKENIZER, WEIGHTS, read_checkpoint
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS, named_object
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.train.corpora import ImageCorpus, TextCorpus
from tokenpaths.engine.train.loop import TrainingRun, evaluate, export

ENGLISH = (
    "OLMoE routing-analysis texts: C4, books, Wikipedia, GitHub, arXiv; WikiText-2, GSM8K, HumanEval, Tiny "
    "Shakespeare, NLTK corpora"
)
"""sources of ``text/english_*.parquet``"""
SHIPPED_DATA = {
    "vision/cifar10_test.parquet": "64e24b99d84d7cf2699ffd59c7415f26b63c848690a83d7946af5d4004a17ed2",
    "vision/cifar10_train.parquet": "8a685a5d46fb484e1cec46fede4508c4f771075a431aa076f6f7052149624d97",
    "vision/tiny_imagenet_50_train.parquet": "318ca6f51e310ae8d7e0c6eb5d91db4d450b41add12bbb376d8df1307e6b8e89",
    "vision/tiny_imagenet_50_val.parquet": "3bd04ef72129ac90360b9a0a783a1d82460398926cc85ae3bd7118d371893660",
    "text/english_train.parquet": "3cc734332b724f5df659269f87e20090ddedca62340e454a8ea1dff52eb6e81b",
    "text/english_val.parquet": "979ae72b4676276bdf74b83e6c86c6c6fcd01a404049905b727747eb0d366cc2",
    "text/languages_train.parquet": "bfc8ba231cf1e9486b2eb9a98952ae1c7c1c431e5674dadd7bba678a70269558",
    "text/languages_val.parquet": "47f7e9518282590c24d01068780548a2e13d4c5d66583b0ee8a2dc2ff54995b8",
}
"""SHA-256 of the files that the shipped models were trained on"""


def finish(
    run: TrainingRun,
    train: ImageCorpus | TextCorpus,
    val: ImageCorpus | TextCorpus,
    out: Path,
    command: str,
    twin: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Export, read the export back, measure *it* on all validation data in float32, write the card.

    ``twin``: numbers of the dense twin (``dna_card.read_twin``). Returns the numbers measured.
    """
    classes = train.classes if isinstance(train, ImageCorpus) else ()
    export(run, out, classes, {}, command)
    if isinstance(train, TextCorpus):
        train.tokenizer.save(out / TOKENIZER)
    device = run.model.device
    numbers = rounded(evaluate(build_model(read_checkpoint(out), device), val, device))
    validation = numbers | {"file": run.recipe.val_file}
    note(out, validation if twin is None else validation | {"dense_twin": twin})
    return numbers


def note(folder: Path, validation: dict[str, Any]) -> None:
    """Add numbers to the checkpoint's validation, and write its card again."""
    about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    about["validation"] |= validation
    write_atomically(folder / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    write_card(folder)


def say_data(folder: Path, sums: Mapping[str, str]) -> None:
    """Keep in the checkpoint which files (SHA-256) it was trained on, and write its card again: somebody's own data of
    the same name is not what the shipped models saw."""
    about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    about["training"]["data"] = dict(sums)
    write_atomically(folder / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    write_card(folder)


def is_of_shipped_data(training: Mapping[str, Any]) -> bool:
    """Whether a checkpoint was trained on the files of the shipped models, whose sources a card can name."""
    sums: Mapping[str, str] = training.get("data") or {}
    return all(SHIPPED_DATA.get(file) == of for file, of in sums.items())


def write_card(folder: Path) -> Path:
    """Write ``card.md`` of the checkpoint in ``folder`` and return its path."""
    card: Path = named_object(FAMILY_CONTROLS[read_checkpoint(folder).family].CARD)(folder)
    return card


def save_card(folder: Path, lines: Sequence[str]) -> Path:
    """Write the lines as ``card.md``."""
    write_atomically(folder / CARD, "\n".join([*lines, ""]).encode())
    return folder / CARD


def section(title: str) -> list[str]:
    """The lines that begin a section of a card."""
    return ["", f"## {title}", ""]


def mebibytes(folder: Path) -> float:
    """Size of the checkpoint's weights."""
    return (folder / WEIGHTS).stat().st_size / 2**20


def recipe_lines(training: dict[str, Any], tokens: str = "") -> list[str]:
    """How a checkpoint was trained: length, machine, schedule and optimiser. ``tokens`` follows the batch size."""
    recipe = training["recipe"]
    return [
        f"- trained {training['iterations']:,} iterations of {recipe['batch_size']}{tokens} in "
        f"{spent(training['wall_seconds'])} on {training['machine']}, finished {training['date']}",
        f"- {recipe['schedule']} schedule, peak rate {recipe['learning_rate']:g}, AdamW {tuple(recipe['betas'])}, "
        f"weight decay {recipe['weight_decay']:g}, seed {recipe['seed']}",
    ]


def spent(seconds: int | float) -> str:
    """Minutes, in words."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minute{'s' * (minutes != 1)}"


def curve(training: dict[str, Any], *extra: str) -> list[str]:
    """Table of the training log: losses, and the columns ``extra`` where the log has them.

    The training loss is that of one batch, and left out where its labels were smoothed or mixed: it cannot stand beside
    a validation loss then.
    """
    recipe, history = training["recipe"], training["history"]
    altered = recipe.get("label_smoothing") or recipe.get("augment", {}).get("mix")
    columns = ("iteration", *(() if altered else ("train_loss",)), "val_loss", "val_accuracy", *extra)
    columns = tuple(column for column in columns if any(column in entry for entry in history))
    names = {"train_loss": "train loss (one batch)"}
    return [
        "| " + " | ".join(names.get(column, column.replace("_", " ")) for column in columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(str(entry.get(column, "–")) for column in columns) + " |" for entry in history),
    ]


def rounded(numbers: dict[str, Any]) -> dict[str, Any]:
    """The same with four decimals."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}
