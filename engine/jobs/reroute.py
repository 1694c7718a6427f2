"""The job ``reroute``: one edit over a data set, or a sweep of many.

A sweep keeps each finished row, so that a killed one does at most one row again; its table grows as an artifact
while it runs. One edit leaves a run beside the unchanged one, with the measured effect in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from tokenpaths.engine.adapters.huggingface.config import is_huggingface, layout_of, read_config
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.edits.expert_controls import check_experts
from tokenpaths.engine.edits.reroute_request import RerouteRequest
from tokenpaths.engine.jobs.made_run import check_model_controls, check_run_name, claim_run, made_by
from tokenpaths.engine.jobs.registry import JobContext, Progress, write_artifact
from tokenpaths.engine.jobs.reroute_data import BUNDLED_PREFIX, STATE, Reading, begun_for, load_state

if TYPE_CHECKING:
    from tokenpaths.engine.adapters.huggingface.loading import HuggingFaceModel
    from tokenpaths.engine.edits.sweep import Row, UsageCount
    from tokenpaths.engine.tracing.trace_run import LoadedModel, TraceProgress

SLICE_SECONDS = 0.6


class RerouteJob:
    """What the queue knows of this kind; ``start`` gives a ``Sweep`` or an ``EditedRun``."""

    kind: ClassVar[str] = "reroute"
    Request: ClassVar[type[BaseModel]] = RerouteRequest

    @classmethod
    def check(cls, request: RerouteRequest, context: JobContext) -> None:
        """Refuse an unknown model, missing data, data of the other modality, a taken name, edits that do not fit."""
        from tokenpaths.engine.data.datasets import BUNDLED

        if is_huggingface(request.model):
            check_experts(request, layout_of(read_config(context.huggingface_folder(request.model))))
            modality: Any = "text"
        else:
            modality = context.model_config(request.model).get("config", {}).get("modality")
            check_fit(request, context)
        check_run_name(request.name, context)
        if request.run is not None:
            with context.open_run(request.run) as run:
                if request.sample is not None and request.sample >= run.row["num_samples"]:
                    raise UserError(str(run.no_sample(request.sample)), field="sample")
                if run.row["modality"] != modality:
                    raise UserError(
                        f"the run {request.run} holds {'images' if modality == 'text' else 'texts'}; the model "
                        f"{request.model} takes {'texts' if modality == 'text' else 'images'}",
                        field="run",
                    )
        elif not str(request.data).startswith(BUNDLED_PREFIX):
            context.inbox_file(str(request.data), field="data")
        elif BUNDLED.get(str(request.data)) != modality:
            fitting = ", ".join(name for name, kind in BUNDLED.items() if modality in (kind, None))
            raise UserError(f"{str(request.data)[:80]!r} is nothing for this model; there are {fitting}.", field="data")

    @classmethod
    def start(cls, request: RerouteRequest, folder: Path, context: JobContext) -> Sweep | EditedRun:
        """Load the model and read the samples; edits that do not fit the model are refused here."""
        if is_huggingface(request.model):
            from tokenpaths.engine.jobs.reroute_experts import EditedExperts, ExpertSweep

            experts = EditedExperts if request.sweep is None else ExpertSweep
            return experts(request, folder, context, context.load_huggingface(request.model))
        loaded = context.load_model(request.model)
        if request.sweep is None:
            return EditedRun(request, folder, context, loaded.with_controls(request.controls))
        if "ban" not in getattr(loaded.model.Controls, "EDITS", ()):
            raise UserError(f"modules of a {loaded.model.family} model cannot be banned", field="sweep")
        return Sweep(request, folder, context, loaded)

    def advance(self) -> Progress:  # pragma: no cover - what ``start`` gives has its own
        raise NotImplementedError

    def close(self) -> None:
        """Holds nothing."""


def check_fit(request: RerouteRequest, context: JobContext) -> None:
    """Refuse controls that do not fit the model, and a sweep where nothing can be banned; no weights are read.

    Raises:
        UserError: ``field`` is ``sweep``, or ``controls`` with what of it is at fault.
    """
    from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS

    found = context.model_config(request.model)
    family = str(found.get("family"))
    if request.sweep is None:
        check_model_controls(found, request.controls)
    elif family in FAMILY_CONTROLS and "ban" not in FAMILY_CONTROLS[family].EDITS:
        raise UserError(f"modules of a {family} model cannot be banned", field="sweep")


class Sweep:
    """Rows one after the other, each measured over all samples."""

    def __init__(self, request: RerouteRequest, folder: Path, context: JobContext, loaded: LoadedModel) -> None:
        self.request, self.folder, self.loaded, self.name = request, folder, loaded, loaded.name
        self.reading: Reading = Reading(request, context, loaded)
        self.unchanged: Any = None
        self.usage: UsageCount | None = None
        self.begun_for = begun_for(request, loaded)
        self.done: list[dict[str, Any]] = load_state(folder, self.begun_for, "rows") or []
        self.work: Any = None
        """the row at hand: a ``Measurement``, or what stands for it"""
        self.rows: list[Row] | None = None
        """None until the unchanged pass has said which modules are used most (``shares`` alone needs it)"""
        if request.sweep == "modules":
            from tokenpaths.engine.edits.sweep import module_rows

            self.rows = module_rows(loaded.model.module_table(), loaded.checkpoint.config.num_steps)

    def advance(self) -> Progress:
        """Some batches of the row at hand."""
        ends = time.monotonic() + SLICE_SECONDS
        if self.reading.data is None:
            self.reading.advance(ends)
            if self.reading.data is None:
                return self.reading.progress("edits")
        self.unchanged = self.unchanged or self._unchanged()
        while self.rows is None and time.monotonic() < ends:
            self._count(self.reading.data, self.unchanged)
        if self.rows is None:
            return Progress(0, None, "edits", "counting which modules are used most")
        while len(self.done) < len(self.rows) and time.monotonic() < ends:
            self._batch(self.rows[len(self.done)])
        return self._progress()

    def _unchanged(self) -> Any:
        from tokenpaths.engine.edits.measure import Unchanged

        return Unchanged(self.loaded, self.reading.data)

    def _count(self, data: Any, unchanged: Any) -> None:
        """A batch of the unchanged pass; after the last the rows are known."""
        from tokenpaths.engine.edits.sweep import UsageCount, choices_of, share_rows

        model, config = self.loaded.model, self.loaded.checkpoint.config
        self.usage = self.usage or UsageCount(config.num_steps, config.num_modules)
        self.usage.add(data, unchanged)
        if self.usage.batches == len(data.batches):
            choices = choices_of(model.module_table(), config.num_steps)
            self.rows = share_rows(self.usage.counts, self.request.shares, choices, model.must_leave, self.request.seed)

    def _batch(self, row: Row) -> None:
        from tokenpaths.engine.edits.sweep import result_row

        try:
            if self.work is None:
                self.work = self._measurement(row)
            self.work.advance()
            if not self.work.finished:
                return
            found = result_row(row, self.work.answer())
        except UserError as error:  # this one cannot be banned: the sweep says so and goes on
            found = result_row(row, None, str(error))
        self.work = None
        self.done.append(found)
        self._keep()

    def _measurement(self, row: Row) -> Any:
        from tokenpaths.engine.edits.measure import Measurement

        controls = self.loaded.with_controls({"edits": list(row.edits)}).controls
        assert controls is not None
        return Measurement(self.loaded, self.reading.data, controls, self.unchanged)

    def _keep(self) -> None:
        from tokenpaths.engine.edits.sweep import as_csv

        data = self.reading.data
        assert data is not None
        document = {
            "sweep": self.request.sweep,
            "model": self.name,
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
            told = last["problem"] or ("no loss is known" if change is None else f"loss {change:+.3f} nats")
            where = "" if last["step"] is None else f" at step {last['step']}"
            message = f"{last['name']}{where} banned: {told}"
        result: dict[str, Any] = {}
        if finished:
            worst = sorted((r for r in self.done if r["loss_change"] is not None), key=lambda r: -r["loss_change"])
            kept = ("step", "module", "name", "share", "which", "loss_change", "kl", "paths_changed_after")
            result = {"rows": total, "most_important": [{name: r[name] for name in kept} for r in worst[:10]]}
        return Progress(done, total, "edits", message, finished=finished, result=result)

    def close(self) -> None:
        """Lets go of the samples."""
        self.work = None


def is_unchanged(request: RerouteRequest, context: JobContext, sha256: str) -> bool:
    """Whether the run of a request is of these weights as they were trained and all of its samples are taken, so that
    an edited run may stand beside it."""
    if request.run is None:
        return False
    with context.open_run(request.run) as run:
        taken = run.row["num_samples"] if request.sample is None else 1
        if run.row["num_samples"] > min(taken, request.limit):
            return False
        same = run.row["checkpoint_sha256"] == sha256
        config = json.loads(run.row["config"])
    return bool(same and not config.get("controls"))


class EditedRun:
    """The effect first, then the unchanged run (where there is none yet) and the edited one, which carries it."""

    def __init__(self, request: RerouteRequest, folder: Path, context: JobContext, changed: LoadedModel) -> None:
        self.request, self.folder, self.context, self.changed = request, folder, context, changed
        self.name = changed.name
        self.reading: Reading = Reading(request, context, changed)
        self._begin(changed, is_unchanged(request, context, changed.sha256))

    def _begin(self, loaded: LoadedModel | HuggingFaceModel, unchanged: bool) -> None:
        """What an earlier life of the job has kept; ``unchanged``: the run of the request is the one beside."""
        self.begun_for = begun_for(self.request, loaded)
        self.effect: dict[str, Any] | None = load_state(self.folder, self.begun_for, "effect")
        self.work: Any = None
        """a ``Measurement``, or what stands for it"""
        self.parts: Generator[TraceProgress, None, Path] | None = None
        self.runs: dict[str, str] = {"before": str(self.request.run)} if unchanged else {}
        self.unchanged_is_there = unchanged
        self.done = 0
        """samples, over all rounds"""

    def advance(self) -> Progress:
        """Some batches: of the effect, then of the runs."""
        ends = time.monotonic() + SLICE_SECONDS
        if self.reading.data is None:
            self.reading.advance(ends)
            if self.reading.data is None:
                return self.reading.progress("samples")
        at = ""
        while time.monotonic() < ends or not at:
            if self.effect is None:
                at = self._measure()
            elif "before" not in self.runs:
                at = self._trace("before")
            elif "after" not in self.runs:
                at = self._trace("after")
            else:
                return self._finished()
        return Progress(self.done, self._total, "samples", at)

    @property
    def _total(self) -> int:
        """Samples are gone through for the effect, and once for each run that is made."""
        return self._measured + len(self.reading.samples) * (1 if self.unchanged_is_there else 2)

    @property
    def _measured(self) -> int:
        """Of them, when the effect is known."""
        return len(self.reading.samples)

    def _measurement(self) -> Any:
        from tokenpaths.engine.edits.measure import Measurement

        assert self.changed.controls is not None
        return Measurement(self.changed, self.reading.data, self.changed.controls)

    def _measure(self) -> str:
        """A batch without and with the edits; after the last the effect is kept."""
        self.work = self.work or self._measurement()
        self.work.advance()
        share = self.work.done / len(self.reading.data.batches)
        self.done = self._measured - len(self.reading.samples) + int(share * len(self.reading.samples))
        if self.work.finished:
            self.effect, self.work = self.work.answer(), None
            write_artifact(self.folder, "effect.json", json.dumps(self.effect, allow_nan=False).encode())
            state = self.begun_for | self._state()
            write_atomically(self.folder / STATE, json.dumps(state, allow_nan=False).encode())
        return "measuring the effect"

    def _state(self) -> dict[str, Any]:
        return {"effect": self.effect}

    def _run_parts(self, which: str, name: str, findings: dict[str, Any]) -> Generator[TraceProgress, None, Path]:
        """One of the two runs, batch by batch."""
        from tokenpaths.engine.tracing.trace_run import trace_parts

        return trace_parts(
            self.changed if which == "after" else replace(self.changed, controls=None),
            self.reading.samples,
            self.context.runs_dir,
            run_id=name,
            dataset=self.reading.name,
            split=self.reading.split,
            regions=self.reading.regions,
            total=len(self.reading.samples),
            twin=False,
            findings=findings,
        )

    def _trace(self, which: str) -> str:
        """A batch of one of the two runs; the last one seals it."""
        from tokenpaths.engine.tracing.trace_run import new_run_id

        place = self.folder / which
        place.mkdir(exist_ok=True)
        wanted = self.request.name if which == "after" else None
        name, is_there = claim_run(
            place, self.context, wanted, lambda: new_run_id(self.name, f"{which} {self.reading.name}"), job=self.folder
        )
        behind = self._total - len(self.reading.samples) if which == "after" else self._measured
        told = f"tracing the {'edited' if which == 'after' else 'unchanged'} run"
        if not is_there:
            if self.parts is None:
                findings = made_by(self.folder)
                if which == "after":
                    assert self.effect is not None
                    findings |= {"effect": {**self.effect, "of_samples": self.reading.of_samples}}
                self.parts = self._run_parts(which, name, findings)
            try:
                self.done = behind + next(self.parts).samples
                return told
            except StopIteration:
                self.parts = None
        self.done, self.runs[which] = behind + len(self.reading.samples), name
        return told

    def _finished(self) -> Progress:
        assert self.effect is not None
        kept = ("loss", "accuracy", "perplexity", "kl", "paths_changed_after", "flow_difference")
        result = {
            "run": self.runs["after"],
            "runs": [self.runs["before"], self.runs["after"]],
            "num_samples": len(self.reading.samples),
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
        """Lets go of a run that is not sealed; it disappears."""
        if self.parts is not None:
            self.parts.close()
            self.parts = None
