"""The card of any checkpoint, by its family: what ``card.md`` beside the weights says, made from ``config.json``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tokenpaths.engine.models.checkpoint import read_checkpoint

WRITERS = {
    "dna": "tokenpaths.engine.train.finish",
    "hmodel": "tokenpaths.engine.train.train_hmodel",
    "dipaco": "tokenpaths.engine.train.dipaco.finish_dipaco",
    "directional": "tokenpaths.engine.train.train_directional",
    "raytracing": "tokenpaths.engine.train.train_raytracing",
}
"""module of each family that has ``write_card``"""


def write_card(folder: Path) -> Path:
    """Write ``card.md`` of the checkpoint in ``folder`` and return its path."""
    return import_module(WRITERS[read_checkpoint(folder).family]).write_card(folder)
