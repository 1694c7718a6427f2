"""Messages between processes: what goes in comes out, and what cannot be true is refused before it costs memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tokenpaths.engine.confined.messages import BadMessage, read_message, write_message


def through(value: Any, most_bytes: int = 1 << 20) -> Any:
    pipe = io.BytesIO()
    write_message(pipe, value)
    pipe.seek(0)
    return read_message(pipe, most_bytes)


def framed(header: Any, body: bytes = b"") -> io.BytesIO:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(len(data).to_bytes(8, "big") + data + body)


def test_values_come_back() -> None:
    value = {
        "a": [1, 2.5, None, True, "ü\ud800", "x" * 5000 + "\udc00"],
        "b": b"\x00\x01",
        "empty": [],
        "deep": {"c": "#"},
    }
    assert through(value) == value
    assert through((1, (2, 3))) == [1, [2, 3]]


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i4", "i8", "<f2", "f4", ">f8", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (4, 5)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 2, dtype)
    back = through({"array": array})["array"]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(through(array.T), array.T)


def test_arrow_comes_back() -> None:
    table = pa.table({"text": ["a", None], "ids": pa.array([[1, 2], None], pa.list_(pa.int32())), "bytes": [b"x", b""]})
    assert through(table).equals(table)
    sliced = table.slice(1).to_batches()[0]
    assert through(sliced).to_pylist() == sliced.to_pylist()


def test_other_values_are_not_sent() -> None:
    for value in (object(), {1: 2}, {"#": 1}, {1, 2}, np.array(["a"]), np.array([None]), np.zeros(1, "c16")):
        with pytest.raises(TypeError):
            through(value)


@pytest.mark.parametrize(
    "about",
    [
        ["bytes", 1 << 40],
        ["bytes", -1],
        ["array", 8, "f8", [2]],
        ["array", 8, "f8", [-1, -1]],
        ["array", 8, "O8", [1]],
        ["array", 0, "f8", [0] * 40],
        ["array", 8, "V8", [1]],
        ["array", 8, "f8", [True]],
        ["array", 8, "f8"],
        ["pickle", 8],
        ["arrow", 8],
        ["text", 8],
        ["bytes"],
        ["bytes", 1e400],
        ["bytes", True],
        ["bytes", "8"],
        [["bytes"], 8],
        ["array", 8, ["f8"], [1]],
        ["array", 0, "f8", [0, 10**30]],
        ["array", 0, "f8", [0, 2**62, 2**62]],
        ["array", 8, "f8", 1],
        {"kind": "bytes"},
        7,
    ],
)
def test_lies_are_refused(about: Any) -> None:
    tracemalloc.start()
    with pytest.raises(BadMessage):
        read_message(framed({"value": {"#": 0}, "buffers": [about]}, b"\xff" * 8), 1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_bad_headers_are_refused() -> None:
    for header in (
        b"{",
        b"[" * 100_000,
        b"\xff",
        {"value": 1},
        [],
        {"value": {"#": 0}, "buffers": []},
        {"value": {"#": True}, "buffers": []},
        b'{"value": ' + b"[" * 900 + b"]" * 900 + b', "buffers": []}',
    ):
        with pytest.raises(BadMessage):
            read_message(framed(header), 1 << 20)
    with pytest.raises(BadMessage):
        read_message(io.BytesIO((1 << 50).to_bytes(8, "big")), 1 << 20)
    for cut in (b"", b"\x00" * 5, framed({"value": {"#": 0}, "buffers": [["bytes", 9]]}, b"12").getvalue()):
        with pytest.raises(EOFError):
            read_message(io.BytesIO(cut), 1 << 20)


def test_arrow_that_unfolds_is_refused() -> None:
    table = pa.table({"a": pa.array([0] * 1_000_000, pa.int64())})
    for data, options in (
        (table, pa.ipc.IpcWriteOptions(compression="zstd")),
        (pa.table({"a": pa.array(["x" * 1000] * 100).dictionary_encode()}), None),
    ):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, data.schema, options=options) as writer:
            writer.write(data)
        body = sink.getvalue().to_pybytes()
        with pytest.raises(BadMessage):
            read_message(framed({"value": {"#": 0}, "buffers": [["arrow", len(body)]]}, body), 1 << 30)


def test_damaged_arrow_is_refused_or_valid() -> None:
    table = pa.table({"text": ["a", "bc", None] * 20, "ids": pa.array([[1, 2], None, [3]] * 20, pa.list_(pa.int32()))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    whole = sink.getvalue().to_pybytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        body = bytearray(whole)
        for place in generator.integers(0, len(body), 3):
            body[place] = generator.integers(256)
        try:
            back = read_message(framed({"value": {"#": 0}, "buffers": [["arrow", len(body)]]}, bytes(body)), 1 << 20)
        except BadMessage:
            continue
        back.validate(full=True)
