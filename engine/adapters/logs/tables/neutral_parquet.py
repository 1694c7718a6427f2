"""The neutral format as Parquet: one row a token, read row group by row group.

Columns: ``ids`` (list of layers, each a list of K ids; or one flat list with ``num_layers`` in the file's metadata),
``weights`` of the same form, ``token_id``, ``sample`` (rising), ``label`` and ``text`` (of the sample).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape, layer_names
from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS, UNUSED, Piece
from tokenpaths.engine.adapters.logs.pieces.wording import check_once, number_of, shortened, unread_note
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.sample_rows import SampleRows, sample_bounds
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.declared_sizes import check_rows

METADATA = b"tokenpaths"
"""key of the file's metadata: JSON with num_layers, num_experts, model, layers"""


def open_parquet(file: Path, announced: Announced) -> Log:
    """Open a file in the neutral format."""
    try:
        opened = pq.ParquetFile(file)
        schema, num_rows = opened.schema_arrow, opened.metadata.num_rows
        opened.close()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"{file}: is no whole Parquet file ({str(error).splitlines()[0][:120]})", field="file"
        ) from None
    if "ids" not in schema.names:
        raise UserError(f"{file}: has the columns {', '.join(schema.names)}, but no 'ids'", field="file")
    check_once(file, schema.names, schema.names)
    if not num_rows:
        raise UserError(f"{file}: holds no token", field="file")
    check_rows(num_rows, file.stat().st_size, str(file), "file")
    about = _about(file, schema)
    experts = announced.num_experts(about.get("num_experts"), str(file))
    announced = replace(announced, layers=announced.layers or about.get("num_layers"))
    wide = announced.top_k or widest_list(file, "ids")
    first = next(parquet_batches(file, ["ids"], 1))
    ids = list_numbers(first.column("ids"), file, "ids", 0, wide)
    steps, top_k = announced.ids_shape((num_rows, *ids.shape[1:]), ids.dtype, str(file))
    names = tuple(about.get("layers") or layer_names(steps))
    if len(names) != steps:
        raise UserError(f"{file}: names {number_of(len(names), 'layer')}, but the ids have {steps}", field="file")
    has_weights = "weights" in schema.names
    wanted = [name for name in ("ids", "weights", "token_id", "sample", "label", "text") if name in schema.names]

    def read() -> Iterator[Piece]:
        rows = SampleRows(str(file))
        words = _Words(str(file))
        start = 0
        for batch in parquet_batches(file, wanted):
            columns = {name: batch.column(name) for name in wanted}
            n = batch.num_rows
            ids = list_numbers(columns["ids"], file, "ids", start, wide)
            ids = _shaped(ids, (n, steps, top_k), file, "ids", start)
            weights = None
            if has_weights:
                # NaN, so that a weight that is missing is refused, but in a slot without an expert.
                weights = list_numbers(columns["weights"], file, "weights", start, wide, np.nan)
                weights = _shaped(weights, (n, steps, top_k), file, "weights", start)
                weights = weights if weights.dtype.kind == "f" else weights.astype(np.float32)
            token_id = _whole(columns.get("token_id"), file, "token_id", start)
            sample = rows.numbered(_sample(columns.get("sample"), file, start), start)
            words.add(columns, sample, start)
            yield from rows.add(ids, weights, token_id, sample, start)
            yield from rows.ready(words.of)
            start += n
        yield from rows.ready(words.of, end=True)

    note = unread_note("columns", [name for name in schema.names if name not in wanted])
    return Log(file, "parquet", LogShape(names, top_k, has_weights), experts, read, about.get("model"), note)


def _about(file: Path, schema: pa.Schema) -> dict[str, Any]:
    raw = (schema.metadata or {}).get(METADATA)
    if raw is None:
        return {}
    try:
        about = json.loads(raw)
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise UserError(f"{file}: the metadata 'tokenpaths' is no JSON object", field="file")
    layers, model, names = (about.get(name) for name in ("num_layers", "model", "layers"))
    for name, value, right, what in (
        ("num_layers", layers, type(layers) is int and 1 <= layers <= 65_536, "a whole number from 1 to 65536"),
        ("model", model, isinstance(model, str), "a name"),
        ("layers", names, isinstance(names, list) and all(isinstance(name, str) for name in names), "a list of names"),
    ):
        if value is not None and not right:
            raise UserError(
                f"{file}: {name} in the metadata 'tokenpaths' is {repr(value)[:40]}, it should be {what}", field="file"
            )
    return about


def parquet_batches(file: Path, columns: list[str], rows: int | None = None) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(file) as opened:
            yield from opened.iter_batches(rows or CUT_TOKENS, columns=columns)
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise UserError(f"{file}: is damaged ({reason})", field="file") from None


def widest_list(file: Path, name: str) -> int | None:
    """Length of the longest list of experts in a column of lists of layers; None for other columns."""
    wide = None
    for batch in parquet_batches(file, [name]):
        layers = batch.column(name)
        if not (_is_list(layers.type) and _is_list(layers.type.value_type)):
            return None
        lengths = layers.flatten().value_lengths()
        wide = max(wide or 0, pc.max(lengths).as_py() or 0)
    return wide


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def list_numbers(
    column: pa.Array, file: Path, name: str, start: int, wide: int | None = None, fill: float = UNUSED
) -> np.ndarray:
    """A column of lists, or of lists of lists, as an array; UserError that names a row of another length.

    ``wide``: length of the innermost lists, of which shorter ones and nulls hold ``fill``.
    """
    if wide and _is_list(column.type) and _is_list(column.type.value_type) and not column.null_count:
        column = _filled_lists(column, wide, fill)
    shape = [len(column)]
    rows_per_value = 1
    kinds = pa.types
    while kinds.is_list(column.type) or kinds.is_large_list(column.type) or kinds.is_fixed_size_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if column.null_count or not len(lengths) or (lengths != lengths[0]).any():
            odd = 0 if not len(lengths) else int(np.flatnonzero(~(lengths == lengths[0]))[:1].sum())
            row = start + odd // rows_per_value
            raise UserError(
                f"{file}, row {row}: the list in {name!r} is missing or longer or shorter than those before it",
                field="file",
            )
        shape.append(int(lengths[0]))
        rows_per_value *= int(lengths[0])
        column = column.flatten()
    if column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) // rows_per_value
        raise UserError(f"{file}, row {row}: a number in {name!r} is missing", field="file")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise UserError(f"{file}: the column {name!r} holds {column.type}, not numbers", field="file")
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def _filled_lists(column: pa.Array, wide: int, fill: float) -> pa.Array:
    """Lists of lists of which the inner ones are ``wide``, with ``fill`` for nulls and behind shorter ones."""
    inner = column.flatten()
    values = inner.flatten()
    lengths = pc.fill_null(inner.value_lengths(), 0).to_numpy(zero_copy_only=False)
    if not len(lengths) or ((lengths == wide).all() and not values.null_count) or lengths.max() > wide:
        return column
    if isinstance(fill, float) and pa.types.is_integer(values.type):
        values = values.cast(pa.float64())
    flat = pc.fill_null(values, fill if pa.types.is_floating(values.type) else pa.scalar(fill, pa.int64()))
    numbers = flat.to_numpy(zero_copy_only=False)
    spread = np.full((len(lengths), wide), fill, dtype=numbers.dtype if numbers.dtype.kind == "f" else np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    spread[row, np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)] = numbers
    outer = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(outer)])
    rows = pa.ListArray.from_arrays(np.arange(0, spread.size + 1, wide, dtype=np.int32), pa.array(spread.reshape(-1)))
    return pa.LargeListArray.from_arrays(ends, rows)


def _shaped(values: np.ndarray, shape: tuple[int, int, int], file: Path, name: str, start: int) -> np.ndarray:
    if int(np.prod(values.shape[1:])) != shape[1] * shape[2] or (values.ndim == 3 and values.shape != shape):
        raise UserError(
            f"{file}, row {start}: {name!r} has shape {values.shape[1:]} a token, it should be {shape[1:]}",
            field="file",
        )
    return values.reshape(shape)


def _whole(
    column: pa.Array | None, file: Path, name: str, start: int, right: str = "whole numbers"
) -> np.ndarray | None:
    if column is None:
        return None
    if not pa.types.is_integer(column.type):
        raise UserError(f"{file}: the column {name!r} holds {column.type}, it should be {right}", field="file")
    return _present(column, file, name, start).to_numpy(zero_copy_only=False)


def _present(column: pa.Array, file: Path, name: str, start: int) -> pa.Array:
    """The column; UserError if a value is missing."""
    if column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserError(f"{file}, row {row}: {name!r} is missing", field="file")
    return column


def _sample(column: pa.Array | None, file: Path, start: int) -> np.ndarray | None:
    """Numbers or names of samples."""
    if column is not None and pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column is None or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _whole(column, file, "sample", start, "whole numbers or names")
    try:
        names: np.ndarray = _present(column, file, "sample", start).to_numpy(zero_copy_only=False)
    except UnicodeDecodeError:  # Arrow reads text from Parquet without looking whether it is UTF-8
        raise UserError(f"{file}: 'sample' holds bytes that are not UTF-8; it is damaged", field="file") from None
    return names


class _Words:
    """Label (as ``read_label`` takes it) and text of each sample, from its first token; UserError if others differ."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._of_sample: dict[int, dict[str, Any]] = {}
        self._position = -1
        self._number: int | None = None

    def add(self, columns: dict[str, pa.Array], sample: np.ndarray | None, start: int) -> None:
        names = [name for name in ("label", "text") if name in columns]
        if not names:
            return
        if sample is None:
            raise UserError(f"{self.where}: {names[0]!r} goes with 'sample', the sample of each token", field="file")
        kind = columns["text"].type if "text" in names else pa.null()
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
            raise UserError(f"{self.where}: the column 'text' holds {kind}, it should hold words", field="file")
        for low, high in sample_bounds(sample):
            if int(sample[low]) != self._number:
                self._position += 1
                self._number = int(sample[low])
                self._of_sample[self._position] = {
                    name: self._values(columns[name][low : low + 1], start + low, name)[0] for name in names
                }
            for name in names:
                first = self._of_sample[self._position][name]
                self._check_same(columns[name][low:high], first, start + low, name)

    def _check_same(self, column: pa.Array, first: Any, start: int, name: str) -> None:
        """UserError that names the first row of ``column`` with another value than ``first``."""
        try:
            if len(column.unique()) == 1:
                column = column[:1]  # the sample may have begun in the batch before, with another value
        except pa.ArrowNotImplementedError:  # of lists and objects, which are no labels
            pass
        for place, value in enumerate(self._values(column, start, name)):
            if value != first and (value == value or first == first):  # NaN is like NaN
                shown = "null" if value is None else shortened(repr(value))
                raise UserError(
                    f"{self.where}, row {start + place}: the tokens of sample {self._number} should have one {name}, "
                    f"which was {'null' if first is None else shortened(repr(first))} before and is {shown} here",
                    field="file",
                )

    def _values(self, column: pa.Array, start: int, name: str) -> list[Any]:
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:  # Arrow reads text from Parquet without looking whether it is UTF-8
            raise UserError(
                f"{self.where}, row {start}: {name!r} holds bytes that are not UTF-8; it is damaged", field="file"
            ) from None
        except (ValueError, OverflowError):  # times with nanoseconds or far from now, which Python's are not
            return list(column.cast(pa.string()).to_pylist())

    def of(self, position: int) -> dict[str, Any]:
        """Label and text of one sample; those of earlier samples are released."""
        for passed in [other for other in self._of_sample if other < position]:
            del self._of_sample[passed]
        return self._of_sample.get(position, {})
