"""Responses as they come from a running engine: read in a confined child, line by line, and counted.

Shapes: S layers (dense ones included), M experts so far, K slots.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.json_lines import parsed
from tokenpaths.engine.adapters.logs.pieces import MOST_EXPERTS, Announced, Piece
from tokenpaths.engine.adapters.logs.responses.answers import NOT_THERE, identity_of, pieces_of
from tokenpaths.engine.adapters.logs.responses.envelopes import EVENTS, Response, Streams, in_envelope
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import ReaderEnded, ReaderPool

LIMITS = Limits(memory_megabytes=2048, seconds=60, descriptors=256, threads=True)
READERS = ReaderPool("tokenpaths.engine.adapters.logs.responses.received:answer", LIMITS, "the responses", "body")


@dataclass(frozen=True)
class Received:
    """One line that came: a response, a list of them, or the envelope of one."""

    line: bytes
    id: str
    """of the request; of its bytes where it names none"""
    problem: str | None
    """why it is not taken"""
    tokens: int = 0
    """with decisions, prefixes of several choices counted each time"""
    model: str | None = None
    top_k: int = 0
    counts: np.ndarray | None = None
    """(S, M) choices of each expert"""


def lines_of(body: bytes) -> list[bytes]:
    """The lines of a body, a response each; one JSON value over several lines is one, and so is a stream of events.

    Raises:
        UserError: an event holds no JSON object.
    """
    lines = [line for line in body.splitlines() if line.strip()]
    if lines and lines[0].lstrip().startswith(EVENTS):
        return _put_together(lines)
    if len(lines) > 1:
        try:
            json.loads(lines[0])
        except (ValueError, RecursionError):
            return [b" ".join(line.strip() for line in lines)]
    return lines


def _put_together(lines: list[bytes]) -> list[bytes]:
    streams, found = Streams(arrays=False), list[Response]()
    try:
        for number, line in enumerate(lines, 1):
            found += streams.add(f"event line {number}", line.strip() + b"\n")
        found += streams.rest()
    except UserError as error:
        raise UserError(str(error), field="body") from None
    return [json.dumps(record).encode() for _, record in found]


def read_received(body: bytes, announced: Announced) -> list[Received]:
    """What came in one request.

    Raises:
        UserError: reading it takes too much time or memory, or an event of a stream cannot be read.
    """
    lines = lines_of(body)
    if not lines:
        return []
    about = json.dumps({"layers": announced.layers, "top_k": announced.top_k, "experts": announced.experts})
    found: list[Received] = []
    try:
        with READERS.one() as reader:
            for line, row in zip(lines, reader.stream(lines=b"\n".join(lines), about=about), strict=True):
                found.append(_checked(line, row))
    except ReaderEnded as error:
        raise UserError(f"what came cannot be read: {error}", field="body") from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError("the process that reads what came sent something else", field="body") from None
    return found


def _checked(line: bytes, row: Any) -> Received:
    """What the child says of a line, checked: it may have been taken over."""
    own = hashlib.sha256(line).hexdigest()[:32]
    named, problem, counts = row.get("id"), row.get("problem"), row.get("counts")
    name = str(named)[:200] if isinstance(named, str | int) else f"sha256:{own}"
    if problem is not None:
        return Received(line, name, str(problem)[:500])
    tokens, model, top_k = row.get("tokens"), row.get("model"), row.get("top_k")
    fits = isinstance(counts, np.ndarray) and counts.ndim == 2 and counts.dtype == np.int64 and counts.size > 0
    fits = fits and counts.shape[1] <= MOST_EXPERTS and int(counts.min()) >= 0 and int(counts.max()) < 2**40
    fits = fits and type(tokens) is int and 0 < tokens < 2**40 and type(top_k) is int and 0 < top_k <= MOST_EXPERTS
    if not fits:
        raise UserError("the process that reads what came sent counts that do not fit", field="body")
    return Received(line, name, None, tokens, model if isinstance(model, str) else None, top_k, counts)


def answer(lines: bytes, about: str) -> Any:
    """What runs in the child: a row for each line."""
    announced = Announced(**json.loads(about))
    for number, line in enumerate(lines.split(b"\n")):
        yield _row(line, f"response {number}", announced)


def _row(line: bytes, where: str, announced: Announced) -> dict[str, Any]:
    named: Any = None
    try:
        value = parsed(where, line + b"\n")
        held = [item for item in in_envelope(where, value) if isinstance(item[1], dict)]
        records = [record for _, record in held if isinstance(record, dict)]
        named = identity_of(records[0]) if len(records) == 1 else None
        pieces = [p for at, record in held if isinstance(record, dict) for p in pieces_of(at, record, announced)]
        whole = [piece for piece in pieces if isinstance(piece, Piece)]
        if not whole:
            raise UserError(f"{where}: has no routed_experts; {NOT_THERE}", field="body")
        models = {record["model"] for record in records if isinstance(record.get("model"), str)}
        if len({piece.ids.shape[1:] for piece in whole}) > 1 or len(models) > 1:
            raise UserError(f"{where}: its responses are of several models", field="body")
        counts = sum_of([piece.ids for piece in whole], announced.experts, where)
    except UserError as error:
        return {"id": named, "problem": str(error)}
    tokens = sum(piece.num_tokens for piece in whole)
    model = next(iter(models), None)
    return {"id": named, "tokens": tokens, "model": model, "top_k": whole[0].ids.shape[2], "counts": counts}


def sum_of(ids: list[np.ndarray], experts: int | None, where: str) -> np.ndarray:
    """(S, M) choices of each expert; rows of zeros, with which engines fill dense layers, are none if K > 1.

    Raises:
        UserError: an id is no expert.
    """
    lowest, most = min(int(part.min()) for part in ids), max(int(part.max()) for part in ids)
    if lowest < 0 or most >= (experts or MOST_EXPERTS):
        raise UserError(
            f"{where}: has expert {lowest if lowest < 0 else most}, of {experts or MOST_EXPERTS}", field="body"
        )
    counts = np.zeros((ids[0].shape[1], most + 1), dtype=np.int64)
    for part in ids:
        for layer in range(part.shape[1]):
            rows = part[:, layer].astype(np.int64)
            chosen = rows if rows.shape[1] == 1 else rows[rows.any(axis=1)]
            counts[layer] += np.bincount(chosen.ravel(), minlength=most + 1)
    return counts
