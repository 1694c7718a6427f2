"""Errors as RFC 9457 problem+json that name the bad value and the valid ones, never a traceback."""

from __future__ import annotations

import difflib
import heapq
import json
import logging
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import BaseModel, Field

from tokenpaths.backend.http.redact_paths import redact
from tokenpaths.backend.logs import request_id
from tokenpaths.engine.base.errors import (
    NeedsTokens,
    NoSuchThing,
    NotOpenedNow,
    QueryTimeout,
    RunFileError,
    RunNotFound,
    UserError,
)
from tokenpaths.engine.base.files import is_disk_full
from tokenpaths.engine.base.validation import in_words

if TYPE_CHECKING:  # commands raise problems too, and need no web framework (0.4 s)
    from fastapi import FastAPI, Request
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

STATUS_OF: tuple[tuple[type[UserError], int, str], ...] = (
    (RunNotFound, 404, "no-such-run"),
    (NoSuchThing, 404, "not-found"),
    (NotOpenedNow, 503, "busy"),
    (RunFileError, 409, "unreadable-run"),
    (NeedsTokens, 409, "needs-tokens"),
    (QueryTimeout, 503, "too-slow"),
)
"""status and kind of the engine's errors; any other UserError is 422 unless it carries a ``status``"""
MOST_LISTED = 20
"""names that an error lists"""
MOST_LIKENED = 12
"""names that are likened to a wrong one letter by letter, which takes 50 µs each and may be on the event loop"""
MEDIA_TYPE = "application/problem+json"
PROBLEM_KIND = "tokenpaths.problem"
"""key in a request's scope: the kind of the problem in its response"""
log = logging.getLogger(__name__)


class ProblemBody(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(
        description="What kind of problem it is, stable over releases", examples=["urn:tokenpaths:unknown-key"]
    )
    title: str = Field(description="The HTTP status in words")
    status: int = Field(description="The HTTP status")
    detail: str = Field(description="A sentence for people: what was given and what would be right")
    instance: str = Field(description="The path that was asked for")
    field: str | None = Field(None, description="The parameter, header or form field at fault")


class Problem(Exception):
    """An error response; ``kind`` is a stable identifier, ``detail`` a sentence for people."""

    def __init__(
        self, status: int, kind: str, detail: str, *, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.field = status, kind, detail, field
        self.headers = dict(headers or {})

    def body(self, path: str | None = None) -> dict[str, Any]:
        """The problem as JSON; ``path`` is that of the request, if any."""
        body: dict[str, Any] = {
            "type": f"urn:tokenpaths:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": redact(self.detail),
        }
        if path is not None:
            body["instance"] = quote(path[:500])
        if self.field is not None:
            body["field"] = self.field
        return body

    def response(self, path: str) -> Response:
        """The problem as a response to a request for ``path``."""
        from starlette.responses import Response

        body = self.body(path)
        # ASCII-only JSON: a lone surrogate in the request must not break the response
        return Response(
            json.dumps(body, ensure_ascii=True),
            status_code=self.status,
            media_type=MEDIA_TYPE,
            headers={"cache-control": "no-store", **self.headers},
        )


def nearest(word: str, allowed: Iterable[str], more: int = 0) -> str:
    """A hint such as ``did you mean `limit`?``, or the list if nothing is similar; ``more`` are allowed beside it."""
    choices = sorted(allowed)
    if not choices:
        return "none is allowed here."
    close = difflib.get_close_matches(word, _likely(word, choices), n=1, cutoff=0.5)
    listed = ", ".join(f"`{choice}`" for choice in choices[:MOST_LISTED])
    if (others := max(len(choices) - MOST_LISTED, 0) + more) > 0:
        listed += f" and {others:,} more"
    return f"did you mean `{close[0]}`? Allowed: {listed}." if close else f"allowed: {listed}."


def _likely(word: str, choices: Sequence[str]) -> Sequence[str]:
    """Those of ``choices`` that have most pairs of letters in common with ``word``."""
    if len(choices) <= MOST_LIKENED:
        return choices
    pairs = _pairs(word)
    return heapq.nlargest(MOST_LIKENED, choices, key=lambda choice: len(pairs & _pairs(choice)) / (len(choice) + 1))


def _pairs(word: str) -> set[str]:
    return {word[at : at + 2] for at in range(len(word))}


def busy(detail: str, *, retry_after_s: int = 1) -> Problem:
    """503 with Retry-After."""
    return Problem(503, "busy", detail, headers={"retry-after": str(retry_after_s)})


def internal() -> Problem:
    """500 for an unexpected error; the log has the details."""
    known = request_id.get()
    where = f" under {known}" if known else ""
    return Problem(500, "internal", f"Something went wrong on the server; its log has the details{where}.")


def from_user_error(error: UserError) -> Problem:
    """The problem for input that the engine refused; see ``STATUS_OF``."""
    if is_disk_full(error.__cause__):
        return disk_full()
    for kind_of_error, status, kind in STATUS_OF:
        if isinstance(error, kind_of_error):
            headers = {"retry-after": str(getattr(error, "retry_after_s", 1))} if status == 503 else None
            return Problem(status, kind, str(error), field=error.field, headers=headers)
    status = getattr(error, "status", 422)
    return Problem(status if status in range(400, 600) else 422, "refused", str(error), field=error.field)


def disk_full() -> Problem:
    """507 for a full disk."""
    return Problem(507, "disk-full", "The disk of the data folder is full; free some space and try again.")


def from_validation(errors: Sequence[Any]) -> Problem:
    """422 that names the first invalid field."""
    first = errors[0]
    where = [str(part) for part in first.get("loc", ()) if part not in ("query", "path", "header", "body")]
    field = where[0] if where else None
    value = first.get("input")
    shown = f"; given {str(value)[:80]!r}" if isinstance(value, str | int | float) else ""
    message = in_words(first)
    return Problem(422, "invalid-value", f"`{field}`: {message}{shown}." if field else f"{message}.", field=field)


def from_http(error: HTTPException, request: Request) -> Problem:
    """The problem for an error raised by the framework itself, mostly 404 and 405."""
    headers = {key.lower(): value for key, value in (error.headers or {}).items()}
    if error.status_code == 404:
        return Problem(404, "not-found", "There is nothing at this address; /docs lists what there is.")
    if error.status_code == 405:
        allowed = headers.get("allow", "another method")
        if allowed == "GET":
            allowed = headers["allow"] = "GET, HEAD"
        return Problem(
            405, "method-not-allowed", f"{request.method} is not possible here; use {allowed}.", headers=headers
        )
    return Problem(error.status_code, "http", str(error.detail), headers=headers)


def problem_of(error: Exception) -> Problem:
    """The problem for any exception; an unexpected one is logged and becomes a bare 500."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, UserError):
        return from_user_error(error)
    if is_disk_full(error):
        return disk_full()
    log.error("unforeseen error", exc_info=error)
    return internal()


def install(app: FastAPI) -> None:
    """Make ``app`` return every error as a problem."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    def answer(request: Request, problem: Problem) -> Response:
        request.scope[PROBLEM_KIND] = problem.kind
        return problem.response(request.url.path)

    async def on_error(request: Request, error: Exception) -> Response:
        return answer(request, problem_of(error))

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(request, from_validation(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(request, from_http(error, request))

    app.add_exception_handler(Problem, on_error)
    app.add_exception_handler(UserError, on_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """``responses=`` of a route for OpenAPI: the problems that it may return."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
        }
        for status in statuses
    }
