"""Limits on what a configuration may ask for, so that a hostile or damaged one costs a sentence and not an hour.

A configuration is a file from somebody else. Building a model loops over some of its numbers before any weight is
compared, so those have limits of their own, far above every published model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 10_000_000
"""of anything: channels, words, positions"""
MOST_LOOPED = 4096
LOOPED = frozenset(
    {
        "backbone",
        "steps",
        "transformers",
        "attentions",
        "mlps",
        "identities",
        "iterations",
        "layers",
        "levels",
        "blocks",
        "path_blocks",
        "directions",
        "conv_channels",
        "input_neurons",
    }
)
"""fields whose numbers say how many modules are built, or how often they run"""
MOST_BLOCKS = 65_536
"""blocks a layer or level × layers or levels"""


def check_sizes(config: Mapping[str, Any]) -> None:
    """Do nothing for a configuration that can be built in seconds; else ValueError that names the field.

    >>> check_sizes({"steps": 20, "vocab_size": 50257})
    """
    for name, value in config.items():
        most = MOST_LOOPED if name in LOOPED else MOST
        for number in _numbers(value) if name != "seed" else ():
            if abs(number) > most:
                raise ValueError(f"{name}: {str(number)[:20]} is more than {most:,}, the most that is built here")
    deep = max([1, *_numbers(config.get("layers")), *_numbers(config.get("levels"))])
    wide = max([1, *_numbers(config.get("blocks"))])
    if deep * wide > MOST_BLOCKS:
        raise ValueError(f"blocks: {deep:,} × {wide:,} is more than {MOST_BLOCKS:,}, the most that is built here")


def _numbers(value: Any) -> list[int]:
    """The whole numbers in a field, lists of lists included."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int):
        return [value]
    return [number for one in value for number in _numbers(one)] if isinstance(value, (list, tuple)) else []
