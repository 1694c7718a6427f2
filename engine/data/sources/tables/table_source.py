"""Rows of tables as samples: which column is the picture, the text, the label, and what each row becomes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import UInt8

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.images import ImageError, decode_upload
from tokenpaths.engine.data.labels import Remarks, read_label
from tokenpaths.engine.data.sources.folders import check_text
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample
from tokenpaths.engine.data.sources.tables.column_names import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    NAME_COLUMNS,
    TEXT_COLUMNS,
    choose_column,
)

BAD_BOX: Final = "{n} value{s} of 'box' that {are} not four numbers {are} left out"
SAME_NAME: Final = "{n} label{s} given as a number whose class name another number has too {are} merged with that one"


class TableSource(ABC):
    """Rows of one or more files of the same columns, one after the other; how they are read, subclasses say.

    Args:
        files: at least one.
        schemas: of each file.
        num_rows: of each file.
        kind: ``image`` or ``text``.
        features: of the Hugging Face ``datasets`` library, where they are known otherwise than from the schema.
    """

    split: str | None = None

    def __init__(
        self,
        files: Sequence[Path],
        schemas: Sequence[pa.Schema],
        num_rows: Sequence[int],
        kind: str,
        *,
        content_column: str | None,
        label_column: str | None,
        features: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        self.paths = list(files)
        self._files = list(files)
        self._starts = np.cumsum([0, *num_rows])
        schema, first = schemas[0], str(files[0])
        for path, other in zip(files, schemas, strict=True):
            if other.names != schema.names:
                raise UserError(
                    f"{path}: its columns ({', '.join(other.names)}) differ from those of "
                    f"'{first}' ({', '.join(schema.names)}); give files of one kind.",
                    field="data",
                )
        if len(set(schema.names)) < len(schema.names):
            raise UserError(
                f"{first}: two columns have the same name ({', '.join(schema.names)}); rename one.", field="data"
            )
        self._content = _content_column(schema, kind, content_column, first)
        self._label = _label_column(schema, label_column, self._content, first)
        self._name = choose_column(schema.names, None, NAME_COLUMNS, "name", "", optional=True)
        if self._name in (self._content, self._label):
            self._name = None
        self.remarks = Remarks()
        if not self._starts[-1]:
            raise UserError(f"{first}: holds no rows.", field="data")
        self.index = self._label_index(schema, features)
        self.has_masks = kind == "image" and self._has_boxes(schema)

    @abstractmethod
    def _chunks(self, column: str) -> Iterator[pa.Array]:
        """The values of a column in all files, piece by piece; at least one piece."""

    @abstractmethod
    def _records(
        self, number: int, rows: np.ndarray, columns: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any] | UserError]]:
        """(row, value of each column) of ``rows`` of file ``number``, ascending and counted within the file."""

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        columns = [self._content, *([self._name] if self._name else []), *(["box"] if self.has_masks else [])]
        wanted = np.asarray(rows, dtype=np.int64)
        for number, path in enumerate(self._files):
            start, stop = self._starts[number : number + 2].tolist()
            low, high = np.searchsorted(wanted, [start, stop])
            if low == high:
                continue
            for row, record in self._records(number, wanted[low:high] - start, columns):
                yield record if isinstance(record, UserError) else self._sample(path, start + row, row, record)

    def _sample(self, path: Path, row: int, row_in_file: int, record: dict[str, Any]) -> Sample | UserError:
        value = record[self._content]
        name = record.get(self._name) if self._name else None
        outside = None
        if isinstance(value, dict):
            outside = value.get("path")
            name, value = name or outside, value.get("bytes")
        source = f"{path.name} row {row_in_file}" + (f" ({name})" if name else "")
        label = self._label_of(row)
        try:
            if self.kind == "text":
                return Sample(None, check_text(value, f"{path}, row {row_in_file}"), label, source)
            if not isinstance(value, bytes):
                raise ImageError(_no_bytes(outside))
            image = decode_upload(value)
            box = record.get("box")
            mask = box_mask(box, image.width, image.height)
            remarks = (BAD_BOX,) if box is not None and mask is None else ()
            return Sample(image, None, label, source, mask, remarks=remarks)
        except ImageError as error:
            return ImageError(f"{path}, row {row_in_file}: {error}", status=error.status)
        except UserError as error:
            return error

    def _label_of(self, row: int) -> str | None:
        """The label of a row of the files, of which a source may show others than all in order."""
        return self.index.label(row)

    def _label_index(self, schema: pa.Schema, features: Mapping[str, Any] | None) -> LabelIndex:
        if self._label is None:
            return LabelIndex((), np.full(self._starts[-1], -1, np.int32))
        kind = schema.field(self._label).type
        with damage_said(self._files[0], f"the column '{self._label}' cannot be read"):
            if not _is_label(kind):  # a list in each row cannot be told apart in one go, and is no label
                count = sum(len(chunk) - chunk.null_count for chunk in self._chunks(self._label))
                remark = "object" if pa.types.is_struct(kind) else "bytes" if _is_image(kind) else "list"
                self.remarks.add((remark,), f"the column '{self._label}' holds {kind}", count)
                return LabelIndex((), np.full(self._starts[-1], -1, np.int32))
            plain = pa.string() if is_string(kind) else kind.value_type if pa.types.is_dictionary(kind) else kind
            values: dict[Any, int] = {}
            parts = []
            for chunk in self._chunks(self._label):
                encoded = pc.dictionary_encode(pc.cast(chunk, plain))
                codes = [values.setdefault(value, len(values)) for value in encoded.dictionary.to_pylist()]
                here = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
                parts.append(np.array([*codes, -1], np.int64)[here])
        every = np.concatenate(parts)
        every[every < 0] = len(values)
        return self._named(list(values), every, _class_names(schema, self._label, features))

    def _named(self, values: list[Any], codes: np.ndarray, class_names: list[str] | None) -> LabelIndex:
        """Labels of the distinct ``values``, which rows have by their ``codes`` (``len(values)``: none)."""
        counts, names = np.bincount(codes, minlength=len(values) + 1), []
        for value, count in zip(values, counts.tolist(), strict=False):
            where = f"the column '{self._label}'"
            if class_names is not None and type(value) is int:
                known = 0 <= value < len(class_names)
                twice = known and class_names.count(class_names[value]) > 1
                self.remarks.add((SAME_NAME,) if twice else () if known else ("class",), where, count)
                value = class_names[value] if known else value
            label, kinds = read_label(value)
            if count:
                self.remarks.add(kinds, where, count)
            names.append(label)
        sorted_names = sorted({name for name in names if name})
        order = {name: i for i, name in enumerate(sorted_names)}
        code = np.array([order.get(name or "", -1) for name in names] + [-1], np.int32)
        return LabelIndex(tuple(sorted_names), code[codes])

    def _has_boxes(self, schema: pa.Schema) -> bool:
        if "box" not in schema.names:
            return False
        kind = schema.field("box").type
        if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
            return False
        with damage_said(self._files[0], "the column 'box' cannot be read"):
            return any(chunk.null_count < len(chunk) for chunk in self._chunks("box"))


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
def damage_said(path: Path, what: str) -> Iterator[None]:
    """Turn what Arrow raises on a damaged file (nearly anything) into one sentence."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise UserError(
            f"{path}: {what} ({_short(error)}); the file is damaged, write it anew.", field="data"
        ) from error


def record_of(batch: pa.RecordBatch, row: int, columns: Sequence[str], where: str) -> dict[str, Any] | UserError:
    """The values of one row, or the error that one of them is no text."""
    try:
        return {name: batch.column(name)[row].as_py() for name in columns}
    except UnicodeDecodeError:
        return UserError(f"{where}: holds text that is not UTF-8; write it anew.", field="data")


def is_string(kind: pa.DataType) -> bool:
    """Whether values of this type are texts."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _no_bytes(outside: Any) -> str:
    if outside:
        return (
            f"This row names a file ({str(outside)[:200]}) and holds no bytes of it, and names are not followed; "
            "save the data set anew with its files in it."
        )
    return "There are no image bytes in this row; give encoded pictures (PNG, JPEG, …)."


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:160].rstrip(". ") if str(error) else type(error).__name__


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _is_image(field.type) for field in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _content_column(schema: pa.Schema, kind: str, asked: str | None, where: str) -> str:
    fits = _is_image if kind == "image" else is_string
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
    if _is_label(kind) or asked is None:
        return name
    raise UserError(
        f"{where}: the column '{name}' holds {kind}; labels must be strings, numbers, dates or booleans.",
        field="label_column",
    )


def _is_label(kind: pa.DataType) -> bool:
    """Whether values of this type are labels: words, numbers, dates, true and false."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (is_string(kind) or pa.types.is_null(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind)) and (
        not pa.types.is_duration(kind) and not pa.types.is_interval(kind)
    )


def _class_names(schema: pa.Schema, column: str, features: Mapping[str, Any] | None) -> list[str] | None:
    """Names behind whole-number labels, as the Hugging Face ``datasets`` library writes them."""
    try:
        if features is None:
            features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None
