"""What a message of an Arrow IPC stream declares of itself, read before Arrow allocates anything for it.

The layout is that of ``format/Message.fbs`` of Arrow; nothing but the numbers needed here is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

SCHEMA: Final = 1
DICTIONARY: Final = 2
ROWS: Final = 3


@dataclass(frozen=True)
class ArrowMessage:
    """A schema, the values of a dictionary, or a batch of rows."""

    kind: int
    """``SCHEMA``, ``DICTIONARY``, ``ROWS``, or another number of the format"""
    body_bytes: int
    num_rows: int = 0
    compressed: bool = False
    """whether each buffer begins with its length before compression"""
    buffers: tuple[tuple[int, int], ...] = ()
    """(offset in the body, bytes) of each"""


def read_metadata(metadata: bytes) -> ArrowMessage:
    """The numbers in the metadata of one message.

    Raises:
        ValueError: they cannot be those of a message.
    """
    try:
        message = _at(metadata, 0)
        kind_at, body_at = _field(metadata, message, 1), _field(metadata, message, 3)
        kind = 0 if kind_at is None else metadata[kind_at]
        body_bytes = 0 if body_at is None else struct.unpack_from("<q", metadata, body_at)[0]
        if body_bytes < 0:
            raise ValueError(f"a body of {body_bytes} bytes")
        batch = _table(metadata, message, 2)
        if kind == DICTIONARY and batch is not None:
            batch = _table(metadata, batch, 1)
        if kind not in (DICTIONARY, ROWS):
            return ArrowMessage(kind, body_bytes)
        if batch is None:
            raise ValueError("no header")
        return ArrowMessage(kind, body_bytes, *_batch(metadata, batch))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a message that cannot be read ({error})") from None


def _batch(metadata: bytes, batch: int) -> tuple[int, bool, tuple[tuple[int, int], ...]]:
    """(rows, compressed, buffers) of a record batch."""
    rows_at = _field(metadata, batch, 0)
    num_rows = 0 if rows_at is None else struct.unpack_from("<q", metadata, rows_at)[0]
    vector = _table(metadata, batch, 2)
    num_buffers = 0 if vector is None else struct.unpack_from("<I", metadata, vector)[0]
    if num_rows < 0 or num_buffers > len(metadata) // 16:
        raise ValueError(f"{num_rows} rows in {num_buffers} buffers")
    numbers = struct.unpack_from(f"<{2 * num_buffers}q", metadata, 0 if vector is None else vector + 4)
    return (num_rows, _field(metadata, batch, 3) is not None, tuple(zip(numbers[::2], numbers[1::2], strict=True)))


def _at(metadata: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", metadata, place)[0])


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table lies; None where it has its default."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def _table(metadata: bytes, table: int, number: int) -> int | None:
    """Where the table or vector lies that a field refers to."""
    place = _field(metadata, table, number)
    return None if place is None else _at(metadata, place)
