"""The experts of a Hugging Face model edited as a ``reroute`` job: a sweep of bans, or one edit beside the unchanged.

Rows, runs and the state that a killed job goes on from are those of ``tokenpaths.engine.jobs.reroute``. A slice ends
behind the forward pass at hand: of ``PASS_TOKENS`` tokens, or of one window where the model's context is longer. A run
that a job
makes is that of ``trace_texts`` or ``trace_banned`` with a batch of as many tokens, its effect that of ``measure_bans``
with that budget.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.adapters.huggingface import tracing as hf
from tokenpaths.engine.adapters.huggingface.config import PREFIX
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.expert_bans import banned_parts, edits_of, edits_of_share
from tokenpaths.engine.edits.expert_controls import ExpertControls, read_controls, under_field
from tokenpaths.engine.edits.expert_passes import BanMeasurement, ExpertUsage, TextPasses, UnchangedPasses, pass_tokens
from tokenpaths.engine.edits.reroute_request import RerouteRequest
from tokenpaths.engine.edits.sweep import Row, module_rows, share_rows
from tokenpaths.engine.jobs.registry import JobContext
from tokenpaths.engine.jobs.reroute import EditedRun, Sweep, is_unchanged
from tokenpaths.engine.jobs.reroute_data import Reading, begun_for, load_state, samples_of

if TYPE_CHECKING:
    from tokenpaths.engine.adapters.huggingface.loading import HuggingFaceModel
    from tokenpaths.engine.data.sources.sample import Sample
    from tokenpaths.engine.tracing.trace_run import TraceProgress


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


class EditedExperts(EditedRun):
    """One edit of a model that is not ours: its bans, or those of a share that are counted first."""

    def __init__(self, request: RerouteRequest, folder: Path, context: JobContext, loaded: HuggingFaceModel) -> None:
        _check_same_weights(request, context, loaded)
        self.request, self.folder, self.context = request, folder, context
        self.experts, unchanged = _beside(request, context, loaded)
        self.name = loaded.name.rsplit("/", 1)[-1]
        self.controls: ExpertControls = under_field("controls", read_controls, request.controls or {})
        self.reading = _TextReading(request, context, loaded)
        self.unchanged: UnchangedPasses | None = None
        self.usage: ExpertUsage | None = None
        self.edits: tuple[dict[str, Any], ...] | None = None
        """None until ``ban_share`` has been counted"""
        self._begin(loaded, unchanged)
        if self.controls.ban_share is None:
            self.edits = under_field("controls", edits_of, loaded, self.controls, [])
        elif (kept := load_state(folder, self.begun_for, "edits")) is not None:
            self.edits = tuple(kept)

    def _measure(self) -> str:
        if self.edits is not None:
            return super()._measure()
        self.unchanged = self.unchanged or UnchangedPasses(self.experts, self.reading.data)
        self.usage = self.usage or ExpertUsage(self.experts)
        self.usage.add(self.unchanged)
        share = self.usage.batches / len(self.reading.data.batches)
        self.done = int(share * len(self.reading.samples))
        if share == 1:
            self.edits = under_field("controls", edits_of_share, self.experts, self.controls, self.usage.counts)
        return "counting which experts are used most"

    @property
    def _measured(self) -> int:
        return len(self.reading.samples) * (1 if self.controls.ban_share is None else 2)

    def _measurement(self) -> BanMeasurement:
        assert self.edits is not None
        return BanMeasurement(self.experts, self.reading.data, self.edits, self.unchanged)

    def _state(self) -> dict[str, Any]:
        return {"effect": self.effect, "edits": self.edits}

    def _run_parts(self, which: str, name: str, findings: dict[str, Any]) -> Generator[TraceProgress, None, Path]:
        self.unchanged = None  # what it kept is of no use any more
        info = hf.run_info(self.experts, name, self.reading.name, self.reading.split)
        info = replace(info, findings=info.findings | findings)
        how: Any = {"batch_size": pass_tokens(self.experts) // 64, "total": len(self.reading.samples)}
        samples, runs_dir = self.reading.samples, self.context.runs_dir
        if which == "before":
            return hf.trace_parts(replace(self.experts, twin=None), samples, runs_dir, info, **how)
        assert self.edits is not None
        return banned_parts(self.experts, samples, runs_dir, self.edits, info, **how)

    def close(self) -> None:
        super().close()
        self.work = self.unchanged = None


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
                self.usage.counts,
                self.request.shares,
                [range(gate.num_choices) for gate in gates],
                gates[0].top_k,
                self.request.seed,
            )

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
                "data in place of run.",
                field="run",
            )


def _beside(request: RerouteRequest, context: JobContext, loaded: HuggingFaceModel) -> tuple[HuggingFaceModel, bool]:
    """The model under the name that a run of the same weights has it by, and whether that run may be the unchanged one.

    A folder has no owner in its name, a checkpoint of the hub has; only runs of one name are set beside each other.
    """
    if request.run is None:
        return loaded, False
    with context.open_run(request.run) as run:
        row = run.row
        about = json.loads(row["config"]).get("huggingface")
    if about is None or row["checkpoint_sha256"] != loaded.sha256 or row["model"].rsplit("/", 1)[-1] != loaded.name:
        return loaded, False
    as_exact = about.get("dtype") == str(loaded.model.dtype).removeprefix("torch.")
    return replace(loaded, name=row["model"]), as_exact and is_unchanged(request, context, loaded.sha256)
