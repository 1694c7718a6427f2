"""One Arrow file, as a stream or in the file format (Feather 2), of which single batches are read.

Every message is found and compared with limits by its own numbers before Arrow sees it, and mapped into memory alone:
the address space of the process that reads is limited, and a column that nobody asks for costs nothing. Values are
checked (``validate(full=True)``) before one of them is read: Arrow itself trusts offsets, which may lead anywhere.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.arrow_messages import DICTIONARY, ROWS, SCHEMA, ArrowMessage, read_metadata
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.declared_sizes import check_rows, check_unfolded
from tokenpaths.engine.data.sources.folders import open_regular
from tokenpaths.engine.data.sources.tables.table_source import damage_said

MOST_BATCH_BYTES: Final = 768 << 20
"""of one batch, stored and unfolded together"""
MOST_DICTIONARY_BYTES: Final = 64 << 20
MOST_METADATA_BYTES: Final = 16 << 20
_CONTINUES: Final = b"\xff\xff\xff\xff"
_FILE_MAGIC: Final = b"ARROW1"
_OTHER_KINDS: Final = {b"FEA1": "is Feather of version 1", b"PAR1": "is Parquet, its name should end with .parquet"}
NO_END: Final = "{n} Arrow stream{s} without an end mark may be cut off"


@dataclass(frozen=True)
class _Place:
    """Where a message lies in its file."""

    first: int
    last: int
    message: ArrowMessage


class ArrowFile:
    """A file of record batches.

    Attributes:
        schema: the columns.
        starts: (n + 1,) first row of each batch, and the number of rows.
        has_end: whether it ends as a whole one does.

    Raises:
        UserError: it is no Arrow file, is cut off, or declares more than it can hold.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._batches: list[_Place] = []
        self._dictionaries: list[list[_Place]] = []
        schema = self._find_messages()
        self._schema_place = schema
        with damage_said(path, "is no Arrow file"):
            self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(self._bytes(schema)))
            _decode_names(self.schema)  # damaged names fail here, not later
        rows = [place.message.num_rows for place in self._batches]
        check_rows(sum(rows), path.stat().st_size, str(path), "data")
        self.starts = np.cumsum([0, *rows])

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def column(self, number: int, name: str) -> pa.Array:
        """A column of batch ``number``, checked."""
        return self.columns(number, [name]).column(0)

    def columns(self, number: int, names: Sequence[str]) -> pa.RecordBatch:
        """Columns of batch ``number``, checked; texts may hold bytes that are no UTF-8."""
        with damage_said(self.path, f"batch {number} cannot be read"):
            batch = self._read(number).select(list(names))
            if batch.num_rows != self._batches[number].message.num_rows:
                raise ValueError("another number of rows than it says")
            for column in batch.columns:
                _offsets_alone(column).validate(full=True)
            return batch

    def _read(self, number: int) -> pa.RecordBatch:
        place, dictionaries = self._batches[number], self._dictionaries[number]
        if not (place.message.compressed or dictionaries):
            return pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(self._mapped(place))), self.schema)
        self._check_unfolded(number)
        parts = [self._schema_place, *dictionaries, place]
        return pa.ipc.open_stream(pa.BufferReader(b"".join(map(self._bytes, parts)))).read_next_batch()

    def _check_unfolded(self, number: int) -> None:
        batch = self._batches[number]
        with open_regular(self.path) as file:
            check_unfolded(
                batch.last - batch.first + _unfolded(file, batch), MOST_BATCH_BYTES, self._where(number), "data"
            )
            unfolded = sum(part.last - part.first + _unfolded(file, part) for part in self._dictionaries[number])
        check_unfolded(unfolded, MOST_DICTIONARY_BYTES, f"{self._where(number)}, its dictionaries", "data")

    def _where(self, number: int) -> str:
        return f"{self.path}, batch {number}"

    def _find_messages(self) -> _Place:
        """Find all messages; returns the schema."""
        schema: _Place | None = None
        dictionaries: list[_Place] = []
        with open_regular(self.path) as file, damage_said(self.path, "is no Arrow file"):
            at = self._first_message(file)
            size = os.fstat(file.fileno()).st_size
            while (place := self._next_message(file, at, size)) is not None:
                at, kind = place.last, place.message.kind
                if (schema is None) != (kind == SCHEMA) or kind not in (SCHEMA, DICTIONARY, ROWS):
                    raise ValueError(f"a message of kind {kind} among the rows")
                if kind == SCHEMA:
                    schema = place
                elif kind == DICTIONARY:
                    dictionaries = [*dictionaries, place]
                else:
                    check_unfolded(place.last - place.first, MOST_BATCH_BYTES, self._where(len(self._batches)), "data")
                    self._batches.append(place)
                    self._dictionaries.append(dictionaries)
        if schema is None:
            raise UserError(f"{self.path}: is no Arrow file: it holds no schema.", field="data")
        return schema

    def _first_message(self, file: BufferedIOBase) -> int:
        start = file.read(8)
        self._is_stream = not start.startswith(_FILE_MAGIC)
        self.has_end = True
        for magic, what in _OTHER_KINDS.items():
            if start.startswith(magic):
                raise UserError(f"{self.path}: {what}; write it anew as Arrow (Feather 2) or Parquet.", field="data")
        if not self._is_stream:
            file.seek(max(0, os.fstat(file.fileno()).st_size - len(_FILE_MAGIC)))
            if file.read() != _FILE_MAGIC:
                raise UserError(f"{self.path}: is cut off, its end is missing; copy it again.", field="data")
        return 0 if self._is_stream else 8

    def _next_message(self, file: BufferedIOBase, at: int, size: int) -> _Place | None:
        """The message at byte ``at``; None at the end."""
        file.seek(at)
        head = file.read(8)
        if not head and self._is_stream:
            self.has_end = False
            return None
        before = 8 if head.startswith(_CONTINUES) else 4  # without: as Arrow wrote it before 0.15
        length = int.from_bytes(head[before - 4 : before], "little")
        if len(head) >= before and not length:
            return None
        number = len(self._batches)
        if at == 0 and length > min(size, MOST_METADATA_BYTES):
            raise ValueError("it does not begin as one")
        if length > MOST_METADATA_BYTES:
            raise UserError(f"{self._where(number)}: its header is damaged; copy the file again.", field="data")
        metadata = file.read(length) if before == 8 else head[4:] + file.read(length - 4)
        if len(head) < before or len(metadata) < length:
            raise UserError(f"{self._where(number)}: the file is cut off there; copy it again.", field="data")
        message = read_metadata(metadata)
        last = at + before + length + message.body_bytes
        if last > size:
            raise UserError(
                f"{self._where(number)}: the file is cut off in it ({size:,} bytes of {last:,}); copy it again.",
                field="data",
            )
        return _Place(at, last, message)

    def _bytes(self, place: _Place) -> bytes:
        with open_regular(self.path) as file:
            file.seek(place.first)
            return file.read(place.last - place.first)

    def _mapped(self, place: _Place) -> pa.Buffer:
        """The bytes of a message without reading them; the mapping ends with the last array over it."""
        before = place.first % mmap.ALLOCATIONGRANULARITY
        with open_regular(self.path) as file:
            length = place.last - place.first + before
            mapping = mmap.mmap(file.fileno(), length, offset=place.first - before, access=mmap.ACCESS_READ)
        return pa.py_buffer(memoryview(mapping)[before:])


def _unfolded(file: BufferedIOBase, place: _Place) -> int:
    """Bytes that the compressed buffers of a message declare."""
    if not place.message.compressed:
        return 0
    total, body = 0, place.last - place.message.body_bytes
    for offset, length in place.message.buffers:
        if not length:
            continue
        if not 0 <= offset <= place.message.body_bytes - length or length < 8:
            raise UserError("A buffer lies outside of its batch; the file is damaged, write it anew.", field="data")
        file.seek(body + offset)
        declared = int.from_bytes(file.read(8), "little", signed=True)
        total += declared if declared >= 0 else length  # −1: this one is not compressed
    return total


def _decode_names(fields: Iterable[pa.Field]) -> None:
    """Read every name; UnicodeDecodeError where one is no UTF-8."""
    for field in fields:
        if field.name is not None and pa.types.is_struct(field.type):
            _decode_names(field.type)


def _offsets_alone(column: pa.Array) -> pa.Array:
    """Texts as bytes: what is no UTF-8 is an error of its row and not of the whole batch."""
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column.view(pa.large_binary()) if pa.types.is_large_string(column.type) else column
