"""What soft, gated and threshold routers say beyond ribbons: tables ``edge``, ``gate`` and ``block``.

One row a sample and number; ``soft_summary`` holds mean and standard deviation over the samples, of all
and of each label, so that a page never scans the long tables. Zeros of ``block`` are left out: a silent
block has no rate.

Shapes: b samples; I iterations, A sources, Z targets; L layers, H heads, D directions; R threshold steps,
P blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.records import TraceBatch
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.schema import ALL_LABELS


@dataclass(frozen=True)
class SoftTable:
    """Where one kind of soft decision lies."""

    kind: str
    """name in ``TraceBatch`` and in the REST API"""
    table: str
    axes: tuple[str, ...]
    value: str
    sparse: bool = False

    @property
    def create(self) -> str:
        """SQL of the long table."""
        columns = ", ".join(f"{axis} SMALLINT" for axis in self.axes)
        return f"CREATE TABLE {self.table} (sample INTEGER, {columns}, {self.value} FLOAT);\n"


SOFT_TABLES: dict[str, SoftTable] = {
    soft.kind: soft
    for soft in (
        SoftTable("edges", "edge", ("iteration", "source", "target"), "weight"),
        SoftTable("gates", "gate", ("layer", "head", "direction"), "weight"),
        SoftTable("blocks", "block", ("threshold_step", "block"), "rate", sparse=True),
    )
}
CREATE_SOFT = "".join(soft.create for soft in SOFT_TABLES.values()) + (
    "CREATE TABLE axis (axis VARCHAR, position INTEGER, name VARCHAR);\n"
    "CREATE TABLE soft_shape (kind VARCHAR, position INTEGER, size INTEGER);\n"
    "CREATE TABLE soft_summary (kind VARCHAR, label_id INTEGER, num_samples INTEGER, place INTEGER, "
    "mean DOUBLE, std DOUBLE);\n"
    "CREATE TABLE finding (name VARCHAR, answer VARCHAR);\n"
)


def soft_arrays(batch: TraceBatch) -> dict[str, np.ndarray]:
    """The soft tables that a batch carries, as float32 copies."""
    found = {kind: getattr(batch, kind) for kind in SOFT_TABLES}
    return {kind: np.array(values, dtype=np.float32) for kind, values in found.items() if values is not None}


def soft_rows(kind: str, values: np.ndarray, first_sample: int) -> pa.Table:
    """Rows of the long table for (b, *axes) ``values``."""
    soft = SOFT_TABLES[kind]
    keep = np.nonzero(values) if soft.sparse else tuple(index.ravel() for index in np.indices(values.shape))
    columns: dict[str, np.ndarray] = {"sample": (keep[0] + first_sample).astype(np.int32)}
    columns |= {axis: keep[i + 1].astype(np.int16) for i, axis in enumerate(soft.axes)}
    return pa.table(columns | {soft.value: values[keep]})


class SoftSums:
    """Running count, sum and sum of squares of each kind, of all samples and of each label."""

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
            count, total, squares = self._sums.get((kind, label), (0, 0.0, 0.0))
            part = rows[member]
            self._sums[kind, label] = (count + len(part), total + part.sum(axis=0), squares + (part**2).sum(axis=0))

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


def read_shapes(cursor: duckdb.DuckDBPyConnection) -> tuple[dict[str, tuple[int, ...]], dict[str, list[str]]]:
    """Shape of each kind that the run holds, and the names along its axes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for kind, size in cursor.execute("SELECT kind, size FROM soft_shape ORDER BY kind, position").fetchall():
        shapes[kind] = (*shapes.get(kind, ()), size)
    names: dict[str, list[str]] = {}
    for axis, name in cursor.execute("SELECT axis, name FROM axis ORDER BY axis, position").fetchall():
        names.setdefault(axis, []).append(name)
    return shapes, names


def finding_rows() -> Query:
    """name, answer (JSON)."""
    return Query("SELECT name, answer FROM finding ORDER BY name")


def summary_rows(kind: str, label_id: int | None) -> Query:
    """num_samples, mean, std in the order of the flattened axes."""
    label = ALL_LABELS if label_id is None else label_id
    return Query(
        "SELECT num_samples, mean, std FROM soft_summary WHERE kind = ? AND label_id = ? ORDER BY place", (kind, label)
    )


def sample_rows(kind: str, sample: int) -> Query:
    """The axes and the value of one sample."""
    soft = SOFT_TABLES[kind]
    columns = ", ".join([*soft.axes, soft.value])
    return Query(f"SELECT {columns} FROM {soft.table} WHERE sample = ? ORDER BY ALL", (sample,))


def all_rows(kind: str) -> Query:
    """sample, the axes and the value of every sample."""
    soft = SOFT_TABLES[kind]
    return Query(f"SELECT sample, {', '.join(soft.axes)}, {soft.value} FROM {soft.table}")


def dense(columns: Mapping[str, np.ndarray], kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array of ``shape`` (axes of the kind) that the rows of one sample spell out."""
    soft = SOFT_TABLES[kind]
    values = np.zeros(shape, dtype=np.float32)
    values[tuple(columns[axis] for axis in soft.axes)] = columns[soft.value]
    return values


def soft_answer(kind: str, shape: tuple[int, ...], names: Mapping[str, list[str]], **values: Any) -> dict[str, Any]:
    """kind, axes with their names, and the nested values."""
    soft = SOFT_TABLES[kind]
    axes = [
        {"axis": axis, "names": names.get(axis) or [str(i) for i in range(size)]}
        for axis, size in zip(soft.axes, shape, strict=True)
    ]
    return {"kind": kind, "axes": axes, **values}
