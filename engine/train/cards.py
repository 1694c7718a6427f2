"""Checkpoints with numbers and a card: export, measurement of the exported weights, and what all cards share.

``card.md`` lies beside the weights and is generated from ``config.json`` by its family's ``write_card``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
