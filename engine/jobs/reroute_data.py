"""What a ``reroute`` job works on and keeps: its samples, read in slices, the run beside it, and its saved state.

Imported by processes that have no model: torch only inside functions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.adapters.huggingface.config import PREFIX, is_huggingface
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.reroute_request import SamplesWanted
from tokenpaths.engine.jobs.registry import JobContext, Progress

if TYPE_CHECKING:
    from pathlib import Path

    from tokenpaths.engine.data.sources.sample import Sample
    from tokenpaths.engine.edits.prepared import PreparedSet
    from tokenpaths.engine.tracing.traceable import Traceable

STATE = "state.json"
ONE_SAMPLE = "detour"
"""split of the two runs of a single sample, as set by ``POST /traces`` too"""


@dataclass(frozen=True)
class Source:
    """Origin of the samples."""

    samples: Iterator[Sample]
    name: str
    split: str
    identity: Callable[[], str]
    """what tells the samples from others of the same name: a run may be made anew, a file be replaced"""
    regions: tuple[str, ...] = ()
    """names of the regions marked by the samples' masks; runs store no masks"""
    of_samples: int | None = None
    """number of samples of the run that they are drawn from; None: they are not from a run"""


def check_family(model: str, outline: Any, family: str, only: str) -> None:
    """Refuse a model of another family; ``only`` says which ones have what was asked for (``field`` is ``model``)."""
    found = getattr(outline, "family", None)
    if found != family:
        what = f"is of the family {found}" if found else "routes to experts"
        raise UserError(f"{model} {what}; only {only}", field="model")


def check_samples(request: SamplesWanted, context: JobContext, modality: Any) -> None:
    """Refuse a missing run, sample or data set, and one of another modality than the model's (``field`` names it)."""
    if request.run is None:
        context.check_data(str(request.data), modality)
        return
    with context.open_run(request.run) as run:
        if request.sample is not None and request.sample >= run.row["num_samples"]:
            raise UserError(str(run.no_sample(request.sample)), field="sample")
        if run.row["modality"] != modality:
            raise UserError(
                f"the run {request.run} holds {'images' if modality == 'text' else 'texts'}; the model "
                f"{request.model} takes {'texts' if modality == 'text' else 'images'}",
                field="run",
            )


def samples_of(request: SamplesWanted, context: JobContext, modality: str) -> Source:
    """Iterator over the samples of a request, and the name of their data set.

    Raises:
        UserError: the run stores no texts or images, or the data cannot be read.
    """
    if request.run is not None:
        return _samples_of_run(request, request.run, context)
    from tokenpaths.engine.data.datasets import open_dataset

    data = context.data_source(str(request.data))
    dataset = open_dataset(data, modality, limit=request.limit, split=request.split)  # type: ignore[arg-type]
    return Source(iter(dataset), dataset.name, dataset.split, dataset.identity, dataset.regions)


def _samples_of_run(request: SamplesWanted, run_id: str, context: JobContext) -> Source:
    with context.open_run(run_id) as run:
        samples, row = _read_run(run_id, request, context), run.row
        split = row["split"] if request.sample is None or row["num_samples"] == 1 else ONE_SAMPLE
        made = f"{row['created_at']} {row['num_samples']} {row['num_tokens']}"
        return Source(samples, row["dataset"], split, lambda: made, of_samples=int(row["num_samples"]))


def _read_run(run_id: str, request: SamplesWanted, context: JobContext) -> Iterator[Sample]:
    import io

    from PIL import Image

    from tokenpaths.engine.data.sources.sample import Sample
    from tokenpaths.engine.store.ask.several_runs.edit_effects import sample_inputs

    with context.open_run(run_id) as run:
        for kept in sample_inputs(run, request.limit, request.sample):
            image = None if kept["image"] is None else Image.open(io.BytesIO(kept["image"])).convert("RGB")
            yield Sample(image=image, text=kept["text"], label=kept["label"], source=kept["source"])


def begun_for(request: SamplesWanted, model: Traceable, reading: Reading) -> dict[str, Any]:
    """Identity of the work that a saved state belongs to: the weights, what was asked for, and the samples."""
    return {
        "checkpoint": model.sha256,
        "request": request.model_dump(mode="json"),
        "set of samples": reading.identity(),
    }


def load_state(folder: Path, begun_for: dict[str, Any], key: str) -> Any:
    """The state saved under ``key``; None if there is none.

    Raises:
        UserError: the state is damaged, or of another request, checkpoint or set of samples.
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


def check_same_weights(request: SamplesWanted, context: JobContext, model: Traceable) -> None:
    """UserError if the run is of a checkpoint of the same name but with other weights."""
    if request.run is None or not is_huggingface(request.model):
        return
    with context.open_run(request.run) as run:
        row = run.row
        same_name = "huggingface" in json.loads(row["config"]) and row["model"].rsplit("/", 1)[-1] == model.name
        if same_name and row["checkpoint_sha256"] != model.sha256:
            raise UserError(
                f"The run {request.run} was made with other weights than those of {PREFIX}{model.name} "
                f"(SHA-256 {str(row['checkpoint_sha256'])[:12]}… and {model.sha256[:12]}…); trace it anew, or give "
                "data in place of run.",
                field="run",
            )


def beside_its_run(request: SamplesWanted, context: JobContext, model: Traceable) -> tuple[Traceable, bool]:
    """The model under the name used by the request's run, and whether that run can serve as the unchanged one.

    It can if weights, number format and samples are equal and it is unedited; of images, if they were also kept as the
    model saw them, which is known once they are read (``Reading.unscaled``). The name of a local checkpoint has no
    owner, that of a hub checkpoint has one; only runs of one name are compared.
    """
    if request.run is None:
        return model, False
    with context.open_run(request.run) as run:
        row = run.row
        config = json.loads(row["config"])
        taken = row["num_samples"] if request.sample is None else 1
    if row["checkpoint_sha256"] != model.sha256:
        return model, False
    own = model.run_fields()["config"].get("huggingface")
    about = config.get("huggingface")
    if own is not None:
        if about is None or row["model"].rsplit("/", 1)[-1] != model.name:
            return model, False
        model = replace(model, name=row["model"])  # type: ignore[type-var]
        if about.get("dtype") != own["dtype"]:
            return model, False
    return model, row["num_samples"] <= min(taken, request.limit) and not config.get("controls")


class Reading:
    """Reads samples in slices, so that a cancel need not wait for a large data set."""

    def __init__(self, request: SamplesWanted, context: JobContext, model: Traceable) -> None:
        from tokenpaths.engine.edits.prepared import PreparedSet

        source = samples_of(request, context, model.modality)
        self._samples, self.name, self.split, self.regions = source.samples, source.name, source.split, source.regions
        self.of_samples, self.identity = source.of_samples, source.identity
        self.num_samples = 0
        """read so far"""
        self.unscaled = True
        """whether each image read so far has the size that the model takes: of any other a run keeps a scaled picture,
        and scaled once more it is not what the model saw"""
        self._image_size = model.image_size
        self._anew = lambda: samples_of(request, context, model.modality).samples
        self._set = PreparedSet(model)
        self.data: PreparedSet | None = None
        """None until all samples are read"""

    def again(self) -> Iterator[Sample]:
        """The samples from the first on, read once more: some hundred photographs are gigabytes."""
        return self._anew()

    def advance(self, ends: float) -> None:
        """Read at least one further sample; the last call closes the set."""
        while True:
            sample = next(self._samples, None)
            if sample is None:
                self.data = self._set.close()
                return
            self._set.add(sample)
            self.num_samples += 1
            self.unscaled &= sample.image is None or sample.image.size == (self._image_size, self._image_size)
            if time.monotonic() >= ends:
                return

    def progress(self, unit: str, done: int = 0, total: int | None = None) -> Progress:
        """Progress while reading. ``unit``: the unit that the job counts afterwards; returning to an earlier unit would
        look like progress after every restart of a job that kills its workers. ``done``: what is kept from before."""
        return Progress(done, total, unit, f"{self.num_samples:,} samples read")
