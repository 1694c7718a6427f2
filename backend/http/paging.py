"""Opaque ``next`` cursors, and validation of query strings."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Request

from tokenpaths.backend.problems import Problem, nearest

MAX_INTEGER = 2**53
"""largest integer that a JSON reader can represent exactly (2^53); no number in a run is larger"""
MOST_CURSOR = 3000
"""characters of a cursor: a file name of 255 bytes, each escaped in JSON, in base64"""
_BOUND_KEYS_EXCLUDED = ("next", "limit")
Position = TypeVar("Position", int, str)


async def refuse_unknown_keys(request: Request) -> None:
    """Dependency of every route: 422 for an unknown query key, a repeated scalar key, or a query that is not UTF-8.

    Async because FastAPI runs synchronous dependencies in a thread, which would cost more than the rest of the route.
    """
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if dependant is None:
        return
    _refuse_broken_text(request.scope["query_string"])
    allowed = _query_names(dependant)
    seen: set[str] = set()
    for key, _ in request.query_params.multi_items():
        if key not in allowed:
            raise Problem(
                422, "unknown-key", f"There is no query key {key[:80]!r} here; {nearest(key, allowed)}", field=key[:80]
            )
        if key in seen:
            raise Problem(422, "repeated-key", f"The query key `{key}` was given twice; give it once.", field=key)
        seen.add(key)


def _refuse_broken_text(query: bytes) -> None:
    """Raise 422 if percent-decoding does not yield UTF-8; the framework would silently substitute U+FFFD.

    Bytes that should have been percent-encoded are refused too: the framework would decode each as one Latin-1
    character.
    """
    if query.isascii() and (b"%" not in query or _is_utf8(unquote_to_bytes(query))):
        return
    for pair in query.split(b"&"):
        if pair.isascii() and _is_utf8(unquote_to_bytes(pair)):
            continue
        key = unquote_to_bytes(pair.partition(b"=")[0].replace(b"+", b" ")).decode("utf-8", "backslashreplace")[:80]
        problem = "is no UTF-8 after percent-decoding" if pair.isascii() else "holds bytes that are not percent-encoded"
        raise Problem(
            422,
            "query-text",
            f"The query key {key!r} {problem}; send text as percent-encoded UTF-8, é as %C3%A9.",
            field=key,
        )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _query_names(dependant: Any) -> set[str]:
    """Names of the query parameters of a route and of all its dependencies."""
    names = {field.alias for field in dependant.query_params}
    for child in dependant.dependencies:
        names |= _query_names(child)
    return names


def canonical_query(request: Request, *, without: tuple[str, ...] = ()) -> str:
    """The query, sorted, as one string; equal for equivalent queries."""
    pairs = sorted((key, value) for key, value in request.query_params.multi_items() if key not in without)
    return json.dumps(pairs, ensure_ascii=True)


def binding_of(request: Request, identity: str) -> str:
    """The context that a cursor is valid for: the file, the route and every query key but ``next`` and ``limit``."""
    text = "\n".join((identity, request.url.path, canonical_query(request, without=_BOUND_KEYS_EXCLUDED)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode_cursor(position: int | str, binding: str) -> str:
    """Encode the start of the next page and the context it is valid for as an opaque ``next`` cursor.

    >>> decode_cursor(encode_cursor(40, "b"), "b", int)
    40
    """
    text = json.dumps([position, binding], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, binding: str, kind: type[Position]) -> Position:
    """The position in ``cursor``, of type ``kind``; Problem 422 if it is damaged or belongs to another query."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        position, bound = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        if not isinstance(bound, str):
            raise ValueError("wrong types")
    except (ValueError, TypeError, UnicodeError, binascii.Error, RecursionError):
        raise _no_cursor() from None
    if bound != binding:
        raise Problem(
            422,
            "cursor",
            "`next` belongs to another question, or the run was replaced since; start again without `next`.",
            field="next",
        )
    if type(position) is not kind or (isinstance(position, int) and not 0 <= position <= MAX_INTEGER):
        raise _no_cursor()
    return position


def _no_cursor() -> Problem:
    return Problem(
        422, "cursor", "`next` is not a cursor of this server; take it from the last answer, unchanged.", field="next"
    )


def with_cursor(page: dict[str, Any], binding: str) -> dict[str, Any]:
    """A page of the store with its ``next`` offset (or None) encoded as an opaque cursor."""
    offset = page.get("next")
    return page | {"next": None if offset is None else encode_cursor(int(offset), binding)}
