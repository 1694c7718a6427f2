"""The job ``import``: turns a routing log of another program from the inbox into a run.

A killed job starts again from the beginning and leaves no partial run.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, field_validator

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import NAME_PATTERN
from tokenpaths.engine.jobs.made_run import Finished, check_run_name, claim_run, made_by, sealed_run
from tokenpaths.engine.jobs.registry import JobContext, Progress

if TYPE_CHECKING:
    from tokenpaths.engine.adapters.expert_runs import Series
    from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts
    from tokenpaths.engine.adapters.logs.importing import ImportProgress
    from tokenpaths.engine.adapters.logs.routing_log import Log

SLICE_SECONDS = 0.7


class ImportRequest(BaseModel):
    """What an import job needs."""

    model_config = ConfigDict(extra="forbid")

    file: StrictStr = Field(description="Name of the log, or of a folder of its shards, in `inbox/` of the data folder")
    run: StrictStr | None = Field(
        None, pattern=NAME_PATTERN, description="Name of the run; made from file and time when left out"
    )
    format: StrictStr | None = Field(
        None, max_length=64, description="vllm, sglang, megatron, llama.cpp, tensors …, or a plugin's; else by content"
    )
    model: StrictStr | None = Field(None, max_length=200, description="Model that wrote the log; as the log says")
    tokenizer: StrictStr | None = Field(
        None, description="Name of a folder in `inbox/` with the model's tokenizer.json, to show tokens as text"
    )
    experts: StrictInt | None = Field(None, ge=1, le=65536, description="Experts a layer; as the log says")
    layers: StrictInt | None = Field(None, ge=1, le=65536, description="Layers, where the log holds flat ids")
    top_k: StrictInt | None = Field(None, ge=1, le=65536, description="Experts a token and layer, where it is flat")
    sequences: StrictInt | None = Field(
        None, ge=1, le=65536, description="Sequences that alternate in a forward pass (micro-batch size)"
    )
    map: StrictStr | None = Field(
        None, description="Name of a column map (TOML) in `inbox/`, for a table that no format describes"
    )
    series: StrictStr | None = Field(
        None, pattern=NAME_PATTERN, description="Name of the training that the log is of, with `at`"
    )
    at: StrictInt | None = Field(None, ge=0, description="Iteration of that training")
    skip_bad: StrictBool = Field(False, description="Leave out what cannot be read, and count it")
    although: StrictBool = Field(False, description="Import although the doctor found an artefact in the log")

    @field_validator("map", mode="before")
    @classmethod
    def _map_is_a_name(cls, value: object) -> object:
        if value is not None and not isinstance(value, str):
            raise ValueError("it should be the name of a TOML file in the inbox, for example `map.toml`")
        return value


class ImportJob:
    """A running import."""

    kind: ClassVar[str] = "import"
    Request: ClassVar[type[BaseModel]] = ImportRequest

    def __init__(
        self, log: Log, make: Callable[[Log], Generator[ImportProgress, None, Path]], run: str, context: JobContext
    ) -> None:
        self.log, self.make, self.run, self.context = log, make, run, context
        self.counting: Generator[int, None, Log] | None = log.counting(context.runs_dir)
        self.parts: Generator[ImportProgress, None, Path] | None = None
        self.last = Progress(0, None, "tokens")

    @classmethod
    def check(cls, request: ImportRequest, context: JobContext) -> None:
        """Refuse a missing file, a file that does not begin like a log, and a taken name."""
        from tokenpaths.engine.adapters.logs.formats import check_beginning
        from tokenpaths.engine.adapters.logs.tables.flame_moe import checkpoints

        file = context.inbox_file(request.file, field="file")
        if request.map is not None:
            context.inbox_file(request.map, field="map")
        elif file.is_file():
            check_beginning(file, request.format, request.skip_bad)
        if request.tokenizer is not None:
            context.inbox_file(request.tokenizer, field="tokenizer")
        check_run_name(request.run, context)
        if (request.series is None) != (request.at is None) and not checkpoints(file):
            raise UserError("series and at belong together: the name of the training, and its iteration", field="at")

    @classmethod
    def start(cls, request: ImportRequest, folder: Path, context: JobContext) -> ImportJob | Finished | SeriesOfImports:
        """Open the log and the run's writer; a folder of several checkpoints becomes a run of each."""
        from tokenpaths.engine.adapters.logs.tables.flame_moe import checkpoints

        file = context.inbox_file(request.file, field="file")
        if several := checkpoints(file):
            return SeriesOfImports(request, file, several, folder, context)
        return cls.start_one(request, file, folder, folder, context)

    @classmethod
    def start_one(
        cls, request: ImportRequest, file: Path, folder: Path, job: Path, context: JobContext
    ) -> ImportJob | Finished:
        """Open one log; ``folder`` keeps the claim of its run, ``job`` is the folder of the job."""
        from tokenpaths.engine.adapters.expert_runs import Series
        from tokenpaths.engine.adapters.logs import importing
        from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
        from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts
        from tokenpaths.engine.store.write.writer import remove_abandoned

        if (sealed := sealed_run(folder, context, job=job)) is not None:
            return _finished(sealed, context)
        series = None if request.series is None else Series(request.series, int(request.at or 0))
        try:
            log = open_confined_log(
                file,
                request.format,
                layers=request.layers,
                top_k=request.top_k,
                experts=request.experts,
                sequences=request.sequences,
                skip_bad=request.skip_bad,
                column_map=None if request.map is None else context.inbox_file(request.map, field="map"),
                model=request.model,
            )
        except OnlyCounts as only:
            return cls._of_counts(only.counts, file, request, folder, job, series, context)
        texts = None
        if request.tokenizer is not None:
            texts = importing.read_vocabulary(context.inbox_file(request.tokenizer, field="tokenizer"))
        run, _ = claim_run(
            folder, context, request.run, lambda: importing.new_import_id(log.model or file.stem), job=job
        )
        remove_abandoned(context.runs_dir)

        def make(counted: Log) -> Generator[ImportProgress, None, Path]:
            return importing.import_parts(
                counted,
                context.runs_dir,
                run,
                model=request.model,
                token_texts=texts,
                although=request.although,
                series=series,
                findings=made_by(job),
            )

        return cls(log, make, run, context)

    @classmethod
    def _of_counts(
        cls,
        counts: ExpertCounts,
        file: Path,
        request: ImportRequest,
        folder: Path,
        job: Path,
        series: Series | None,
        context: JobContext,
    ) -> Finished:
        """A run of loads, which takes no slices."""
        from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts
        from tokenpaths.engine.adapters.logs.importing import new_import_id

        run, _ = claim_run(folder, context, request.run, lambda: new_import_id(request.model or file.stem), job=job)
        import_counts(counts, file, context.runs_dir, run, model=request.model, series=series, findings=made_by(job))
        return _finished(run, context)

    def advance(self) -> Progress:
        """Process some batches, or some stages of the sealing."""
        ends = time.monotonic() + SLICE_SECONDS
        while time.monotonic() < ends:
            if self.counting is not None:
                self._look()
            elif self._write():
                return _finished(self.run, self.context).advance()
        return self.last

    def _look(self) -> None:
        """Process one piece while the whole log is read for its sizes and by the doctor."""
        assert self.counting is not None
        try:
            seen = next(self.counting)
            self.last = Progress(0, None, "tokens", f"reading the log: {seen:,} tokens")
        except StopIteration as end:
            self.log, self.counting = end.value, None
            self.parts = self.make(self.log)

    def _write(self) -> bool:
        """Write one batch or advance the sealing; True when the run is sealed."""
        assert self.parts is not None
        try:
            at = next(self.parts)
            self.last = Progress(at.tokens, None, "tokens", at.sealing or f"making the run {self.run}")
        except StopIteration:
            return True
        return False

    def close(self) -> None:
        """Close the log and the run; an unfinished run is deleted."""
        for parts in (self.counting, self.parts):
            if parts is not None:
                with contextlib.suppress(UserError):
                    parts.close()


def _finished(run: str, context: JobContext) -> Finished:
    """An import whose run is sealed: the run itself tells what came out, with notes on what the log does not state."""
    with context.open_run(run) as opened:
        info = opened.info()
    result, tokens = {"run": run}, info["num_tokens"]
    if info["kind"] == "tokens":
        notes = info["findings"].get("notes")
        result |= {"tokens": tokens} | ({"notes": notes} if notes else {})
    return Finished(result, tokens, "tokens")


class SeriesOfImports:
    """A running import of a folder of checkpoints: one run after the other, each in its place of one series."""

    def __init__(
        self, request: ImportRequest, file: Path, several: Mapping[int, Path], folder: Path, context: JobContext
    ) -> None:
        self.request, self.folder, self.context = request, folder, context
        self.waiting = list(several.items())
        self.name = request.run or series_name(file.stem)
        self.current: ImportJob | Finished | None = None
        self.runs: list[str] = []
        self.notes: list[str] = []
        self.done = 0

    def advance(self) -> Progress:
        """A slice of the run at hand; the next one where it is sealed."""
        if self.current is None:
            iteration, file = self.waiting[0]
            place = self.folder / f"checkpoint-{iteration}"
            place.mkdir(exist_ok=True)
            request = self.request.model_copy(
                update={
                    "run": run_of_series(self.name, iteration),
                    "series": self.request.series or self.name,
                    "at": iteration,
                }
            )
            self.current = ImportJob.start_one(request, file, place, self.folder, self.context)
        last = self.current.advance()
        words = f"checkpoint {len(self.runs) + 1} of {len(self.runs) + len(self.waiting)}; {last.message}"
        if not last.finished:
            return Progress(self.done + last.done, None, "tokens", words)
        self.runs.append(str((last.result or {})["run"]))
        self.notes += (last.result or {}).get("notes") or []
        self.done += last.done
        self.close()
        self.current = None
        self.waiting.pop(0)
        if self.waiting:
            return Progress(self.done, None, "tokens", words)
        notes = list(dict.fromkeys(self.notes))
        result = {"run": self.runs[-1], "runs": self.runs} | ({"notes": notes} if notes else {})
        return Progress(self.done, self.done, "tokens", finished=True, result=result)

    def close(self) -> None:
        """Close the run at hand; an unfinished one is deleted."""
        if self.current is not None:
            self.current.close()


def series_name(stem: str) -> str:
    """A name of a series and of its runs, made from that of a folder."""
    return re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-")[:40] or "series"


def run_of_series(name: str, iteration: int) -> str:
    """The name of the run of one checkpoint.

    >>> run_of_series("flame", 400)
    'flame-400'
    """
    return f"{name[:44]}-{iteration}"
