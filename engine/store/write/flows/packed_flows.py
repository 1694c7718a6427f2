"""Flows and usage of packed ribbons, by matrix products: the choices of a step as a 0/1 matrix (tokens × modules), so
that the links between two steps are a product.

Shapes: n tokens, S steps, K slots, M modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np

from tokenpaths.engine.store.file.flow_counter import TICKS, columns_sql, even_shares, read_chunks, ribbons_of
from tokenpaths.engine.store.file.schema import ALL_LABELS, Layout
from tokenpaths.engine.store.file.weight_codes import TOP_LEVEL

BLOCK_ROWS = 4096
"""tokens per matrix product: their matrices fit the processor's cache"""
COUNTER_BYTES = 512 * 2**20
"""bytes of counter grids in memory; more labels are counted in several passes"""


def fits(layout: Layout) -> bool:
    """Whether matrix products are faster (M² work per pair of steps, K² per token otherwise) and their grids small."""
    return layout.num_modules**2 <= 256 * layout.top_k**2 and _grid_bytes(layout) * 2 <= COUNTER_BYTES


def _grid_bytes(layout: Layout) -> int:
    return 16 * (layout.num_steps - 1) * layout.num_modules**2


def labels_at_once(layout: Layout) -> int:
    """Number of labels that one pass can count in addition to all tokens."""
    return max(1, COUNTER_BYTES // max(1, _grid_bytes(layout)) - 1)


class PackedFlows:
    """Counts of links and modules by matrix products; the same result as ``FlowCounter``."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        grid = (layout.num_steps - 1, layout.num_modules, layout.num_modules)
        self._varies = layout.unused_from is not None
        self._pairs, self._weight = np.zeros(grid, dtype=np.int64), np.zeros(grid)
        self._whole = float(TICKS if self._varies else layout.top_k**2)
        """what a token counts in ``_pairs``"""
        self._usage = np.zeros((layout.num_steps, layout.num_modules), dtype=np.int64)
        self._usage_ticks = np.zeros((layout.num_steps, layout.num_modules), dtype=np.int64)

    def add(self, ids: np.ndarray, levels: np.ndarray) -> None:
        """Count tokens with ribbons ``ids`` (n, S, K) and 8-bit weights ``levels`` (n, S, K)."""
        size, num_levels = self.layout.num_modules, TOP_LEVEL + 1
        ticks_of_level = np.rint(self.layout.weights.decode(np.arange(num_levels)) * TICKS).astype(np.int64)
        for step in range(self.layout.num_steps):
            codes = ids[:, step].astype(np.int64) * num_levels + levels[:, step]
            counts = np.bincount(codes.reshape(-1), minlength=size * num_levels).reshape(size, num_levels)
            self._usage[step] += counts.sum(axis=1)
            self._usage_ticks[step] += counts @ ticks_of_level
        for start in range(0, len(ids), BLOCK_ROWS):
            self._add_block(ids[start : start + BLOCK_ROWS], levels[start : start + BLOCK_ROWS])

    def add_counts(self, other: PackedFlows) -> None:
        """Add the counts of ``other``."""
        for name in ("_pairs", "_weight", "_usage", "_usage_ticks"):
            getattr(self, name).__iadd__(getattr(other, name))

    def _add_block(self, ids: np.ndarray, levels: np.ndarray) -> None:
        num_modules = self.layout.num_modules
        # Equal weights (a log without any, above all): each of the K² pairs has the weight that it counts.
        even = not self._varies and bool((levels == levels[:, :, :1]).all())
        even_nSK = even_shares(ids, self.layout)
        rows = np.arange(len(ids))[:, None] * num_modules
        chosen_before: Any = None
        shares_before: Any = None
        for step in range(self.layout.num_steps):
            places = (rows + ids[:, step]).reshape(-1)
            each = even_nSK[:, step].reshape(-1) if self._varies else 1.0
            chosen = _matrix(places, each, len(ids), num_modules)
            shares = None
            if not even:
                weights = self.layout.weights.decode(levels[:, step])
                shares = _matrix(places, _shares(weights, even_nSK[:, step]), len(ids), num_modules)
            if chosen_before is not None:
                # Whole numbers below 2**24 are exact in float32.
                pairs = chosen_before.T @ chosen
                self._pairs[step - 1] += (np.rint(pairs * TICKS) if self._varies else pairs).astype(np.int64)
                product = pairs / self._whole if even else shares_before.T @ shares
                self._weight[step - 1] += product
            chosen_before, shares_before = chosen, shares

    def flow_arrays(self) -> dict[str, np.ndarray]:
        """Columns step, source, target, count and weight of the links."""
        step, source, target = places = np.nonzero(self._pairs)
        count, weight = self._pairs[places] / self._whole, self._weight[places]
        return {"step": step, "source": source, "target": target, "count": count, "weight": weight}

    def usage_rows(self) -> list[tuple[int, int, int, float]]:
        """Rows (step, module, count, weight) of the modules chosen at least once."""
        return [
            (int(step), int(module), int(self._usage[step, module]), float(self._usage_ticks[step, module] / TICKS))
            for step, module in np.argwhere(self._usage)
        ]


def _matrix(places: np.ndarray, values: float | np.ndarray, num_rows: int, num_modules: int) -> np.ndarray:
    """(n, M) matrix with ``values`` at flat ``places``, 0 elsewhere; single precision for integers."""
    dtype = np.float32 if isinstance(values, float) else np.float64
    matrix = np.zeros(num_rows * num_modules, dtype=dtype)
    matrix[places] = values
    return matrix.reshape(num_rows, num_modules)


def _shares(weights: np.ndarray, even: np.ndarray) -> np.ndarray:
    """Share (n·K,) of each slot in its step's weight; that of ``even`` where all weights of the step round to zero."""
    totals = weights.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.where(totals == 0, even, weights / np.where(totals == 0, 1, totals)).reshape(-1)
    return shares


def count_packed(
    con: duckdb.DuckDBPyConnection, layout: Layout, label_ids: list[int]
) -> Iterator[tuple[int, PackedFlows]]:
    """Counters of all tokens (label ``ALL_LABELS``) and of each label, over table ``token``."""
    per_pass = labels_at_once(layout)
    parts = [label_ids[start : start + per_pass] for start in range(0, len(label_ids), per_pass)] or [[]]
    for number, part in enumerate(parts):
        counters = {label_id: PackedFlows(layout) for label_id in part}
        others = PackedFlows(layout) if number == 0 else None
        for labels, ids, levels in packed_chunks(con, layout):
            for label_id in np.unique(labels).tolist():
                counter = counters.get(label_id, others)
                if counter is not None:
                    member = labels == label_id
                    counter.add(*((ids, levels) if member.all() else (ids[member], levels[member])))
        if others is not None:
            for counter in counters.values():
                others.add_counts(counter)
            yield ALL_LABELS, others
        yield from counters.items()


def packed_chunks(
    con: duckdb.DuckDBPyConnection, layout: Layout
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """label_id (n,), −1 = none, ids (n, S, K) and levels (n, S, K) of all tokens, chunk by chunk."""
    sql = f"SELECT coalesce(label_id, -1) AS label_id, {columns_sql(layout)} FROM token"
    for labels, *columns in read_chunks(con, sql, layout):
        yield labels.to_numpy(), *ribbons_of(layout, columns)
