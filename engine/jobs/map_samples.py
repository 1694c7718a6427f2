"""The job ``map``: a t-SNE map of a run's samples by their path profiles.

Iterations run a few at a time, so that a cancel acts within a second; the state is kept every 64 of them, and a
killed job resumes bit for bit. It ends with ``map.json``, in the shape of ``GET /runs/{run}/map``.
"""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import NAME_PATTERN, write_atomically
from tokenpaths.engine.jobs.registry import MOST_REPEATED, JobContext, Progress, write_artifact

if TYPE_CHECKING:
    from tokenpaths.engine.analysis.projection import TSNE
    from tokenpaths.engine.store.ask.run import Run

SLICE_SECONDS = 0.6
STATE = "state.npz"
MAP = "map.json"
MOST_SAMPLES = 2000


class MapRequest(BaseModel):
    """What a map job needs."""

    model_config = ConfigDict(extra="forbid")

    run: StrictStr = Field(description="Name of a run", pattern=NAME_PATTERN)
    method: Literal["tsne"] = Field("tsne", description="PCA needs no job: GET /runs/{run}/map")
    perplexity: float = Field(30.0, ge=2, le=200, description="Neighbours that a sample should have, about")
    iterations: StrictInt = Field(750, ge=300, le=5000, description="The first 250 pull clusters apart")
    limit: StrictInt = Field(1000, ge=4, le=MOST_SAMPLES, description="Maximum number of samples, an even draw")
    seed: StrictInt = Field(0, ge=0, le=2**31 - 1, description="Of the draw and of the start")


class MapJob:
    """A running map job."""

    kind: ClassVar[str] = "map"
    Request: ClassVar[type[BaseModel]] = MapRequest

    def __init__(self, request: MapRequest, folder: Path, run: Run, numbers: Any, values: Any, work: TSNE) -> None:
        self.request, self.folder, self.run, self.work = request, folder, run, work
        self.numbers, self.values = numbers, values
        self.curve: list[list[float]] = []

    @classmethod
    def check(cls, request: MapRequest, context: JobContext) -> None:
        """Refuse a missing run, or one too small for the perplexity."""
        with context.open_run(request.run) as run:
            _check_size(request, run)

    @classmethod
    def start(cls, request: MapRequest, folder: Path, context: JobContext) -> MapJob:
        """Compute the nearest neighbours and start, or resume from the folder."""
        from tokenpaths.engine.analysis.projection import TSNE
        from tokenpaths.engine.store.ask.topics.similar import mapped_profiles

        run = context.open_run(request.run)
        try:
            _check_size(request, run)
            numbers, values = mapped_profiles(run, request.limit, request.seed)
            job = cls(request, folder, run, numbers, values, TSNE.begin(values, request.perplexity, request.seed))
            job._go_on()
        except BaseException:
            run.close()
            raise
        return job

    def advance(self) -> Progress:
        """Some iterations; the last call writes the map."""
        ends, total = time.monotonic() + SLICE_SECONDS, self.request.iterations
        while self.work.iteration < total and time.monotonic() < ends:
            divergence = self.work.advance()
            if self.work.iteration % MOST_REPEATED == 0 or self.work.iteration == total:
                self.curve.append([self.work.iteration, divergence])
                self._keep()
        words = f"{len(self.numbers):,} samples"
        if self.work.iteration < total:
            return Progress(self.work.iteration, total, "iterations", words)
        return Progress(total, total, "iterations", words, finished=True, result=self._write())

    def _keep(self) -> None:
        import numpy as np

        buffer = io.BytesIO()
        work = self.work
        np.savez(
            buffer,
            points=work.points,
            speed=work.speed,
            gains=work.gains,
            numbers=self.numbers,
            iteration=np.array(work.iteration),
            curve=np.array(self.curve),
            run=np.array(self._made_for()),
        )
        write_atomically(self.folder / STATE, buffer.getvalue())
        curve = {"name": "", "x": [at for at, _ in self.curve], "y": [value for _, value in self.curve]}
        about = {"x": "iteration", "y": "divergence from the profiles (nats)", "series": [curve]}
        write_artifact(self.folder, "curve.json", json.dumps(about).encode())

    def _go_on(self) -> None:
        """Restore the saved state.

        Raises:
            UserError: the run was replaced meanwhile.
        """
        import numpy as np

        file = self.folder / STATE
        if not file.is_file():
            return
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as kept:
            if str(kept["run"]) != self._made_for() or not np.array_equal(kept["numbers"], self.numbers):
                raise UserError(
                    f"run {self.request.run!r} was replaced since this map was begun; start it anew", field="run"
                )
            self.work.points, self.work.speed, self.work.gains = kept["points"], kept["speed"], kept["gains"]
            self.work.iteration = int(kept["iteration"])
            self.curve = kept["curve"].tolist()

    def _made_for(self) -> str:
        return f"{self.run.row['created_at']} {self.run.row['num_tokens']}"

    def _write(self) -> dict[str, Any]:
        from tokenpaths.engine.store.ask.topics.similar import map_answer

        found, perplexity = (self.numbers, self.values, self.work.points), self.request.perplexity
        answer = map_answer(self.run, "tsne", *found, thumbnails=True, perplexity=perplexity)
        write_artifact(self.folder, MAP, json.dumps(answer).encode())
        divergence = self.curve[-1][1] if self.curve else None
        return {"map_of": self.request.run, "num_samples": len(self.numbers), "divergence": divergence}

    def close(self) -> None:
        """Close the run."""
        self.run.close()


def _check_size(request: MapRequest, run: Run) -> None:
    """UserError if there are too few samples for the requested number of neighbours."""
    num = min(int(run.row["num_samples"]), request.limit)
    if num < 4:
        raise UserError(
            f"run {request.run!r} has {num} {'sample' if num == 1 else 'samples'}: t-SNE needs four", field="run"
        )
    if request.perplexity > (num - 1) / 1.5:
        raise UserError(
            f"perplexity is {request.perplexity:g}, with {num} samples it should be at most {(num - 1) / 1.5:.3g}",
            field="perplexity",
        )
