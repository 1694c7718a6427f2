"""Lines of JSON whose long nested lists of ids do not become Python's lists.

The lists are cut out and read by numpy, what is left is parsed as ever, and the arrays are put in. Whatever is not
plainly such a list is left to the parser, so that nothing is read otherwise and every error is the parser's.

Shapes: t tokens, S layers, K slots.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.base.validation import distinct_keys

LEAST_BYTES = 1024
"""shorter values are left to the parser"""
MOST_DIGITS = 5
_MARK = f"\0{secrets.token_hex(8)}"
"""what stands for a value; no log knows it"""
_OPEN, _CLOSE, _COMMA, _ZERO = (np.uint8(code) for code in b"[],0")


def parse_long(line: bytes) -> Any | None:
    """The value of a JSON line as ``DISTINCT_KEYS`` decodes it, but long nested lists of ids as arrays; None if it
    holds nothing long, or the parser has to look at it."""
    if len(line) < LEAST_BYTES:
        return None
    parts = line.split(b'"')
    values: list[Any] = []
    for place, part in enumerate(parts):
        if len(part) >= LEAST_BYTES and b"[" in part and b"[[" in part:
            parts[place] = _without_array(part, values)
    if not values:
        return None
    found = 0

    def put_back(pairs: list[tuple[str, Any]]) -> Any:
        nonlocal found
        if len(pairs) == 1 and pairs[0][0] == _MARK:
            found += 1
            return values[pairs[0][1]]
        return distinct_keys(pairs)

    try:
        record = json.JSONDecoder(object_pairs_hook=put_back).decode(b'"'.join(parts).decode("utf-8-sig"))
    except (ValueError, RecursionError, IndexError, TypeError):
        return None
    return record if found == len(values) else None


def _without_array(part: bytes, values: list[Any]) -> bytes:
    """``part`` with an object in place of its nested list. Inside of quotes that is no JSON."""
    start, stop = part.index(b"[["), part.rfind(b"]]") + 2
    array = nested_array(part[start:stop])
    if array is None:
        return part
    values.append(array)
    return part[:start] + f"{{{json.dumps(_MARK)}:{len(values) - 1}}}".encode() + part[stop:]


def nested_array(text: bytes) -> np.ndarray | None:
    """The whole numbers of a nested JSON list of one shape, (t, K) or (t, S, K), at most 99,999; None for all else.

    >>> nested_array(b"[[[1, 20]], [[3, 4]]]").tolist()
    [[[1, 20]], [[3, 4]]]
    >>> nested_array(b"[[1, 2], [3]]")
    """
    if text.count(b" ") != text.count(b", "):
        return None
    shape = _shape_of(text.translate(None, b"0123456789 "))
    if shape is None:
        return None
    # Now the brackets are right; that numbers stand inside of them, and nowhere else, is left to see.
    codes = np.frombuffer(text.translate(None, b" "), dtype=np.uint8)
    brackets = np.flatnonzero((codes == _OPEN) | (codes == _CLOSE))
    opened = codes[brackets] == _OPEN
    beside = np.where(opened, codes[brackets - 1], codes[np.minimum(brackets + 1, len(codes) - 1)])
    if bool((beside - _ZERO < 10).any()):
        return None
    digits = np.frombuffer(b"," + text.translate(None, b"[] ") + b",", dtype=np.uint8)
    commas = np.flatnonzero(digits == _COMMA)
    ends, lengths = commas[1:], np.diff(commas) - 1
    longest = int(lengths.max())
    if int(lengths.min()) < 1 or longest > MOST_DIGITS:
        return None
    digits = digits - _ZERO
    numbers = digits[ends - 1].astype(np.int64)
    for place in range(1, longest):
        here = lengths > place
        numbers += np.where(here, digits[ends - 1 - place], 0) * np.int64(10**place)
        if bool(((digits[ends - 1 - place] == 0) & (lengths == place + 1)).any()):
            return None  # a number that begins with a zero is no JSON
    return numbers.reshape(shape)


def _shape_of(text: bytes) -> Sequence[int] | None:
    """The shape of a nested list without its numbers; None if it is no such list, or ragged."""
    depth = len(text) - len(text.lstrip(b"["))
    if depth not in (2, 3):
        return None
    slots = (text[depth : text.index(b"]")] if b"]" in text else b"").count(b",") + 1
    row = b"[" + b"," * (slots - 1) + b"]"
    shape = [slots]
    for _ in range(depth - 2):
        end = text.find(b"]]")
        count = (end + 1 - (depth - 1) + 1) // (len(row) + 1)
        if count < 1:
            return None
        row = b"[" + b",".join([row] * count) + b"]"
        shape.insert(0, count)
    tokens = (len(text) - 1) // (len(row) + 1)
    if tokens < 1 or text != b"[" + b",".join([row] * tokens) + b"]":
        return None
    return [tokens, *shape]
