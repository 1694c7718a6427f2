"""Flows and usage counted while tokens come, for ribbons of one slot: two passes less over the tokens at sealing.

The fast twin of the SQL in ``flows``: whole numbers, so that sums do not depend on the batches.

Shapes: n tokens, S steps, M modules.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.arrow_tables import CompactBatch

MOST_BYTES = 256 * 2**20
"""counters in memory; a run of more labels is counted in SQL when it is sealed"""


class Counts(NamedTuple):
    """Of one label: tokens of each link (S − 1, M, M), of each module (S, M), and the sum of their levels (S, M)."""

    links: np.ndarray
    tokens: np.ndarray
    levels: np.ndarray


class Visits:
    """Counts by label_id (−1: without a label), of a layout with one slot and linear weights."""

    def __init__(self, layout: Layout) -> None:
        assert layout.by_path, "levels of one slot are summed as whole numbers"
        self.num_steps, self.num_modules = layout.num_steps, layout.num_modules
        self.by_label: dict[int, Counts] = {}

    def add(self, label_ids: np.ndarray, batch: CompactBatch) -> Visits | None:
        """Count a batch, whose samples have ``label_ids``; None, and nothing is counted any more, beyond the bytes."""
        label_n = np.repeat(label_ids, batch.lengths)
        size, ids = self.num_modules, batch.ids[:, :, 0].astype(np.int64)
        for label in np.unique(label_ids).tolist():
            counts = self.by_label.get(label)
            if counts is None:
                shape = (self.num_steps, size)
                counts = Counts(
                    np.zeros((max(0, self.num_steps - 1), size, size), dtype=np.int64),
                    np.zeros(shape, dtype=np.int64),
                    np.zeros(shape, dtype=np.int64),
                )
                if (len(self.by_label) + 1) * sum(part.nbytes for part in counts) > MOST_BYTES:
                    return None
                self.by_label[label] = counts
            member = slice(None) if len(self.by_label) == 1 and len(np.unique(label_ids)) == 1 else label_n == label
            chosen, levels = ids[member], batch.weights[member]
            for step in range(self.num_steps):
                here = chosen[:, step]
                counts.tokens[step] += np.bincount(here, minlength=size)
                # Sums of whole numbers in float64 are exact below 2**53.
                counts.levels[step] += np.bincount(here, levels[:, step], minlength=size).astype(np.int64)
                if step + 1 < self.num_steps:
                    links = np.bincount(here * size + chosen[:, step + 1], minlength=size * size)
                    counts.links[step] += links.reshape(size, size)
        return self

    def total(self) -> Counts:
        """All tokens."""
        return Counts(*(np.sum(parts, axis=0) for parts in zip(*self.by_label.values(), strict=True)))
