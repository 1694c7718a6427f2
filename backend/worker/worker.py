"""Engine worker: the process that holds models. The API forwards ``POST /traces`` to it, and it executes jobs.

A small ASGI app on loopback that requires a shared secret. Model work runs in one thread, one trace at a time; images
are decoded in another process first (``tokenpaths.backend.worker.decoder``). A trace becomes a run file of one sample,
sealed by rename, which the API then serves. Jobs share the thread in slices of about a second: a trace waits for at
most one slice, and a device never runs two things at once.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import logging
import math
import re
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tokenpaths.backend import __version__
from tokenpaths.backend.data_folder import DataFolder
from tokenpaths.backend.http.security import LOOPBACK_NAMES, host_name
from tokenpaths.backend.http.uploads import checked_text
from tokenpaths.backend.jobs.runner import JobRunner
from tokenpaths.backend.jobs.service import job_table
from tokenpaths.backend.logs import REQUEST_ID_HEADER, checked_request_id, request_id
from tokenpaths.backend.loops import contained
from tokenpaths.backend.problems import Problem, busy, problem_of
from tokenpaths.backend.runs.open_runs import gate_of
from tokenpaths.backend.settings import EVERYWHERE, SECRET_HEADER, Settings
from tokenpaths.backend.worker.decoder import Decoder
from tokenpaths.backend.worker.loaded_models import LoadedModels
from tokenpaths.engine.adapters.huggingface.config import PREFIX, is_huggingface
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import keep_free
from tokenpaths.engine.jobs.registry import JobContext

if TYPE_CHECKING:
    from tokenpaths.engine.data.sources.sample import Sample
    from tokenpaths.engine.tracing.traceable import Traceable

log = logging.getLogger(__name__)
WARM_TEXT = "Paths of tokens."
GIVE_BACK_SECONDS = 6.0
WARM_AGAIN_SECONDS = 1.0
"""between two looks whether jobs have left the models' thread to those who try one"""
T = TypeVar("T")


class ModelThread(ThreadPoolExecutor):
    """The one thread that the models belong to; whatever its work raises reaches the caller as an ``Exception``."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="model")
        self._turns: dict[int, float] = {}
        """number of a piece of work that is not over → when it was its turn at the earliest"""
        self._numbers = itertools.count()
        self._turns_lock = threading.Lock()

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Queue a piece of work."""
        number = next(self._numbers)
        with self._turns_lock:
            self._turns[number] = time.monotonic()
        future = super().submit(contained(work), *args, **kwargs)
        future.add_done_callback(lambda _: self._is_over(number))
        return future

    def _is_over(self, number: int) -> None:
        with self._turns_lock:
            self._turns.pop(number, None)
            self._turns = dict.fromkeys(self._turns, time.monotonic())

    def stuck_s(self) -> float:
        """Seconds since it was the turn of the piece of work at hand; 0 if there is none."""
        now = time.monotonic()
        with self._turns_lock:
            return now - min(self._turns.values(), default=now)


def worker_names(settings: Settings) -> frozenset[str]:
    """Names that the ``Host`` of a request to the worker may have; `allowed_hosts` adds to them."""
    names = {name.lower() for name in settings.allowed_hosts} | LOOPBACK_NAMES
    if settings.worker_host not in EVERYWHERE:
        names.add(f"[{settings.worker_host}]" if ":" in settings.worker_host else settings.worker_host.lower())
    return frozenset(names)


@dataclass
class Worker:
    """The models, the one thread that runs them, and the child process that decodes images."""

    settings: Settings
    waiting: int = 0

    def __post_init__(self) -> None:
        self.models = LoadedModels(self.settings)
        self.thread = ModelThread()
        self.runner: JobRunner | None = None
        self.running: asyncio.Task[None] | None = None
        self.data_folder = DataFolder(self.settings.data_dir)
        self.decoder = Decoder(
            limit_s=self.settings.decode_seconds, memory_megabytes=self.settings.decode_memory_megabytes
        )

    @contextmanager
    def place(self) -> Iterator[None]:
        """One of the places of traces that wait, for the block; Problem 503 when all are taken."""
        if self.waiting >= self.settings.trace_queue_length:
            raise busy(f"{self.waiting} traces are waiting already; try again in a moment.", retry_after_s=2)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def trouble(self) -> tuple[str | None, bool]:
        """(why this worker does not take or finish work, None where it does; whether a new process would)."""
        limit_s = self.settings.stuck_seconds
        if self.thread.stuck_s() > limit_s:
            return f"One piece of work lasts longer than {limit_s:g} s (`stuck_seconds`).", True
        if self.runner is not None and self.running is not None:
            if self.running.done() and not self.runner.ending.is_set():
                return "Its loop of jobs has ended.", True
            if time.monotonic() - self.runner.last_turn > limit_s:
                return f"Its loop of jobs has stood still for {limit_s:g} s (`stuck_seconds`).", True
            if self.runner.trouble_now is not None:
                return f"It takes no jobs: {self.runner.trouble_now}", False
        gone = self.data_folder.problem()
        return (gone.detail if gone is not None else None), False

    def trace(
        self,
        name: str,
        sample: Sample,
        controls: dict[str, Any] | None = None,
        purpose: str = "try",
        ends: float = math.inf,
    ) -> dict[str, Any]:
        """Trace one sample into a run of its own. Call only in the model thread.

        Args:
            controls: Controls of the model for this trace.
            purpose: Stored as the split of the run.
            ends: when nobody waits for it any more (``time.monotonic``): nothing is done then, or what was made is
                deleted.
        """
        if time.monotonic() > ends:
            raise _too_late()
        from tokenpaths.engine.edits.sweep import with_counted_share

        began = time.perf_counter()
        self.data_folder.require()
        self.models.refuse_large(name)
        model = self.models.load(name)
        self._check(model, name, sample)
        model = with_counted_share(model.with_controls(controls), [sample])
        when = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", name.removeprefix(PREFIX))
        run_id = f"try-{plain[:36]}-{when}-{secrets.token_hex(2)}"
        effect = _effect(model, sample) if controls else None
        path = _trace(model, sample, self.settings.runs_dir, run_id, effect, purpose)
        if time.monotonic() > ends:  # its name would be told to nobody, and each further try would leave another one
            gate_of(self.settings).delete(path)
            raise _too_late()
        return {
            "run": path.stem,
            "effect": effect,
            "sample": 0,
            "model": name,
            "modality": model.modality,
            "seconds": round(time.perf_counter() - began, 4),
        }

    def _check(self, model: Traceable, name: str, sample: Sample) -> None:
        given = "text" if sample.text is not None else "image"
        wanted = "image" if model.modality == "vision" else "text"
        if given != wanted:
            raise Problem(
                422,
                "modality",
                f"The model {name} takes {'an image' if wanted == 'image' else 'a text'}, not {given}.",
                field=given,
            )
        if sample.text is None:
            return
        num_tokens, limit = len(model.encode(sample.text).ids), self.settings.max_text_tokens
        if num_tokens > limit:
            raise Problem(
                413,
                "text-too-long",
                f"The text has {num_tokens:,} tokens, at most {limit:,} are traced at once; give a shorter piece, "
                "or trace the file with `tokenpaths trace`.",
                field="text",
            )

    def warm(self, name: str) -> None:
        """Load a model and run one sample through it, so that the first request is fast."""
        began = time.perf_counter()
        try:
            model = self.models.load(name)
            with tempfile.TemporaryDirectory(prefix="tokenpaths-warm-") as folder:
                _trace(model, _warm_sample(model.modality), Path(folder), "warm")
            log.info("model %s is warm after %.1f s", name, time.perf_counter() - began)
        except (UserError, Problem) as error:
            log.warning("model %s cannot be used: %s", name, error)
        except BaseException as error:  # a library's panic too: the next request says what is wrong
            log.error("model %s could not be warmed", name, exc_info=error)


def _too_late() -> Problem:
    return busy("The trace took longer than `trace_seconds`.", retry_after_s=10)


def _trace(
    model: Traceable,
    sample: Sample,
    runs_dir: Path,
    run_id: str,
    effect: dict[str, Any] | None = None,
    split: str = "try",
) -> Path:
    from tokenpaths.engine.tracing.trace_run import trace_samples

    findings = {} if effect is None else {"effect": effect}
    return trace_samples(
        model,
        [sample],
        runs_dir,
        run_id=run_id,
        dataset="upload",
        split=split,
        batch_size=1,
        twin=False,
        findings=findings,
    )


def _effect(model: Traceable, sample: Sample) -> dict[str, Any]:
    """The effect of the model's controls on this sample, relative to the unedited pass."""
    from tokenpaths.engine.edits.measure import measure_effect
    from tokenpaths.engine.edits.prepared import prepare

    return measure_effect(model, prepare(model, [sample]))


def _warm_sample(modality: str) -> Sample:
    from PIL import Image

    from tokenpaths.engine.data.sources.sample import Sample

    if modality == "text":
        return Sample(image=None, text=WARM_TEXT, label=None, source="warm-up")
    return Sample(image=Image.new("RGB", (64, 64), (120, 120, 120)), text=None, label=None, source="warm-up")


def gpu_memory() -> list[dict[str, Any]]:
    """(device, used, total) in bytes for each GPU that this process uses; empty if there is none, or not initialized
    yet.
    """
    # Health is requested before torch is loaded, and while it is: then its module is there, and parts of it are not.
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return []
    found = [(number, *cuda.mem_get_info(number)) for number in range(cuda.device_count())]
    return [{"device": f"cuda:{number}", "used": total - free, "total": total} for number, free, total in found]


def create_worker(settings: Settings) -> Starlette:
    """The worker's app; raises UserError without a secret."""
    if settings.worker_secret is None:
        raise UserError("The worker needs TOKENPATHS_WORKER_SECRET; `tokenpaths up` makes one.", field="worker_secret")
    secret = settings.worker_secret.get_secret_value()
    keep_free(settings.least_free_megabytes * 1e6)
    worker = Worker(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.decoder.start()
        async with working_on_jobs(worker):
            warming = asyncio.create_task(warm_all(worker)) if settings.warm_models else None
            yield
            if warming is not None:
                warming.cancel()
        worker.thread.shutdown(wait=False, cancel_futures=True)
        worker.decoder.close()

    names = worker_names(settings)

    def guarded(endpoint: Callable[[Worker, Request], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            request_id.set(checked_request_id(request.headers.get(REQUEST_ID_HEADER)))
            try:
                if host_name(host := request.headers.get("host", "")) not in names:
                    raise Problem(400, "host", f"Host {host[:80]!r} is none of this worker's; see `allowed_hosts`.")
                if not hmac.compare_digest(request.headers.get(SECRET_HEADER, "").encode(), secret.encode()):
                    raise Problem(401, "worker-secret", f"The worker wants its secret in {SECRET_HEADER}.")
                return await endpoint(worker, request)
            except Exception as error:  # last resort: the API relays the problem
                return problem_of(error).response("/api/v1" + request.url.path)

        return answer

    routes = [
        Route("/healthz", guarded(_health)),
        Route("/models", guarded(_models)),
        Route("/models/{model}", guarded(_model)),
        Route("/traces", guarded(_traces), methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.worker = worker
    return app


@asynccontextmanager
async def working_on_jobs(worker: Worker) -> AsyncIterator[None]:
    """Execute jobs between traces; on exit, finish the current slice and release the job, finished or not."""
    settings = worker.settings
    if not settings.worker_jobs:
        yield
        return
    loop = asyncio.get_running_loop()
    worker.data_folder.make()
    table = job_table(settings, worker.data_folder)
    runner = JobRunner(
        table,
        JobContext(
            settings.data_dir,
            tuple(settings.all_models_dirs),
            worker.models.load_for_job,
            settings.checkpoints_dir,
            gate_of(settings),
        ),
        lambda work: loop.run_in_executor(worker.thread, work),
        free_bytes=settings.paused_below_bytes,
        is_stuck=lambda: worker.thread.stuck_s() > settings.stuck_seconds,
    )
    running = asyncio.create_task(runner.run())
    worker.runner, worker.running = runner, running
    try:
        yield
    finally:
        runner.ending.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(running, GIVE_BACK_SECONDS)
        table.close()


async def warm_all(worker: Worker) -> None:
    """Warm one model after the other, between jobs: a real trace waits for one model at most, a job for the same."""
    loop = asyncio.get_running_loop()
    try:
        rows = await asyncio.to_thread(worker.models.rows)
    except Exception:
        log.exception("the models could not be listed")
        return
    for row in rows:
        if row["problem"] or is_huggingface(row["model"]):  # there may be many of those, and large ones
            continue
        while worker.runner is not None and await asyncio.to_thread(worker.runner.has_work):
            await asyncio.sleep(WARM_AGAIN_SECONDS)
        await loop.run_in_executor(worker.thread, worker.warm, row["model"])


async def _health(worker: Worker, request: Request) -> Response:
    """Whether this worker takes and finishes work: 503 with a sentence where it does not, and whether to restart it."""
    problem, restart = await asyncio.to_thread(worker.trouble)
    about = {
        "status": "ok" if problem is None else "impaired",
        "problem": problem,
        "restart": restart,
        "version": __version__,
        "models": sorted(worker.models.held),
        "gpus": gpu_memory(),
    }
    return JSONResponse(about, status_code=200 if problem is None else 503)


async def _models(worker: Worker, request: Request) -> Response:
    return JSONResponse({"models": await asyncio.to_thread(worker.models.rows)})


async def _model(worker: Worker, request: Request) -> Response:
    return JSONResponse(await asyncio.to_thread(worker.models.details, request.path_params["model"]))


async def _traces(worker: Worker, request: Request) -> Response:
    reading = False
    try:
        with worker.place():  # before the body is read: those that are refused take no memory
            reading = True
            return await _traced(worker, request)
    except Problem:
        if not reading:
            with suppress(ClientDisconnect):
                async for _ in request.stream():  # or the API, which goes on sending, does not receive the answer
                    pass
        raise


async def _traced(worker: Worker, request: Request) -> Response:
    from tokenpaths.engine.data.sources.sample import Sample

    name, ends = request.query_params["model"], time.monotonic() + worker.settings.trace_seconds
    source, purpose = request.query_params.get("source", "upload"), request.query_params.get("purpose", "try")
    body, size = await request.body(), int(request.query_params.get("controls_bytes", "0"))
    controls, data = json.loads(body[:size] or b"{}"), body[size:]
    if request.query_params["kind"] == "text":
        sample = Sample(image=None, text=checked_text(data), label=None, source=source)
    else:
        image = await asyncio.to_thread(worker.decoder.decode, data)
        sample = Sample(image=image, text=None, label=None, source=source)
    try:
        loop = asyncio.get_running_loop()
        traced = await loop.run_in_executor(worker.thread, worker.trace, name, sample, controls, purpose, ends)
        return JSONResponse(traced, status_code=201)
    except Problem as problem:
        if problem.status == 404:  # the address was valid; the form field was not
            problem.status = 422
        raise
