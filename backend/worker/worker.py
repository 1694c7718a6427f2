"""Engine worker: the process that holds models. The API forwards ``POST /traces`` to it, and it executes jobs.

A small ASGI app on loopback that requires a shared secret. Model work runs in one thread, one trace at a time; images
are decoded in another process first (``tokenpaths.backend.worker.decoder``). A trace becomes a run file of one sample,
sealed by rename, which the API then serves. Jobs share the thread in slices of about a second: a trace waits for at
most one slice, and a device never runs two things at once.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tokenpaths.backend import __version__
from tokenpaths.backend.http.uploads import checked_text
from tokenpaths.backend.jobs.runner import JobRunner
from tokenpaths.backend.jobs.service import job_table
from tokenpaths.backend.logs import REQUEST_ID_HEADER, checked_request_id, request_id
from tokenpaths.backend.problems import Problem, busy, nearest, problem_of
from tokenpaths.backend.runs.foreign_files import foreign_files_of
from tokenpaths.backend.settings import Settings
from tokenpaths.backend.worker.decoder import Decoder
from tokenpaths.backend.worker.huggingface import HuggingFaceModels, folder_identity, huggingface_details
from tokenpaths.engine.adapters.huggingface.config import is_huggingface
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import is_name, keep_free
from tokenpaths.engine.jobs.registry import JobContext

if TYPE_CHECKING:
    from tokenpaths.engine.data.sources.sample import Sample
    from tokenpaths.engine.tracing.loaded_model import LoadedModel

log = logging.getLogger(__name__)
SECRET_HEADER = "x-tokenpaths-worker-secret"
WARM_TEXT = "Paths of tokens."
GIVE_BACK_SECONDS = 6.0
T = TypeVar("T")


@dataclass
class Cached:
    """A loaded model and the identity of its files at that time."""

    model: LoadedModel
    identity: tuple[tuple[str, int, int], ...]


@dataclass
class Worker:
    """The models, the one thread that runs them, and the child process that decodes images."""

    settings: Settings
    models: dict[str, Cached] = field(default_factory=dict)
    listed: tuple[object, list[dict[str, Any]]] | None = None
    """identity of the model folders when they were last read, and the rows"""
    waiting: int = 0

    def __post_init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.decoder = Decoder(
            limit_s=self.settings.decode_seconds, memory_megabytes=self.settings.decode_memory_megabytes
        )

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run ``work`` in the model thread; Problem 503 when too many calls wait already."""
        if self.waiting >= self.settings.trace_queue_length:
            raise busy(f"{self.waiting} traces are waiting already; try again in a moment.", retry_after_s=2)
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, work, *args)
        finally:
            self.waiting -= 1

    def rows(self) -> list[dict[str, Any]]:
        """The models of all folders as ``GET /models`` shows them."""
        from tokenpaths.engine.tracing.loaded_model import list_models

        folders = self.settings.all_models_dirs
        looks = [
            (entry.name, folder_identity(entry))
            for folder in folders
            for entry in (sorted(folder.iterdir()) if folder.is_dir() else [])
            if entry.is_dir()
        ]
        if self.listed is None or self.listed[0] != looks:
            self.listed = (looks, list_models(folders))
        return [dict(row) for row in self.listed[1]]

    def row(self, name: str) -> dict[str, Any]:
        """The row of one model; Problem 404 that suggests the nearest name."""
        rows = {row["model"]: row for row in self.rows()}
        if name not in rows:
            raise Problem(
                404, "no-such-model", f"There is no model {name[:80]!r}; {nearest(name, rows)}", field="model"
            )
        return rows[name]

    def details(self, name: str) -> dict[str, Any]:
        """The row of one model with its configuration and its card (Markdown), if it has them."""
        from tokenpaths.engine.models.family import family_class

        if is_huggingface(name):
            return huggingface_details(self.settings.huggingface_dir, name)
        row, folder = self.row(name), self.folder(name)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            config = None
        card_file = folder / "card.md"
        card = card_file.read_text(encoding="utf-8", errors="replace") if card_file.is_file() else None
        controls = None if row.get("problem") else family_class(row["family"]).Controls.model_json_schema()
        return row | {"config": config, "card": card, "controls": controls}

    def load(self, name: str) -> LoadedModel:
        """The model, reloaded only when its files change. Call only in the model thread."""
        from tokenpaths.engine.tracing.loaded_model import load_model

        folder = self.folder(name)
        identity = folder_identity(folder)
        cached = self.models.get(name)
        if cached is None or cached.identity != identity:
            cached = self.models[name] = Cached(load_model(folder, self.settings.all_models_dirs), identity)
        return cached.model

    def load_for_job(self, name: str) -> LoadedModel:
        """As ``load``, but raises the engine's errors. Call only in the model thread."""
        try:
            return self.load(name)
        except Problem as problem:
            raise UserError(problem.detail, field=problem.field) from None

    def folder(self, name: str) -> Path:
        """The checkpoint folder of a model: the first match; Problem 404 if there is none."""
        if is_name(name):
            for models_dir in self.settings.all_models_dirs:
                if (models_dir / name).is_dir():
                    return models_dir / name
        self.row(name)  # raises, with the nearest name
        raise Problem(404, "no-such-model", f"There is no model {name[:80]!r}.", field="model")

    def trace(
        self, name: str, sample: Sample, controls: dict[str, Any] | None = None, purpose: str = "try"
    ) -> dict[str, Any]:
        """Trace one sample into a run of its own. Call only in the model thread.

        Args:
            controls: Controls of the model for this trace.
            purpose: Stored as the split of the run.
        """
        began = time.perf_counter()
        model = self.load(name).with_controls(controls)
        self._check(model, name, sample)
        when = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        run_id = f"try-{name[:36]}-{when}-{secrets.token_hex(2)}"
        effect = _effect(model, sample) if controls else None
        path = _trace(model, sample, self.settings.runs_dir, run_id, effect, purpose)
        return {
            "run": path.stem,
            "effect": effect,
            "sample": 0,
            "model": name,
            "modality": model.modality,
            "seconds": round(time.perf_counter() - began, 4),
        }

    def _check(self, model: LoadedModel, name: str, sample: Sample) -> None:
        given = "text" if sample.text is not None else "image"
        wanted = "image" if model.modality == "vision" else "text"
        if given != wanted:
            raise Problem(
                422,
                "modality",
                f"The model {name} takes {'an image' if wanted == 'image' else 'a text'}, not {given}.",
                field=given,
            )
        if sample.text is None or model.tokenizer is None:
            return
        num_tokens, limit = len(model.tokenizer.encode(sample.text).ids), self.settings.max_text_tokens
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
            model = self.load(name)
            with tempfile.TemporaryDirectory(prefix="tokenpaths-warm-") as folder:
                _trace(model, _warm_sample(model.modality), Path(folder), "warm")
            log.info("model %s is warm after %.1f s", name, time.perf_counter() - began)
        except (UserError, Problem) as error:
            log.warning("model %s cannot be used: %s", name, error)
        except Exception:
            log.exception("model %s could not be warmed", name)


def _trace(
    model: LoadedModel,
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


def _effect(model: LoadedModel, sample: Sample) -> dict[str, Any]:
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
    torch = sys.modules.get("torch")  # health is requested before anything is loaded
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    found = [(number, *torch.cuda.mem_get_info(number)) for number in range(torch.cuda.device_count())]
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
        if settings.warm_models:
            worker.thread.submit(_warm_all, worker)
        async with working_on_jobs(worker):
            yield
        worker.thread.shutdown(wait=False, cancel_futures=True)
        worker.decoder.close()

    def guarded(endpoint: Callable[[Worker, Request], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            request_id.set(checked_request_id(request.headers.get(REQUEST_ID_HEADER)))
            try:
                if not hmac.compare_digest(request.headers.get(SECRET_HEADER, "").encode(), secret.encode()):
                    raise Problem(401, "worker-secret", f"The worker wants its secret in {SECRET_HEADER}.")
                return await endpoint(worker, request)
            except Exception as error:  # last resort: the API relays the problem
                return problem_of(error).response("/api/v1" + request.url.path)

        return answer

    async def health(request: Request) -> Response:
        about = {"status": "ok", "version": __version__, "models": sorted(worker.models), "gpus": gpu_memory()}
        return JSONResponse(about)

    routes = [
        Route("/healthz", health),
        Route("/models", guarded(_models)),
        Route("/models/{model}", guarded(_model)),
        Route("/traces", guarded(_traces), methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.worker = worker
    return app


@asynccontextmanager
async def working_on_jobs(worker: Worker) -> AsyncIterator[None]:
    """Execute jobs between traces; on exit, finish the current slice and release the job."""
    settings = worker.settings
    if not settings.worker_jobs:
        yield
        return
    loop = asyncio.get_running_loop()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    table, foreign_files = job_table(settings), foreign_files_of(settings)
    runner = JobRunner(
        table,
        JobContext(
            settings.data_dir,
            tuple(settings.all_models_dirs),
            worker.load_for_job,
            settings.huggingface_dir,
            HuggingFaceModels(settings.huggingface_dir).load,
            foreign_files.problem if foreign_files is not None else None,
        ),
        lambda work: loop.run_in_executor(worker.thread, work),
        free_bytes=(settings.least_free_megabytes + settings.job_free_megabytes) * 1e6,
    )
    running = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.ending.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(running, GIVE_BACK_SECONDS)
        table.close()


def _warm_all(worker: Worker) -> None:
    try:
        names = [row["model"] for row in worker.rows() if not row.get("problem")]
    except Exception:
        log.exception("the models could not be listed")
        return
    for name in names:  # one job each: a real trace waits for one model at most
        worker.thread.submit(worker.warm, name)


async def _models(worker: Worker, request: Request) -> Response:
    return JSONResponse({"models": await asyncio.to_thread(worker.rows)})


async def _model(worker: Worker, request: Request) -> Response:
    return JSONResponse(await asyncio.to_thread(worker.details, request.path_params["model"]))


async def _traces(worker: Worker, request: Request) -> Response:
    from tokenpaths.engine.data.sources.sample import Sample

    name = request.query_params["model"]
    source, purpose = request.query_params.get("source", "upload"), request.query_params.get("purpose", "try")
    body, size = await request.body(), int(request.query_params.get("controls_bytes", "0"))
    controls, data = json.loads(body[:size] or b"{}"), body[size:]
    if request.query_params["kind"] == "text":
        sample = Sample(image=None, text=checked_text(data), label=None, source=source)
    else:
        image = await asyncio.to_thread(worker.decoder.decode, data)
        sample = Sample(image=image, text=None, label=None, source=source)
    try:
        return JSONResponse(await worker.in_thread(worker.trace, name, sample, controls, purpose), status_code=201)
    except Problem as problem:
        if problem.status == 404:  # the address was valid; the form field was not
            problem.status = 422
        raise
