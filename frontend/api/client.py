"""HTTP client of the REST API: responses as dicts, every failure as an ``ApiError`` with a sentence.

Responses about sealed runs never change, so each is cached with its ETag and revalidated with ``If-None-Match``: the
API returns 304 within a millisecond, or 404 if the run was deleted meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from tokenpaths.frontend.api.problem import ApiError, Down, NotFound, Refused, error_of

__all__ = ["ApiError", "Client", "Down", "NotFound", "Refused"]

DEFAULT_URL = "http://127.0.0.1:8000"
KEPT_ANSWERS = 256
PAGE_LIMIT = 500
WITHOUT_LABELS = ("effect", "saturation", "samples/{sample}/reference", "series", "twin")
"""of the queries about one run those that cannot merge labels"""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Client:
    """REST client that returns plain dicts. Safe to share between sessions and threads.

    Raises:
        ApiError: Or a subclass, from every method; never an ``httpx`` exception.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        labels: Callable[[], str | None] = lambda: None,
        reads_only: Callable[[], bool] = lambda: False,
    ) -> None:
        self._labels = labels
        """``labels`` of the questions asked now: ``merged`` or None"""
        self._reads_only = reads_only
        """whether who asks now may only read"""
        self.url = (url or os.environ.get("TOKENPATHS_API_URL") or DEFAULT_URL).rstrip("/")
        token = token if token is not None else os.environ.get("TOKENPATHS_TOKEN", "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.has_token = bool(token)
        self._kept: OrderedDict[str, tuple[str, Any]] = OrderedDict()
        self._lock = threading.Lock()
        try:
            self._http = httpx.Client(
                base_url=self.url + "/api/v1",
                headers=headers,
                transport=transport,
                verify=self.url.startswith("https"),  # reading certificates takes 80 ms of the first visit
                trust_env=False,
                timeout=httpx.Timeout(60.0, connect=3.0),
                follow_redirects=False,
            )
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise Down(
                f"“{self.url}” is not an address of an API ({error}).",
                "Set TOKENPATHS_API_URL to something like http://127.0.0.1:8000.",
            ) from error

    # -- runs ---------------------------------------------------------------------------------
    def runs(self) -> list[dict[str, Any]]:
        """The cards of all runs, newest first."""
        return list(self._pages("/runs", "runs", {}, most=2000))

    def ask(self, run: str, question: str, *, most: int | None = None, **arguments: Any) -> dict[str, Any]:
        """The response to a query about a run.

        Args:
            run: Name of the run.
            question: Path below ``/runs/{run}`` as in the API's documentation; ``""`` for the run itself. Arguments in
                braces are part of the path: ``ask("demo", "paths/{rank}/examples", rank=3, limit=20)``.
            most: For paged lists: collect the first ``most`` rows into one response.
            arguments: Path arguments and query; None and empty ones are left out.
        """
        names = _PLACEHOLDER.findall(question)
        parts = {name: _part(str(arguments.pop(name))) for name in names}
        path = f"/runs/{_part(run)}/{question.format(**parts)}".rstrip("/")
        if question not in WITHOUT_LABELS and (labels := self._labels()):
            arguments = {"labels": labels, **arguments}
        if most is not None:
            return self._collect(path, question.rpartition("/")[2], arguments, most)
        return self._get(path, arguments)

    def image(self, run: str, sample: int) -> bytes:
        """PNG of the model's input image."""
        return self._get(f"/runs/{_part(run)}/samples/{int(sample)}/image", raw=True)

    def export(self, run: str, table: str, form: str) -> bytes:
        """A whole table as a file; not cached, since it may be large."""
        return self._send("GET", f"/runs/{_part(run)}/export/{_part(table)}.{_part(form)}").content

    def report(self, run: str) -> bytes:
        """The whole run as one HTML page; generated on request, not cached."""
        labels = self._labels()
        return self._send("GET", f"/runs/{_part(run)}/report", params={"labels": labels} if labels else None).content

    def export_url(self, run: str, table: str, form: str) -> str:
        return f"{self.url}/api/v1/runs/{_part(run)}/export/{_part(table)}.{form}"

    def compare(self, a: str, b: str, **query: Any) -> dict[str, Any]:
        """Comparison of run ``b`` with run ``a``; query: measure, limit, links, points."""
        return self._get("/compare", {"a": a, "b": b, "labels": self._labels(), **query})

    def compare_load(self, a: str, b: str) -> dict[str, Any]:
        """Loads of two runs, step by step; also of runs without tokens."""
        return self._get("/compare/load", {"a": a, "b": b})

    def compare_runs(self, runs: Sequence[str]) -> dict[str, Any]:
        """Numbers of any number of runs side by side; the others differ from the first."""
        return self._get("/compare", {"runs": list(runs)})

    def same_groups(self, a: str, b: str) -> dict[str, Any]:
        """Whether both runs put the same tokens on one path."""
        return self._get("/compare/grouping", {"a": a, "b": b})

    def agreement(self, a: str, b: str) -> dict[str, Any]:
        """Whether the same tokens take the same modules in both runs."""
        return self._get("/compare/agreement", {"a": a, "b": b, "labels": self._labels()})

    def sample_agreement(self, a: str, b: str, sample: int, limit: int) -> dict[str, Any]:
        """Which decisions about the first common tokens of a sample differ."""
        return self._get("/compare/agreement/sample", {"a": a, "b": b, "sample": int(sample), "limit": limit})

    def delete(self, run: str) -> None:
        self._send("DELETE", f"/runs/{_part(run)}")
        with self._lock:
            self._kept.clear()

    def received(self) -> list[dict[str, Any]]:
        """The logs that running engines are sending."""
        return list(self._get("/logs")["logs"])

    def seal_received(self, run: str, **options: str) -> dict[str, Any]:
        """Make a run of what has come of a log: a job. ``options``: ``as``, ``although`` and ``skip_bad``."""
        return self._json(self._send("POST", f"/logs/{_part(run)}/seal", params=options))

    def put_into_series(self, run: str, name: str, iteration: int) -> None:
        """Put a run into a series of checkpoints; an empty name takes it out of its series."""
        if not name:
            self._send("DELETE", f"/runs/{_part(run)}/series")
            return
        body = json.dumps({"name": name, "iteration": iteration}).encode()
        self._send("PUT", f"/runs/{_part(run)}/series", content=body, headers={"content-type": "application/json"})

    def models(self) -> list[dict[str, Any]]:
        return self._get("/models")["models"]

    def model(self, model: str) -> dict[str, Any]:
        return self._get(f"/models/{_part(model)}")

    def place_model(self, model: str, folder: str) -> dict[str, Any]:
        """Say in which folder of the server's machine a Hugging Face checkpoint lies."""
        return self._put(f"/models/{_part(model)}/folder", {"folder": folder})

    def trace(
        self,
        model: str,
        *,
        image: tuple[str, bytes] | None = None,
        text: str | None = None,
        controls: Mapping[str, Any] | None = None,
        purpose: str | None = None,
    ) -> dict[str, Any]:
        """Trace one image (file name, bytes) or one text; the response names the new run.

        Args:
            controls: Edits for this trace only, as allowed by ``controls`` in the model's description.
            purpose: ``detour`` for a run that is only shown beside another one.
        """
        files: dict[str, Any] = {"model": (None, _utf8(model))}
        if image is not None:
            files["image"] = (image[0], image[1], "application/octet-stream")
        if text is not None:
            files["text"] = (None, _utf8(text))
        if controls:
            files["controls"] = (None, json.dumps(dict(controls)))
        if purpose:
            files["purpose"] = (None, purpose)
        return self._json(self._send("POST", "/traces", files=files))

    def put_into_inbox(self, file: str, content: bytes) -> str:
        """Upload a file for a job; returns its name in the inbox."""
        headers = {"content-type": "application/octet-stream"}
        return str(self._json(self._send("PUT", f"/inbox/{_part(file)}", content=content, headers=headers))["file"])

    # -- jobs ---------------------------------------------------------------------------------
    def jobs(self, *, most: int = 100, **query: Any) -> dict[str, Any]:
        """The newest ``most`` jobs and the number of workers; query: state, kind."""
        return self._collect("/jobs", "jobs", query, most)

    def problems(self) -> list[str]:
        """Why parts of the system do not work now, a sentence each."""
        return [part["problem"] for part in self._get("/health")["parts"] if part["problem"]]

    def job(self, job: str) -> dict[str, Any]:
        return self._get(f"/jobs/{_part(job)}")

    def submit_job(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Queue a job; returns the waiting job."""
        body = json.dumps({"kind": kind, "request": dict(request)}).encode()
        return self._json(self._send("POST", "/jobs", content=body, headers={"content-type": "application/json"}))

    def cancel_job(self, job: str) -> dict[str, Any]:
        return self._json(self._send("DELETE", f"/jobs/{_part(job)}"))

    def retry_job(self, job: str) -> dict[str, Any]:
        return self._json(self._send("POST", f"/jobs/{_part(job)}/retry"))

    def remove_job(self, job: str) -> None:
        """Remove a finished job and delete its files."""
        self._send("DELETE", f"/jobs/{_part(job)}", params={"remove": "true"})

    def artifact(self, job: str, name: str) -> bytes:
        """A file written by a job, finished or not."""
        return self._get(f"/jobs/{_part(job)}/artifacts/{_part(name)}", raw=True)

    # -- saved searches -----------------------------------------------------------------------
    def searches(self) -> list[dict[str, Any]]:
        """Saved searches by name: {name, query, saved_at}."""
        return self._get("/searches")["searches"]

    def save_search(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Save an address of the page under a name."""
        return self._put(f"/searches/{_part(name)}", {"query": dict(query)})

    def delete_search(self, name: str) -> None:
        self._send("DELETE", f"/searches/{_part(name)}")

    # -- own names and notes ------------------------------------------------------------------
    def names(self, run: str) -> dict[str, dict[str, str]]:
        """The user's names and notes by thing (``module:3.4``): {name, note, saved_at}."""
        return self.export_names(run)["names"]

    def export_names(self, run: str) -> dict[str, Any]:
        """All names and notes as ``import_names`` takes them: {run, created_at, names}."""
        return self._get(f"/runs/{_part(run)}/names")

    def save_name(self, run: str, thing: str, name: str = "", note: str = "") -> dict[str, str]:
        """Name ``run``, ``module:3.4``, ``path:12``, ``sample:5`` or ``token:5.17``; replaces name and note."""
        return self._put(f"/runs/{_part(run)}/names/{_part(thing)}", {"name": name, "note": note})

    def import_names(self, run: str, exported: Mapping[str, Any]) -> dict[str, Any]:
        """All names and notes at once, in place of those that were there."""
        return self._put(f"/runs/{_part(run)}/names", exported)

    def delete_name(self, run: str, thing: str) -> None:
        self._send("DELETE", f"/runs/{_part(run)}/names/{_part(thing)}")

    # -- plumbing -----------------------------------------------------------------------------
    def _collect(self, path: str, name: str, query: Mapping[str, Any], most: int) -> dict[str, Any]:
        """One response whose list ``name`` is collected from as many pages as ``most`` needs."""
        first = self._get(path, {**query, "limit": min(most, PAGE_LIMIT)})
        rows, following = list(first[name]), first.get("next")
        while following and len(rows) < most:
            page = self._get(path, {**query, "limit": min(most - len(rows), PAGE_LIMIT), "next": following})
            rows, following = rows + page[name], page.get("next")
        return {**first, name: rows[:most], "next": following}

    def _pages(self, path: str, name: str, query: Mapping[str, Any], *, most: int) -> Iterator[Any]:
        yield from self._collect(path, name, query, most)[name]

    def _get(self, path: str, query: Mapping[str, Any] | None = None, *, raw: bool = False) -> Any:
        parameters = {key: _plain(value) for key, value in (query or {}).items() if value not in (None, "", [], ())}
        key = path + "?" + str(sorted(parameters.items()))
        with self._lock:
            cached = self._kept.get(key)
        headers = {"If-None-Match": cached[0]} if cached else {}
        answer = self._send("GET", path, params=parameters, headers=headers)
        if cached and answer.status_code == 304:
            return cached[1]
        value = answer.content if raw else self._json(answer)
        if etag := answer.headers.get("etag"):
            with self._lock:
                self._kept[key] = (etag, value)
                self._kept.move_to_end(key)
                while len(self._kept) > KEPT_ANSWERS:
                    self._kept.popitem(last=False)
        return value

    def _put(self, path: str, values: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        return self._json(self._send("PUT", path, content=json.dumps(dict(values)).encode(), headers=headers))

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        if method != "GET" and self._reads_only():
            raise Refused("A view in the frame of another site only shows; it starts, changes and deletes nothing.")
        try:
            answer = self._http.request(method, path, **arguments)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            raise Down(
                f"The Tokenpaths API at {self.url} does not answer.",
                "Start it with `tokenpaths up`, or set TOKENPATHS_API_URL to where it runs.",
            ) from error
        except httpx.TimeoutException as error:
            raise ApiError(
                "The API took too long to answer.", "Ask for less (fewer steps, one label), or try again in a moment."
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise Down(
                f"The connection to the API at {self.url} broke off.",
                "Try again; if it happens twice, look at the API's log.",
            ) from error
        if answer.status_code >= 300 and answer.status_code != 304:
            raise error_of(answer.status_code, answer.content, answer.headers.get("x-request-id", ""))
        return answer

    def _json(self, answer: httpx.Response) -> Any:
        try:
            value = answer.json()
        except ValueError as error:
            raise ApiError(
                f"What answers at {self.url} does not speak JSON; it is not the Tokenpaths API.",
                "Check TOKENPATHS_API_URL.",
            ) from error
        if not isinstance(value, dict):
            raise ApiError(
                "The API gave an answer that this page does not understand.",
                "The API and the page are probably of different versions; update both.",
            )
        return value


def _part(name: str) -> str:
    """A name percent-encoded as one path segment, so that it cannot change the route."""
    return quote(_utf8(name).decode(), safe="") if name not in ("", ".", "..") else "%20"


def _utf8(text: str) -> bytes:
    """UTF-8 of ``text`` with lone surrogates replaced by '?', since they cannot be encoded."""
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return _utf8(str(value)).decode()
