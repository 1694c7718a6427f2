"""``tokenpaths demo``: runs of the bundled samples by the shipped models, each once: two at once, the rest as jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from tokenpaths.cli.support.later_twins import queue_twin
from tokenpaths.cli.support.options import DataDir
from tokenpaths.cli.support.refusals import problems_as_errors

if TYPE_CHECKING:
    from tokenpaths.backend.jobs.service import Jobs
    from tokenpaths.backend.settings import Settings

SETS = {"vision": ("bundled:photos", "bundled:scenes"), "text": ("bundled:texts",)}
OF_MODEL = {
    "raytracing-digits": ("bundled:digits",),
    "raytracing-cifar10": ("bundled:photos",),
    "hmodel-languages": ("bundled:languages",),
    "dna-vision-top1": ("bundled:pictures", "bundled:photos", "bundled:scenes"),
    "dna-n-vision-top1": ("bundled:photos",),
    # The causal twin of directional-text, for comparisons: trace it when you want to see it.
    "directional-text-prefix": (),
}
"""beginning of the names of models that learnt from something else than their kind usually does"""
FIRST = ("pictures-dna-vision-top1", "languages-hmodel-languages")
"""a picture run and a text run that take seconds: what a newcomer sees first"""
BATCH_SIZE = 64
"""as of ``tokenpaths trace``: a run is the same, bit for bit, whoever traces it"""


@dataclass(frozen=True)
class DemoRun:
    """A model over a bundled set."""

    model: str
    data: str

    @property
    def run_id(self) -> str:
        return f"{self.data.removeprefix('bundled:')}-{self.model}"


def demo(data_dir: DataDir = None) -> None:
    """Trace a picture run and a text run of the bundled samples, and queue the other ones of every shipped model.

    The queued ones are jobs (`tokenpaths jobs`), which `tokenpaths up` works on; `tokenpaths up --demo` is both in one.
    Runs and jobs that are there already stay: a second call does nothing twice.

    Example: tokenpaths demo && tokenpaths up
    """
    from tokenpaths.backend.settings import load_settings

    settings = load_settings(data_dir=data_dir)
    with alone(settings):
        missing = missing_runs(settings)
        first = [run for run in missing if run.run_id in FIRST and not _is_queued(settings, run)]
        if first:
            typer.echo("Tracing the bundled samples: a picture run and a text run, once.", err=True)
            _trace(first, settings)
        queued = queue_runs([run for run in missing if run not in first], settings)
    if queued:
        typer.echo(f"{queued} more runs are queued: `tokenpaths up` traces them while you look.", err=True)


def missing_runs(settings: Settings) -> list[DemoRun]:
    """The runs of the demo that are not there, or are of other weights than ship now; ``FIRST`` come first."""
    runs = [DemoRun(model, data) for model, modality in _shipped() for data in _sets(model, modality)]
    runs.sort(key=lambda run: FIRST.index(run.run_id) if run.run_id in FIRST else len(FIRST))
    return [run for run in runs if not is_there(settings, run)]


def queue_runs(runs: list[DemoRun], settings: Settings) -> int:
    """Queue a trace for each run that no job is about to make, behind what people ask for; returns how many.

    Jobs of an earlier demo that failed or were cancelled are queued again. A run of older weights is deleted: a job
    never overwrites one.
    """
    from tokenpaths.backend.jobs.service import Jobs
    from tokenpaths.backend.runs.registry import RunRegistry

    if not runs:
        return 0
    queued = 0
    settings.runs_dir.mkdir(parents=True, exist_ok=True)
    registry = RunRegistry.of(settings, time_limit_s=settings.query_seconds, max_open=1)
    with closing(Jobs(settings)) as jobs, closing(registry), problems_as_errors():
        states = _states(jobs)
        for run in runs:
            job, state = states.get(run.run_id, (None, None))
            if state in ("waiting", "running", "paused"):
                continue
            if (settings.runs_dir / f"{run.run_id}.duckdb").exists():
                registry.delete(run.run_id)
            if job is not None and state in ("failed", "cancelled"):
                jobs.retry(job, later=True)
            else:
                jobs.submit("trace", _request(run), later=True)
            queued += 1
    return queued


def _request(run: DemoRun) -> dict[str, Any]:
    return {"model": run.model, "data": run.data, "run": run.run_id, "batch_size": BATCH_SIZE}


def is_there(settings: Settings, run: DemoRun) -> bool:
    """Whether the run exists and is of the weights that ship now; seals are newer than the weights they are of."""
    from tokenpaths.engine.base.files import run_file
    from tokenpaths.engine.base.model_folders import installed_folders

    file = run_file(settings.runs_dir, run.run_id)
    weights = [folder / run.model / "model.safetensors" for folder in installed_folders()]
    newest = max((path.stat().st_mtime for path in weights if path.exists()), default=0.0)
    return file.exists() and file.stat().st_mtime >= newest


def is_awaited(settings: Settings, run: DemoRun) -> bool:
    """Whether the run is not there yet, and a job is about to make it."""
    return not is_there(settings, run) and _is_queued(settings, run)


def _is_queued(settings: Settings, run: DemoRun) -> bool:
    from tokenpaths.backend.jobs.service import Jobs

    if not settings.jobs_file.exists():
        return False
    with closing(Jobs(settings)) as jobs, problems_as_errors():
        return _states(jobs).get(run.run_id, ("", ""))[1] in ("waiting", "running", "paused")


def _states(jobs: Jobs) -> dict[str, tuple[str, str]]:
    """(job, state) of the newest trace job for each name of a run."""
    rows = reversed(jobs.table.page(kinds=["trace"], limit=10_000))  # the newest wins
    return {row.request["run"]: (row.job, row.state) for row in rows if isinstance(row.request.get("run"), str)}


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Refuse to work beside another ``tokenpaths demo`` of the same data folder, which would do everything twice."""
    from tokenpaths.engine.base.files import HolderLock, make_folder

    make_folder(settings.data_dir)
    lock = HolderLock(settings.data_dir / ".demo.lock")
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sets(model: str, modality: str) -> tuple[str, ...]:
    """The bundled sets that say something about a model."""
    return next((sets for name, sets in OF_MODEL.items() if model.startswith(name)), SETS[modality])


def _shipped() -> list[tuple[str, str]]:
    """(model, modality) of the shipped checkpoints; reads only their configurations, no torch. The distributed
    architectures come last: the start page shows the newest runs first."""
    import json

    from tokenpaths.engine.base.errors import UserError
    from tokenpaths.engine.base.model_folders import installed_folders

    models = []
    for path in sorted(path for folder in installed_folders() for path in folder.glob("*/config.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        models.append((path.parent.name, about["config"]["modality"]))
    if not models:
        raise UserError(
            "This installation holds no models, so there is nothing to show: it is incomplete; "
            "run `pip install --force-reinstall tokenpaths`."
        )
    return sorted(models, key=lambda row: (row[0].startswith("dna-"), row))


def _trace(runs: list[DemoRun], settings: Settings) -> None:
    from tokenpaths.cli.support.progress_bar import Bar, bar
    from tokenpaths.engine.base.model_folders import installed_folders
    from tokenpaths.engine.data.datasets import open_dataset
    from tokenpaths.engine.store.write.writer import remove_abandoned
    from tokenpaths.engine.tracing.loaded_model import load_model
    from tokenpaths.engine.tracing.trace_run import TraceProgress, trace_samples

    def follow(progress: Bar, now: TraceProgress) -> None:
        progress.update(now.samples, now.words)

    remove_abandoned(settings.runs_dir)
    for number, run in enumerate(runs, start=1):
        loaded = load_model(run.model, installed_folders())
        dataset = open_dataset(run.data, loaded.modality)
        with bar(f"{run.run_id} ({number} of {len(runs)})", dataset.num_samples, "samples") as progress:
            file = trace_samples(
                loaded,
                dataset,
                settings.runs_dir,
                run_id=run.run_id,
                dataset=dataset.name,
                split=dataset.split,
                regions=dataset.regions,
                batch_size=BATCH_SIZE,
                total=dataset.num_samples,
                twin_later=True,
                overwrite=True,
                on_progress=partial(follow, progress),
            )
        queue_twin(settings, file, _request(run))  # at once: an interrupted demo does not trace this run again
