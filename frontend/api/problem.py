"""Errors of the API client for display: a sentence, what to do, and the request id."""

from __future__ import annotations

import json
import re

BUSY = (429, 503)
ELSEWHERE = {
    "node": "*Modules* shows what each step offers.",
    "rank": "*Paths* lists the paths.",
    "sample": "*Samples* lists the samples.",
    "label": "Choose another label, or clear it above.",
    "job": "*Jobs* lists the jobs that there are.",
}
"""field at fault → what to do if it names what a run, or the list of jobs, does not have"""


class ApiError(Exception):
    """An error for display: ``sentence`` says what happened, ``todo`` what to do.

    ``request`` is the id of the request in the API's log; empty if nothing was logged: the API did not respond, or only
    reported that it is busy.
    """

    def __init__(self, sentence: str, todo: str = "", *, status: int | None = None, request: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.todo = todo
        self.status = status
        self.request = request


class Down(ApiError):
    """No server responds at the API's address."""


class NotFound(ApiError):
    """The run, sample, path or model does not exist, or not any more."""


class Refused(ApiError):
    """The API refused the request: bad input, a wrong token, too large."""


def error_of(status: int, body: bytes, request: str) -> ApiError:
    """The error for a status, its problem+json (RFC 9457) and its header ``x-request-id``."""
    error = _as_error(status, body)
    if status not in BUSY and re.fullmatch(r"[0-9a-f]{12}", request):  # any other value is not a request id
        error.request = request
    return error


def _as_error(status: int, body: bytes) -> ApiError:
    try:
        problem = json.loads(body)
    except ValueError:
        problem = {}
    problem = problem if isinstance(problem, dict) else {}
    detail = str(problem.get("detail") or problem.get("title") or "").strip()
    field = str(problem.get("field") or "").rpartition(".")[2]
    if status in (401, 403):
        return Refused(
            detail or "The API did not accept this page's access token.",
            "Give TOKENPATHS_TOKEN the same value for the API and for this page.",
            status=status,
        )
    if status == 404:
        return NotFound(
            detail or "The API does not know this address.",
            ELSEWHERE.get(field, "Choose another one; *Home* shows what there is."),
            status=status,
        )
    if status in BUSY:
        return ApiError(detail or "The API is busy.", "Try again in a few seconds.", status=status)
    if status == 507:
        return ApiError(detail or "The disk is full.", "Free some space, then try again.", status=status)
    if 400 <= status < 500:
        todo = ELSEWHERE["label"] if field == "label" else ""
        return Refused(detail or f"The API refused the question (HTTP {status}).", todo, status=status)
    return ApiError(
        detail or f"The API failed while answering (HTTP {status}).",
        "The other runs go on working; the API's log says why.",
        status=status,
    )
