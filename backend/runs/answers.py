"""Responses about sealed runs: ETag, then memory cache, then one computation shared by all clients with the same
request.

A run never changes, so a response is determined by (file identity, path, query). A limited number of distinct requests
is computed at a time; those that wait too long get 503.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Scope

from tokenpaths.backend import __version__
from tokenpaths.backend.http.concurrency import ConcurrencyLimit
from tokenpaths.backend.http.paging import canonical_query
from tokenpaths.backend.http.response_cache import ResponseCache
from tokenpaths.backend.metrics import Metrics
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.runs.registry import RunRegistry

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

T = TypeVar("T")
CACHE_CONTROL = "private, no-cache"
"""store, but revalidate each time: a run can be deleted or replaced"""
MOST_ANSWER_BYTES = 32_000_000
"""maximum size of an answer and of a report; tables are exported in parts and have none"""
INTAKES = 2
"""concurrent intakes of runs from elsewhere that requests wait for; each takes a thread and two processes, one of up to
``check_megabytes``
"""


@dataclass(frozen=True)
class Answer:
    """Body and media type of a response."""

    body: bytes
    media_type: str


def etag_of(identity: str, request: Request) -> str:
    """The strong ETag of the response to ``request`` about the file ``identity``."""
    text = "\n".join((__version__, identity, request.url.path, canonical_query(request)))
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def is_fresh(request: Request, etag: str) -> bool:
    """Whether the client already has this response (``If-None-Match``).

    ``*`` matches any response; whether one exists is known only after looking (``Answers.about``).
    """
    tags = request.headers.get("if-none-match", "").split(",")
    return any(tag.strip().removeprefix("W/") == etag for tag in tags)


def wants_any(request: Request) -> bool:
    """Whether the request has ``If-None-Match: *``: 304 if a response exists at all."""
    return request.headers.get("if-none-match", "").strip() == "*"


def runs_of(request: Request) -> list[str]:
    """The runs that a request names."""
    query = request.query_params
    single = (query.get(key) for key in ("a", "b", "of", "reference"))
    names = (request.path_params.get("run"), *single, *query.get("runs", "").split(","))
    return [name for name in names if name]


def sealed_headers(etag: str) -> dict[str, str]:
    """Headers of all responses about a sealed run."""
    return {"etag": etag, "cache-control": CACHE_CONTROL}


class AnswerCache:
    """LRU cache of bodies by key, bounded by ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    def get(self, key: str) -> Answer | None:
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: str, answer: Answer) -> None:
        if len(answer.body) > self.max_bytes // 4:
            return
        self._answers[key] = answer
        self.num_bytes += len(answer.body)
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= len(self._answers.popitem(last=False)[1].body)


class Answers:
    """Computes and caches responses about runs; belongs to one event loop."""

    def __init__(self, registry: RunRegistry, queries: ConcurrencyLimit, metrics: Metrics, cache_bytes: int) -> None:
        self.registry, self.queries, self.metrics = registry, queries, metrics
        self.cache = AnswerCache(cache_bytes)
        self.responses = ResponseCache(registry.identity)
        self._working: dict[str, asyncio.Task[Answer]] = {}
        self._taking_in: dict[str, asyncio.Task[None]] = {}
        self.intakes = ConcurrencyLimit(INTAKES, queries.wait_s, "taking in other runs from elsewhere")

    async def about_run(
        self, request: Request, run_id: str, model: type[BaseModel], question: Callable[[Run], dict[str, Any]]
    ) -> Response:
        """The JSON response, of schema ``model``, to ``question`` about one run."""

        def compute() -> Answer:
            return as_json(model, self.registry.ask(run_id, question))

        identity = self.registry.identity(run_id)
        self.responses.remember(request.scope, run_id, identity, etag_of(identity, request))
        return await self.about(request, identity, compute)

    async def cached(self, scope: Scope, *, wait: bool) -> Response | None:
        """The response to a repeated request without routing it; None if it must be routed.

        Args:
            scope: The request.
            wait: Also wait for a response that is being computed now.
        """
        target = self.responses.find(scope)
        if target is None:
            return None
        request, etag = Request(scope), target.etag
        answer = self.cache.get(etag)
        if is_fresh(request, etag) or (answer is not None and wants_any(request)):
            how, response = "not_modified", Response(status_code=304, headers=sealed_headers(etag))
        else:
            task = self._working.get(etag)
            if answer is None and (task is None or not wait or wants_any(request)):
                return None
            how = "cached"
            if answer is None:
                assert task is not None
                how = "shared"
                answer = await asyncio.shield(task)
            response = Response(answer.body, media_type=answer.media_type, headers=sealed_headers(etag))
        scope["route"] = target.route  # read by the metrics middleware
        self.metrics.answers.labels(how).inc()
        return response

    async def about(
        self, request: Request, identity: str, compute: Callable[[], Answer], *, seconds: float | None = None
    ) -> Response:
        """304, or the response computed by ``compute`` (in a thread) for this request about ``identity``.

        ``seconds`` is the time limit of ``compute`` (default: that of the watchdog).
        """
        etag = etag_of(identity, request)
        if is_fresh(request, etag):
            self.metrics.answers.labels("not_modified").inc()
            return Response(status_code=304, headers=sealed_headers(etag))
        answer = self.cache.get(etag)
        if answer is not None:
            self.metrics.answers.labels("cached").inc()
        else:
            answer = await self._shared(etag, compute, runs_of(request), seconds)
        if wants_any(request):
            return Response(status_code=304, headers=sealed_headers(etag))
        return Response(answer.body, media_type=answer.media_type, headers=sealed_headers(etag))

    async def _shared(
        self, key: str, compute: Callable[[], Answer], runs: Sequence[str], seconds: float | None
    ) -> Answer:
        task = self._working.get(key)
        if task is None:
            self.metrics.answers.labels("computed").inc()
            task = self._working[key] = asyncio.create_task(self._compute(key, compute, runs, seconds))
            task.add_done_callback(lambda _: self._working.pop(key, None))
        else:
            self.metrics.answers.labels("shared").inc()
        return await asyncio.shield(task)

    async def _compute(
        self, key: str, compute: Callable[[], Answer], runs: Sequence[str], seconds: float | None
    ) -> Answer:
        for run_id in runs:
            await self.take_in(run_id)
        async with self.queries.take():
            answer = await self.registry.watchdog.run(compute, *runs, seconds=seconds)
        if len(answer.body) > MOST_ANSWER_BYTES:
            raise Problem(
                422,
                "answer-too-large",
                f"The answer has {len(answer.body) / 1e6:,.0f} MB, at most {MOST_ANSWER_BYTES / 1e6:g} MB are sent: "
                "ask for fewer rows or one label, or export the table.",
            )
        self.cache.put(key, answer)
        return answer

    async def take_in(self, run_id: str) -> None:
        """Wait for the intake of a run from elsewhere, if it needs one; Problem 503 while too many are taken in.

        It takes seconds or minutes, so it happens before a concurrency slot is taken, in one thread for all clients
        that request the run.
        """
        if not self.registry.must_be_taken_in(run_id):
            return
        task = self._taking_in.get(run_id)
        if task is None:
            task = self._taking_in[run_id] = asyncio.create_task(self._take_in(run_id))
            task.add_done_callback(lambda _: self._taking_in.pop(run_id, None))
        await asyncio.shield(task)

    async def _take_in(self, run_id: str) -> None:
        async with self.intakes.take():
            await run_in_threadpool(self.registry.take_in, run_id)


def as_json(model: type[BaseModel], data: dict[str, Any]) -> Answer:
    """``data`` validated against ``model``, as JSON; NaN becomes null, unset fields are left out."""
    body = model.model_validate(data).model_dump_json(exclude_unset=True)
    return Answer(body.encode(), "application/json")
