"""Losses of one recipe trained under other seeds and lengths, from the cards that each training wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import CONFIG, read_checkpoint

NUMBERS = ("loss", "accuracy", "perplexity", "count")


def read_trainings(folder: Path, names: Iterable[str], part: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """By recipe, a row a checkpoint in ``folder``: iterations, seed, machine, and what it measured of itself.

    ``part`` names the validation set where there are several; the recipe's is kept below ``val``. ``lowest`` is the
    evaluation with the lowest loss during the training, ``train_loss`` that of the last batch. Sorted by length, then
    by seed.

    Raises:
        UserError: two checkpoints are of one recipe, seed and length.
    """
    found: dict[str, dict[tuple[int, int], dict[str, Any]]] = {name: {} for name in names}
    for file in sorted(folder.glob(f"*/{CONFIG}")):
        checkpoint = read_checkpoint(file.parent)
        training = checkpoint.training
        name, seed, length = training["recipe"]["name"], training["recipe"]["seed"], training["iterations"]
        if name not in found:
            continue
        if (length, seed) in found[name]:
            raise UserError(f"{file.parent.name}: {name} under seed {seed}, {length:,} iterations, is there twice")
        numbers = checkpoint.validation[part] if part else checkpoint.validation
        told = {key: training[key] for key in ("machine", "wall_seconds", "command")}
        row = {"iterations": length, "seed": seed} | told
        history = training["history"]
        lowest = min(history, key=lambda entry: entry["val_loss"])
        found[name][length, seed] = row | _numbers(numbers)
        found[name][length, seed]["lowest"] = {key: lowest[key] for key in ("iteration", "val_loss")}
        if "train_loss" in history[-1]:
            found[name][length, seed]["train_loss"] = history[-1]["train_loss"]
        if part:
            found[name][length, seed]["val"] = _numbers(checkpoint.validation)
    return {name: [row for _, row in sorted(rows.items())] for name, rows in found.items() if rows}


def _numbers(measured: dict[str, Any]) -> dict[str, Any]:
    return {key: measured[key] for key in NUMBERS if key in measured}
