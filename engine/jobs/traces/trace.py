"""The job ``trace``: traces a model over a data set into a sealed run.

A killed job starts again from the beginning and leaves no partial run: a run file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field, StrictBool, StrictStr

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import NAME_PATTERN
from tokenpaths.engine.jobs.made_run import Finished, check_run_name, claim_run, keep_result, kept_result, made_by
from tokenpaths.engine.jobs.model_outline import under_field
from tokenpaths.engine.jobs.registry import BUNDLED_PREFIX, JobContext, Progress
from tokenpaths.engine.jobs.traces.trace_twin import following_twin
from tokenpaths.engine.jobs.traces.traced_data import TracedData, open_data

if TYPE_CHECKING:
    from tokenpaths.engine.data.datasets import Dataset
    from tokenpaths.engine.tracing.trace_run import TraceProgress

SLICE_SECONDS = 0.7


class TraceRequest(TracedData):
    """What a trace job needs."""

    run: StrictStr | None = Field(
        None, description="Name of the run; made from model, data and time when left out", pattern=NAME_PATTERN
    )
    twin: StrictBool = Field(
        True,
        description="Trace the untrained twin too, as the null: by a job of the kind `twin`, when no other waits. Not "
        "under controls",
    )
    untrained: StrictBool = Field(False, description="Trace the untrained twin itself, as a run of its own to compare")
    controls: dict[str, Any] = Field(
        default_factory=dict, description="What to change of the model, see `controls` of GET /models/{model}"
    )


class TraceJob:
    """A running trace job."""

    kind: ClassVar[str] = "trace"
    Request: ClassVar[type[BaseModel]] = TraceRequest

    def __init__(
        self,
        dataset: Dataset,
        parts: Generator[TraceProgress, None, Path],
        run: str,
        folder: Path,
        following: Callable[[], tuple[tuple[str, dict[str, Any]], ...]],
    ) -> None:
        self.dataset, self.parts, self.run, self.folder, self.following = dataset, parts, run, folder, following
        self.last = Progress(0, dataset.num_samples, "samples")
        self.result: dict[str, Any] | None = None
        """once all samples are traced"""

    @classmethod
    def check(cls, request: TraceRequest, context: JobContext) -> None:
        """Refuse an unknown model, missing data, a taken name, controls that do not fit the model, and columns of a
        bundled set."""
        from tokenpaths.engine.data.sources.opening import refuse_columns
        from tokenpaths.engine.data.sources.splits import refuse_split

        outline = context.outline(request.model)
        check_run_name(request.run, context)
        under_field("controls", outline.check_controls, request.controls)
        if "ban_share" in request.controls:
            raise UserError(
                "ban_share counts over all samples before the first is traced: submit a job of kind reroute, which "
                "does, or name the experts in edits.",
                field="controls.ban_share",
            )
        context.check_data(request.data, outline.modality)
        if request.data.startswith(BUNDLED_PREFIX):
            fields = ("text_column", "image_column", "label_column")
            refuse_columns(request.data, {field: getattr(request, field) for field in fields})
            refuse_split(request.split, request.data)

    @classmethod
    def start(cls, request: TraceRequest, folder: Path, context: JobContext) -> TraceJob | Finished:
        """Load the model, open the data, create the run's writer."""
        from tokenpaths.engine.store.write.writer import remove_abandoned
        from tokenpaths.engine.tracing.trace_run import TraceOptions, run_id_of, trace_parts
        from tokenpaths.engine.tracing.traceable import as_untrained

        loaded = context.load_model(request.model).with_controls(request.controls)
        if request.untrained:
            loaded = as_untrained(loaded)
        dataset = open_data(request, context, loaded.modality)
        run, is_there = claim_run(folder, context, request.run, lambda: run_id_of(loaded, dataset.name))
        wants_twin = request.twin and not request.untrained and not request.controls and loaded.has_small_twin

        def following() -> tuple[tuple[str, dict[str, Any]], ...]:
            return following_twin(context, run, request.model_dump(mode="json")) if wants_twin else ()

        if is_there:
            result = {"run": run} | kept_result(folder)
            return Finished(result, result.get("samples", dataset.num_samples), "samples", following())
        remove_abandoned(context.runs_dir)
        options = TraceOptions(
            run_id=run,
            dataset=dataset.name,
            split=dataset.split,
            regions=dataset.regions,
            batch_size=request.batch_size,
            total=dataset.num_samples,
            twin=wants_twin,
            twin_later=True,
            findings=made_by(folder),
        )
        return cls(dataset, trace_parts(loaded, dataset, context.runs_dir, options), run, folder, following)

    def advance(self) -> Progress:
        """Process some batches, or some stages of the sealing."""
        ends = time.monotonic() + SLICE_SECONDS
        while time.monotonic() < ends:
            try:
                at = next(self.parts)
            except StopIteration:
                return self._sealed()
            left_out = f", {self.dataset.walk.left_out:,} left out" if self.dataset.walk.left_out else ""
            words = at.sealing or f"{at.tokens:,} tokens traced"
            self.last = Progress(at.samples, at.total, "samples", words + left_out)
            if at.sealing and self.result is None:
                self.result = self._result(at.samples)
                keep_result(self.folder, self.result)
        return self.last

    def _result(self, samples: int) -> dict[str, Any]:
        result: dict[str, Any] = {"run": self.run, "samples": samples}
        if self.dataset.walk.left_out:
            result |= {"left_out": self.dataset.walk.left_out, "problems": self.dataset.walk.problems}
        if notes := [*self.dataset.notes, *self.dataset.walk.notes()]:
            result["notes"] = notes
        return result

    def _sealed(self) -> Progress:
        assert self.result is not None, "kept before the sealing"
        done = self.last.done
        return Progress(
            done, done, "samples", self.last.message, finished=True, result=self.result, following=self.following()
        )

    def close(self) -> None:
        """Close the run; an unfinished run is deleted."""
        with contextlib.suppress(UserError):
            self.parts.close()
