"""Prometheus metrics, one registry per app (tests make several apps in one process)."""

from __future__ import annotations

import logging
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenpaths.backend.problems import PROBLEM_KIND

log = logging.getLogger(__name__)
HUNG_UP = 499
"""status, as of nginx, of a request whose client went away before it had an answer: no fault of this program"""
PAGE = """# Watching a server

`GET /metrics` of the API says how it fares, in the text format of Prometheus. Where a token is set it wants the token
too; `GET /healthz` never does, and says whether the process lives. `GET /api/v1/health` says of each part (data folder,
list of jobs, worker, and under `tokenpaths up` API and page) whether it takes and finishes work, and in a sentence why
not; it answers while the worker is paused or the data folder is gone. The worker's own `/healthz` wants its secret.

No label ever holds a name of a run, a text, a path or an address, and the number of series stays the same however long
the server runs.

This page is generated: `python -m tokenpaths.backend.metrics > docs/monitoring.md`.

```yaml
scrape_configs:
  - job_name: tokenpaths
    authorization:
      credentials_file: /etc/prometheus/tokenpaths.token   # one line; leave authorization out where no token is set
    static_configs:
      - targets: ["127.0.0.1:8000"]
```

| series | kind | labels | what it says |
|---|---|---|---|
"""
AFTER = """
What to be woken by:

| when | what it means |
|---|---|
| `tokenpaths_worker_up == 0` for a minute | no engine worker that works: jobs wait (`GET /api/v1/health` says why) |
| `tokenpaths_job_queue_seconds` above an hour | more jobs than this machine does, or one that hangs |
| `rate(tokenpaths_requests_turned_away_total[5m]) > 1` | more clients than `requests_at_once` lets in |
| `tokenpaths_threads_stuck > 0` for minutes | a question that cannot be interrupted; the log names its run |
| `rate(tokenpaths_requests_total{status="500"}[5m]) > 0` | a fault of this program: [the log](reliability.md) has it |
| `tokenpaths_requests_total{status="507"}` grows | the disk is nearly full; paused jobs go on once there is space |

Dates of creation (`…_created`) that the client library adds to counters are left out of the table.
"""


class Metrics:
    """The metrics of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tokenpaths_requests",
            f"Requests answered, by method, route and status; {HUNG_UP} where the client hung up before that",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tokenpaths_request_seconds",
            "Seconds until the last byte of an answer",
            ["route"],
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30),
            registry=self.registry,
        )
        self.inside = Gauge("tokenpaths_requests_inside", "Requests being answered now", registry=self.registry)
        self.turned_away = Counter(
            "tokenpaths_requests_turned_away",
            "Requests told to come back (503) because too many were being answered",
            registry=self.registry,
        )
        self.answers = Counter(
            "tokenpaths_answers",
            "Answers about runs: computed, cached, shared (waited for the same question), not_modified",
            ["how"],
            registry=self.registry,
        )
        self.working = Gauge("tokenpaths_queries_working", "Questions being computed now", registry=self.registry)
        self.waiting = Gauge("tokenpaths_queries_waiting", "Questions waiting for a slot", registry=self.registry)
        self.stuck = Gauge(
            "tokenpaths_threads_stuck",
            "Questions given up whose threads cannot be stopped; the API starts anew when as many as `query_slots` are",
            registry=self.registry,
        )
        self.open_runs = Gauge("tokenpaths_open_runs", "Run files held open", registry=self.registry)
        self.unread_runs = Gauge(
            "tokenpaths_unread_runs",
            "Runs from elsewhere that are being read for the first time, or wait for it",
            registry=self.registry,
        )
        self.jobs = Gauge("tokenpaths_jobs", "Long jobs by state", ["state"], registry=self.registry)
        self.job_listeners = Gauge(
            "tokenpaths_job_listeners", "Clients that listen to events of jobs", registry=self.registry
        )
        self.queue_age = Gauge(
            "tokenpaths_job_queue_seconds", "How long the first waiting job has waited", registry=self.registry
        )
        self.worker_up = Gauge(
            "tokenpaths_worker_up", "Whether the engine worker takes and finishes work", registry=self.registry
        )
        self.gpu_memory = Gauge(
            "tokenpaths_gpu_memory_bytes",
            "Memory of the engine worker's GPUs",
            ["device", "what"],
            registry=self.registry,
        )
        self.traces = Counter(
            "tokenpaths_traces",
            f"POST /traces by status; {HUNG_UP} where the client hung up",
            ["status"],
            registry=self.registry,
        )

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)


def metrics_markdown() -> str:
    """The text of ``docs/monitoring.md``."""
    rows = []
    for metric in sorted(vars(Metrics()).values(), key=lambda metric: getattr(metric, "_name", "")):
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            name = family.name + {"counter": "_total", "histogram": "_bucket"}.get(family.type, "")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            rows.append(f"| `{name}` | {family.type} | {labels or '–'} | {family.documentation} |\n")
    return PAGE + "".join(rows) + AFTER


class MetricsMiddleware:
    """ASGI middleware that counts requests by route template (never by raw path: that would grow forever)."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began = HUNG_UP, time.perf_counter()  # ``Guard`` returns without an answer only where nobody waits

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        except BaseException:
            status = 500 if status == HUNG_UP else status
            raise
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE", "HEAD") else "other"
            self.metrics.requests.labels(method, route, str(status)).inc()
            seconds = time.perf_counter() - began
            self.metrics.seconds.labels(route).observe(seconds)
            _log_request(scope["method"], route, status, seconds, scope.get(PROBLEM_KIND))


def _log_request(method: str, route: str, status: int, seconds: float, problem: str | None) -> None:
    """Log failures as warnings, changes and refusals as information; never a query or a path.

    Refusals of a busy server are logged at DEBUG only: under load the lines themselves would cost time.
    """
    if status >= 500 and status != 503:
        level = logging.WARNING
    elif status in (429, 503) or (status < 400 and method in ("GET", "HEAD")):
        level = logging.DEBUG
    else:
        level = logging.INFO
    if not log.isEnabledFor(level):
        return
    about: dict[str, object] = {"method": method[:10], "route": route, "status": status, "seconds": round(seconds, 4)}
    if problem is not None:
        about["problem"] = problem
    log.log(level, "%s %s %d", method[:10], route, status, extra={"about": about})


if __name__ == "__main__":
    print(metrics_markdown(), end="")
