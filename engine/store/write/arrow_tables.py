"""Arrow tables of ``token`` and ``sample`` from a TraceBatch, and their insertion into DuckDB; no loop over tokens.

“Own” columns follow from the batch alone and are all that a shard holds; numbered ones (label, path, first row) follow
from the batches before it.

Shapes: n tokens, B samples, S steps, K slots, V = S·K.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.compiled.loops import any_ready
from tokenpaths.engine.base.records import SampleRecord, TraceBatch
from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.packed_ids import pack
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.file.text_pieces import cut
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS, encode_margins
from tokenpaths.engine.store.write.soft_rows import soft_arrays

WHOLE_COLUMNS = ("token_id", "predicted_id", "row", "col", "char_start", "char_end", "region")
SHARE_DIGITS = 12
"""decimals of a sample's compute and reuse"""


@dataclass(frozen=True)
class CompactBatch:
    """A compact copy of a batch, so that the caller may reuse its arrays."""

    samples: list[SampleRecord]
    ids: np.ndarray
    """(n, S, K) uint8 or uint16"""
    weights: np.ndarray
    """(n, V) uint8, levels of the layout's code"""
    gate_entropy: np.ndarray
    """(n,) float32 nats, mean over the steps, NaN where unknown"""
    entropy_sums: dict[str | None, np.ndarray]
    """label -> (2, S): tokens whose gate entropy is known, and its sum in nats, at each step"""
    flops: np.ndarray
    """(n,) float32"""
    loss: np.ndarray | None
    """(n,) float32 nats, NaN without a target"""
    whole: dict[str, np.ndarray]
    """token_id, predicted_id, row, col, char_start, char_end, region if given: (n,) integers, −1 = unknown"""
    soft: dict[str, np.ndarray]
    """edges, gates, blocks if given: (b, …) float32"""
    margins: tuple[np.ndarray, np.ndarray] | None = None
    """levels (n, S) of the margins and ids (n, S) of the runners-up, if the run has them"""
    sorted_ids: np.ndarray | None = None
    """(n, V) ids with sorted slots, if known"""

    @property
    def num_tokens(self) -> int:
        count: int = self.ids.shape[0]
        return count

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sample (B,)."""
        return np.array([sample.num_tokens for sample in self.samples], dtype=np.int64)


def compact(
    batch: TraceBatch, layout: Layout, columns: Collection[str], sorted_ids: np.ndarray | None = None
) -> CompactBatch:
    """Copy the stored values in their storage types; ``columns`` are those of ``token``."""
    n = batch.num_tokens
    entropy_nS = np.asarray(batch.gate_entropy, dtype=np.float32)
    return CompactBatch(
        samples=list(batch.samples),
        ids=_own(batch.module_ids, layout.id_dtype),
        weights=layout.weights.encode(batch.weights).reshape(n, layout.visits),
        gate_entropy=np.broadcast_to(np.float32(np.nan), n) if _is_unknown(entropy_nS) else entropy_nS.mean(axis=1),
        entropy_sums=_entropy_sums(entropy_nS, batch.samples),
        flops=np.array(batch.flops, dtype=np.float32),
        loss=None if batch.loss is None else np.array(batch.loss, dtype=np.float32),
        whole={
            name: np.array(values, dtype=np.int32)
            for name in WHOLE_COLUMNS
            if name in columns and (values := getattr(batch, name)) is not None
        },
        soft=soft_arrays(batch),
        margins=_margins(batch, layout) if MARGIN_COLUMNS[0] in columns else None,
        sorted_ids=sorted_ids,
    )


def _own(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``values`` as an array that nobody else can change: a copy, unless they lie in bytes, as what was read from a
    file does."""
    base: object = values
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    fixed = isinstance(base, bytes) or (isinstance(base, memoryview) and isinstance(base.obj, bytes))
    return np.asarray(values, dtype, order="C") if fixed else np.array(values, dtype, order="C")


def _is_unknown(values: np.ndarray) -> bool:
    """Whether one NaN stands for all values, as of a log."""
    return bool(values.size) and not any(values.strides) and bool(np.isnan(values.flat[0]))


def _margins(batch: TraceBatch, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    if batch.margin is None or batch.runner_up is None:
        shape = (batch.num_tokens, layout.num_steps)
        return encode_margins(np.full(shape, np.nan)), np.zeros(shape, dtype=layout.id_dtype)
    return encode_margins(batch.margin), np.array(batch.runner_up, dtype=layout.id_dtype, order="C")


def _entropy_sums(entropy_nS: np.ndarray, samples: Sequence[SampleRecord]) -> dict[str | None, np.ndarray]:
    """``CompactBatch.entropy_sums``: samples without a label first, then labels in order of appearance."""
    labels = [sample.label for sample in samples]
    ordered = sorted(dict.fromkeys(labels), key=lambda label: label is not None)
    if _is_unknown(entropy_nS):
        return {label: np.zeros((2, entropy_nS.shape[1])) for label in ordered}
    number_of = {label: number for number, label in enumerate(ordered)}
    of_samples = np.array([number_of[label] for label in labels], dtype=np.int64)
    group_n = np.repeat(of_samples, [sample.num_tokens for sample in samples])
    sums = np.zeros((len(ordered), 2, entropy_nS.shape[1]))
    # Both ways add in the order of the tokens, so their sums are equal to the last bit.
    if (compiled := any_ready()) is not None:
        compiled.sum_known(np.ascontiguousarray(entropy_nS), group_n, sums)
        return dict(zip(ordered, sums, strict=True))
    for group in range(len(ordered)):
        rows = entropy_nS[group_n == group] if len(ordered) > 1 else entropy_nS
        known = ~np.isnan(rows)
        sums[group] = known.sum(axis=0), np.where(known, rows, 0.0).sum(axis=0, dtype=np.float64)
    return dict(zip(ordered, sums, strict=True))


def own_token_columns(
    batch: CompactBatch, layout: Layout, first_sample: int, *, coded_too: bool = True
) -> dict[str, pa.Array | np.ndarray]:
    """Columns of ``token`` that are determined by the batch alone; ``sample`` counts from ``first_sample``.

    ``coded_too``: include those that a run stores in encoded form.
    """
    n, lengths = batch.num_tokens, batch.lengths
    starts = np.cumsum(lengths) - lengths
    names = (name for name in batch.whole if coded_too or name not in coded.PLACES)
    arrays = {
        "sample": np.repeat(np.arange(first_sample, first_sample + len(lengths), dtype=np.int32), lengths),
        **{name: _minus_one_is_null(batch.whole[name]) for name in names},
        "flops": batch.flops,
    }
    if coded_too:
        arrays["token"] = (np.arange(n) - np.repeat(starts, lengths)).astype(np.int32)
        arrays["gate_entropy"] = _nan_is_null(batch.gate_entropy)
        if batch.loss is not None:
            arrays["loss"] = _nan_is_null(batch.loss)
    if batch.margins is not None:
        arrays |= dict(zip(MARGIN_COLUMNS, map(blobs, batch.margins), strict=True))
    ids_nV = batch.ids.reshape(n, layout.visits)
    if layout.packed:
        arrays["ids"] = blobs(ids_nV) if layout.of_shard else pack(ids_nV, layout)
        if layout.of_shard or not _all_are(batch.weights, layout.even_level):
            arrays["weights"] = blobs(batch.weights)
    else:
        # Transposed once, every column is contiguous and goes to Arrow without another copy.
        if not layout.by_path:
            arrays |= dict(zip(layout.module_columns(), np.ascontiguousarray(ids_nV.T), strict=True))
        arrays |= dict(zip(layout.weight_columns(), np.ascontiguousarray(batch.weights.T), strict=True))
    return arrays


def token_table(
    batch: CompactBatch,
    layout: Layout,
    *,
    first_sample: int,
    label_ids: np.ndarray,
    path_ids: np.ndarray,
    usual_flops: np.ndarray,
    first_row: int,
    first_char: int,
) -> tuple[pa.Table, int]:
    """Rows of ``token_coded`` without the columns that are NULL throughout, and the ``first_char`` of the next batch.

    DuckDB takes longer to read such columns than to fill in that they are missing. ``label_ids`` (B,) with −1 = none,
    the other arrays (n,). FLOPs are NULL if they equal ``usual_flops``, the sum over the modules of the ribbon.
    ``first_char``: see ``columns.chars``.
    """
    columns = own_token_columns(batch, layout, first_sample, coded_too=False)
    n, lengths = batch.num_tokens, batch.lengths
    starts = first_row + np.cumsum(lengths) - lengths
    for measure, values in (("loss", batch.loss), ("gate_entropy", batch.gate_entropy)):
        unknown = np.zeros(batch.num_tokens, dtype=np.int32)
        columns[coded.code_column(measure)] = unknown if values is None or _is_unknown(values) else coded.encode(values)
    # What is read back from a shard has −1 where the tracer told no places at all.
    if any((batch.whole[name] >= 0).any() for name in coded.PLACES if name in batch.whole):
        absent = np.full(batch.num_tokens, -1, dtype=np.int32)
        start, end = (batch.whole.get(name, absent) for name in coded.PLACES)
        places, unknown, first_char = coded.chars(start, end, lengths, first_char)
        columns |= places | {"char_length": pa.array(places["char_length"], mask=unknown)}
    columns |= {"first_row": np.repeat(starts, lengths), "path_id": path_ids}
    if (label_ids >= 0).any():
        columns["label_id"] = _minus_one_is_null(np.repeat(label_ids.astype(np.int32), lengths))
    columns["flops"] = pa.array(batch.flops, mask=batch.flops == usual_flops)
    missing = {name for name, values in columns.items() if isinstance(values, pa.Array) and values.null_count == n}
    rows = pa.table({name: values for name, values in columns.items() if name not in missing})
    return rows, first_char


def own_sample_columns(batch: CompactBatch, first_sample: int) -> dict[str, pa.Array | np.ndarray]:
    """Columns of ``sample`` that are determined by the batch alone, but for texts, which runs hold in pieces and shards
    as they are; ``sample`` counts from ``first_sample``."""
    samples, lengths = batch.samples, batch.lengths
    return {
        "sample": np.arange(first_sample, first_sample + len(lengths), dtype=np.int32),
        "label": pa.array([s.label for s in samples], pa.string()),
        "prediction": pa.array([s.prediction for s in samples], pa.string()),
        "confidence": pa.array([s.confidence for s in samples], pa.float64()),
        "loss": pa.array(sample_losses(batch, np.cumsum(lengths) - lengths), pa.float64()),
        "num_tokens": lengths.astype(np.int32),
        "image": pa.array([s.image for s in samples], pa.binary()),
        "grid_rows": pa.array([s.grid[0] if s.grid else None for s in samples], pa.int32()),
        "grid_cols": pa.array([s.grid[1] if s.grid else None for s in samples], pa.int32()),
        "source": pa.array([s.source for s in samples], pa.string()),
    }


def sample_table(
    batch: CompactBatch,
    *,
    first_sample: int,
    first_row: int,
    label_ids: np.ndarray,
    path_ids: np.ndarray,
    compute: np.ndarray,
    reuse: np.ndarray,
) -> pa.Table:
    """Rows of ``sample``, with the means over each sample's tokens in double precision."""
    samples, lengths = batch.samples, batch.lengths
    starts = np.cumsum(lengths) - lengths
    return pa.table(
        {
            **own_sample_columns(batch, first_sample),
            **cut([sample.text for sample in samples]),
            "label_id": _minus_one_is_null(label_ids.astype(np.int32)),
            "first_row": first_row + starts,
            "gate_entropy": _means(batch.gate_entropy, starts),
            "compute": _mean_share(compute, starts, lengths),
            "reuse": _mean_share(reuse, starts, lengths),
            "num_distinct_paths": distinct_paths(path_ids, lengths),
            "search": pa.array([search_key(s) for s in samples], pa.string()),
        }
    )


def _mean_share(share: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Means over samples of tokens' shares; rounded, so that samples with the same sum of fractions are equal, in
    whatever order they were added."""
    means: np.ndarray = (np.add.reduceat(share, starts) / lengths).round(SHARE_DIGITS)
    return means


def distinct_paths(path_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(B,) int32 number of distinct ``path_ids`` (n,) of consecutive samples of these lengths."""
    if not (path_ids[1:] <= path_ids[:-1]).any():  # then no two are equal
        return lengths.astype(np.int32)
    if (compiled := any_ready()) is not None:
        room = 1 << int(2 * lengths.max()).bit_length()
        distinct = np.empty(len(lengths), dtype=np.int32)
        keys, owners = np.empty(room, dtype=np.int32), np.full(room, -1, dtype=np.int32)
        compiled.count_distinct(path_ids.astype(np.int32, copy=False), lengths, keys, owners, distinct)
        return distinct
    several = int(path_ids.max()) + 1
    pairs = np.unique(np.repeat(np.arange(len(lengths)), lengths) * several + path_ids)
    counted: np.ndarray = np.bincount(pairs // several, minlength=len(lengths)).astype(np.int32)
    return counted


def sample_losses(batch: CompactBatch, starts: np.ndarray) -> Sequence[float | None]:
    """The losses given with the samples; missing ones are means over the sample's tokens with a target."""
    losses = [sample.loss for sample in batch.samples]
    if batch.loss is None or all(loss is not None for loss in losses):
        return losses
    finite = ~np.isnan(batch.loss)
    sums = np.add.reduceat(np.where(finite, batch.loss, 0.0).astype(np.float64), starts)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    means = [float(s / c) if c else None for s, c in zip(sums, counts, strict=True)]
    return [mean if loss is None else loss for loss, mean in zip(losses, means, strict=True)]


def _means(values: np.ndarray, starts: np.ndarray) -> pa.Array:
    """Mean of the known values of each sample, NULL if there are none."""
    finite = ~np.isnan(values)
    sums = np.add.reduceat(np.where(finite, values, 0.0).astype(np.float64), starts)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)


def search_key(sample: SampleRecord) -> str | None:
    """Text that the filter ``q`` searches: label, prediction, source and text, casefolded, a line each.

    None if these are ASCII: SQL then lowercases them itself (``queries.sample_condition``).
    """
    folded = "\n".join([sample.label or "", sample.prediction or "", sample.source or "", sample.text or ""])
    return None if folded.isascii() else folded.casefold()


def _all_are(levels: np.ndarray, level: int) -> bool:
    """Whether all ``levels`` are this one; without a look at each where one stands for all."""
    of = levels if any(levels.strides) else levels[:1, :1]
    return bool((of == level).all())


@lru_cache(maxsize=1)
def _same_bytes(value: int, num_rows: int, width: int) -> np.ndarray:
    """Rows of one byte; kept, as the next batch has the same ones."""
    return np.full((num_rows, width), value, dtype=np.uint8)


def _nan_is_null(values: np.ndarray) -> pa.Array:
    return pa.array(values, from_pandas=True)


def _minus_one_is_null(values: np.ndarray) -> pa.Array:
    unknown = values < 0
    return pa.array(values, mask=unknown) if unknown.any() else pa.array(values)


def blobs(rows: np.ndarray) -> pa.Array:
    """One fixed-size binary value for each row of (n, V)."""
    if rows.dtype == np.uint8 and rows.size and not any(rows.strides):
        rows = _same_bytes(int(rows[0, 0]), 1 << (len(rows) - 1).bit_length(), rows.shape[1])[: len(rows)]
    rows = np.ascontiguousarray(rows)
    width = rows.shape[1] * rows.itemsize
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(rows)])


@contextlib.contextmanager
def one_thread(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Inside, DuckDB works on one thread.

    Of several each collects row groups of its own, which are put together and compressed anew: an insert takes twice
    the processor time then, and longer on two cores. Sums come in another order each time, too, and round otherwise.
    """
    threads = con.execute("SELECT current_setting('threads')").fetchall()[0][0]
    con.execute("SET threads = 1")
    try:
        yield
    finally:
        with contextlib.suppress(duckdb.Error):  # after Ctrl-C nothing more is inserted
            con.execute(f"SET threads = {threads}")


def insert_rows(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Append rows through Arrow; does nothing for no rows.

    A transaction keeps registered objects until it ends. A reader is registered, because it holds no data once it was
    read; registered tables would keep a whole run in memory.
    """
    if rows.num_rows:
        waiting = rows.to_batches()
        schema = rows.schema
        reader = pa.RecordBatchReader.from_batches(schema, (waiting.pop(0) for _ in range(len(waiting))))
        con.register("incoming", reader)
        con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        con.unregister("incoming")


def insert_alike(con: duckdb.DuckDBPyConnection, table: str, parts: list[pa.Table]) -> None:
    """``insert_rows`` for all of ``parts`` in their order, those with the same columns together; none is left."""
    while parts:
        alike = [parts.pop(0)]
        while parts and parts[0].schema == alike[0].schema:
            alike.append(parts.pop(0))
        insert_rows(con, table, pa.concat_tables(alike))


def create_like(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """A new table with the names and types of ``rows``, and these rows."""
    con.register("incoming", rows.slice(0, 0))
    con.execute(f"CREATE TABLE {table} AS SELECT * FROM incoming")
    con.unregister("incoming")
    insert_rows(con, table, rows)


def insert_columns(con: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, object]) -> None:
    """``insert_rows`` for columns by name."""
    insert_rows(con, table, pa.table(dict(columns)))


def range_array(length: int) -> pa.Array:
    return pa.array(np.arange(length, dtype=np.int32))
