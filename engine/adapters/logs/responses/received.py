"""Responses as they come from a running engine: read in a confined child, line by line, and counted.

What an import would refuse is refused here, so that a log can be sealed whatever came.

Shapes: t tokens, S layers (dense ones included), M experts so far, K slots.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.fill_values import without_fills
from tokenpaths.engine.adapters.logs.json_lines import BOM, is_json, no_text, parsed
from tokenpaths.engine.adapters.logs.pieces.announced import (
    MOST_EXPERTS,
    MOST_MODULES,
    Announced,
    LogShape,
    layer_names,
)
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.pieces.piece_checks import check_piece
from tokenpaths.engine.adapters.logs.pieces.wording import first_of, shortened
from tokenpaths.engine.adapters.logs.responses.answers import (
    NOT_THERE,
    identity_of,
    is_sglang_line,
    is_vllm_line,
    pieces_of,
)
from tokenpaths.engine.adapters.logs.responses.envelopes import (
    NO_ROWS,
    OF_A_LIST,
    Streams,
    as_event,
    body_of,
    in_envelope,
)
from tokenpaths.engine.adapters.logs.routing_log import nothing_captured
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import ReaderEnded, ReaderPool
from tokenpaths.engine.data.labels import MOST_CHARACTERS
from tokenpaths.engine.store.file.checks import check_text

LIMITS = Limits(memory_megabytes=2048, seconds=60, whole_stream=True, descriptors=256, threads=True)
READERS = ReaderPool("tokenpaths.engine.adapters.logs.responses.received:answer", LIMITS, "the responses", "body")
DIGEST_BYTES = 16
MOST_ID, MOST_PROBLEM = 200, 500
"""characters that are kept"""
MOST_LINES = 10_000
"""responses of one body"""
MOST_DEPTH = 200
"""of JSON in JSON: what the import can take where it stands"""
MOST_GROWTH, MOST_MARK = 8, 64
"""bytes that a byte of a body may become, and those of a mark: a stream of events that is put together, and a list that
is taken apart, are written in ASCII"""
BATCH_BYTES, BATCH_ROWS = 4 << 20, 256
CUT_OFF = "the stream is cut off: it has neither [DONE] nor a finish_reason of each choice; send the whole of it"
DEEP = f"is nested more than {MOST_DEPTH} deep"


class TooManyLines(UserError):
    """A body holds more responses than are taken at once."""

    status = 413


@dataclass(frozen=True)
class Counted:
    """What the decisions of a line tell."""

    tokens: int
    """with decisions, prefixes of several choices counted each time"""
    model: str | None
    top_k: int
    counts: np.ndarray
    """(S, M) choices of each expert"""
    first: np.ndarray
    """(S,) bool: layers that are not dense by the first response of the line with decisions"""
    routed: np.ndarray
    """(S,) bool: by any response of the line"""
    digest: bytes
    """of the decisions"""


@dataclass(frozen=True)
class Received:
    """One line that came: a response, or the envelope of one."""

    line: bytes
    """empty where it is not taken"""
    id: str
    """of the request; of its bytes where it names none"""
    problem: str | None
    """why it is not taken"""
    counted: Counted | None = None
    """None where it is not taken"""


def read_received(body: bytes, announced: Announced) -> list[Received]:
    """What came in one request.

    Raises:
        UserError: it is packed or UTF-16, reading it takes too much time or memory, or an event of a stream cannot be
            read.
    """
    if problem := no_text(body):
        raise UserError(f"what came is {problem}, and send it again", field="body")
    about = json.dumps({"layers": announced.layers, "top_k": announced.top_k, "experts": announced.experts})
    found: list[Received] = []
    room = MOST_GROWTH * len(body) + MOST_MARK * MOST_LINES
    try:
        with READERS.one() as reader:
            for batch in reader.stream(body=body, about=about):
                for row in batch if isinstance(batch, list) else [batch]:
                    found.append(_checked(row))
                    room -= len(row["line"]) + 1
                    if room < 0 or len(found) > MOST_LINES:
                        raise UserError("the process that reads what came sent more than came", field="body")
    except ReaderEnded as error:
        raise UserError(f"what came cannot be read: {error}", field="body") from None
    return found


def _checked(row: Any) -> Received:
    """What the child says of a line, checked: it may have been taken over."""
    line = row.get("line") if isinstance(row, dict) else None
    if not isinstance(line, bytes) or not line.strip() or b"\n" in line:
        raise UserError("the process that reads what came sent something else", field="body")
    named, problem = row.get("id"), row.get("problem")
    name = str(named) if isinstance(named, str | int) else ""
    if not name or not _is_text(name):
        name = f"sha256:{hashlib.sha256(line).hexdigest()[:32]}"
    if len(name) > MOST_ID:
        name = f"{name[: MOST_ID - 40]}:{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    if problem is not None:
        return Received(b"", name, _shown(str(problem), MOST_PROBLEM))
    return Received(line, name, None, _counted(row))


def _counted(row: dict[str, Any]) -> Counted:
    """As ``_checked``."""
    tokens, model, top_k, digest = (row.get(key) for key in ("tokens", "model", "top_k", "digest"))
    counts, first, routed = row.get("counts"), row.get("first"), row.get("routed")
    fits = isinstance(counts, np.ndarray) and counts.ndim == 2 and counts.dtype == np.int64 and counts.size > 0
    if isinstance(counts, np.ndarray) and fits:
        fits = counts.shape[1] <= MOST_EXPERTS and int(counts.min()) >= 0 and int(counts.max()) < 2**40
        for layers in (first, routed):
            fits = fits and isinstance(layers, np.ndarray) and layers.dtype == bool and layers.shape == counts.shape[:1]
    fits = fits and type(tokens) is int and 0 < tokens < 2**40 and type(top_k) is int and 0 < top_k <= MOST_EXPERTS
    fits = fits and isinstance(digest, bytes) and len(digest) == DIGEST_BYTES
    fits = fits and (model is None or isinstance(model, str) and len(model) <= MOST_CHARACTERS and _is_text(model))
    if not fits:
        raise UserError("the process that reads what came sent counts that do not fit", field="body")
    return Counted(tokens, model, top_k, counts, first, routed, digest)  # type: ignore[arg-type]


def _is_text(text: str) -> bool:
    """Whether a text can be stored: lone surrogates, which JSON can hold, have no UTF-8 form."""
    return text == _shown(text, len(text))


def _shown(text: str, most: int) -> str:
    """The beginning of a text, with lone surrogates as escapes."""
    return text[:most].encode("utf-8", "backslashreplace").decode()


def answer(body: bytes, about: str) -> Iterator[list[dict[str, Any]]]:
    """What runs in the child: a row for each line, in batches."""
    announced = Announced(**json.loads(about))
    batch, size = list[dict[str, Any]](), 0
    for number, (line, problem) in enumerate(lines_of(body)):
        batch.append({"line": line, **_row(line, f"response {number}", announced, problem)})
        size += sum(value.nbytes for value in batch[-1].values() if isinstance(value, np.ndarray)) + len(line)
        if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
            yield batch
            batch, size = [], 0
    yield batch


def lines_of(body: bytes) -> list[tuple[bytes, str | None]]:
    """(line with one response, why it is not taken) of a body: of JSON lines, one JSON value over several, lists, or a
    stream of events.

    Raises:
        TooManyLines: it holds more than ``MOST_LINES``.
        UserError: an event holds no JSON object.
    """
    body = body.removeprefix(BOM)
    lines = [line for line in body.splitlines() if line.strip()]
    found: Iterator[tuple[bytes, str | None]]
    if lines and as_event(lines[0].strip()) is not None:
        found = _put_together(lines)
    elif len(lines) > 1 and not is_json(lines[0]) and is_json(body):
        found = iter([(b" ".join(line.strip() for line in lines), None)])
    else:
        found = ((line, None) for line in lines)
    taken = list(islice(((part, problem) for line, problem in found for part in _apart(line)), MOST_LINES + 1))
    if len(taken) > MOST_LINES:
        raise TooManyLines(
            f"what came holds more than {MOST_LINES:,} responses, which are taken at once; send it in parts",
            field="body",
        )
    return taken


def _put_together(lines: list[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """As ``lines_of``, of a stream of events and of JSON lines between them."""
    streams = Streams(arrays=False)
    try:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if (event := as_event(text)) is not None:
                yield from (_written(record, None) for _, record in streams.add(f"event line {number}", event + b"\n"))
            else:
                yield line, None
        yield from (_written(record, None) for _, record in streams.complete())
        yield from (_written(record, CUT_OFF) for _, record in streams.rest())
    except UserError as error:
        raise UserError(str(error), field="body") from None


def _written(record: dict[str, Any], problem: str | None) -> tuple[bytes, str | None]:
    if _is_deep(record):
        record, problem = {"id": identity_of(record)}, DEEP
    return json.dumps(record).encode(), problem


def _apart(line: bytes) -> Iterator[bytes]:
    """The responses of a list, which say that they are of one request; any other line as it is."""
    if line.lstrip()[:1] == b"[":
        try:
            value = parsed("a list", line + b"\n")
            if value and not _is_deep(value):
                found = list(_of_list(value, f"list {hashlib.sha256(line).hexdigest()[:16]}"))
                yield from (json.dumps(one).encode() for one in found)
                return
        except UserError:  # it is refused with its reason
            pass
    yield line


def _of_list(values: list[Any], name: str, mark: str | None = None) -> Iterator[dict[str, Any]]:
    """Each response of a list, with the name of the innermost list that holds several.

    Raises:
        UserError: something in it is none.
    """
    mark = name if len(values) > 1 else mark
    for number, one in enumerate(values):
        if isinstance(one, list) and one:
            yield from _of_list(one, f"{name}.{number}", mark)
        elif isinstance(one, dict):
            yield one if mark is None else {OF_A_LIST: mark} | one
        else:
            raise UserError(f"is a list with a {type(one).__name__}, it should hold objects", field="body")


def _is_deep(value: Any) -> bool:
    """Whether there are more than ``MOST_DEPTH`` lists and objects around anything."""
    level = [value]
    for _ in range(MOST_DEPTH):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for several in inner for one in several if isinstance(one, dict | list)]
    return bool(level)


def _row(line: bytes, where: str, announced: Announced, problem: str | None) -> dict[str, Any]:
    """What there is to say of a line; ``problem``: why it is not taken, whatever it holds."""
    named: Any = None
    try:
        value = parsed(where, line + b"\n", arrays=True)
        if _is_deep([value]):
            raise UserError(f"{where}: {DEEP}", field="body")
        held, nothing = list[tuple[str, dict[str, Any]]](), False
        for at, record in in_envelope(where, value):
            if isinstance(record, dict):
                held.append((at, record))
            nothing = nothing or at == NO_ROWS
        if held and nothing:
            raise UserError(f"{where}: holds null or an empty list beside its responses", field="body")
        if len(held) == 1:
            named = identity_of(body_of(value) or {}) or identity_of(held[0][1])
        if isinstance(named, str):
            named, given = named if _is_text(named) else None, named
            check_text(given, f"{where}: the id", field="body")
        if problem is not None:
            raise UserError(f"{where}: {problem}", field="body")
        return {"id": named, **_told(where, value, held, announced)}
    except UserError as error:
        return {"id": named, "problem": _shown(str(error), MOST_PROBLEM)}


def _told(where: str, value: Any, held: list[tuple[str, dict[str, Any]]], announced: Announced) -> dict[str, Any]:
    """The fields of ``Counted``.

    Raises:
        UserError: an import of these responses would be refused, or would find no decision.
    """
    found = [piece for at, record in held for piece in pieces_of(at, record, announced)]
    pieces = [piece.named() for piece in found if isinstance(piece, Piece)]
    if not pieces and isinstance(value, dict) and not _is_recognised(value) and "error" not in value:
        keys = first_of([shortened(key) for key in value], 6) or "nothing"
        raise UserError(
            f"{where}: is no response of vLLM, SGLang or Dynamo: it has {keys}. A log that does not hold responses "
            "goes into the inbox (PUT /inbox/NAME), and a job `import` makes a run of it",
            field="body",
        )
    if not pieces:
        raise UserError(f"{where}: has no routed_experts; {NOT_THERE}", field="body")
    if not _is_recognised(value):
        raise UserError(f"{where}: is no response of vLLM, SGLang or Dynamo: it has no choices", field="body")
    models = {record["model"] for _, record in held if isinstance(record.get("model"), str)}
    if len({piece.ids.shape[1:] for piece in pieces}) > 1 or len(models) > 1:
        raise UserError(f"{where}: its responses are of several models", field="body")
    model = next(iter(models), None)
    check_text(model, f"{where}: the name of the model", field="body")
    if model is not None and len(model) > MOST_CHARACTERS:
        raise UserError(
            f"{where}: the name of the model has {len(model):,} characters, at most {MOST_CHARACTERS} are kept",
            field="body",
        )
    layers, top_k = pieces[0].ids.shape[1:]
    shape = LogShape(layer_names(layers), top_k, False)
    kept = [piece for one in pieces if (piece := without_fills(one, shape.partial, announced.experts)) is not None]
    for piece in kept:
        check_piece(piece, shape, announced.experts)
    ids = [piece.ids for piece in kept]
    if not any((part >= 0).any() for part in ids):
        raise UserError(f"{where}: {nothing_captured(piece.ids for piece in pieces)}", field="body")
    most = max(int(part.max()) for part in ids)
    if layers * (most + 1) > MOST_MODULES:
        raise UserError(
            f"{where}: {layers} layers of {most + 1:,} experts are more than the {MOST_MODULES:,} experts of a run; a "
            "number that marks unused slots needs `experts`, so that it is no expert",
            field="body",
        )
    digest = hashlib.sha256()
    for part in ids:
        digest.update(np.array(part.shape, dtype="<i8").tobytes() + part.astype("<i4").tobytes())
    routed = [_routed(piece.ids) for piece in pieces]
    return {
        "tokens": sum(piece.num_tokens for piece in kept),
        "model": model,
        "top_k": top_k,
        "counts": sum_of(ids, most + 1),
        "first": next((one for one in routed if one.any()), routed[0]),
        "routed": np.any(routed, axis=0),
        "digest": digest.digest()[:DIGEST_BYTES],
    }


def _is_recognised(value: Any) -> bool:
    """Whether a file that begins with this line is taken for one of responses."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, dict) and (is_vllm_line(value) or is_sglang_line(value))


def _routed(ids: np.ndarray) -> np.ndarray:
    """(S,) bool of ids (t, S, K): layers that are not dense, as ``without_dense_layers`` tells them."""
    if ids.shape[2] == 1:
        return np.ones(ids.shape[1], dtype=bool)
    return np.asarray((ids > 0).any(axis=(0, 2)))


def sum_of(ids: list[np.ndarray], experts: int) -> np.ndarray:
    """(S, M) choices of each of ``experts``; what is below 0 is none."""
    counts = np.zeros((ids[0].shape[1], experts), dtype=np.int64)
    for part in ids:
        for layer in range(part.shape[1]):
            rows = part[:, layer]
            counts[layer] += np.bincount(rows[rows >= 0].astype(np.int64), minlength=experts)
    return counts
