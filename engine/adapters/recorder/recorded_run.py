"""The run that a recording becomes: a run file, or the part of one process of several, and how it is sealed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tokenpaths.engine.adapters.expert_runs import FAMILY, Series
from tokenpaths.engine.adapters.recorder import process_parts as parts
from tokenpaths.engine.adapters.recorder.record_options import RecordOptions
from tokenpaths.engine.adapters.recorder.routers.router_plan import Plan
from tokenpaths.engine.adapters.recorder.routers.router_search import Router
from tokenpaths.engine.adapters.recorder.user_model import composition_of, config_of
from tokenpaths.engine.analysis.ribbon_costs import module_units
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_name, run_file
from tokenpaths.engine.base.records import RunInfo, TraceBatch, engine_version
from tokenpaths.engine.store.file.checks import check_batch, check_run
from tokenpaths.engine.store.file.schema import first_unused
from tokenpaths.engine.store.write.writer import RunWriter


class RecordedRun:
    """The run written by a recording: ``write`` passes, then ``seal``, or ``abort``.

    Every process of a group makes one, and all of them seal; their parts become one run, in the order of ranks.

    Raises:
        UserError: the run cannot be written (an invalid or taken name), before anything is recorded.
    """

    def __init__(self, run_id: str, runs_dir: Path, model_name: str, model: nn.Module, options: RecordOptions) -> None:
        self.run_id, self.runs_dir, self.model_name = run_id, runs_dir, model_name
        self._model, self._options = model, options
        self._sink: RunWriter | parts.PartWriter | None = None
        self._check: Callable[[TraceBatch], object] | None = None
        self._broken: Exception | None = None
        self._findings: dict[str, Any] = {}
        self._meeting: parts.Meeting | None = None
        self._signs_of_life = ExitStack()
        self._slots = self._unused = self._dropped = 0
        self._digests: parts.TokenDigests | None = None
        self._differs: bool | None = None
        """whether this process records other routers than process 0; None: not known yet"""
        problem = self._name_problem()
        rank, world = parts.processes()
        self.rank: int | None = rank if world > 1 and options.merge else None
        """rank of this process among those that record together; None: it records alone"""
        if self.rank is not None:
            self._meeting = parts.agree(run_id, runs_dir, problem, composition_of(model))
            self._digests = parts.TokenDigests()
            # Not only while sealing: another process may end its part of the training hours before this one.
            self._signs_of_life.enter_context(self._meeting.busy())
        elif problem:
            raise UserError(problem, field="run")

    def _name_problem(self) -> str | None:
        """Why this run cannot be written, checked before a training begins; None: it can."""
        try:
            check_name(self.run_id, field="run")
            if self.runs_dir.exists() and not self.runs_dir.is_dir():
                return f"runs_dir is {str(self.runs_dir)!r}, which is no folder"
            if run_file(self.runs_dir, self.run_id).exists() and not self._options.overwrite:
                return (
                    f"there is a run {self.run_id!r} already: choose another name, or say that it may be "
                    "overwritten with overwrite=True"
                )
        except UserError as error:
            return str(error)
        return None

    def check(self, trace: TraceBatch, plan: Plan, routers: list[Router]) -> None:
        """UserError if the samples of a pass are malformed, before they are joined with others, or if another process
        records other routers."""
        if self._meeting is not None and self._differs is None:
            self._differs = self._meeting.differs(plan.as_json())
            if self._differs:
                raise UserError(
                    f"process {self.rank} records other routers than process 0: give all the same model, or "
                    f"{parts.RECORD_APART}",
                    field="model",
                )
        if trace.num_tokens:
            if self._check is None:
                self._open(trace, plan, routers)
            assert self._check is not None
            self._check(replace(trace, samples=[sample for sample in trace.samples if sample.num_tokens]))

    def write(self, trace: TraceBatch, plan: Plan, routers: list[Router]) -> None:
        """Append some samples.

        Raises:
            UserError: they are malformed; they are dropped, earlier ones are kept.
        """
        if self._sink is None:
            self._open(trace, plan, routers)
        assert self._sink is not None
        try:
            self._sink.write(trace)
        except UserError:
            raise
        except Exception as error:  # the file may end in the middle of a pass
            self._broken = error
            raise
        if self._digests is not None:
            self._digests.add(trace)
        if plan.sparse_steps:
            unused = trace.module_ids >= plan.unused_from
            self._slots += unused.size
            self._unused += int(unused.sum())
            self._dropped += int(unused.all(axis=2).sum())

    def _open(self, trace: TraceBatch, plan: Plan, routers: list[Router]) -> None:
        """The first samples tell whether there are scores."""
        scores = trace.margin is not None and not bool(np.isnan(trace.margin).all())
        info, modules = self._info(plan, routers, scores), plan.modules()
        check_run(info, modules)
        available, _ = module_units(modules, info.num_steps, info.num_modules)
        self._check = partial(check_batch, info=info, available=available, unused_from=first_unused(modules))
        if self._meeting is not None and self.rank:
            self._sink = parts.PartWriter(self._meeting)
        else:
            self._sink = RunWriter(self.runs_dir, info, modules, overwrite=self._options.overwrite)

    def _info(self, plan: Plan, routers: list[Router], scores: bool) -> RunInfo:
        options = self._options
        routers_found = [{"name": r.name, "why": r.why, "reads": r.reads, "steps": list(r.steps)} for r in routers]
        config = config_of(self._model) | {"recorder": {"every": options.every, "routers": routers_found}}
        if options.series is not None:
            config["series"] = Series(options.series, int(options.iteration or 0)).as_json()
        return RunInfo(
            run_id=self.run_id,
            model=self.model_name,
            family=FAMILY,
            modality="text",
            dataset=options.dataset,
            split=options.split,
            num_steps=len(plan.layers),
            num_modules=plan.num_modules,
            top_k=plan.top_k,
            weight_semantics=plan.semantics.as_json(),
            config=config,
            checkpoint_sha256="",
            engine_version=engine_version(),
            token_texts=options.texts,
            findings=self._findings,
            scores=scores,
        )

    def seal(
        self, plan: Plan | None, routers: list[Router], notes: list[str], nothing: Callable[[], UserError]
    ) -> Path:
        """The sealed run file; ``notes`` are stored in its findings, ``nothing`` explains an empty recording.

        Raises:
            UserError: nothing was recorded, or another process failed.
        """
        if self._broken is not None:
            raise self._broken
        if self._meeting is None:
            return self._seal_run(notes, nothing)
        if self.rank:
            if isinstance(self._sink, parts.PartWriter) and plan is not None and self._digests is not None:
                self._sink.seal(plan.as_json(), notes, self._digests.as_json())
            else:
                self._meeting.tell({"sha256": None, "plan": None, "notes": notes})
            file = self._meeting.outcome()
        else:
            self._merge_parts(self._meeting, plan, routers, notes)
            file = self._seal_run(notes, nothing)
            self._meeting.announce(file)
        self._signs_of_life.close()
        self._meeting.leave()
        self._meeting = None
        return file

    def _seal_run(self, notes: list[str], nothing: Callable[[], UserError]) -> Path:
        if self._sink is None:
            raise nothing()
        assert isinstance(self._sink, RunWriter)
        if self._unused:
            share = self._unused / self._slots
            self._findings["unused_slots"] = {"share": share, "slots": self._unused, "dropped": self._dropped}
            notes.append(
                f"{100 * share:.2g} % of slots are unused: k varies; {self._dropped:,} times a token was dropped at a "
                "layer: it used no expert there"
            )
        if notes:
            self._findings["notes"] = list(notes)  # of ``RunInfo``: written when the run is sealed
        return self._sink.seal()

    def _merge_parts(self, meeting: parts.Meeting, plan: Plan | None, routers: list[Router], notes: list[str]) -> None:
        """Append the parts of the other processes, in the order of their ranks, and their notes.

        Processes that share one model (tensor parallel) are given the same tokens: those count once.
        """
        own, self._digests = self._digests, None
        seen = {} if own is None else dict.fromkeys(own.as_json().values(), 0)
        for rank, manifest in enumerate(meeting.others(), start=1):
            notes.extend(f"process {rank}: {note}" for note in manifest["notes"] if note not in notes)
            if manifest["sha256"] is None:
                continue
            if plan is None:
                raise UserError(
                    f"process 0 recorded nothing, process {rank} did: let process 0 run the model too, or "
                    f"{parts.RECORD_APART}"
                )
            if manifest["plan"] != plan.as_json():
                notes.append(
                    f"process {rank} recorded other routers than process 0, so its tokens are left out: give all the "
                    f"same model, or {parts.RECORD_APART}"
                )
                continue
            choices, tokens = manifest["digests"]["choices"], manifest["digests"].get("tokens")
            if choices in seen:
                notes.append(
                    f"process {rank} recorded the same tokens with the same choices as process {seen[choices]}, as "
                    "processes do that share one model (tensor parallel): they are kept once"
                )
                continue
            if tokens in seen:
                notes.append(
                    f"process {rank} recorded the same tokens as process {seen[tokens]}, with other choices: both are "
                    "in the run; where the processes share one model (expert parallel), its ids may be those of its "
                    f"own experts only: {parts.RECORD_APART}"
                )
            seen = {choices: rank} | ({} if tokens is None else {tokens: rank}) | seen
            shape = len(plan.layers), plan.top_k
            for batch in parts.read_part(meeting.folder, rank, manifest["sha256"], shape, plan.flops):
                self.write(batch, plan, routers)

    def abort(self, why: str) -> None:
        """Delete everything written, and release waiting processes."""
        if self._sink is not None:
            self._sink.abort()
        self._signs_of_life.close()
        if self._meeting is not None:
            self._meeting.fail(why)
            self._meeting = None


def new_run_id(model_name: str) -> str:
    from tokenpaths.engine.tracing import trace_run

    return trace_run.new_run_id(model_name.rpartition("/")[2], "recorded")


def nothing_recorded(name: str, forwards: int, masked: int, stray: int) -> UserError:
    """Why a recording of the model class ``name`` holds nothing.

    Args:
        forwards: passes that began.
        masked: those whose tokens the mask left out.
        stray: calls of routers outside of a pass.
    """
    if masked:
        return UserError(
            f"the mask left out every token of the {masked} forward passes: True or 1 should mark the tokens that "
            "count",
            field="mask",
        )
    if forwards:
        return UserError(
            f"{name} was called {forwards} times, but no pass that was to be recorded came to its end with a token: an "
            "exception ended it, or its batch was empty",
            field="model",
        )
    if not stray:
        return UserError(
            f"no forward pass of {name} was seen in the block: call the recorded model there, or record the module "
            "that you call",
            field="model",
        )
    return UserError(
        f"the routers were called {stray} times, but never inside a forward pass of {name}: record the module that you "
        "call",
        field="model",
    )
