"""The job ``twin``: traces the untrained twin of a run's model over the run's data, and adds its paths to the run.

Jobs of this kind wait until no other job does. A twin that was traced before for the same architecture and data is not
traced again (``tracing.kept_twins``), so a killed job that had traced its twin has that behind it; otherwise it starts
from the beginning.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field, StrictStr

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import NAME_PATTERN, run_file
from tokenpaths.engine.jobs.registry import JobContext, Progress
from tokenpaths.engine.jobs.traces.traced_data import TracedData, open_data

if TYPE_CHECKING:
    from tokenpaths.engine.data.datasets import Dataset
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.store.ask.run_file import RunFile
    from tokenpaths.engine.store.file.schema import Layout
    from tokenpaths.engine.store.write.twin.twin_paths import TwinPaths
    from tokenpaths.engine.tracing.traceable import Traceable

SLICE_SECONDS = 0.7
KIND = "twin"


class TwinRequest(TracedData):
    """What a twin job needs: the run, and what it was traced with."""

    run: StrictStr = Field(description="Name of the run that the twin is for", pattern=NAME_PATTERN)


def twin_request(run: str, traced_with: dict[str, Any]) -> dict[str, Any]:
    """The request of the twin job of a run; ``traced_with`` has the fields of that of its trace, and may have more."""
    return {name: traced_with[name] for name in TwinRequest.model_fields if name in traced_with} | {"run": run}


def following_twin(
    context: JobContext, run: str, traced_with: dict[str, Any]
) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The twin job to be queued behind the trace of ``run``; none if the run has its twin's paths, or is gone."""
    try:
        with context.open_run(run) as opened:
            if opened.has_twin:
                return ()
    except UserError:
        return ()
    return ((KIND, twin_request(run, traced_with)),)


class TwinJob:
    """A running twin job."""

    kind: ClassVar[str] = KIND
    Request: ClassVar[type[BaseModel]] = TwinRequest

    def __init__(self, run: str, total: int | None, parts: Generator[Progress, None, None]) -> None:
        self.run, self.parts = run, parts
        self.last = Progress(0, total, "samples")

    @classmethod
    def check(cls, request: TwinRequest, context: JobContext) -> None:
        """Refuse a missing run, one that has a twin or came from elsewhere, an unknown model and missing data."""
        from tokenpaths.engine.base.seal_marks import is_sealed_here

        with context.open_run(request.run) as run:
            if run.has_twin:
                raise UserError(f"Run {request.run!r} holds the paths of its untrained twin already.", field="run")
        if not is_sealed_here(run_file(context.runs_dir, request.run)):
            raise UserError(f"Run {request.run!r} came from elsewhere: its file stays as it is.", field="run")
        cls.check_source(request.model, request.data, context)

    @staticmethod
    def check_source(model: str, data: str, context: JobContext) -> None:
        """Refuse a model or data that a job cannot have."""
        context.check_data(data, context.outline(model).modality)

    @classmethod
    def start(cls, request: TwinRequest, folder: Path, context: JobContext) -> TwinJob | NothingToDo:
        """Open run, model and data; a run that was deleted or has its twin needs nothing."""
        from tokenpaths.engine.store.write.writer import remove_abandoned

        file = run_file(context.runs_dir, request.run)
        if not file.is_file():
            return NothingToDo(request.run, "the run was deleted")
        loaded = context.load_model(request.model).without_controls()
        with context.open_run(request.run) as run:
            if run.has_twin:
                return NothingToDo(request.run, "the run has its twin")
            _check_model(loaded, run)
        dataset = open_data(request, context, loaded.modality)
        remove_abandoned(context.runs_dir)
        return cls(request.run, dataset.num_samples, _parts(file, loaded, dataset, request.batch_size, folder))

    def advance(self) -> Progress:
        """Process some batches, or some stages of adding the paths to the run."""
        ends = time.monotonic() + SLICE_SECONDS
        while time.monotonic() < ends:
            try:
                self.last = next(self.parts)
            except StopIteration:
                done = self.last.done
                return Progress(done, done, "samples", finished=True, result={"run": self.run, "samples": done})
        return self.last

    def close(self) -> None:
        """Let go of the data; a run that is not complete stays as it was."""
        with contextlib.suppress(UserError):
            self.parts.close()


class NothingToDo:
    """A twin job whose run is gone or complete."""

    def __init__(self, run: str, why: str) -> None:
        self.run, self.why = run, why

    def advance(self) -> Progress:
        """Return the final progress."""
        return Progress(0, 0, "samples", self.why, finished=True, result={"run": self.run, "note": self.why})

    def close(self) -> None:
        """Nothing to release."""


def _parts(
    file: Path, loaded: Traceable, dataset: Dataset, batch_size: int, folder: Path
) -> Generator[Progress, None, None]:
    """Trace the twin unless its paths are kept, then add them to the run ``file``.

    Raises:
        UserError: the data have changed since the run was traced.
    """
    from tokenpaths.engine.base.progress import map_progress, seal_in_stages
    from tokenpaths.engine.base.records import DATA_SHA256
    from tokenpaths.engine.store.ask.topics.soft_decisions import findings
    from tokenpaths.engine.store.write.twin.twin_adder import TwinAdder
    from tokenpaths.engine.tracing.kept_twins import data_of_run, find_twin, keep_twin, twin_file

    data = data_of_run(dataset)
    with _open_own(file) as run:
        layout, num_tokens, total = run.layout, int(run.row["num_tokens"]), int(run.row["num_samples"])
        traced_over = findings(run).get(DATA_SHA256)
    if data is None or traced_over != data:
        raise UserError(f"the data have changed since run {file.stem!r} was traced: trace it again", field="data")
    place = twin_file(file.parent, loaded, data, batch_size)
    twin = find_twin(place)
    if twin is None or not twin.fits(layout, num_tokens):
        twin = yield from _traced(loaded, dataset, batch_size, layout, folder, total)
        if twin is not None and twin.fits(layout, num_tokens):
            keep_twin(place, twin)
    if twin is None:
        raise UserError("the data hold no sample any more", field="data")
    with _open_own(file) as run:
        if findings(run).get(DATA_SHA256) != data:
            raise UserError(f"run {file.stem!r} was traced anew meanwhile", field="run")
    stages = seal_in_stages(TwinAdder(file, twin))
    yield from map_progress(stages, lambda stage: Progress(total, total, "samples", stage))


def _open_own(file: Path) -> RunFile:
    """The run's file, unless another one took its place since the job was asked for: one from elsewhere is not opened
    here, where it could end the worker.

    Raises:
        UserError: it came from elsewhere.
    """
    from tokenpaths.engine.base.seal_marks import is_sealed_here
    from tokenpaths.engine.store.ask.run_file import RunFile

    if not is_sealed_here(file):
        raise UserError(f"run {file.stem!r} came from elsewhere: its file stays as it is", field="run")
    return RunFile.open(file)


def _traced(
    loaded: Traceable, dataset: Dataset, batch_size: int, layout: Layout, folder: Path, total: int
) -> Generator[Progress, None, TwinPaths | None]:
    import numpy as np

    from tokenpaths.engine.store.write.twin.twin_paths import TwinCounter
    from tokenpaths.engine.tracing.trace_batches import twin_passes

    counter, done = TwinCounter(layout, folder), 0
    for batch in twin_passes(loaded.untrained(), dataset, batch_size):
        if batch is not None:
            done += batch[0]
            counter.add(np.array(batch[1], dtype=layout.id_dtype, order="C"))
        yield Progress(done, total, "samples", f"{counter.num_tokens:,} tokens traced")
    return counter.paths()


def _check_model(loaded: Traceable, run: Run) -> None:
    """UserError unless the run is of this architecture, unedited."""
    fields = loaded.run_fields()
    same = json.loads(run.row["config"]) == json.loads(json.dumps(fields["config"]))
    if not same or run.row["top_k"] != fields["top_k"] or not loaded.has_small_twin:
        raise UserError(
            f"Run {run.run_id!r} is not of the unedited model {loaded.name}, or of one too large for a twin.",
            field="model",
        )
