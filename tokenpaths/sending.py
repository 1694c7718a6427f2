"""Client of the receiver of ``tokenpaths up``: sends responses of running engines as they come.

Standard library only, so that it costs a serving process nothing.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from tokenpaths.engine.base.errors import UserError

URL = "http://127.0.0.1:8000"
TRIES = 4
FIRST_PAUSE_S = 0.5
BUSY = (408, 429, 502, 503, 504)
"""statuses after which it is tried again"""


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
        answer: The answer as a dict, JSON text or bytes, a response of httpx or requests, or an object of the openai
            client. Or a list of these.
        run: The run that it becomes part of; it appears when it is sealed.
        url: Address of the API; by default ``TOKENPATHS_API_URL``, else http://127.0.0.1:8000.
        token: Of the API; by default ``TOKENPATHS_TOKEN``.
        layers, top_k, experts: Sizes that SGLang's flat ids do not say.
        timeout_s: Of one try.

    Returns:
        ``received``, ``known`` and ``refused`` responses, and the sizes of the log.

    Raises:
        UserError: It was refused, or nobody answers; the message says why.

    >>> lines([{"id": "a"}, b'{"id": "b"}'])
    b'{"id": "a"}\\n{"id": "b"}\\n'
    """
    address = (url or os.environ.get("TOKENPATHS_API_URL") or URL).rstrip("/")
    sizes = {name: n for name, n in (("layers", layers), ("top_k", top_k), ("experts", experts)) if n is not None}
    target = f"{address}/api/v1/logs/{quote(run, safe='')}" + (f"?{urlencode(sizes)}" if sizes else "")
    headers = {"content-type": "application/x-ndjson"}
    if secret := token or os.environ.get("TOKENPATHS_TOKEN"):
        headers["authorization"] = f"Bearer {secret}"
    request = urllib.request.Request(target, data=lines(answer), headers=headers, method="POST")
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                told: dict[str, Any] = json.loads(reply.read())
                return told
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in BUSY or not left:
                    raise UserError(_reason(error), field="answer") from None
        except (OSError, TimeoutError) as error:
            if not left:
                why = getattr(error, "reason", error)
                raise UserError(f"nobody takes responses at {address} ({why}): is it running?", field="url") from None
        time.sleep(FIRST_PAUSE_S * 2 ** (TRIES - 1 - left))
    raise AssertionError("unreachable: the last try returns or raises")


def lines(answer: Any) -> bytes:
    """An answer, or several, as JSON lines."""
    several = answer if isinstance(answer, list | tuple) else [answer]
    return b"".join(_line(one) + b"\n" for one in several)


def _line(answer: Any) -> bytes:
    if isinstance(answer, Mapping):
        return json.dumps(answer).encode()
    if isinstance(answer, str):
        answer = answer.encode()
    if isinstance(answer, bytes):
        return b" ".join(answer.split(b"\n")).strip()
    for name in ("model_dump", "to_dict"):  # objects of the openai client
        if callable(dump := getattr(answer, name, None)):
            return json.dumps(dump(mode="json") if name == "model_dump" else dump()).encode()
    if isinstance(content := getattr(answer, "content", None), bytes):  # a response of httpx or requests
        return _line(content)
    raise UserError(
        f"the answer is a {type(answer).__name__}, not an answer of an engine, JSON or a dict", field="answer"
    )


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"it was refused with status {error.code}"
