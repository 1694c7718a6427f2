"""A run as a Hugging Face data set with a card, which ``load_from_disk`` and ``load_dataset`` of ``datasets`` open.

A folder a split (``samples``, ``tokens``, ``paths``, ``modules``), each as ``Dataset.save_to_disk`` would leave it, and
together as ``DatasetDict.save_to_disk`` would. Rows are read and written a range at a time (``export.table_batches``),
so memory does not grow with the run; the ``datasets`` library is not needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.files import atomic_folder, check_free
from tokenpaths.engine.store.ask import export
from tokenpaths.engine.store.ask.dataset_card import COLUMNS, dataset_card
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.file.text_pieces import WITHOUT_PIECES
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS

SPLITS: Final = {"samples": "sample", "tokens": "token", "paths": "path", "modules": "module"}
"""split → table of the run"""
SHARD_RANGES: Final = 16
"""ranges of rows of one file, each about ``export.BATCH_BYTES`` in the run and several times that here"""
_TEXTS: Final = {"token_id": "text", "predicted_id": "predicted_text"}


def save_dataset(run: RunFile, folder: Path, on_bytes: Callable[[int], None] = lambda written: None) -> int:
    """Write the data set into a new folder, which appears whole or not at all.

    Args:
        folder: not there yet, or empty.
        on_bytes: called with the bytes written so far.

    Returns:
        Bytes written.

    Raises:
        FileExistsError: ``folder`` holds something.
        OSError: it cannot be written; nothing is left behind.
    """
    written = 0
    with atomic_folder(folder) as temporary_folder, closing(dataset_files(run)) as files:
        for name, chunks in files:
            file = temporary_folder / name
            file.parent.mkdir(exist_ok=True)
            with closing(chunks), open(file, "wb") as stream:
                for chunk in chunks:
                    check_free(temporary_folder)
                    stream.write(chunk)
                    written += len(chunk)
                    on_bytes(written)
                stream.flush()
                os.fsync(stream.fileno())
    return written


def zipped_dataset(run: RunFile) -> Iterator[bytes]:
    """The data set as a zip archive (stored, not compressed), in chunks of bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(export.AppendOnly(sink), "w") as archive, closing(dataset_files(run)) as files:
        for name, chunks in files:
            member = zipfile.ZipInfo(f"{run.run_id}/{name}")
            with closing(chunks), archive.open(member, "w", force_zip64=True) as stream:
                for chunk in chunks:
                    stream.write(chunk)
                    yield export.drain(sink)
    yield export.drain(sink)


def dataset_files(run: RunFile) -> Generator[tuple[str, Generator[bytes, None, None]], None, None]:
    """(name, chunks of its bytes) of every file of the data set; each is to be read before the next is asked for."""
    features: dict[str, dict[str, Any]] = {}
    num_rows: dict[str, int] = {}
    for split, table in SPLITS.items():
        counted = _Counted(_rows(run, table))
        with closing(counted.batches):
            first = next(counted.batches)
            features[split] = {field.name: feature_of(field) for field in first.schema}
            batches = chain([first], counted.batches)
            shards = _num_shards(run, table)
            names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
            about = json.dumps({"info": {"features": features[split]}})
            for name in names:
                part = (rows.replace_schema_metadata({"huggingface": about}) for rows in islice(batches, SHARD_RANGES))
                yield f"{split}/{name}", export.encode(part, export.STREAM)
        num_rows[split] = counted.num_rows
        info = {"citation": "", "description": "", "features": features[split], "homepage": "", "license": ""}
        yield f"{split}/dataset_info.json", _json(info)
        yield f"{split}/state.json", _json(_state(run, split, names))
    yield "dataset_dict.json", _json({"splits": list(SPLITS)})
    yield "README.md", _bytes(dataset_card(run, features, num_rows).encode())


class _Counted:
    """Batches, and the number of rows of those that were taken."""

    def __init__(self, batches: Generator[pa.Table, None, None]) -> None:
        self.num_rows = 0
        self.batches = self._count(batches)

    def _count(self, batches: Generator[pa.Table, None, None]) -> Generator[pa.Table, None, None]:
        with closing(batches):
            for batch in batches:
                self.num_rows += batch.num_rows
                yield batch


def _json(value: Any) -> Generator[bytes, None, None]:
    return _bytes(json.dumps(value, indent=2).encode())


def _bytes(data: bytes) -> Generator[bytes, None, None]:
    yield data


def _state(run: RunFile, split: str, names: list[str]) -> dict[str, Any]:
    """``state.json`` as version 5.2 of ``datasets`` writes it."""
    made_of = f"{run.run_id} {run.row['created_at']} {split}"
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": hashlib.sha256(made_of.encode()).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }


def _num_shards(run: RunFile, table: str) -> int:
    ranges = -(-export.num_rows(run, table) // export.range_rows("image" if table == "sample" else table, run.layout))
    return max(1, -(-ranges // SHARD_RANGES))


def _rows(run: RunFile, table: str) -> Generator[pa.Table, None, None]:
    """The rows of a split by ranges, with the columns of the data set."""
    if table == "sample":
        return _sample_rows(run)
    if table == "token":
        return _token_rows(run)
    if table == "path":
        return (_with_ribbons(rows, run.layout, "ribbon") for rows in export.table_batches(run, table))
    return export.table_batches(run, table)


def _sample_rows(run: RunFile) -> Generator[pa.Table, None, None]:
    absent = "text" if run.row["modality"] == "vision" else "image, grid_rows, grid_cols"
    columns = f"t.* EXCLUDE (label_id, first_row, search, export_row, {absent})"
    query = Query(
        f"SELECT t.export_row, {columns} FROM (SELECT rowid AS export_row, {WITHOUT_PIECES} FROM sample "
        "WHERE rowid BETWEEN ? AND ?) AS t ORDER BY t.export_row"
    )
    for rows in export.ranges(run, query, "sample", export.range_rows("image", run.layout)):
        if "image" in rows.column_names:
            image = rows["image"].combine_chunks().cast(pa.binary())
            paths = pa.nulls(len(image), pa.string())
            whole = pa.StructArray.from_arrays([image, paths], ["bytes", "path"], mask=image.is_null())
            rows = rows.set_column(rows.column_names.index("image"), "image", whole)
        yield rows


def _token_rows(run: RunFile) -> Generator[pa.Table, None, None]:
    layout = run.layout
    texts = {row[0]: row[1] for row in run.rows(Query("SELECT token_id, text FROM token_text"))}
    regions = {row[0]: row[1] for row in run.rows(Query("SELECT region, name FROM region"))}
    with closing(export.table_batches(run, "token")) as batches:
        for rows in batches:
            columns = {name: rows[name] for name in rows.column_names if name not in MARGIN_COLUMNS}
            if layout.packed:
                ids, levels = columns.pop("ids"), columns.pop("weights")
                ids_nV = np.frombuffer(b"".join(ids.to_pylist()), layout.id_dtype)
                weights_nV = layout.weights.decode(np.frombuffer(b"".join(levels.to_pylist()), np.uint8))
            else:
                ids_nV = _stacked(columns, layout.module_columns(), len(rows))
                weights_nV = _stacked(columns, layout.weight_columns(), len(rows))
            columns["ribbon"] = _lists(ids_nV.astype(layout.id_dtype), layout, len(rows))
            columns["weights"] = _lists(weights_nV.astype(np.float32), layout, len(rows))
            if "region" in columns:
                columns["region"] = _named(columns["region"], regions)
            for ids, text in _TEXTS.items():
                if ids in columns:
                    columns[text] = _named(columns[ids], texts)
            yield pa.table({name: columns[name] for name in COLUMNS["tokens"] if name in columns})


def _stacked(columns: dict[str, Any], names: list[str], num_rows: int) -> np.ndarray:
    """(n, V) of columns, which are taken out."""
    parts = [columns.pop(name).to_numpy() for name in names]
    return np.stack(parts, axis=1) if num_rows else np.empty((0, len(names)), np.float32)


def _named(ids: pa.ChunkedArray, names: dict[int, str]) -> pa.Array:
    return pa.array([names.get(value) for value in ids.to_pylist()], pa.string())


def _with_ribbons(rows: pa.Table, layout: Layout, name: str) -> pa.Table:
    flat = rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    lists = _lists(flat.astype(layout.id_dtype), layout, len(rows))
    return rows.set_column(rows.column_names.index(name), name, lists)


def _lists(values: np.ndarray, layout: Layout, num_rows: int) -> pa.Array:
    """(n, S, K) numbers as a list of steps of lists of slots."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    slots = np.arange(num_rows * layout.num_steps + 1, dtype=np.int32) * layout.top_k
    steps = np.arange(num_rows + 1, dtype=np.int32) * layout.num_steps
    return pa.ListArray.from_arrays(steps, pa.ListArray.from_arrays(slots, flat))


def feature_of(field: pa.Field) -> Any:
    """The feature of the ``datasets`` library for a column, in a form that all its versions read."""
    if pa.types.is_list(field.type):
        return [feature_of(field.type.value_field)]
    if pa.types.is_struct(field.type):
        return {"_type": "Image"}
    dtype = {"float": "float32", "double": "float64"}.get(str(field.type), str(field.type))
    return {"dtype": dtype, "_type": "Value"}
