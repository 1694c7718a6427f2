"""What a ``reroute`` job works on and what it keeps: its samples, read in slices, and the state of an earlier life.

Imported by processes that have no model: torch only inside functions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.reroute_request import RerouteRequest
from tokenpaths.engine.jobs.registry import JobContext, Progress

if TYPE_CHECKING:
    from pathlib import Path

    from tokenpaths.engine.adapters.huggingface.loading import HuggingFaceModel
    from tokenpaths.engine.data.sources.sample import Sample
    from tokenpaths.engine.tracing.trace_run import LoadedModel

STATE = "state.json"
BUNDLED_PREFIX = "bundled:"
ONE_SAMPLE = "detour"
"""split of the two runs of one sample that stand beside each other, as ``POST /traces`` names it too"""


@dataclass(frozen=True)
class Source:
    """Where samples come from."""

    samples: Iterator[Sample]
    name: str
    split: str
    regions: tuple[str, ...] = ()
    """names of the regions that the samples' masks mark; a run keeps no masks"""
    of_samples: int | None = None
    """samples of the run that they are drawn from; None: they are of no run"""


def samples_of(request: RerouteRequest, context: JobContext, modality: str) -> Source:
    """The samples of a request, read one by one, and what their data set is called.

    Raises:
        UserError: the run holds no texts or images to be run again, or the data cannot be read.
    """
    if request.run is not None:
        return _samples_of_run(request, request.run, context)
    from tokenpaths.engine.data.datasets import open_dataset

    bundled = str(request.data).startswith(BUNDLED_PREFIX)
    source = str(request.data) if bundled else context.inbox_file(str(request.data), field="data")
    dataset = open_dataset(source, modality, limit=request.limit)  # type: ignore[arg-type]
    return Source(iter(dataset), dataset.name, dataset.split, dataset.regions)


def _samples_of_run(request: RerouteRequest, run_id: str, context: JobContext) -> Source:
    with context.open_run(run_id) as run:
        samples, row = _read_run(run_id, request, context), run.row
        split = row["split"] if request.sample is None or row["num_samples"] == 1 else ONE_SAMPLE
        return Source(samples, row["dataset"], split, of_samples=int(row["num_samples"]))


def _read_run(run_id: str, request: RerouteRequest, context: JobContext) -> Iterator[Sample]:
    import io

    from PIL import Image

    from tokenpaths.engine.data.sources.sample import Sample
    from tokenpaths.engine.store.ask.several_runs.edit_effects import sample_inputs

    with context.open_run(run_id) as run:
        for kept in sample_inputs(run, request.limit, request.sample):
            image = None if kept["image"] is None else Image.open(io.BytesIO(kept["image"])).convert("RGB")
            yield Sample(image=image, text=kept["text"], label=kept["label"], source=kept["source"])


def begun_for(request: RerouteRequest, loaded: LoadedModel | HuggingFaceModel) -> dict[str, Any]:
    """What a state must have been begun for to be gone on with."""
    drawn = {} if request.run is None else {"choice of samples": "drawn over the run"}  # once: its first ones
    asked = request.model_dump(mode="json")
    if request.sample is None:  # so that a job of a version that knew no single sample goes on
        asked.pop("sample")
    return {"checkpoint": loaded.sha256, "request": asked, **drawn}


def load_state(folder: Path, begun_for: dict[str, Any], key: str) -> Any:
    """What an earlier life of the job kept as ``key``; None where there was none.

    Raises:
        UserError: the state is damaged, or of another request or checkpoint.
    """
    file = folder / STATE
    if not file.is_file():
        return None
    try:
        state = json.loads(file.read_bytes())
        kept = state[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise UserError(f"the saved state of this job cannot be read ({kind}); start it anew") from None
    for name, value in begun_for.items():
        if state.get(name) != value:
            raise UserError(f"this job was begun with another {name}; start it anew", field="model")
    return kept


class Reading:
    """Samples read in slices, so that a cancel need not wait for a large data set."""

    def __init__(self, request: RerouteRequest, context: JobContext, loaded: LoadedModel) -> None:
        self._open(samples_of(request, context, loaded.modality))
        self._loaded = loaded

    def _open(self, source: Source) -> None:
        self._samples, self.name, self.split, self.regions = source.samples, source.name, source.split, source.regions
        self.of_samples = source.of_samples
        self.samples: list[Sample] = []
        self.data: Any = None
        """None while samples are being read, then a ``PreparedSet`` or what stands for it"""

    def advance(self, ends: float) -> None:
        """Some more samples, one at least; the last call prepares them all for the model."""
        while True:
            sample = next(self._samples, None)
            if sample is None:
                self.data = self._prepared()
                return
            self._take(sample)
            if time.monotonic() >= ends:
                return

    def _take(self, sample: Sample) -> None:
        self.samples.append(sample)

    def _prepared(self) -> Any:
        from tokenpaths.engine.edits.prepared import prepare

        return prepare(self._loaded, self.samples)

    def progress(self, unit: str) -> Progress:
        """While it reads. ``unit``: what the job counts afterwards; a unit that comes back would look like progress
        in every life of a job that kills its workers."""
        return Progress(0, None, unit, f"{len(self.samples):,} samples read")
