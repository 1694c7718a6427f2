"""Client of the receiver of ``tokenpaths up``: sends responses of running engines as they come.

Standard library only, so that it costs a serving process nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tokenpaths.engine.base.errors import UserError

URL = "http://127.0.0.1:8000"
TRIES = 4
FIRST_PAUSE_S = 0.5
BUSY = (408, 429, 502, 503, 504)
"""statuses after which it is tried again"""
MOST_SECONDS = 86_400
EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""what lines of server-sent events begin with"""


def send(
    answer: Any,
    *,
    run: str,
    url: str | None = None,
    token: str | None = None,
    layers: int | None = None,
    top_k: int | None = None,
    experts: int | None = None,
    timeout_s: float = 30.0,
) -> dict[str, Any]:
    """Send an answer of vLLM, SGLang or Dynamo, with its routed experts, to a running Tokenpaths.

    A request id is kept once, so sending again does no harm: busy servers and broken connections are tried four times.

    Args:
        answer: The answer as a dict, JSON text or bytes (JSON lines and server-sent events too), a response of httpx or
            requests, or an object of the openai client. Or a list of these.
        run: The run that it becomes part of; it appears when it is sealed.
        url: Address of the API; by default ``TOKENPATHS_API_URL``, else http://127.0.0.1:8000.
        token: Of the API; by default ``TOKENPATHS_TOKEN``.
        layers, top_k, experts: Sizes that SGLang's flat ids do not say.
        timeout_s: Of one try.

    Returns:
        ``received``, ``known`` and ``refused`` responses, and the sizes of the log.

    Raises:
        UserError: It was refused, or nobody answers; the message says why.

    Examples:
        Where a server handles its responses, of the engine itself or of the openai client:

            tokenpaths.send(response, run="live")
    """
    address = _checked("url", url or os.environ.get("TOKENPATHS_API_URL") or URL).rstrip("/")
    secret = _checked("token", token or os.environ.get("TOKENPATHS_TOKEN") or "", encoding="latin-1")
    given = {name: n for name, n in (("layers", layers), ("top_k", top_k), ("experts", experts)) if n is not None}
    if wrong := next((name for name, n in given.items() if not hasattr(n, "__index__")), None):
        raise UserError(f"{wrong} is {given[wrong]!r:.40}, it should be a whole number", field=wrong)
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MOST_SECONDS:
        raise UserError(
            f"timeout_s is {timeout_s!r:.40}, it should be above 0 and at most {MOST_SECONDS}", field="timeout_s"
        )
    target = f"{address}/api/v1/logs/{quote(_checked('run', run), safe='')}" + (f"?{urlencode(given)}" if given else "")
    headers = {"content-type": "application/x-ndjson"}
    if secret:
        headers["authorization"] = f"Bearer {secret}"
    body = lines(answer)
    try:
        request = urllib.request.Request(target, data=body, headers=headers, method="POST")
        opener = _opener(address)
    except ValueError as error:
        raise UserError(f"{address!r} is no address of an API ({error}); it begins with http://", field="url") from None
    for left in reversed(range(TRIES)):
        try:
            with opener.open(request, timeout=timeout_s) as reply:
                return _told(reply.read(), address)
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in BUSY or not left:
                    raise UserError(_reason(error, address), field="answer") from None
        except (OSError, http.client.HTTPException) as error:  # nobody there, or cut off: what came is known by its id
            if not left:
                why = getattr(error, "reason", None) or str(error) or type(error).__name__
                raise UserError(f"nobody takes responses at {address} ({why}): is it running?", field="url") from None
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{address} cannot be asked ({error})", field="url") from None
        time.sleep(FIRST_PAUSE_S * 2 ** (TRIES - 1 - left))
    raise AssertionError("unreachable: the last try returns or raises")


def lines(answer: Any) -> bytes:
    """An answer, or several, as JSON lines; streams of events come first.

    >>> lines([{"id": "a"}, b'{"id": "b"}'])
    b'{"id": "a"}\\n{"id": "b"}\\n'
    """
    several = answer if isinstance(answer, list | tuple) else [answer]
    found = sorted(map(_line, several), key=lambda text: not text.startswith(EVENTS))
    return b"".join(text + b"\n" for text in found)


def _line(answer: Any) -> bytes:
    if isinstance(answer, str):
        answer = answer.encode("utf-8", "surrogatepass")  # the server says what is wrong with those
    if isinstance(answer, bytes):
        return _text(answer)
    if isinstance(answer, Mapping):
        return _json(answer)
    try:
        for name in ("model_dump", "to_dict"):  # objects of the openai client
            if callable(dump := getattr(answer, name, None)):
                return _json(dump(mode="json") if name == "model_dump" else dump())
        content = getattr(answer, "content", None)
    except UserError:
        raise
    except Exception as error:  # of the client
        raise UserError(
            f"the answer is a {type(answer).__name__} that cannot be read ({_in_words(error)}); send what it holds",
            field="answer",
        ) from None
    if isinstance(content, bytes):  # a response of httpx or requests
        return _text(content)
    raise UserError(
        f"the answer is a {type(answer).__name__}, not an answer of an engine, JSON or a dict", field="answer"
    )


def _text(text: bytes) -> bytes:
    """JSON lines and a stream of events as they are; one JSON value over several lines as one."""
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if len(found) > 1 and (found[0].startswith(EVENTS) or _is_json(found[0])):
        return b"\n".join(found)
    return b" ".join(text.splitlines()).strip()


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except Exception as error:  # of what it holds
        raise UserError(f"the answer cannot be written as JSON: {_in_words(error)}", field="answer") from None


def _in_words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _checked(name: str, text: Any, encoding: str = "utf-8") -> str:
    """A text that can stand in a request.

    Raises:
        UserError: it is none.
    """
    if not isinstance(text, str):
        raise UserError(f"{name} is a {type(text).__name__}, it should be a text", field=name)
    try:
        text.encode("ascii" if name == "url" else encoding)
        odd = not text.isprintable()
    except UnicodeEncodeError:
        odd = True
    if odd:
        shown = "" if name == "token" else f" {text[:80]!a}"
        raise UserError(f"the {name}{shown} holds characters that it cannot have; use letters and digits", field=name)
    return text


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are refused: urllib would follow them with a GET without the answer, but with the token."""

    def redirect_request(self, *request: Any, **options: Any) -> None:
        return None


def _opener(address: str) -> urllib.request.OpenerDirector:
    """What asks ``address``: without a proxy where that is this machine, which a proxy would take for itself."""
    host = (urlsplit(address).hostname or "").lower()
    here = host in ("localhost", "::1") or host.startswith("127.")
    return urllib.request.build_opener(_NoRedirects, *([urllib.request.ProxyHandler({})] if here else []))


def _told(reply: bytes, address: str) -> dict[str, Any]:
    """The answer of the receiver; UserError if it is somebody else's."""
    try:
        told = json.loads(reply)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or "received" not in told:
        raise UserError(f"something else than Tokenpaths answers at {address}; give the url of its API", field="url")
    return told


def _reason(error: urllib.error.HTTPError, address: str) -> str:
    if 300 <= error.code < 400:
        to = error.headers.get("location", "elsewhere")
        return f"{address} sends its callers to {to[:200]}; give the url of the API itself"
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError, RecursionError, OSError, http.client.HTTPException):
        return f"it was refused with status {error.code}"
