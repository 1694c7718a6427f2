"""The card of any checkpoint, by its family: what ``card.md`` beside the weights says, made from ``config.json``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from engine.checkpoint import read_checkpoint

WRITERS = {
    "dna": "engine.train.finish",
    "hmodel": "engine.train.hmodel",
    "dipaco": "engine.train.dipaco_finish",
    "directional": "engine.train.directional",
    "raytracing": "engine.train.raytracing",
}
"""module of each family that has ``write_card``"""


def write_card(folder: Path) -> Path:
    """Write ``card.md`` of the checkpoint in ``folder`` and return its path."""
    return import_module(WRITERS[read_checkpoint(folder).family]).write_card(folder)
