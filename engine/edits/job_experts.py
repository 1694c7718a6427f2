"""Sweeps over the experts of a Hugging Face model, as a ``reroute`` job: every expert banned, or shares of each layer.

Rows, their table and the state that a killed job goes on from are those of ``engine.edits.job.Sweep``. A slice ends
behind the forward pass at hand: of ``PASS_TOKENS`` tokens, or of one window where the model's context is longer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.adapters.hf_config import PREFIX
from engine.edits.expert_passes import BanMeasurement, ExpertUsage, TextPasses, UnchangedPasses
from engine.edits.job import Sweep
from engine.edits.job_data import Reading, begun_for, load_state, samples_of
from engine.edits.request import RerouteRequest
from engine.edits.sweep import Row, module_rows, share_rows
from engine.errors import UserError
from engine.jobs import JobContext

if TYPE_CHECKING:
    from engine.adapters.hf_load import HuggingFaceModel
    from engine.sources.sample import Sample


class _TextReading(Reading):
    """Texts go through the tokenizer as they are read: of many, that alone takes longer than a slice."""

    def __init__(self, request: RerouteRequest, context: JobContext, loaded: HuggingFaceModel) -> None:
        self._open(samples_of(request, context, "text"))
        self._passes = TextPasses(loaded)

    def _take(self, sample: Sample) -> None:
        self._passes.add(sample)
        self.samples.append(sample)

    def _prepared(self) -> TextPasses:
        return self._passes.close()


class ExpertSweep(Sweep):
    """A sweep whose rows are measured at the gates of a model that is not ours."""

    def __init__(self, request: RerouteRequest, folder: Path, context: JobContext, loaded: HuggingFaceModel) -> None:
        _check_same_weights(request, context, loaded)
        self.request, self.folder, self.experts = request, folder, loaded
        self.name = request.model
        self.reading = _TextReading(request, context, loaded)
        self.unchanged = None
        self.usage: Any = None
        self.begun_for = begun_for(request, loaded)
        self.done = load_state(folder, self.begun_for, "rows") or []
        self.work = None
        self.rows: list[Row] | None = None
        if request.sweep == "modules":
            self.rows = module_rows(loaded.modules, len(loaded.gates))

    def _unchanged(self) -> UnchangedPasses:
        return UnchangedPasses(self.experts, self.reading.data)

    def _count(self, data: TextPasses, unchanged: UnchangedPasses) -> None:
        self.usage = self.usage or ExpertUsage(self.experts)
        self.usage.add(unchanged)
        if self.usage.batches == len(data.batches):
            gates = self.experts.gates
            self.rows = share_rows(
                self.usage.counts, self.request.shares, [range(gate.num_choices) for gate in gates], gates[0].top_k,
                self.request.seed,
            )  # fmt: skip

    def _measurement(self, row: Row) -> BanMeasurement:
        return BanMeasurement(self.experts, self.reading.data, row.edits, self.unchanged)


def _check_same_weights(request: RerouteRequest, context: JobContext, loaded: HuggingFaceModel) -> None:
    """UserError where the run to be measured is of a model of that name, but of other weights."""
    if request.run is None:
        return
    with context.open_run(request.run) as run:
        row = run.row
        ours = "huggingface" in json.loads(row["config"]) and row["model"].rsplit("/", 1)[-1] == loaded.name
        if ours and row["checkpoint_sha256"] != loaded.sha256:
            raise UserError(
                f"The run {request.run} was made with other weights than those of {PREFIX}{loaded.name} "
                f"(SHA-256 {str(row['checkpoint_sha256'])[:12]}… and {loaded.sha256[:12]}…); trace it anew, or give "
                "data in place of run.", field="run",
            )  # fmt: skip
