"""Responses of serving engines in a file: a line each, lists, batch envelopes, or streams of server-sent events.

Nothing here knows what a response holds beyond what its envelope and its stream need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.logs.json_lines import MAX_LINE_BYTES, is_json, json_object, parsed, text_lines
from tokenpaths.engine.adapters.logs.routing_log import skipped
from tokenpaths.engine.base.errors import UserError

FAILED = "{n} failed or cancelled request{s} {are} left out"
NO_ROWS = "{n} response{s} without decisions (cancelled requests, perhaps) {are} left out"
CUT_OFF = "{n} streamed answer{s} without an end, cut off perhaps, {are} read as far as that goes"
LOOKED_AT = 100
"""lines that tell a broken one of JSON lines from a value over several lines"""
MOST_OPEN = 64
"""streams that are kept though they say that they are complete"""
NO_NAME = str(None)
"""of a stream"""
PARTS = "parts of a stream"
"""key of the rows that came with the chunks of a stream, in order"""
OF_A_LIST = "request of a list"
"""key of what names the request that had several responses"""
EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""what lines of server-sent events begin with"""
Response = tuple[str, dict[str, Any]]


def responses(file: Path, skip_bad: bool = False) -> Iterator[Response | tuple[str, int]]:
    """(file and line, response), or a remark and how often it holds.

    Raises:
        UserError: a line is no JSON; with ``skip_bad`` it is counted.
    """
    streams = Streams()
    whole = _whole_document(file)
    if whole is not None:
        yield from in_envelope(str(file), whole)
        return
    for where, line in text_lines(file):
        text = line.strip()
        try:
            if (event := as_event(text)) is not None:
                yield from streams.add(where, event)
                if len(streams) > MOST_OPEN:  # no [DONE] ends those of JSON lines
                    yield from streams.complete()
            else:
                yield from in_envelope(where, parsed(where, line, arrays=True))
        except UserError as error:
            if not skip_bad:
                raise
            yield skipped(str(error)), 1
    if cut_off := streams.num_incomplete():
        yield CUT_OFF, cut_off
    yield from streams.rest()


def as_event(line: bytes) -> bytes | None:
    """A line of server-sent events, or the chunk of a stream that stands alone, as a client writes it that has parsed
    the events (``{"object": "chat.completion.chunk", …}``), as such a line; None if it is neither."""
    if line.startswith(EVENTS):
        return line
    if b'.chunk"' not in line:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return b"data:" + line if isinstance(value, dict) and str(value.get("object")).endswith(".chunk") else None


class Streams:
    """Responses put together from server-sent events, those of several requests between each other."""

    def __init__(self, *, arrays: bool = True) -> None:
        self._arrays = arrays
        """of ``parsed``"""
        self._open: dict[str, _Stream] = {}
        self._broken: set[str] = set()
        """streams of which a chunk could not be read: half a response is none"""
        self._tell = False
        """whether streams say that they are complete"""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, where: str, line: bytes) -> Iterator[Response]:
        """Take one line; yields the responses that it ends.

        Raises:
            UserError: its data are no JSON object, or no chunk of a response.
        """
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data:
            return
        if data == b"[DONE]":
            yield from self._done()
            return
        try:
            chunk = json_object(where, data, arrays=self._arrays)
        except UserError:  # a chunk of any of them
            self._broken |= self._open.keys()
            self._open.clear()
            raise
        about = chunk.get("meta_info")
        name = str(chunk.get("id") or chunk.get("request_id") or (about.get("id") if isinstance(about, dict) else None))
        if name in self._broken or name not in self._open and _is_usage(chunk):
            return
        try:
            stream = self._open.setdefault(name, _Stream(where))
            stream.add(where, chunk)
            self._tell = self._tell or stream.is_complete()
        except UserError:
            del self._open[name]
            self._broken.add(name)
            raise

    def complete(self) -> Iterator[Response]:
        """The responses that have not ended, though they say that they are complete."""
        yield from self._end([name for name, one in self._open.items() if one.is_complete()])

    def num_incomplete(self) -> int:
        """How many have not ended, nor say that they are complete."""
        return sum(not one.is_complete() for one in self._open.values())

    def rest(self) -> Iterator[Response]:
        """The responses that have not ended."""
        yield from self._end(list(self._open))

    def _done(self) -> Iterator[Response]:
        """The responses that a [DONE], which names no stream, may end: all, unless streams say that they are complete.

        Streams without a name follow each other, so it ends the one that is open.
        """
        yield from self._end(
            [name for name, one in self._open.items() if not self._tell or one.is_complete() or name == NO_NAME]
        )

    def _end(self, names: list[str]) -> Iterator[Response]:
        for name in names:
            yield self._open.pop(name).response()
        self._broken.discard(NO_NAME)


def in_envelope(where: str, value: Any) -> Iterator[Response | tuple[str, int]]:
    """The responses in a line: itself, each of a list, or what a batch envelope holds; null and an empty list are
    responses without decisions."""
    if isinstance(value, list) and value and all(isinstance(one, dict | list | None) for one in value):
        for number, one in enumerate(value):
            for item in in_envelope(f"{where}, response {number}" if len(value) > 1 else where, one):
                if isinstance(item[1], dict) and len(value) > 1:
                    item[1].setdefault(OF_A_LIST, where)
                yield item
        return
    if value is None or isinstance(value, list) and not value:
        yield NO_ROWS, 1
        return
    if not isinstance(value, dict):
        raise UserError(f"{where}: is a JSON {type(value).__name__}, it should be an object", field="file")
    if _is_of_a_batch(value):
        body = body_of(value)
        if value.get("error") or body is None:
            yield FAILED, 1
            return
        named = value.get("custom_id")
        yield where, body | ({"id": named} if isinstance(named, str) and named else {})
        return
    if is_failure(value):
        yield FAILED, 1
        return
    yield where, value


def body_of(value: Any) -> dict[str, Any] | None:
    """The response in the envelope of a batch; None if there is none. Its own id is unique, ``custom_id`` only in its
    batch."""
    held = value["response"] if _is_of_a_batch(value) else None
    body = held.get("body") if isinstance(held, dict) else None
    return body if isinstance(body, dict) else None


def _is_of_a_batch(value: Any) -> bool:
    return isinstance(value, dict) and "response" in value and ("custom_id" in value or "error" in value)


def is_failure(value: Any) -> bool:
    """Whether an engine answered with an error in place of a response."""
    if not isinstance(value, dict) or any(key in value for key in ("choices", "meta_info", "routed_experts")):
        return False
    return isinstance(value.get("error"), dict) or value.get("object") == "error"


def is_no_response(line: bytes) -> bool:
    """Whether a line holds an error in place of a response, or nothing."""
    try:
        return line in (b"null", b"[]") or b"error" in line and is_failure(json.loads(line))
    except (ValueError, RecursionError):
        return False


def _whole_document(file: Path) -> Any | None:
    """A file that is one JSON value over several lines; None if its first line is a value of its own."""
    first = next(text_lines(file), None)
    if first is None or first[1].strip()[:1] not in (b"{", b"["):
        return None
    try:
        json.loads(first[1])
        return None
    except (ValueError, RecursionError):
        pass
    if file.stat().st_size > MAX_LINE_BYTES or first[1].strip()[-1:] not in (b"{", b"[", b","):
        return None  # a broken line: its reader says which
    try:
        return parsed(str(file), file.read_bytes())
    except UserError:
        lines = (line.strip() for _, line in islice(text_lines(file), 1, LOOKED_AT))
        if any(line.startswith(b"{") and line.endswith(b"}") and is_json(line) for line in lines):
            return None  # so is this
        raise


class _Stream:
    """The chunks of one response, put together; each costs no more than it holds."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._record: dict[str, Any] = {}
        self._choices: dict[int | float | str, dict[str, Any]] = {}
        self._texts: dict[int | float | str, list[str]] = {}

    def is_complete(self) -> bool:
        """Whether each choice has said why it ends, or the response has."""
        about = self._record.get("meta_info")
        held = list(self._choices.values()) or [about if isinstance(about, dict) else {}]
        return all(one.get("finish_reason") is not None for one in held)

    def response(self) -> Response:
        """What has come."""
        for index, parts in self._texts.items():
            self._choices[index]["text"] = "".join(parts)
        return self._where, self._record

    def add(self, where: str, chunk: dict[str, Any]) -> None:
        """Take a chunk; UserError if its choices are none."""
        for key, value in chunk.items():
            if key == "choices":
                if not (value is None or isinstance(value, list) and all(isinstance(one, dict) for one in value)):
                    raise UserError(f"{where}: choices should be a list of objects", field="file")
                for choice in value or ():
                    self._add_choice(where, choice)
            elif key == "output_ids" and isinstance(value, list):
                self._record[key] = _longer(self._record.get(key), value)
            elif value is not None or key not in self._record:
                self._record[key] = value

    def _add_choice(self, where: str, choice: dict[str, Any]) -> None:
        index, ids = choice.get("index"), choice.get("token_ids")
        index = 0 if index is None else index
        if not isinstance(index, int | float | str) or not (ids is None or isinstance(ids, list)):
            raise UserError(f"{where}: a choice should have a number as index and a list of token_ids", field="file")
        if index not in self._choices:
            self._choices[index] = {}
            self._record.setdefault("choices", []).append(self._choices[index])
        held = self._choices[index]
        delta = choice.get("delta")
        content = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        if isinstance(content, str):
            self._texts.setdefault(index, []).append(content)
        for key, value in choice.items():
            if key == "routed_experts" and value is not None:
                held.setdefault(key, {PARTS: []})[PARTS].append(value)
            elif key == "token_ids" and value is not None:
                if held.get(key) is None:
                    held[key] = []
                held[key].extend(value)
            elif key not in ("text", "delta", "routed_experts") and (value is not None or key not in held):
                held[key] = value


def _is_usage(chunk: dict[str, Any]) -> bool:
    """Whether a chunk only counts the tokens of a response, as some servers do behind its end."""
    return chunk.get("choices") == [] and bool(chunk.get("usage"))


def _longer(before: Any, now: list[Any]) -> list[Any]:
    """Ids of a stream so far: some servers repeat those before, some send the new ones alone."""
    if not isinstance(before, list) or now[: len(before)] == before:
        return now
    before.extend(now)
    return before


def records(stream: Iterable[Response | tuple[str, int]]) -> Iterator[Response]:
    """The responses alone."""
    for item in stream:
        if isinstance(item[1], dict):
            yield item  # type: ignore[misc]
