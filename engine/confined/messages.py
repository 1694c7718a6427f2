"""Messages between a process and its confined child: a JSON header and raw buffers, never a pickle.

A frame is 8 bytes with the length of the header (big endian), the header, and the buffers one after the other. The
header is ``{"value": tree, "buffers": [[kind, length, …], …]}``; in the tree, ``{"#": n}`` stands for buffer n. Kinds:
``bytes``, ``text`` (UTF-8), ``array`` (numpy, with dtype and shape) and ``arrow`` (an IPC stream). The receiver does
not trust the sender: lengths, dtypes and shapes are checked before memory is allocated for them.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenpaths.engine.base.arrow_messages import ROWS, SCHEMA, read_metadata

if TYPE_CHECKING:
    import pyarrow as pa

DTYPES = frozenset(f"{kind}{size}" for kind, sizes in (("i", "1248"), ("u", "1248"), ("f", "248")) for size in sizes)
"""dtypes of arrays in little endian, and ``b1``; others are refused"""
MAX_HEADER_BYTES = 4 * 2**20
MAX_SENTENCE = 2000
"""characters of an error that are passed on"""
LONG_TEXT = 1024
"""characters from which on a text travels as a buffer"""
_MARK = "#"


class BadMessage(ValueError):
    """The other process sent something that is no message."""


def write_message(pipe: BufferedIOBase, value: Any) -> None:
    """Send one message.

    Args:
        pipe: of the other process.
        value: None, numbers, texts, lists, tuples (which arrive as lists) and dicts of texts to such values, bytes,
            numpy arrays, Arrow record batches and tables.

    Raises:
        TypeError: a value of another type.
    """
    buffers: list[Any] = []
    about: list[list[Any]] = []
    tree = _packed(value, buffers, about)
    header = json.dumps({"value": tree, "buffers": about}, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise TypeError(f"a message with a header of {len(header)} bytes; send long lists as arrays")
    pipe.write(len(header).to_bytes(8, "big") + header)
    for buffer in buffers:
        pipe.write(buffer)
    pipe.flush()


def _packed(value: Any, buffers: list[Any], about: list[list[Any]]) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) and len(value) < LONG_TEXT:
        return value
    if isinstance(value, list | tuple):
        return [_packed(item, buffers, about) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) and key != _MARK for key in value):
            raise TypeError("a dict with keys that are no texts")
        return {key: _packed(item, buffers, about) for key, item in value.items()}
    kind, buffer, more = _buffer_of(value)
    buffers.append(buffer)
    about.append([kind, memoryview(buffer).nbytes, *more])
    return {_MARK: len(buffers) - 1}


def _buffer_of(value: Any) -> tuple[str, Any, list[Any]]:
    """(kind, something with the buffer protocol, further entries of the header)."""
    if isinstance(value, str):
        return "text", value.encode("utf-8", "surrogatepass"), []
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes", value, []
    if isinstance(value, np.generic | np.ndarray):
        array = np.asarray(value)
        name = f"{array.dtype.kind}{array.dtype.itemsize}"
        if name not in DTYPES and name != "b1":
            raise TypeError(f"an array of dtype {array.dtype}")
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return "array", plain.reshape(-1).view(np.uint8) if plain.size else b"", [name, list(array.shape)]
    import pyarrow as pa

    if not isinstance(value, pa.RecordBatch | pa.Table):
        raise TypeError(f"a value of type {type(value).__name__}")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    return "arrow", sink.getvalue(), []


def read_message(pipe: BufferedIOBase, most_bytes: int) -> Any:
    """Receive one message; arrays can be written to, an Arrow stream arrives as a table.

    Args:
        pipe: of the other process.
        most_bytes: of all buffers of the message.

    Raises:
        EOFError: the pipe is closed.
        BadMessage: what arrived is no message, or is too long.
    """
    length = int.from_bytes(_exactly(pipe, 8), "big")
    if length > MAX_HEADER_BYTES:
        raise BadMessage(f"a header of {length} bytes")
    data = _exactly(pipe, length)
    with _parsing("header"):
        header = json.loads(data)
        about = [(entry[0], entry[1], entry[2:]) for entry in header["buffers"]]
        tree = header["value"]
        if not all(type(size) is int and size >= 0 for _, size, _ in about):
            raise BadMessage("buffers whose sizes are no numbers of bytes")
        if sum(size for _, size, _ in about) > most_bytes:
            raise BadMessage(f"buffers of more than {most_bytes} bytes")
        readers = [_reader_of(kind, size, more) for kind, size, more in about]
    buffers = [_exactly(pipe, size) for _, size, _ in about]
    with _parsing("value"):
        values = [read(buffer) for read, buffer in zip(readers, buffers, strict=True)]
        return _unpacked(tree, values)


@contextlib.contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Turn every failure into BadMessage: the sender, not this program, is to blame for whatever parsing meets."""
    try:
        yield
    except BadMessage:
        raise
    except Exception as error:
        raise BadMessage(f"an unreadable {what} ({type(error).__name__})") from None


def _reader_of(kind: Any, size: int, more: list[Any]) -> Callable[[bytearray], Any]:
    """How a buffer becomes its value; fails where its header cannot be true."""
    if kind == "bytes" and not more:
        return bytes
    if kind == "text" and not more:
        return _text
    if kind == "arrow" and not more:
        return _table
    if kind != "array" or len(more) != 2:
        raise BadMessage(f"a buffer of kind {str(kind)[:20]!r}")
    name, shape = more
    if name != "b1" and name not in DTYPES:
        raise BadMessage(f"an array of dtype {str(name)[:20]!r}")
    plain = isinstance(shape, list) and len(shape) <= 8 and all(type(side) is int and side >= 0 for side in shape)
    if not plain or math.prod(shape) * int(name[1:]) != size:
        raise BadMessage(f"an array of {size} bytes and shape {str(shape)[:80]}")
    return lambda data: np.frombuffer(data, np.dtype(f"<{name}")).reshape(shape)


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "surrogatepass")


def _table(data: bytearray) -> pa.Table:
    """The table of an IPC stream whose buffers are as long as they say: no compression, no dictionaries."""
    import pyarrow as pa

    buffer = pa.py_buffer(data)
    for message in pa.ipc.MessageReader.open_stream(buffer):
        _refuse_unfolding(message.metadata.to_pybytes())
    table = pa.ipc.open_stream(buffer).read_all()
    table.validate(full=True)
    return table


def _refuse_unfolding(metadata: bytes) -> None:
    """Raise ValueError for messages that need more memory than their bytes."""
    message = read_metadata(metadata)
    if message.kind not in (SCHEMA, ROWS):
        raise ValueError(f"a message of kind {message.kind}")
    if message.compressed:
        raise ValueError("compressed buffers")


def _unpacked(tree: Any, values: list[Any]) -> Any:
    if isinstance(tree, list):
        return [_unpacked(item, values) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _MARK not in tree:
        return {key: _unpacked(item, values) for key, item in tree.items()}
    number = tree[_MARK]
    if type(number) is not int or not 0 <= number < len(values):
        raise BadMessage("a reference to no buffer")
    return values[number]


def _exactly(pipe: BufferedIOBase, length: int) -> bytearray:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = pipe.readinto(view[done:])
        if not count:
            raise EOFError
        done += count
    return data
