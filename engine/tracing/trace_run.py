"""Trace a model over a data set into a run: batch, run, record, write."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.progress import map_progress, run_with_progress, seal_in_stages
from tokenpaths.engine.base.records import DATA_SHA256, ModuleInfo, RunInfo, SampleRecord, engine_version
from tokenpaths.engine.data.datasets import Dataset, Sample
from tokenpaths.engine.data.walk import Walk
from tokenpaths.engine.store.write.shard_writer import ShardWriter
from tokenpaths.engine.store.write.writer import RunWriter
from tokenpaths.engine.tracing.kept_twins import data_of_run, find_twin, keep_twin, twin_file
from tokenpaths.engine.tracing.trace_batches import Batch, image_batches, text_passes
from tokenpaths.engine.tracing.traceable import Traceable

MOST_CLASSES = 1000
"""names of classes that a run of one image keeps"""

MakeWriter = Callable[[RunInfo, Sequence[ModuleInfo]], RunWriter | ShardWriter]
"""consumer of the batches of a trace: the writer of a run or of a shard"""


@dataclass(frozen=True)
class TraceOptions:
    """Settings of a trace, and the description of its data."""

    run_id: str | None = None
    """None: composed of model, data set and time"""
    dataset: str = "upload"
    split: str = ""
    regions: tuple[str, ...] = ()
    """names of the regions marked by the samples' masks"""
    batch_size: int = 64
    """images, or stretches of 64 tokens"""
    total: int | None = None
    """samples, where known"""
    display_side: int = 256
    """of the kept pictures, in pixels"""
    twin: bool = True
    """also count the paths of the untrained twin, if the model has one; those that were kept are not traced again"""
    twin_later: bool = False
    """leave out a twin whose paths are not kept (``engine.jobs.traces`` adds them); nothing of samples that are no
    data set is kept"""
    overwrite: bool = False
    findings: Mapping[str, Any] = field(default_factory=dict)
    """stored in the run by name, in addition to the model's findings"""
    make_writer: MakeWriter | None = None
    """creates another writer than that of a run: of a shard, which may be empty"""


@dataclass(frozen=True)
class TraceProgress:
    """Number of samples traced, and their total (None: unknown)."""

    samples: int
    total: int | None
    tokens: int
    sealing: str = ""
    """current stage of the sealing, once all samples are traced"""

    @property
    def words(self) -> str:
        """Text shown beside the number of samples."""
        return self.sealing or f"{self.tokens:,} tokens"


def trace_samples(
    model: Traceable,
    samples: Iterable[Sample],
    runs_dir: Path,
    options: TraceOptions | None = None,
    on_progress: Callable[[TraceProgress], None] = lambda p: None,
    **given: Any,
) -> Path:
    """Run every sample through the model and seal one run file; returns its path.

    After an exception (a cancel included) no file is left.

    Args:
        model: with or without controls.
        samples: of the model's modality.
        runs_dir: folder of run files.
        options: see ``TraceOptions``.
        on_progress: called after every pass.
        given: fields of ``TraceOptions`` that override those of ``options``.

    Raises:
        UserError: a sample cannot be traced, or the run id is taken.
    """
    return run_with_progress(
        trace_parts(model, samples, runs_dir, replace(options or TraceOptions(), **given)), on_progress
    )


def trace_parts(
    model: Traceable, samples: Iterable[Sample], runs_dir: Path, options: TraceOptions
) -> Generator[TraceProgress, None, Path]:
    """``trace_samples`` as a generator that yields after each forward pass and returns the run's path. Closing it early
    (``close()``) leaves no file behind."""
    fields = model.run_fields()
    info = RunInfo(
        run_id=options.run_id or run_id_of(model, options.dataset),
        dataset=options.dataset,
        split=options.split,
        engine_version=engine_version(),
        regions=options.regions,
        **fields | {"findings": fields.get("findings", {}) | dict(options.findings)},
    )
    dataset = samples if isinstance(samples, Dataset) else None
    _add_notes(info, dataset.notes if dataset else [])
    walk = Walk()
    done = tokens = 0
    last: SampleRecord | None = None
    make_writer = options.make_writer or partial(RunWriter, runs_dir, overwrite=options.overwrite)
    wants_twin = options.twin and model.has_small_twin
    data = data_of_run(dataset) if dataset is not None and options.make_writer is None else None
    if data is not None:
        info.findings[DATA_SHA256] = data
    file = twin_file(runs_dir, model, data, options.batch_size) if wants_twin else None
    kept = find_twin(file)
    alone = not wants_twin or kept is not None or (options.twin_later and file is not None)
    with make_writer(info, model.module_table()) as writer:
        if kept is not None and isinstance(writer, RunWriter):
            writer.use_twin(kept)
        twin = None if alone else model.untrained()
        for batch in _passes(model, twin, dataset or walk.through(samples), options):
            if batch is not None:
                writer.write(batch[0])
                if batch[1] is not None:
                    writer.write_twin(batch[1])
                done, tokens = done + len(batch[0].samples), tokens + batch[0].num_tokens
                last = batch[0].samples[-1] if batch[0].samples else last
            yield TraceProgress(done, options.total, tokens)
        if not done and isinstance(writer, RunWriter):
            raise UserError("the data set holds no sample, so there is nothing to trace", field="data")
        if done == 1 and isinstance(writer, RunWriter) and last is not None and last.likeliest:  # no shard of a run
            info.findings["answer"] = {
                "likeliest": [{"name": name, "probability": probability} for name, probability in last.likeliest],
                "classes": list(model.classes[:MOST_CLASSES]),
            }
        if isinstance(writer, RunWriter):  # of a shard its manifest says it
            _add_notes(info, (dataset.walk if dataset else walk).notes())
        at = TraceProgress(done, options.total, tokens)
        yield replace(at, sealing="sealing")  # before it begins: now all is known that a job keeps of the walk
        path = yield from map_progress(seal_in_stages(writer), lambda stage: replace(at, sealing=stage))
        if not alone and isinstance(writer, RunWriter):
            keep_twin(file, writer.twin_paths)
        return path


def _add_notes(info: RunInfo, notes: Sequence[str]) -> None:
    """Add sentences to the run's findings, which are written when it is sealed."""
    if notes:
        info.findings["notes"] = [*info.findings.get("notes", []), *notes]


def _passes(
    model: Traceable, twin: Traceable | None, samples: Iterable[Sample], options: TraceOptions
) -> Iterable[Batch | None]:
    if model.modality == "vision":
        return image_batches(model, twin, samples, options.batch_size, options.display_side)
    return text_passes(model, twin, samples, options.batch_size)


def run_id_of(model: Traceable, dataset: str) -> str:
    """``new_run_id`` of a model; the owner of a hub checkpoint is left out."""
    return new_run_id(model.name.rsplit("/", 1)[-1], dataset)


def new_run_id(model: str, dataset: str) -> str:
    """A readable run id: model, data set, time to the millisecond."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    plain = [re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in (model, dataset)]
    return f"{plain[0][:24] or 'model'}-{plain[1][:16] or 'data'}-{stamp}"
