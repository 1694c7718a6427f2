"""Strict JSON: duplicate keys, NaN, infinities and lone surrogates are refused."""

from __future__ import annotations

import json
import math
from typing import Any

from tokenpaths.backend.problems import Problem
from tokenpaths.engine.base.validation import distinct_keys

MOST_DIGITS = 400


def strict_json(data: bytes | str) -> Any:
    """Parse ``data`` strictly.

    Raises:
        ValueError: Not JSON, a duplicate key, NaN or infinity, a lone surrogate, or nested too deeply. The message
            completes the sentence "it cannot be read as JSON: …".
    """
    try:
        values = json.loads(
            data, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=distinct_keys
        )
        # a lone surrogate could be stored but never be encoded as UTF-8 again
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate)") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is no {error.encoding.upper()}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return values


def json_body(data: bytes) -> Any:
    """Parse a request body; Problem 422 if it is not strict JSON."""
    try:
        return strict_json(data)
    except ValueError as error:
        raise Problem(422, "json", f"The body cannot be read as JSON: {str(error)[:200]}.", field="body") from None


def _finite(word: str) -> float:
    number = float(word)
    if math.isinf(number):
        raise ValueError(f"{word[:20]} is too large for a number")
    return number


def _whole(word: str) -> int:
    if len(word) > MOST_DIGITS:
        raise ValueError(f"a number has {len(word):,} digits; at most {MOST_DIGITS} are read")
    return int(word)


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")
