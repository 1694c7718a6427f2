"""Read JSON lines; every error names the file and line number."""

from __future__ import annotations

import binascii
import io
import json
import math
import tokenize
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pybase64

from tokenpaths.engine.adapters.logs.long_values import parse_long
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED
from tokenpaths.engine.adapters.logs.pieces.wording import shortened
from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import NPY_MAGIC, PICKLE, read_header
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.validation import DISTINCT_KEYS
from tokenpaths.engine.data.sources.jsonl import bad_json_reason

BOM = b"\xef\xbb\xbf"
MAX_LINE_BYTES = 1 << 30
HEAD_BYTES = 1 << 20
"""by which a log is recognised"""
PART_BYTES, OVERLAP_BYTES = 1 << 20, 64
"""of ``rest_of``"""
_NO_TEXT = {
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard; unpack it first",
    b"\xfd7zXZ\x00": "compressed with xz; unpack it first",
    **{b"BZh%d1AY&SY" % level: "compressed with bzip2; unpack it first" for level in range(1, 10)},
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
"""first bytes → what a file is that cannot be read as it lies"""
_NO_ARRAY = (ValueError, EOFError, OSError, SyntaxError, TypeError, OverflowError, RecursionError, tokenize.TokenError)
"""what NumPy raises for bytes that are no array"""


def no_text(head: bytes) -> str | None:
    """What a file is that begins like this, and what to do with it; None if it may be text."""
    return next((problem for magic, problem in _NO_TEXT.items() if head.startswith(magic)), None)


def json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line, object) of each non-blank line."""
    for where, line in text_lines(file):
        yield where, json_object(where, line)


def json_object(where: str, line: bytes, *, arrays: bool = False) -> dict[str, Any]:
    """``parsed``, of a line that should be an object."""
    record = parsed(where, line, arrays=arrays)
    if not isinstance(record, dict):
        raise UserError(f"{where}: is a JSON {type(record).__name__}, it should be an object", field="file")
    return record


def parsed(where: str, line: bytes, *, arrays: bool = False) -> Any:
    """The JSON value of a line; UserError that names it.

    ``arrays``: long nested lists of whole numbers, all of one shape, as arrays.
    """
    if arrays and (fast := parse_long(line)) is not None:
        return fast
    try:
        return DISTINCT_KEYS.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{where}: not UTF-8; save the log as UTF-8", field="file") from None
    except (ValueError, RecursionError) as error:
        cut = " and ends without a line break, so the log seems cut off" if not line.endswith(b"\n") else ""
        reason = bad_json_reason(error)
        raise UserError(f"{where}: is not JSON ({reason}){cut}; give one object a line", field="file") from None


def is_json(line: bytes) -> bool:
    """Whether a line is a JSON value."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def text_lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """(file and line, bytes) of each non-blank line, without a byte order mark before the first."""
    try:
        with file.open("rb") as stream:
            number = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{file}, line {number}: longer than {MAX_LINE_BYTES >> 20} MB", field="file")
                if number == 1:
                    line = line.removeprefix(BOM)
                if line.strip():
                    yield f"{file}, line {number}", line
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})", field="file") from None


def read_head(file: Path) -> bytes:
    """The first megabyte of a log; UserError if there is nothing."""
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", field="file") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})", field="file") from None
    if not head.removeprefix(BOM).strip():
        raise UserError(f"{file}: is empty; a routing log has a line or an array for each token", field="file")
    return head


def rest_of(file: Path, head: bytes, *, one_line: bool) -> Iterator[bytes]:
    """What follows the ``head`` of a file, in parts; each begins with the end of what is before it.

    ``one_line``: only to the end of the line in which the head ends.
    """
    if one_line and head.endswith(b"\n"):
        return
    try:
        with file.open("rb") as stream:
            stream.seek(len(head))
            before, left = head[-OVERLAP_BYTES:], MAX_LINE_BYTES
            while left > 0 and (part := (stream.readline if one_line else stream.read)(PART_BYTES)):
                yield before + part
                if one_line and part.endswith(b"\n"):
                    return
                before, left = part[-OVERLAP_BYTES:], left - len(part)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})", field="file") from None


def nested_ids(value: list[Any] | np.ndarray, where: str, what: str, slots_at: int | None = None) -> np.ndarray:
    """Nested lists of integers as an array; UserError if they are ragged or hold other values.

    ``slots_at``: depth of the lists of a token's experts, which may be shorter than others and hold null: ``UNUSED``.
    At depth 2 all of them may be empty, as where every token was dropped.
    """
    if isinstance(value, np.ndarray):  # ``parsed`` made it
        return value
    try:
        array = np.array(value)
        none = not array.size or array.dtype == object
        if slots_at is not None and none and (filled := _filled(value, slots_at)) is not None:
            return filled
    except ValueError:  # what numpy says of lists of different lengths
        filled = None if slots_at is None else _filled(value, slots_at)
        if filled is None:
            # Where lists may be of any length, it is what they hold that is wrong.
            problem = _odd(value) if slots_at is not None else ""
            raise UserError(f"{where}: {what} {problem or f'is ragged: {_ragged(value)}'}", field="file") from None
        return filled
    except OverflowError:
        raise UserError(f"{where}: {what} {_odd(value)}", field="file") from None
    if not array.size and array.dtype.kind not in "iu":
        raise UserError(f"{where}: {what} holds empty lists only", field="file")
    if array.dtype.kind not in "iu":
        raise UserError(f"{where}: {what} {_odd(value) or 'holds other things than whole numbers'}", field="file")
    leaves: Iterable[Any] = value
    for _ in range(array.ndim - 1):
        leaves = chain.from_iterable(leaves)
    if bool in set(map(type, leaves)):  # numpy takes true beside numbers for a 1
        raise UserError(f"{where}: {what} holds true and false, it should hold whole numbers", field="file")
    return array


def _filled(value: list[Any], slots_at: int) -> np.ndarray | None:
    """Lists of experts of different lengths as one array; None if they are ragged elsewhere or hold other things."""
    lists = value
    if slots_at == 3:
        sizes = {len(token) if isinstance(token, list) else 0 for token in value}
        if len(sizes) != 1 or 0 in sizes:
            return None
        lists = [one for token in value for one in token]
    lists = [[] if one is None else one for one in lists]
    if any(not isinstance(one, list) or any(type(i) is not int and i is not None for i in one) for one in lists):
        return None
    wide = max(map(len, lists))
    if not wide and slots_at == 3:
        return None
    rows = [[UNUSED if i is None else i for i in one] + [UNUSED] * (wide - len(one)) for one in lists]
    try:
        array = np.array(rows, dtype=np.int64)
    except OverflowError:
        return None
    return array.reshape(len(value), -1, wide) if slots_at == 3 else array


def _odd(value: list[Any]) -> str:
    """What nested lists hold that is no id, and what would be right; empty if there are whole numbers and null only."""
    leaves = list(_leaves(value))
    kinds = {type(leaf) for leaf in leaves}
    right = "it should hold whole numbers"
    for kind, name in ((bool, "true and false"), (str, "text"), (dict, "objects")):
        if kind in kinds:
            return f"holds {name}, {right}"
    numbers = [leaf for leaf in leaves if isinstance(leaf, float)]
    if (odd := next((n for n in numbers if not math.isfinite(n)), None)) is not None:
        return f"holds {odd}, {right}"
    if (odd := next((n for n in numbers if not n.is_integer()), None)) is not None:
        return f"holds numbers with a fraction ({odd}), {right}"
    if (odd := next((n for n in leaves if type(n) in (int, float) and not -(2**63) <= n < 2**63), None)) is not None:
        return f"holds {shortened(odd)}, which is too large; {right} from 0 to {MOST_EXPERTS - 1}"
    if numbers:
        return f"holds whole numbers written with a point ({numbers[0]}), {right} without one ({int(numbers[0])})"
    return ""


def _leaves(value: list[Any]) -> Iterator[Any]:
    """What stands in nested lists, level by level: they may be nested deeper than functions can be."""
    level = value
    while level:
        yield from (one for one in level if not isinstance(one, list))
        level = [one for inner in level if isinstance(inner, list) for one in inner]


def _ragged(value: list[Any]) -> str:
    """Description of the first ragged level of nested lists."""
    lengths = {len(row) if isinstance(row, list) else -1 for row in value}
    if len(lengths) == 1:
        for token, row in enumerate(value):
            inner = {len(one) if isinstance(one, list) else -1 for one in row} if isinstance(row, list) else set()
            if len(inner) > 1:
                return f"the layers of token {token} have different numbers of experts"
        return "the tokens have different numbers of experts"
    first = len(value[0]) if isinstance(value[0], list) else -1
    odd = next(i for i, row in enumerate(value) if (len(row) if isinstance(row, list) else -1) != first)
    return f"token {odd} has another number of entries than token 0"


def decoded(text: str, where: str, what: str) -> bytes:
    """Decode a base64 string."""
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError(f"{where}: {what} is no base64 ({str(error)[:80]})", field="file") from None


def from_bytes(data: bytes, dtype: str, where: str, what: str) -> np.ndarray:
    """A flat array of the integers in ``data``, or the array of a ``.npy`` file."""
    if data.startswith(NPY_MAGIC):
        try:
            _check_size(data)
            array = np.load(io.BytesIO(data), allow_pickle=False)
        except _NO_ARRAY as error:
            if "pickle" in str(error).lower() or "object" in str(error).lower():
                raise UserError(f"{where}: {what} {PICKLE.format('whole numbers')}", field="file") from None
            raise UserError(f"{where}: {what} is a cut off numpy array ({str(error)[:80]})", field="file") from None
        if array.dtype.kind not in "iu":
            raise UserError(f"{where}: {what} is {array.dtype}, it should be whole numbers", field="file")
        return array
    kind = np.dtype(dtype).newbyteorder("<")
    if len(data) % kind.itemsize:
        raise UserError(
            f"{where}: {what} has {len(data)} bytes, which are no whole numbers of {kind.itemsize} bytes ({kind.name})",
            field="file",
        )
    return np.frombuffer(data, dtype=kind)


def _check_size(data: bytes) -> None:
    """ValueError if the header of a ``.npy`` announces more than there is: NumPy would make room for it."""
    shape, _, dtype = read_header(io.BytesIO(data))
    fits = all(0 <= length <= len(data) for length in shape) and math.prod(shape) * dtype.itemsize <= len(data)
    if not fits and not dtype.hasobject:
        raise ValueError(f"the shape {str(shape)[:60]} announced, {len(data)} bytes there")
