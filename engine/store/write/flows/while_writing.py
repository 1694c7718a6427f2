"""Flows and usage counted while a run is written: of one slot (``Visits``), and of several slots of equal weights
(``EvenFlows``).

Shapes: n tokens, S steps, K slots, M modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import duckdb
import numpy as np

from tokenpaths.engine.analysis.compiled.loops import Loops, loops
from tokenpaths.engine.store.file.schema import ALL_LABELS, Layout
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, insert_columns

MOST_BYTES = 256 * 2**20
"""maximum bytes of counters while writing; runs with more labels are counted in SQL at sealing"""
EVEN_ROWS = 2048
"""the same where two counts share a number"""
MOST_BESIDE = 8
"""samples in so many tokens up to which their visits are counted by products, too"""
_FIELD = 4096
"""two counts below it share a float32 with 24 bits, the second one times this"""


class Counts(NamedTuple):
    """Counts of one label: tokens of each link (S − 1, M, M), of each module (S, M), and summed levels (S, M)."""

    links: np.ndarray
    tokens: np.ndarray
    levels: np.ndarray


class Visits:
    """Counts by label_id (−1: without a label), for layouts with one slot and linear weights."""

    def __init__(self, layout: Layout) -> None:
        assert layout.by_path, "levels of one slot are summed as whole numbers"
        self.num_steps, self.num_modules, self._whole = layout.num_steps, layout.num_modules, layout.weights.whole
        self._stop = layout.num_modules if layout.unused_from is None else layout.unused_from
        """the ids below it are modules: unused slots have no links"""
        self.by_label: dict[int, Counts] = {}
        self._num_tokens = 0

    def add(self, label_ids: np.ndarray, batch: CompactBatch) -> Visits | None:
        """Count a batch with these ``label_ids`` of samples; None once the counters would exceed ``MOST_BYTES``."""
        lengths = batch.lengths
        self._num_tokens += batch.num_tokens
        compiled = loops(batch.ids.dtype, self._num_tokens)
        present, ends = np.unique(label_ids).tolist(), np.cumsum(lengths)
        for label in present:
            counts = self._of(label)
            if counts is None:
                return None
            if compiled is not None:
                own = label_ids == label
                ids, levels = (np.ascontiguousarray(of) for of in (batch.ids[:, :, 0], batch.weights))
                compiled.count_chains(ids, levels, (ends - lengths)[own], ends[own], self._stop, *counts)
                continue
            member = slice(None) if len(present) == 1 else np.repeat(label_ids, lengths) == label
            self._count(batch.ids[member, :, 0].astype(np.int64), batch.weights[member], counts)
        return self

    def _of(self, label: int) -> Counts | None:
        """The counters of a label; None if they would exceed ``MOST_BYTES``."""
        if label not in self.by_label:
            shape = (self.num_steps, self.num_modules)
            counts = Counts(
                np.zeros((max(0, self.num_steps - 1), self.num_modules, self.num_modules), dtype=np.int64),
                np.zeros(shape, dtype=np.int64),
                np.zeros(shape, dtype=np.int64),
            )
            if (len(self.by_label) + 1) * sum(part.nbytes for part in counts) > MOST_BYTES:
                return None
            self.by_label[label] = counts
        return self.by_label[label]

    def plus(self, of_labels: dict[int, Counts]) -> Visits | None:
        """Add counts of other tokens; None as in ``add``."""
        for label, more in of_labels.items():
            counts = self._of(label)
            if counts is None:
                return None
            for own, added in zip(counts, more, strict=True):
                own += added
        return self

    def _count(self, ids: np.ndarray, levels: np.ndarray, counts: Counts) -> None:
        """Add tokens with ``ids`` and ``levels`` (n, S)."""
        size, modules = self.num_modules, (slice(self._stop), slice(self._stop))
        for step in range(self.num_steps):
            here = ids[:, step]
            counts.tokens[step] += np.bincount(here, minlength=size)
            # Sums of whole numbers in float64 are exact below 2**53.
            counts.levels[step] += np.bincount(here, levels[:, step], minlength=size).astype(np.int64)
            if step + 1 < self.num_steps:
                links = np.bincount(here * size + ids[:, step + 1], minlength=size * size)
                counts.links[step][modules] += links.reshape(size, size)[modules]

    def total(self) -> Counts:
        """All tokens."""
        return Counts(*(np.sum(parts, axis=0) for parts in zip(*self.by_label.values(), strict=True)))

    def write(self, con: duckdb.DuckDBPyConnection) -> None:
        """Insert rows of ``flow`` and ``usage``: of all tokens, then of each label."""
        of_labels = [(label, counts) for label, counts in sorted(self.by_label.items()) if label >= 0]
        for label, counts in [(ALL_LABELS, self.total()), *of_labels]:
            insert_grids(con, label, counts.links, 1, counts.tokens, counts.levels / self._whole)


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
        self.of_samples: np.ndarray | None = None
        """(B, S, M) visits of the samples of the last batch, unless they are short: then that took longer"""
        self._num_tokens = 0
        half = -(-layout.num_modules // 2)
        self._chosen = np.empty((2, EVEN_ROWS, 2 * half), dtype=np.float32)
        self._packed = np.empty((EVEN_ROWS, half), dtype=np.float32)

    @classmethod
    def fits(cls, layout: Layout) -> bool:
        """Whether matrix products (M² work per pair of steps) are faster than counting the K² pairs of each token.

        Where k varies the pairs of a token do not count alike.
        """
        return layout.unused_from is None and layout.top_k > 1 and layout.num_modules**2 <= 256 * layout.top_k**2

    def add(self, label_ids: np.ndarray, batch: CompactBatch) -> EvenFlows | None:
        """Count a batch with these ``label_ids`` of samples; None if its weights differ, or there are too many labels
        for ``MOST_BYTES``: then all tokens are counted at sealing."""
        level = int(batch.weights.flat[0])
        one = not any(batch.weights.strides)
        if not (one or (batch.weights == level).all()):
            return None
        steps, size = self.layout.num_steps, self.layout.num_modules
        present = np.unique(label_ids).tolist()
        if not self._takes(level, present):
            return None
        label_n, sample_n = (np.repeat(of, batch.lengths) for of in (label_ids, np.arange(len(label_ids))))
        long = len(label_ids) * EVEN_ROWS <= MOST_BESIDE * batch.num_tokens
        self.of_samples = np.zeros((len(label_ids), steps, size), dtype=np.int64) if long else None
        self._num_tokens += batch.num_tokens
        compiled = loops(batch.ids.dtype, self._num_tokens)
        for label in present:
            links = self.links.setdefault(label, np.zeros((steps - 1, size, size), dtype=np.int64))
            tokens = self.tokens.setdefault(label, np.zeros((steps, size), dtype=np.int64))
            member = slice(None) if len(present) == 1 else label_n == label
            ids, owners = batch.ids[member], sample_n[member]
            if compiled is not None:
                self._count_compiled(compiled, ids, owners, links, tokens, label_ids == label)
                continue
            for start in range(0, len(ids), EVEN_ROWS):
                part = slice(start, start + EVEN_ROWS)
                self._count(ids[part], owners[part], links, tokens)
        return self

    def _takes(self, level: int, labels: Iterable[int]) -> bool:
        """Whether tokens with weights of this level and these labels can be counted, too."""
        if self.level not in (None, level):
            return False
        self.level = level
        steps, size = self.layout.num_steps, self.layout.num_modules
        return len({*labels, *self.tokens}) * 8 * (steps - 1) * size**2 <= MOST_BYTES

    def plus(self, level: int, links: dict[int, np.ndarray], tokens: dict[int, np.ndarray]) -> EvenFlows | None:
        """Add counts by label of other tokens; None as in ``add``."""
        if not self._takes(level, tokens):
            return None
        for label in tokens:
            self.links[label] = self.links.get(label, 0) + links[label]
            self.tokens[label] = self.tokens.get(label, 0) + tokens[label]
        return self

    def _count_compiled(
        self,
        compiled: Loops,
        ids: np.ndarray,
        sample_n: np.ndarray,
        links: np.ndarray,
        tokens: np.ndarray,
        samples_B: np.ndarray,
    ) -> None:
        """``_count`` for all tokens of a label, whose samples are ``samples_B`` (B,) bool."""
        compiled.count_links(ids, links)
        if self.of_samples is None:
            compiled.count_visits(ids, np.zeros(len(ids), dtype=np.int64), tokens[None])
            return
        compiled.count_visits(ids, sample_n, self.of_samples)
        tokens += self.of_samples[samples_B].sum(axis=0)

    def _count(self, ids: np.ndarray, sample_n: np.ndarray, links: np.ndarray, tokens: np.ndarray) -> None:
        """Add a block of ids (n, S, K) of these samples (n,) to the counts."""
        size, half = links.shape[-1], self._packed.shape[1]
        rows = np.arange(len(ids))[:, None] * (2 * half)
        samples, owner_n = np.unique(sample_n, return_inverse=True) if self.of_samples is not None else ([0], 0)
        owned = np.zeros((len(samples), len(ids)), dtype=np.float32)
        owned[owner_n, np.arange(len(ids))] = 1
        packed = self._packed[: len(ids)]
        for step in range(ids.shape[1]):
            before, chosen = self._chosen[(step + 1) % 2, : len(ids)], self._chosen[step % 2, : len(ids)]
            chosen[:] = 0
            chosen.reshape(-1)[(rows + ids[:, step]).reshape(-1)] = 1
            # Whole numbers below 2**24 are exact in float32.
            visits = (owned @ chosen)[:, :size].astype(np.int64)
            tokens[step] += visits.sum(axis=0)
            if self.of_samples is not None:
                self.of_samples[samples, step] += visits
            if step:
                # A product counts two modules at once.
                np.multiply(chosen[:, half:], np.float32(_FIELD), out=packed)
                packed += chosen[:, :half]
                pairs = before.T @ packed
                high = np.floor(pairs / np.float32(_FIELD))
                pairs -= high * np.float32(_FIELD)
                links[step - 1, :, :half] += pairs[:size].astype(np.int64)
                links[step - 1, :, half:] += high[:size, : size - half].astype(np.int64)

    def write(self, con: duckdb.DuckDBPyConnection) -> None:
        """Insert rows of ``flow`` and ``usage``: of all tokens, then of each label."""
        weight = float(self.layout.weights.decode(np.array([self.level or 0]))[0])
        labels = sorted(label for label in self.tokens if label >= 0)
        everything = (sum(self.links.values()), sum(self.tokens.values()))
        for label, (links, tokens) in [
            (ALL_LABELS, everything),
            *((label, (self.links[label], self.tokens[label])) for label in labels),
        ]:
            tokens = np.asarray(tokens)
            insert_grids(con, label, np.asarray(links), self.layout.top_k**2, tokens, tokens * weight)


def insert_grids(
    con: duckdb.DuckDBPyConnection, label: int, links: np.ndarray, pairs: int, tokens: np.ndarray, weights: np.ndarray
) -> None:
    """Insert the rows of a label in ``flow``, by ``links`` (S − 1, M, M) of which a token counts ``pairs``, and in
    ``usage``, by ``tokens`` (S, M) and their summed ``weights`` (S, M)."""
    step, source, target = (place.astype(np.int32) for place in np.nonzero(links))
    # Each of the pairs of a token counts alike, as its weight does where all weights are equal.
    num = links[step, source, target] / pairs
    label_id = np.full(len(num), label, dtype=np.int32)
    flows = {"step": step, "source": source, "target": target, "count": num, "weight": num, "label_id": label_id}
    insert_columns(con, "flow", flows)
    step, module = (place.astype(np.int32) for place in np.nonzero(tokens))
    count, weight = tokens[step, module], weights[step, module]
    label_id = np.full(len(count), label, dtype=np.int32)
    usage = {"step": step, "module": module, "count": count, "weight": weight, "label_id": label_id}
    insert_columns(con, "usage", usage)
