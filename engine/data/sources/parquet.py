"""Parquet source: a column of encoded images or of texts, streamed a few rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import UInt8

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.images import ImageError, decode_upload
from tokenpaths.engine.data.sources.column_names import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    NAME_COLUMNS,
    TEXT_COLUMNS,
    choose_column,
)
from tokenpaths.engine.data.sources.folders import check_text
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

BATCH_ROWS: Final = 16
"""rows in memory at once; an encoded photograph may well be 5 MB"""


class ParquetSource:
    """Rows of one or more Parquet files of the same columns, one after the other."""

    def __init__(
        self, files: Sequence[Path], kind: str, *, content_column: str | None = None, label_column: str | None = None
    ) -> None:
        self.kind = kind
        self._files = [_open(file) for file in files]
        self._paths = self.paths = list(files)
        schema = self._files[0].schema_arrow
        for path, file in zip(files, self._files, strict=True):
            if file.schema_arrow.names != schema.names:
                raise UserError(
                    f"{path}: its columns ({', '.join(file.schema_arrow.names)}) differ from those of "
                    f"'{files[0]}' ({', '.join(schema.names)}); give files of one kind.",
                    field="data",
                )
        if len(set(schema.names)) < len(schema.names):
            raise UserError(
                f"{files[0]}: two columns have the same name ({', '.join(schema.names)}); rename one.", field="data"
            )
        self._content = _content_column(schema, kind, content_column, str(files[0]))
        self._label = _label_column(schema, label_column, self._content, str(files[0]))
        self._name = choose_column(schema.names, None, NAME_COLUMNS, "name", "", optional=True)
        if self._name in (self._content, self._label):
            self._name = None
        self.index = self._label_index(schema)
        if not len(self.index):
            raise UserError(f"{files[0]}: holds no rows.", field="data")
        self.has_masks = kind == "image" and self._has_boxes(schema)

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        columns = [self._content, *([self._name] if self._name else []), *(["box"] if self.has_masks else [])]
        wanted = np.asarray(rows, dtype=np.int64)
        first_row = 0
        for path, file in zip(self._paths, self._files, strict=True):
            for group in range(file.num_row_groups):
                num_rows = file.metadata.row_group(group).num_rows
                low, high = np.searchsorted(wanted, [first_row, first_row + num_rows])
                if low < high:
                    yield from self._read_group(path, file, group, columns, wanted[low:high], first_row)
                first_row += num_rows

    def _read_group(
        self, path: Path, file: pq.ParquetFile, group: int, columns: list[str], wanted: np.ndarray, first_row: int
    ) -> Iterator[Sample | UserError]:
        start_of_file = first_row - sum(file.metadata.row_group(g).num_rows for g in range(group))
        with _damage_said(path, f"row group {group} cannot be read"):
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                low, high = np.searchsorted(wanted, [first_row, first_row + batch.num_rows])
                for row in wanted[low:high].tolist():
                    try:
                        record = {name: batch.column(name)[row - first_row].as_py() for name in columns}
                    except UnicodeDecodeError:
                        where = f"{path}, row {row - start_of_file}"
                        yield UserError(f"{where}: holds text that is not UTF-8; write it anew.", field="data")
                    else:
                        yield self._sample(path, row, row - start_of_file, record)
                first_row += batch.num_rows

    def _sample(self, path: Path, row: int, row_in_file: int, record: dict[str, Any]) -> Sample | UserError:
        value = record[self._content]
        name = record.get(self._name) if self._name else None
        if isinstance(value, dict):
            name = name or value.get("path")
            value = value.get("bytes")
        source = f"{path.name} row {row_in_file}" + (f" ({name})" if name else "")
        label = self.index.label(row)
        try:
            if self.kind == "text":
                return Sample(None, check_text(value, f"{path}, row {row_in_file}"), label, source)
            if not isinstance(value, bytes):
                raise ImageError("There are no image bytes in this row; give encoded pictures (PNG, JPEG, …).")
            image = decode_upload(value)
            mask = box_mask(record.get("box"), image.width, image.height)
            return Sample(image, None, label, source, mask)
        except ImageError as error:
            return ImageError(f"{path}, row {row_in_file}: {error}", status=error.status)
        except UserError as error:
            return error

    def _label_index(self, schema: pa.Schema) -> LabelIndex:
        if self._label is None:
            num_rows = sum(file.metadata.num_rows for file in self._files)
            return LabelIndex((), np.full(num_rows, -1, np.int32))
        with _damage_said(self._paths[0], f"the column '{self._label}' cannot be read"):
            column = pa.concat_tables([file.read(columns=[self._label]) for file in self._files])[0]
            encoded = pc.dictionary_encode(pc.cast(column, pa.string())).combine_chunks()
            if isinstance(encoded, pa.ChunkedArray):  # no rows: there is nothing to combine
                return LabelIndex((), np.empty(0, np.int32))
            values = encoded.dictionary.to_pylist()
        class_names = _class_names(schema, self._label)
        names = [None if value is None else _class_name(value, class_names) for value in values]
        sorted_names = sorted({name for name in names if name})
        order = {name: i for i, name in enumerate(sorted_names)}
        code = np.array([order.get(name or "", -1) for name in names] + [-1], np.int32)
        codes = encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
        return LabelIndex(tuple(sorted_names), code[codes])

    def _has_boxes(self, schema: pa.Schema) -> bool:
        if "box" not in schema.names:
            return False
        kind = schema.field("box").type
        if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
            return False
        with _damage_said(self._paths[0], "the column 'box' cannot be read"):
            return any(file.read(["box"])[0].null_count < file.metadata.num_rows for file in self._files)


def box_mask(box: Sequence[int | float | None] | None, width: int, height: int) -> UInt8[np.ndarray, "H W"] | None:
    """1 inside of (x0, y0, x1, y1), both corners included, 0 outside; None where there is no box."""
    corners = [int(value) for value in box or () if value is not None]
    if box is None or len(box) != 4 or len(corners) != 4:
        return None
    x0, y0, x1, y1 = corners
    mask = np.zeros((height, width), np.uint8)
    mask[max(0, y0) : max(0, y1 + 1), max(0, x0) : max(0, x1 + 1)] = 1
    return mask


@contextmanager
def _damage_said(path: Path, what: str) -> Iterator[None]:
    """Turn what Arrow raises on a damaged file (nearly anything) into one sentence."""
    try:
        yield
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise UserError(
            f"{path}: {what} ({_short(error)}); the file is damaged, write it anew.", field="data"
        ) from error


def _open(file: Path) -> pq.ParquetFile:
    with _damage_said(file, "is no Parquet file, or one that is cut off"):
        opened = pq.ParquetFile(file)
        opened.schema_arrow.names, opened.metadata.num_rows  # noqa: B018 - damaged ones fail here, not later
        return opened


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:160].rstrip(". ") if str(error) else type(error).__name__


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _is_image(field.type) for field in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _content_column(schema: pa.Schema, kind: str, asked: str | None, where: str) -> str:
    fits = _is_image if kind == "image" else _is_string
    usual = IMAGE_COLUMNS if kind == "image" else TEXT_COLUMNS
    fallback = [field.name for field in schema if fits(field.type)]
    option = f"{kind}_column"
    name = choose_column(schema.names, asked, usual, option, where, fallback=fallback)
    assert name is not None, "choose_column raises where nothing fits"
    if not fits(schema.field(name).type):
        wanted = "encoded image bytes" if kind == "image" else "strings"
        raise UserError(
            f"{where}: the column '{name}' holds {schema.field(name).type}, not {wanted}; "
            f"the columns are: {', '.join(f'{f.name} ({f.type})' for f in schema)}.",
            field=option,
        )
    return name


def _label_column(schema: pa.Schema, asked: str | None, content: str, where: str) -> str | None:
    name = choose_column(schema.names, asked, LABEL_COLUMNS, "label_column", where, optional=True)
    if name is None or name == content and asked is None:
        return None
    kind = schema.field(name).type
    if _is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return name
    if asked is None:
        return None
    raise UserError(
        f"{where}: the column '{name}' holds {kind}; labels must be strings, whole numbers or booleans.",
        field="label_column",
    )


def _class_names(schema: pa.Schema, column: str) -> list[str] | None:
    """Names behind whole-number labels, as the Hugging Face ``datasets`` library writes them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _class_name(value: str, names: list[str] | None) -> str:
    if names is not None and value.isdigit() and int(value) < len(names):
        return names[int(value)]
    return value
