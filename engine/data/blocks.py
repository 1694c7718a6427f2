"""Batch boundaries that make tracing part of a data set exactly equal to tracing the whole.

A forward pass of another shape rounds differently, and a rounding can flip a routing decision. So no batch crosses
the end of a block of rows, blocks are counted from the first row of the data set, and shards consist of whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenpaths.engine.base.records import Modality
    from tokenpaths.engine.data.sources.sample import Sample

TEXT_BLOCK_BATCHES = 4
"""a batch of texts is full by its tokens, so it takes a block of several times as many rows to fill one"""


def block_rows(modality: Modality, batch_size: int) -> int:
    """Rows of a block: a batch of pictures, or four times as many texts."""
    return batch_size if modality == "vision" else TEXT_BLOCK_BATCHES * batch_size


def with_breaks(samples: Iterable[Sample], rows: int) -> Iterator[tuple[Sample, bool]]:
    """Each sample, and whether a block of ``rows`` rows ended before it; samples without place are counted."""
    last = None
    for position, sample in enumerate(samples):
        block = (position if sample.place is None else sample.place) // rows
        yield sample, last is not None and block != last
        last = block


def shard_rows(num_rows: int, rows: int, shard: int, of: int) -> tuple[int, int]:
    """(first, stop) of shard ``shard`` = 1 … ``of``: as many whole blocks as the others, give or take one.

    With fewer blocks than shards some are empty.
    """
    blocks = -(-num_rows // rows)
    first, stop = ((shard - 1 + i) * blocks // of * rows for i in (0, 1))
    return min(first, num_rows), min(stop, num_rows)
