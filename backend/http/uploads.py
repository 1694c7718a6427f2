"""Streaming multipart uploads with limits on bytes and time.

``read_trace_form`` returns the fields of ``POST /traces``. Images are decoded and texts tokenized elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from tokenpaths.backend.http.strict_json import strict_json
from tokenpaths.backend.problems import Problem, nearest
from tokenpaths.backend.settings import Settings
from tokenpaths.engine.adapters.huggingface.config import is_model_name

FIELDS = ("model", "image", "text", "controls", "purpose")
PURPOSES = ("try", "detour")
"""purposes of a run of one sample, stored as its split; a ``detour`` run is only shown beside another one"""
OVERHEAD_BYTES = 16_384
"""allowance for boundaries, part headers and the model's name"""
MAX_NAME_BYTES = 256
MAX_CONTROLS_BYTES = 65_536
"""enough for the route of another sample of some hundred tokens"""
DRAIN_SECONDS = 5.0


@dataclass(frozen=True)
class TraceForm:
    """Fields of ``POST /traces``: a model, and either an image or a text."""

    model: str
    image: bytes | None = None
    text: str | None = None
    file_name: str | None = None
    """name of the uploaded file, shown as the source of the sample; never a path"""
    controls: dict[str, Any] = field(default_factory=dict)
    """controls of the model for this trace, by name"""
    purpose: str = PURPOSES[0]


@dataclass
class _Parts:
    """Collects the parts of a form from the callbacks of the multipart parser."""

    max_text_bytes: int
    values: dict[str, bytearray] = field(default_factory=dict)
    file_names: dict[str, str] = field(default_factory=dict)
    _header: bytearray = field(default_factory=bytearray)
    _header_value: bytearray = field(default_factory=bytearray)
    _disposition: bytes = b""
    _current: str = ""
    complete: bool = False

    def on_part_begin(self) -> None:
        self._disposition = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header.clear()
        self._header_value.clear()

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name not in FIELDS:
            raise Problem(
                422, "unknown-field", f"There is no form field {name[:80]!r}; {nearest(name, FIELDS)}", field=name[:80]
            )
        if name in self.values:
            raise Problem(422, "repeated-field", f"The form field `{name}` was sent twice; send it once.", field=name)
        if b"filename" in options:
            self.file_names[name] = options[b"filename"].decode("utf-8", "replace")
        self._current = name
        self.values[name] = bytearray()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        value = self.values[self._current]
        value += data[start:end]
        if self._current == "model" and len(value) > MAX_NAME_BYTES:
            raise _bad_model(value[:80].decode("utf-8", "replace"))
        if self._current == "purpose" and len(value) > MAX_NAME_BYTES:
            raise _bad_purpose(value[:80].decode("utf-8", "replace"))
        if self._current == "controls" and len(value) > MAX_CONTROLS_BYTES:
            raise _bad_controls(f"it has more than {MAX_CONTROLS_BYTES} bytes")
        if self._current == "text" and len(value) > self.max_text_bytes:
            raise Problem(
                413,
                "text-too-long",
                f"The text has more than {self.max_text_bytes // 1000} kB; trace a shorter piece here, "
                "or a whole file with `tokenpaths trace`.",
                field="text",
            )

    def on_end(self) -> None:
        self.complete = True


async def read_trace_form(request: Request, settings: Settings) -> TraceForm:
    """Read the form of ``POST /traces``.

    Raises:
        Problem: 400, 408, 413, 415 or 422, with the name of the field.
    """
    body = Body(request, settings)
    try:
        body.refuse_declared()
        parts = _Parts(int(settings.max_text_kilobytes * 1000))
        parser = _parser(request, parts)
        async for chunk in body.chunks():
            try:
                parser.write(chunk)
            except FormParserError as error:
                raise Problem(400, "form", f"The multipart form is broken: {error}.") from None
    except Problem as problem:
        if problem.status != 408:  # read what the client still sends, or it never receives the response
            await body.drain()
        raise
    if not parts.complete:
        raise Problem(400, "form", "The multipart form ends before its last boundary; send it whole.")
    return _form(parts)


class Body:
    """A request body, received with limits on bytes and time."""

    def __init__(self, request: Request, settings: Settings, most_bytes: int | None = None) -> None:
        self.request, self.settings = request, settings
        self.cap = int(settings.max_upload_megabytes * 1_000_000) if most_bytes is None else most_bytes
        self.num_bytes = 0
        self.ended = False

    def refuse_declared(self) -> None:
        """Problem 413 if ``Content-Length`` exceeds the limit."""
        declared = self.request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self.cap + OVERHEAD_BYTES:
            raise _too_large(self.cap, int(declared))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Chunks of the body; Problem 413 beyond the size limit, 408 when the client stalls or takes too long."""
        settings, ends = self.settings, time.monotonic() + self.settings.upload_seconds
        while not self.ended:
            patience = min(settings.upload_stall_seconds, ends - time.monotonic())
            try:
                async with asyncio.timeout(max(patience, 0)):
                    chunk = await self._receive()
            except TimeoutError:
                raise Problem(
                    408,
                    "upload-stalled",
                    f"The upload stalled for {settings.upload_stall_seconds:g} s or took longer than "
                    f"{settings.upload_seconds:g} s; send it again.",
                    headers={"connection": "close"},
                ) from None
            if self.num_bytes > self.cap + OVERHEAD_BYTES:
                raise _too_large(self.cap, None)
            yield chunk

    async def read(self) -> bytes:
        """The whole body; what is refused is read to its end, unless it came too slowly, so that the answer arrives."""
        try:
            self.refuse_declared()
            return b"".join([chunk async for chunk in self.chunks()])
        except Problem as problem:
            if problem.status != 408:
                await self.drain()
            raise

    async def drain(self) -> None:
        """Discard what a refused client still sends, up to twice the size limit and for a few seconds."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self.ended and self.num_bytes <= 2 * self.cap:
                    await self._receive()
        except TimeoutError:
            return

    async def _receive(self) -> bytes:
        message = await self.request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self.ended = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        self.num_bytes += len(chunk)
        return chunk


def _parser(request: Request, parts: _Parts) -> MultipartParser:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise Problem(
            415,
            "media-type",
            "Send multipart/form-data with `model` and either `image` or `text`, "
            f"not {kind.decode('latin-1')[:80] or 'a body without Content-Type'}.",
            field="Content-Type",
        )
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise Problem(400, "form", "Content-Type multipart/form-data has no boundary.", field="Content-Type")
    names = ("on_part_begin", "on_header_field", "on_header_value", "on_header_end", "on_headers_finished")
    callbacks = {name: getattr(parts, name) for name in (*names, "on_part_data", "on_end")}
    try:
        return MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
    except FormParserError as error:
        raise Problem(400, "form", f"The multipart form is broken: {error}.", field="Content-Type") from None


def _form(parts: _Parts) -> TraceForm:
    """Validate the parts and return them as a form."""
    values = parts.values
    if not values.get("model"):
        raise Problem(422, "missing-field", "Say which `model` to trace; GET /api/v1/models lists them.", field="model")
    model = values["model"].decode("utf-8", "replace")
    if not is_model_name(model):
        raise _bad_model(model)
    if ("image" in values) == ("text" in values):
        given = "both were" if "image" in values else "neither was"
        raise Problem(422, "one-of", f"Send either `image` or `text`; {given} sent.", field="image")
    controls = _controls(values.get("controls"))
    purpose = values.get("purpose", PURPOSES[0].encode()).decode("utf-8", "replace")
    if purpose not in PURPOSES:
        raise _bad_purpose(purpose)
    if "text" in values:
        name = parts.file_names.get("text")
        text = checked_text(values["text"])
        return TraceForm(model, text=text, file_name=plain_name(name), controls=controls, purpose=purpose)
    if not values["image"]:
        raise Problem(422, "empty", "The image is empty (0 bytes); choose a picture file.", field="image")
    name = parts.file_names.get("image")
    image = bytes(values["image"])
    return TraceForm(model, image=image, file_name=plain_name(name), controls=controls, purpose=purpose)


def _bad_purpose(given: str) -> Problem:
    allowed = " or ".join(f"`{purpose}`" for purpose in PURPOSES)
    return Problem(422, "purpose", f"`purpose` is {given[:40]!r}; it may be {allowed}.", field="purpose")


def _controls(data: bytes | bytearray | None) -> dict[str, Any]:
    """The form field ``controls``: a flat JSON object of numbers, strings and short lists."""
    if not data:
        return {}
    try:
        values = strict_json(bytes(data))
    except ValueError as error:
        raise _bad_controls(f"it cannot be read as JSON ({str(error)[:120]})") from None
    if not isinstance(values, dict):
        raise _bad_controls(f"it is {type(values).__name__}")
    return values


def _bad_controls(why: str) -> Problem:
    return Problem(
        422,
        "controls",
        f'`controls` should be a JSON object such as {{"alpha": 0.5}}, but {why}; '
        "GET /api/v1/models/{model} lists the controls of a model.",
        field="controls",
    )


def checked_text(data: bytes | bytearray) -> str:
    """``data`` as text; Problem 422 if it is blank or not UTF-8 (lone surrogates are not)."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(
            422,
            "not-utf-8",
            f"The text is not valid UTF-8 at byte {error.start} (a lone surrogate, or another encoding); "
            "save it as UTF-8.",
            field="text",
        ) from None
    if not text.strip():
        raise Problem(422, "empty", "The text is empty; write at least one word.", field="text")
    return text


def plain_name(name: str | None) -> str | None:
    """The last part of a file name, printable, at most 120 characters."""
    if not name:
        return None
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(c for c in last if c.isprintable())[:120] or None


def _bad_model(given: str) -> Problem:
    return Problem(
        422,
        "model-name",
        f"{given[:80]!r} cannot be the name of a model: letters, digits, `-` and `_`, at most 64, "
        "the first a letter or digit; or `hf:` and the name of a folder of Hugging Face checkpoints.",
        field="model",
    )


def _too_large(cap: int, declared: int | None) -> Problem:
    size = f"{declared / 1e6:,.1f} MB were declared" if declared is not None else "more was sent"
    return Problem(
        413,
        "too-large",
        f"An upload has at most {cap / 1e6:g} MB; {size}.",
        field="Content-Length" if declared else None,
    )


async def receive_json(request: Request, settings: Settings, most_bytes: int) -> bytes:
    """A JSON body of at most ``most_bytes``; Problem 415 for another type, 413 and 408 as of ``Body``."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        given = media_type[:80] or "a body without Content-Type"
        raise Problem(415, "media-type", f"Send application/json, not {given}.", field="Content-Type")
    return await Body(request, settings, most_bytes).read()
