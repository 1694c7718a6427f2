"""Flows and usage of tokens whose weights are all equal, as of a log without any, counted while batches arrive.

Every sum is a whole number, so it does not depend on how tokens were cut into batches. Naive twin:
``flow_counter.FlowCounter``.

Shapes: n tokens, S steps, K slots, M modules.
"""

from __future__ import annotations

import duckdb
import numpy as np

from tokenpaths.engine.store.file.schema import ALL_LABELS, Layout
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, insert_columns

MOST_BYTES = 256 * 2**20
"""maximum bytes of counters; runs with more labels are counted at sealing"""
BLOCK_ROWS = 2048
"""tokens per matrix product: their matrices fit the processor's cache"""
_FIELD = 4096
"""two counts share a float32 with 24 bits, the second one times this"""
assert BLOCK_ROWS < _FIELD


class EvenFlows:
    """Counts by label_id (−1: without a label), for layouts with several slots."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.level: int | None = None
        """that of every weight; None before the first token"""
        self.links: dict[int, np.ndarray] = {}
        """label_id -> (S − 1, M, M) pairs of choices"""
        self.tokens: dict[int, np.ndarray] = {}
        """label_id -> (S, M) tokens of each module"""

    @classmethod
    def fits(cls, layout: Layout) -> bool:
        """Whether matrix products (M² work per pair of steps) are faster than counting the K² pairs of each token."""
        return layout.top_k > 1 and layout.num_modules**2 <= 256 * layout.top_k**2

    def add(self, label_ids: np.ndarray, batch: CompactBatch) -> EvenFlows | None:
        """Count a batch with these ``label_ids`` of samples; None if its weights differ, or there are too many labels
        for ``MOST_BYTES``: then all tokens are counted at sealing."""
        level = int(batch.weights.flat[0])
        if self.level not in (None, level) or not (batch.weights == level).all():
            return None
        self.level = level
        steps, size = self.layout.num_steps, self.layout.num_modules
        present = np.unique(label_ids).tolist()
        if len({*present, *self.tokens}) * 8 * (steps - 1) * size**2 > MOST_BYTES:
            return None
        label_n = np.repeat(label_ids, batch.lengths)
        for label in present:
            links = self.links.setdefault(label, np.zeros((steps - 1, size, size), dtype=np.int64))
            tokens = self.tokens.setdefault(label, np.zeros((steps, size), dtype=np.int64))
            ids = batch.ids if len(present) == 1 else batch.ids[label_n == label]
            for start in range(0, len(ids), BLOCK_ROWS):
                _count(ids[start : start + BLOCK_ROWS], links, tokens)
        return self

    def write(self, con: duckdb.DuckDBPyConnection) -> None:
        """Insert rows of ``flow`` and ``usage``: of all tokens, then of each label."""
        weight = float(self.layout.weights.decode(np.array([self.level or 0]))[0])
        labels = sorted(label for label in self.tokens if label >= 0)
        everything = (sum(self.links.values()), sum(self.tokens.values()))
        for label, (links, tokens) in [
            (ALL_LABELS, everything),
            *((label, (self.links[label], self.tokens[label])) for label in labels),
        ]:
            links, tokens = np.asarray(links), np.asarray(tokens)
            step, source, target = (place.astype(np.int32) for place in np.nonzero(links))
            # Each of the K² pairs of a token counts 1/K², as its weight does where all weights are equal.
            num = links[step, source, target] / self.layout.top_k**2
            label_id = np.full(len(num), label, dtype=np.int32)
            insert_columns(
                con,
                "flow",
                {"step": step, "source": source, "target": target, "count": num, "weight": num, "label_id": label_id},
            )
            step, module = (place.astype(np.int32) for place in np.nonzero(tokens))
            count = tokens[step, module]
            label_id = np.full(len(count), label, dtype=np.int32)
            insert_columns(
                con,
                "usage",
                {"step": step, "module": module, "count": count, "weight": count * weight, "label_id": label_id},
            )


def _count(ids: np.ndarray, links: np.ndarray, tokens: np.ndarray) -> None:
    """Add a block of ids (n, S, K) to the counts."""
    size = links.shape[-1]
    half = -(-size // 2)
    rows = np.arange(len(ids))[:, None] * (2 * half)
    ones = np.ones(len(ids), dtype=np.float32)
    before: np.ndarray | None = None
    for step in range(ids.shape[1]):
        chosen = np.zeros((len(ids), 2 * half), dtype=np.float32)
        chosen.reshape(-1)[(rows + ids[:, step]).reshape(-1)] = 1
        tokens[step] += (ones @ chosen)[:size].astype(np.int64)
        if before is not None:
            # Whole numbers below 2**24 are exact in float32: a product counts two modules at once.
            pairs = (before.T @ (chosen[:, :half] + _FIELD * chosen[:, half:])).astype(np.int64)
            links[step - 1, :, :half] += (pairs % _FIELD)[:size]
            links[step - 1, :, half:] += (pairs // _FIELD)[:size, : size - half]
        before = chosen
