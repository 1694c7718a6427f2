"""Reads a shard back batch by batch, as its writer received it.

Shapes: n tokens of a batch, b samples, S steps, K slots, V = S·K, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenpaths.engine.base.records import SampleRecord
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.file.shard_format import Manifest
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS
from tokenpaths.engine.store.write.arrow_tables import WHOLE_COLUMNS, CompactBatch
from tokenpaths.engine.store.write.shard_writer import ribbon_names

TOKEN_ROWS = 65_536
SAMPLE_ROWS = 64
"""samples decoded at once: each may hold a picture"""
TWIN_ROWS = 262_144
"""rows of ribbons alone"""


def read_batches(folder: Path, manifest: Manifest, layout: Layout) -> Iterator[CompactBatch]:
    """The batches of a shard, in order. Parquet errors are raised as Arrow's exceptions."""
    tokens, samples = _Rows(folder / "token.parquet", TOKEN_ROWS), _Rows(folder / "sample.parquet", SAMPLE_ROWS)
    soft = {kind: _Rows(folder / f"{SOFT_TABLES[kind].table}.parquet", TOKEN_ROWS) for kind in manifest.shapes}
    first_sample = 0
    for cut in _batch_rows(folder / "batch.parquet"):
        of_tokens, of_samples = tokens.take(cut["tokens"]), samples.take(cut["samples"])
        n, stop = cut["tokens"], first_sample + cut["samples"]
        columns = {name: of_tokens.column(name).combine_chunks() for name in of_tokens.column_names}
        yield CompactBatch(
            samples=[_record(row) for row in of_samples.to_pylist()],
            ids=_ribbons(columns, layout).reshape(n, layout.num_steps, layout.top_k),
            weights=_levels(columns, layout),
            gate_entropy=_floats(columns["gate_entropy"]),
            entropy_sums=_entropy_sums(cut, layout.num_steps),
            flops=_floats(columns["flops"]),
            loss=_floats(columns["loss"]),
            whole={name: _whole(columns[name]) for name in WHOLE_COLUMNS if name in columns},
            soft={
                kind: _soft(rows.take_below(stop), kind, (cut["samples"], *manifest.shapes[kind]), first_sample)
                for kind, rows in soft.items()
            },
            margins=_margins(columns, layout),
        )
        first_sample = stop


def read_ribbons(folder: Path, layout: Layout) -> Iterator[np.ndarray]:
    """Ribbons (n, S, K) of the tokens of a shard, in order, without anything else of them."""
    file = pq.ParquetFile(folder / "token.parquet")
    for rows in file.iter_batches(TWIN_ROWS, columns=ribbon_names(layout)):
        columns = {name: rows.column(name) for name in rows.schema.names}
        yield _ribbons(columns, layout).reshape(-1, layout.num_steps, layout.top_k)


def read_twin(folder: Path, manifest: Manifest, layout: Layout) -> Iterator[np.ndarray]:
    """Ribbons (n, S, K) of the untrained twin, in token order."""
    if "twin.parquet" not in manifest.files:
        return
    for rows in pq.ParquetFile(folder / "twin.parquet").iter_batches(TWIN_ROWS):
        columns = {name: rows.column(name) for name in rows.schema.names}
        yield _ribbons(columns, layout).reshape(-1, layout.num_steps, layout.top_k)


class _Rows:
    """Sequential reader of a Parquet file with few rows in memory."""

    def __init__(self, file: Path, at_once: int) -> None:
        self._parts = pq.ParquetFile(file).iter_batches(at_once)
        self._held: pa.Table | None = None

    def _more(self) -> bool:
        part = next(self._parts, None)
        if part is None:
            return False
        held = [self._held] if self._held is not None and self._held.num_rows else []
        self._held = pa.concat_tables([*held, pa.Table.from_batches([part])])
        return True

    def take(self, num_rows: int) -> pa.Table:
        """The next ``num_rows`` rows."""
        while self._held is None or self._held.num_rows < num_rows:
            if not self._more():
                raise pa.ArrowInvalid("the file has fewer rows than its batches")
        return self._cut(num_rows)

    def take_below(self, stop: int) -> pa.Table | None:
        """The next rows with ``sample`` below ``stop``; None if there are none."""
        while self._held is None or not self._held.num_rows or self._held.column("sample")[-1].as_py() < stop:
            if not self._more():
                break
        if self._held is None:
            return None
        return self._cut(int(np.searchsorted(self._held.column("sample").to_numpy(), stop)))

    def _cut(self, num_rows: int) -> pa.Table:
        assert self._held is not None
        rows, self._held = self._held.slice(0, num_rows), self._held.slice(num_rows)
        return rows


def _batch_rows(file: Path) -> Iterator[dict[str, Any]]:
    for rows in pq.ParquetFile(file).iter_batches(SAMPLE_ROWS):
        yield from rows.to_pylist()


def _record(row: dict[str, Any]) -> SampleRecord:
    rows, cols = row["grid_rows"], row["grid_cols"]
    return SampleRecord(
        num_tokens=row["num_tokens"],
        label=row["label"],
        prediction=row["prediction"],
        confidence=row["confidence"],
        loss=row["loss"],
        text=row["text"],
        image=row["image"],
        grid=None if rows is None else (rows, cols),
        source=row["source"],
    )


def _ribbons(columns: dict[str, pa.Array], layout: Layout) -> np.ndarray:
    """(n, V) ids."""
    names = ribbon_names(layout)
    if layout.packed:
        return _unpacked(columns[names[0]], layout.id_dtype, layout.visits)
    return _beside([columns[name] for name in names], layout.id_dtype)


def _levels(columns: dict[str, pa.Array], layout: Layout) -> np.ndarray:
    """(n, V) levels of the weights."""
    if layout.packed:
        return _unpacked(columns["weights"], np.dtype(np.uint8), layout.visits)
    return _beside([columns[name] for name in layout.weight_columns()], np.dtype(np.uint8))


def _margins(columns: dict[str, pa.Array], layout: Layout) -> tuple[np.ndarray, np.ndarray] | None:
    if MARGIN_COLUMNS[0] not in columns:
        return None
    levels, runners = (columns[name] for name in MARGIN_COLUMNS)
    return _unpacked(levels, np.dtype("<u2"), layout.num_steps), _unpacked(runners, layout.id_dtype, layout.num_steps)


def _unpacked(blobs: pa.Array, dtype: np.dtype, visits: int) -> np.ndarray:
    return np.frombuffer(b"".join(blobs.to_pylist()), dtype=dtype).reshape(-1, visits).copy()


def _beside(arrays: list[pa.Array], dtype: np.dtype) -> np.ndarray:
    return np.stack([array.to_numpy(zero_copy_only=False) for array in arrays], axis=1).astype(dtype, copy=False)


def _floats(values: pa.Array) -> np.ndarray:
    """float32, NaN for null."""
    losses: np.ndarray = (
        pc.fill_null(values, float("nan")).to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    )
    return losses


def _whole(values: pa.Array) -> np.ndarray:
    """int32, −1 for null."""
    numbers: np.ndarray = pc.fill_null(values.cast(pa.int32()), -1).to_numpy(zero_copy_only=False)
    return numbers


def _entropy_sums(cut: dict[str, Any], num_steps: int) -> dict[str | None, np.ndarray]:
    known_LS = np.array(cut["known"], dtype=np.float64).reshape(-1, num_steps)
    sums_LS = np.array(cut["entropy"], dtype=np.float64).reshape(-1, num_steps)
    return {label: np.stack([known_LS[i], sums_LS[i]]) for i, label in enumerate(cut["labels"])}


def _soft(rows: pa.Table | None, kind: str, shape: tuple[int, ...], first_sample: int) -> np.ndarray:
    """(b, *axes) float32; 0 without a row."""
    if rows is None or not rows.num_rows:
        return np.zeros(shape, dtype=np.float32)
    soft = SOFT_TABLES[kind]
    columns = {name: rows.column(name).to_numpy() for name in rows.column_names}
    values = np.zeros(shape, dtype=np.float32)
    where = (columns["sample"] - first_sample, *(columns[axis] for axis in soft.axes))
    values[where] = columns[soft.value]
    return values
