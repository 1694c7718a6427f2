"""The job ``reroute``: one edit over a data set, or a sweep of many.

A sweep keeps each finished row, so that a killed one does at most one row again; its table grows as an artifact
while it runs. One edit leaves a run beside the unchanged one, with the measured effect in it. A slice ends behind the
forward pass at hand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.edits.reroute_request import RerouteRequest
from tokenpaths.engine.jobs.made_run import check_run_name, claim_run, made_by
from tokenpaths.engine.jobs.model_outline import under_field
from tokenpaths.engine.jobs.registry import JobContext, Progress, write_artifact
from tokenpaths.engine.jobs.reroute_data import (
    STATE,
    Reading,
    begun_for,
    beside_its_run,
    check_same_weights,
    check_samples,
    load_state,
)

if TYPE_CHECKING:
    from tokenpaths.engine.edits.measure import Measurement, Unchanged
    from tokenpaths.engine.edits.prepared import PreparedSet
    from tokenpaths.engine.edits.sweep import Row, UsageCount
    from tokenpaths.engine.tracing.trace_run import TraceProgress
    from tokenpaths.engine.tracing.traceable import Traceable

SLICE_SECONDS = 0.6


class RerouteJob:
    """Entry point of the queue for this kind; ``start`` returns a ``Sweep`` or an ``EditedRun``."""

    kind: ClassVar[str] = "reroute"
    Request: ClassVar[type[BaseModel]] = RerouteRequest

    @classmethod
    def check(cls, request: RerouteRequest, context: JobContext) -> None:
        """Refuse an unknown model, missing data, data of the other modality, a taken name, edits that do not fit."""
        outline = context.outline(request.model)
        if request.sweep is None:
            under_field("controls", outline.check_controls, request.controls)
        else:
            under_field("sweep", outline.check_bans)
        check_run_name(request.name, context)
        check_samples(request, context, outline.modality)

    @classmethod
    def start(cls, request: RerouteRequest, folder: Path, context: JobContext) -> Sweep | EditedRun:
        """Load the model and read the samples; edits that do not fit the model are refused here."""
        model = context.load_model(request.model)
        check_same_weights(request, context, model)
        if request.sweep is None:
            changed = under_field("controls", model.with_controls, request.controls)
            return EditedRun(request, folder, context, changed)
        if "ban" not in model.edit_kinds:
            raise UserError(f"modules of a {model.run_fields()['family']} model cannot be banned", field="sweep")
        return Sweep(request, folder, context, model)

    def advance(self) -> Progress:  # pragma: no cover - what ``start`` gives has its own
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to release."""


class Sweep:
    """A sweep: its rows one after the other, each measured over all samples."""

    def __init__(self, request: RerouteRequest, folder: Path, context: JobContext, model: Traceable) -> None:
        self.request, self.folder, self.model = request, folder, model
        self.reading: Reading = Reading(request, context, model)
        self.unchanged: Unchanged | None = None
        self.usage: UsageCount | None = None
        self.begun_for = begun_for(request, model, self.reading)
        self.done: list[dict[str, Any]] = load_state(folder, self.begun_for, "rows") or []
        self.work: Measurement | None = None
        """the current row"""
        self.rows: list[Row] | None = None
        """None until the unchanged pass has counted module usage (needed by ``shares`` only)"""
        if request.sweep == "modules":
            from tokenpaths.engine.edits.sweep import module_rows

            self.rows = module_rows(model.module_table(), model.choices())

    def advance(self) -> Progress:
        """Process some batches of the current row."""
        ends = time.monotonic() + SLICE_SECONDS
        if self.reading.data is None:
            self.reading.advance(ends)
            if self.reading.data is None:
                return self.reading.progress("edits", len(self.done), None if self.rows is None else len(self.rows))
        self.unchanged = self.unchanged or self._unchanged(self.reading.data)
        while self.rows is None and time.monotonic() < ends:
            self._count(self.reading.data, self.unchanged)
        if self.rows is None:
            return Progress(len(self.done), None, "edits", "counting which modules are used most")
        while len(self.done) < len(self.rows) and time.monotonic() < ends:
            self._batch(self.rows[len(self.done)])
        return self._progress()

    def _unchanged(self, data: PreparedSet) -> Unchanged:
        from tokenpaths.engine.edits.measure import Unchanged

        return Unchanged(self.model, data)

    def _count(self, data: PreparedSet, unchanged: Unchanged) -> None:
        """Process a batch of the unchanged pass; the last one determines the rows."""
        from tokenpaths.engine.edits.sweep import UsageCount, share_rows

        model = self.model
        self.usage = self.usage or UsageCount(model.num_steps, model.num_modules)
        self.usage.add(data, unchanged)
        if self.usage.batches == len(data.batches):
            counts, request = self.usage.counts, self.request
            self.rows = share_rows(counts, request.shares, model.choices(), model.must_leave, request.seed)

    def _batch(self, row: Row) -> None:
        from tokenpaths.engine.edits.sweep import result_row

        try:
            if self.work is None:
                self.work = self._measurement(row)
            self.work.advance()
            if not self.work.finished:
                return
            cells = result_row(row, self.work.answer())
        except UserError as error:  # this one cannot be banned: the sweep says so and goes on
            cells = result_row(row, None, str(error))
        self.work = None
        self.done.append(cells)
        self._keep()

    def _measurement(self, row: Row) -> Measurement:
        from tokenpaths.engine.edits.measure import Measurement

        assert self.reading.data is not None
        changed = self.model.with_controls({"edits": list(row.edits)})
        return Measurement(changed, self.reading.data, self.unchanged)

    def _keep(self) -> None:
        from tokenpaths.engine.edits.sweep import as_csv

        data = self.reading.data
        assert data is not None
        document = {
            "sweep": self.request.sweep,
            "model": self.request.model,
            "data": self.reading.name,
            "num_samples": data.num_samples,
            "of_samples": self.reading.of_samples,
            "num_targets": data.num_targets,
            "rows_in_all": len(self.rows or ()),
            "rows": self.done,
        }
        write_artifact(self.folder, "importance.json", json.dumps(document, allow_nan=False).encode())
        write_artifact(self.folder, "importance.csv", as_csv(self.done))
        state = self.begun_for | {"rows": self.done}
        write_atomically(self.folder / STATE, json.dumps(state, allow_nan=False).encode())

    def _progress(self) -> Progress:
        total, done = len(self.rows or ()), len(self.done)
        finished = done == total
        last = self.done[-1] if self.done else None
        message = "looking at the unchanged model"
        if last is not None:
            change = last["loss_change"]
            outcome = last["problem"] or ("no loss is known" if change is None else f"loss {change:+.3f} nats")
            where = "" if last["step"] is None else f" at step {last['step']}"
            message = f"{last['name']}{where} banned: {outcome}"
        result: dict[str, Any] = {}
        if finished:
            worst = sorted((r for r in self.done if r["loss_change"] is not None), key=lambda r: -r["loss_change"])
            kept = ("step", "module", "name", "share", "which", "loss_change", "kl", "paths_changed_after")
            result = {"rows": total, "most_important": [{name: r[name] for name in kept} for r in worst[:10]]}
        return Progress(done, total, "edits", message, finished=finished, result=result)

    def close(self) -> None:
        """Release the samples."""
        self.work = None


class EditedRun:
    """Measures the effect, then traces the unchanged run (if missing) and the edited one, which stores the effect."""

    def __init__(self, request: RerouteRequest, folder: Path, context: JobContext, changed: Traceable) -> None:
        self.request, self.folder, self.context = request, folder, context
        self.changed, unchanged_is_there = beside_its_run(request, context, changed)
        self.reading: Reading = Reading(request, context, changed)
        self.begun_for = begun_for(request, changed, self.reading)
        self.effect: dict[str, Any] | None = load_state(folder, self.begun_for, "effect")
        self.counts_first = getattr(changed.controls, "ban_share", None) is not None
        """whether a share of each step's modules is to be banned, which requires a counting pass"""
        self.unchanged: Unchanged | None = None
        self.usage: UsageCount | None = None
        if self.counts_first and (edits := load_state(folder, self.begun_for, "edits")) is not None:
            self.changed = self.changed.with_controls({"edits": edits})
        self.work: Measurement | None = None
        self.parts: Generator[TraceProgress, None, Path] | None = None
        self.runs: dict[str, str] = {"before": str(request.run)} if unchanged_is_there else {}
        self.unchanged_is_there = unchanged_is_there
        self.done = 0
        """samples, summed over all passes"""

    def advance(self) -> Progress:
        """Process some batches: of the effect, then of the runs."""
        ends = time.monotonic() + SLICE_SECONDS
        if self.reading.data is None:
            self.reading.advance(ends)
            if self.reading.data is None:
                return self.reading.progress("samples")
        if self.unchanged_is_there and not self.reading.unscaled:  # other ribbons, though nothing is edited
            self.unchanged_is_there, self.runs = False, {}
        at = ""
        while time.monotonic() < ends or not at:
            if self.effect is None:
                at = self._measure(self.reading.data)
            elif "before" not in self.runs:
                at = self._trace("before")
            elif "after" not in self.runs:
                at = self._trace("after")
            else:
                return self._finished()
        return Progress(self.done, self._total, "samples", at)

    @property
    def _total(self) -> int:
        """Number of samples over all passes: one for the effect, and one per traced run."""
        return self._measured + self.reading.num_samples * (1 if self.unchanged_is_there else 2)

    @property
    def _measured(self) -> int:
        """Number of samples after which the effect is known."""
        return self.reading.num_samples * (2 if self.counts_first else 1)

    def _measure(self, data: PreparedSet) -> str:
        """Process a batch without and with the edits; the last one stores the effect."""
        from tokenpaths.engine.edits.measure import Measurement, Unchanged

        self.unchanged = self.unchanged or Unchanged(self.changed, data)
        if getattr(self.changed.controls, "ban_share", None) is not None:
            return self._count(data, self.unchanged)
        self.work = self.work or Measurement(self.changed, data, self.unchanged)
        self.work.advance()
        samples = self.reading.num_samples
        self.done = self._measured - samples + int(self.work.done / len(data.batches) * samples)
        if self.work.finished:
            self.effect, self.work, self.unchanged = self.work.answer(), None, None
            write_artifact(self.folder, "effect.json", json.dumps(self.effect, allow_nan=False).encode())
            edits = [edit.model_dump(exclude_none=True) for edit in getattr(self.changed.controls, "edits", None) or ()]
            state = self.begun_for | {"effect": self.effect, "edits": edits}
            write_atomically(self.folder / STATE, json.dumps(state, allow_nan=False).encode())
        return "measuring the effect"

    def _count(self, data: PreparedSet, unchanged: Unchanged) -> str:
        """Process a batch of the unchanged pass; the last one determines the bans."""
        from tokenpaths.engine.edits.sweep import UsageCount, with_share

        self.usage = self.usage or UsageCount(self.changed.num_steps, self.changed.num_modules)
        self.usage.add(data, unchanged)
        self.done = int(self.usage.batches / len(data.batches) * self.reading.num_samples)
        if self.usage.batches == len(data.batches):
            self.changed = under_field("controls", with_share, self.changed, self.usage.counts)
        return "counting which experts are used most"

    def _run_parts(self, which: str, name: str, findings: dict[str, Any]) -> Generator[TraceProgress, None, Path]:
        """Trace one of the two runs, pass by pass."""
        from tokenpaths.engine.tracing.trace_run import TraceOptions, trace_parts

        options = TraceOptions(
            run_id=name,
            dataset=self.reading.name,
            split=self.reading.split,
            regions=self.reading.regions,
            batch_size=self.changed.pass_tokens // 64,
            total=self.reading.num_samples,
            twin=False,
            findings=findings,
        )
        model = self.changed if which == "after" else self.changed.without_controls()
        return trace_parts(model, self.reading.again(), self.context.runs_dir, options)

    def _trace(self, which: str) -> str:
        """Trace a batch of one of the two runs; the last one seals it."""
        from tokenpaths.engine.tracing.trace_run import run_id_of

        place = self.folder / which
        place.mkdir(exist_ok=True)
        wanted = self.request.name if which == "after" else None
        name, is_there = claim_run(
            place,
            self.context,
            wanted,
            lambda: run_id_of(self.changed, f"{which} {self.reading.name}"),
            job=self.folder,
        )
        behind = self._total - self.reading.num_samples if which == "after" else self._measured
        message = f"tracing the {'edited' if which == 'after' else 'unchanged'} run"
        if not is_there:
            if self.parts is None:
                findings: dict[str, Any] = dict(made_by(self.folder))
                if which == "after":
                    assert self.effect is not None
                    findings |= {"effect": {**self.effect, "of_samples": self.reading.of_samples}}
                self.parts = self._run_parts(which, name, findings)
            try:
                self.done = behind + next(self.parts).samples
                return message
            except StopIteration:
                self.parts = None
        self.done, self.runs[which] = behind + self.reading.num_samples, name
        return message

    def _finished(self) -> Progress:
        assert self.effect is not None
        kept = ("loss", "accuracy", "perplexity", "kl", "paths_changed_after", "flow_difference")
        result = {
            "run": self.runs["after"],
            "runs": [self.runs["before"], self.runs["after"]],
            "num_samples": self.reading.num_samples,
            "of_samples": self.reading.of_samples,
        }
        return Progress(
            self._total,
            self._total,
            "samples",
            "; ".join(self.effect["edits"]),
            finished=True,
            result=result | {"effect": {name: self.effect[name] for name in kept}},
        )

    def close(self) -> None:
        """Delete a run that is not sealed."""
        self.work = self.unchanged = None
        if self.parts is not None:
            self.parts.close()
            self.parts = None
