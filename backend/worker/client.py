"""HTTP client of the API for the engine worker; an unreachable worker is a 503 problem, never a traceback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tokenpaths.backend.http.uploads import TraceForm
from tokenpaths.backend.logs import REQUEST_ID_HEADER, request_id
from tokenpaths.backend.metrics import Metrics
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.process_states import read_states
from tokenpaths.backend.settings import EVERYWHERE, SECRET_HEADER, Settings

PIECE_BYTES = 1 << 16
LOOK_SECONDS = 1.0
LIST_SECONDS = 10.0
"""timeout of quick requests, so that a worker that is just starting does not block every view with a list of models"""


class WorkerClient:
    """Calls to the worker; belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        host = "127.0.0.1" if settings.worker_host in EVERYWHERE else settings.worker_host
        host = f"[{host}]" if ":" in host else host
        self.url = settings.worker_url or f"http://{host}:{settings.worker_port}"
        secret = settings.worker_secret.get_secret_value() if settings.worker_secret else ""
        self.limit_s = settings.trace_seconds
        self.client = httpx.AsyncClient(
            base_url=self.url,
            headers={SECRET_HEADER: secret},
            # Reading certificates takes 40 ms of the start, and only plain HTTP needs none.
            verify=httpx.URL(self.url).scheme != "http",
            timeout=httpx.Timeout(settings.trace_seconds, connect=2.0),
            trust_env=False,  # ignore proxies of the environment: they must not see the secret
        )

    async def models(self) -> dict[str, Any]:
        """``{"models": [row, …]}``."""
        return await self._call("GET", "/models", limit_s=LIST_SECONDS)

    async def model(self, name: str) -> dict[str, Any]:
        """The row of one model with its configuration and card."""
        return await self._call("GET", f"/models/{name}", limit_s=LIST_SECONDS)

    async def trace(self, form: TraceForm) -> dict[str, Any]:
        """Trace one sample; returns the response of ``POST /traces``."""
        if form.text is not None:
            query, content = {"kind": "text"}, form.text.encode()
        else:
            query, content = {"kind": "image"}, form.image or b""
        controls = json.dumps(form.controls).encode()  # in the body: controls may be too long for a URL
        query |= {"model": form.model, "source": form.file_name or "upload", "controls_bytes": str(len(controls))}
        query["purpose"] = form.purpose
        headers = {"content-length": str(len(controls) + len(content))}
        return await self._call("POST", "/traces", params=query, content=_pieces(controls, content), headers=headers)

    async def look(self, metrics: Metrics) -> None:
        """Update the metrics of worker availability and GPU memory; never raises and waits at most a second."""
        try:
            answer = await self.client.get("/healthz", timeout=LOOK_SECONDS)
            gpus = answer.json()["gpus"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            metrics.worker_up.set(0)
            metrics.gpu_memory.clear()
            return
        metrics.worker_up.set(int(answer.is_success))
        for gpu in gpus:
            for what in ("used", "total"):
                metrics.gpu_memory.labels(gpu["device"], what).set(gpu[what])

    async def problem(self) -> str | None:
        """Why the worker does not take or finish work, in a sentence; None where it does. Waits a second at most."""
        try:
            answer = await self.client.get("/healthz", timeout=LOOK_SECONDS)
            if answer.is_success:
                return None
            return str(answer.json().get("problem") or answer.json().get("detail"))
        except (httpx.HTTPError, ValueError, AttributeError):
            return worker_away().detail

    async def _call(self, method: str, path: str, limit_s: float | None = None, **options: Any) -> dict[str, Any]:
        """Send a request; ``limit_s`` is the timeout of a quick request, by default that of a trace."""
        if limit_s is not None:
            options["timeout"] = httpx.Timeout(min(limit_s, self.limit_s), connect=2.0)
        try:
            headers = {REQUEST_ID_HEADER: request_id.get(), **options.pop("headers", {})}
            answer = await self.client.request(method, path, headers=headers, **options)
            body = answer.json()
        except httpx.TimeoutException as error:
            if isinstance(error, httpx.ConnectTimeout):
                raise worker_away() from None
            if limit_s is not None:
                raise Problem(
                    503,
                    "worker-slow",
                    f"The engine worker did not answer within {LIST_SECONDS:g} s: it is starting "
                    "or has much to do; try again in a moment. Runs can still be read.",
                    headers={"retry-after": "5"},
                ) from None
            raise Problem(
                503,
                "worker-slow",
                f"The engine worker did not answer within {self.limit_s:g} s: it has much to do, or this takes long. "
                "Try again in a moment, or with something smaller.",
                headers={"retry-after": "10"},
            ) from None
        except (httpx.TransportError, json.JSONDecodeError):
            raise worker_away() from None
        if answer.is_success and isinstance(body, dict):
            return body
        raise relayed(answer.status_code, body)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()


async def _pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """``parts`` piece by piece: whole, an upload would be copied on its way to the worker."""
    for part in parts:
        for at in range(0, len(part), PIECE_BYTES):
            yield part[at : at + PIECE_BYTES]


def relayed(status: int, body: Any) -> Problem:
    """The worker's problem for the client; problems between API and worker become a 503."""
    if not isinstance(body, dict) or "detail" not in body or status == 401:
        return worker_away()
    kind = str(body.get("type", "")).removeprefix("urn:tokenpaths:") or "worker"
    headers = {"retry-after": "2"} if status == 503 else None
    return Problem(status, kind, str(body["detail"]), field=body.get("field"), headers=headers)


def worker_away() -> Problem:
    """Problem 503 for a worker that does not respond, with what `tokenpaths up` knows of it."""
    state = read_states().get("worker")
    why = state.problem if state is not None and state.problem else "It is restarted by `tokenpaths up`."
    return Problem(
        503,
        "worker-away",
        f"The engine worker does not answer, so nothing can be traced now. {why} Runs can still be read.",
        headers={"retry-after": "5"},
    )
