"""Rows of the soft tables: from the arrays of a batch to long tables, and their running sums by label.

Shapes: b samples, then the axes of the kind (``file.soft_tables``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.records import TraceBatch
from tokenpaths.engine.store.file.schema import ALL_LABELS
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES


def soft_arrays(batch: TraceBatch) -> dict[str, np.ndarray]:
    """The soft tables of a batch, as float32 copies."""
    arrays = {kind: getattr(batch, kind) for kind in SOFT_TABLES}
    return {kind: np.array(values, dtype=np.float32) for kind, values in arrays.items() if values is not None}


def soft_rows(kind: str, values: np.ndarray, first_sample: int) -> pa.Table:
    """Rows of the long table for (b, *axes) ``values``."""
    soft = SOFT_TABLES[kind]
    keep = np.nonzero(values) if soft.sparse else tuple(index.ravel() for index in np.indices(values.shape))
    columns: dict[str, np.ndarray] = {"sample": (keep[0] + first_sample).astype(np.int32)}
    columns |= {axis: keep[i + 1].astype(np.int16) for i, axis in enumerate(soft.axes)}
    return pa.table(columns | {soft.value: values[keep]})


class SoftSums:
    """Running count, sum and sum of squares of each kind, over all samples and by label."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._sums: dict[tuple[str, int], tuple[int, np.ndarray, np.ndarray]] = {}

    def add(self, kind: str, values: np.ndarray, label_ids: np.ndarray) -> None:
        """Add (b, *axes) values of samples with these labels (−1 = none)."""
        self.shapes[kind] = values.shape[1:]
        rows = values.reshape(len(values), -1).astype(np.float64)
        groups = {ALL_LABELS: np.ones(len(rows), dtype=bool)}
        groups |= {int(label): label_ids == label for label in np.unique(label_ids) if label >= 0}
        for label, member in groups.items():
            part = rows[member]
            self.add_part(kind, label, len(part), part.sum(axis=0), (part**2).sum(axis=0))

    def add_part(self, kind: str, label: int, num: int, sums: np.ndarray, sums_of_squares: np.ndarray) -> None:
        """Add the sums of ``num`` samples."""
        count, total, squares = self._sums.get((kind, label), (0, 0.0, 0.0))
        self._sums[kind, label] = (count + num, total + sums, squares + sums_of_squares)

    def parts(self) -> Iterator[tuple[str, int, int, np.ndarray, np.ndarray]]:
        """Arguments of ``add_part`` that give these sums."""
        for (kind, label), sums in self._sums.items():
            yield kind, label, *sums

    def write(self, con: duckdb.DuckDBPyConnection, axes: Mapping[str, tuple[str, ...]]) -> None:
        """Fill ``soft_shape``, ``soft_summary`` and ``axis``."""
        for kind, shape in self.shapes.items():
            con.executemany("INSERT INTO soft_shape VALUES (?, ?, ?)", [[kind, i, n] for i, n in enumerate(shape)])
        for axis, names in axes.items():
            con.executemany("INSERT INTO axis VALUES (?, ?, ?)", [[axis, i, name] for i, name in enumerate(names)])
        for (kind, label), (count, total, squares) in self._sums.items():
            mean = total / count
            std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
            size = len(mean)
            rows = pa.table(
                {
                    "kind": pa.array([kind] * size),
                    "label_id": np.full(size, label, dtype=np.int32),
                    "num_samples": np.full(size, count, dtype=np.int32),
                    "place": np.arange(size, dtype=np.int32),
                    "mean": mean,
                    "std": std,
                }
            )
            con.register("incoming", rows)
            con.execute("INSERT INTO soft_summary BY NAME SELECT * FROM incoming")
            con.unregister("incoming")
