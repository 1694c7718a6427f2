"""Recording of any PyTorch model while it runs: hooks on its routers, one run file when the block ends.

    with tokenpaths.record(model, run="mine") as rec:
        for batch in loader:
            model(batch)
    rec.file, rec.run

A forward pass of the model is one batch, also one inside another; calls of routers outside of one (a checkpointed
block that is computed again for its gradient) are not recorded. Hooks copy detached tensors and change nothing, so
gradients stay equal to the last bit. An error inside a hook never reaches the model: it stops the recording, with a
warning.

A recording is no ``Traceable`` (``engine.tracing.traceable``). That protocol is a model that the tracer calls: it cuts
texts into windows, runs a pass, and runs it again under controls or at initialisation. Here the user's own loop calls
the model: which inputs come, in what mode, on how many processes, and whether the outputs are logits at all, is its
matter, and a pass cannot be repeated. A user's own model that shall be traced and edited meets the protocol and goes to
``tokenpaths.trace``.

In the order of their work: ``record_options`` (what the caller sets), ``router_search`` (candidates among the modules),
``module_hooks`` and ``open_passes`` (which call belongs to which pass), ``router_outputs`` and ``weight_meaning`` (how
an output is read, and what it means), ``router_plan`` (what the first pass settles), ``choice_verification`` (whether
every pass agrees with it), ``pass_tokens`` and ``user_model`` (which tokens a pass is about), ``forward_pass`` (copies
to the host), ``recorded_run`` (the run), ``process_parts`` (several processes).
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from tokenpaths.engine.adapters.recorder.forward_pass import Batch, Forward, batch_of, piece_of
from tokenpaths.engine.adapters.recorder.joined_texts import Ends, JoinedTexts
from tokenpaths.engine.adapters.recorder.module_hooks import ModuleHook
from tokenpaths.engine.adapters.recorder.open_passes import OpenPasses, called_outside, outside_passes
from tokenpaths.engine.adapters.recorder.pass_caches import NOTHING_GIVEN, PassCaches
from tokenpaths.engine.adapters.recorder.record_options import RecordOptions, signature_of_record
from tokenpaths.engine.adapters.recorder.recorded_run import RecordedRun, new_run_id, nothing_recorded
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingAssumed, RecordingStopped, sentence_of
from tokenpaths.engine.adapters.recorder.routers.choice_verification import (
    UNSEEN_LATER,
    ExpertCalls,
    ExpertRows,
    PassChecks,
    assumption,
)
from tokenpaths.engine.adapters.recorder.routers.router_outputs import ABSENT, tensors_of
from tokenpaths.engine.adapters.recorder.routers.router_plan import Plan, decide, left_out, read_by_caller
from tokenpaths.engine.adapters.recorder.routers.router_search import Router, find_routers, named_routers, nothing_found
from tokenpaths.engine.adapters.recorder.user_model import (
    BatchInfo,
    core,
    in_backward,
    is_compiled,
    name_of,
    named_inputs,
    signature_of,
    tuners_of,
)
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import runs_dir as default_runs_dir
from tokenpaths.engine.base.records import TraceBatch
from tokenpaths.engine.data.labels import Remarks
from tokenpaths.engine.store.ask.run import Run

_MOST_PENDING = 2
"""maximum number of forward passes with pending copies from a GPU"""
_MOST_NOTES = 100


def record(model: nn.Module, run: str | None = None, **options: Any) -> Recorder:
    """A recorder of ``model``, to be used in a ``with`` statement; nothing is hooked or written before it begins.

    Args:
        run: Name of the run; by default the model's class and the time.
        runs_dir: Folder of the run files, made if need be; by default ``runs`` in the data folder
            (setting ``data_dir``).
        routers: Names (``layers.*.gate``; * stands for anything, dots included) or modules, instead of those found.
        read: Turns (module, inputs, output) of a call into ids (…, K) and weights (…, K), instead of what is found;
            id -1: a slot that the token did not use, as where an expert that is full dropped it.
        top_k, num_experts: Where no attribute says it. They count for all routers.
        scale: Number that the gate's weights were multiplied by; they are divided by it. By default found on the gate.
        renormalise: Divide recomputed weights by their sum; weights that a gate gives are never changed so.
        every: Record every n-th forward pass, beginning with the first.
        series, iteration: This run is a checkpoint of the training ``series`` after ``iteration`` iterations.
        model_name, dataset, split: What the run calls the model (by default its configuration's name, or its class)
            and the data.
        token_texts: Readable text of the vocabulary ids: a mapping, or a list in their order.
        batch_first: False: tensors are (T, B, …).
        overwrite: Replace a run of this name, when the new one is sealed.
        merge: False: each process of a group records for itself, under a name of its own.

    Raises:
        UserError: no router was found, or an option makes no sense.
        TypeError: there is no option of that name.
    """
    return Recorder(model, RecordOptions.of(run, options))


record.__signature__ = signature_of_record()  # type: ignore[attr-defined]


class Recorder:
    """Records the decisions of a model's routers while its ``with`` block runs, and seals them as one run.

    Attributes: ``routers`` (those found, the reason, and what is read of each), ``passed_over`` (name and reason of
    rejected candidates), ``notes`` (what could not be recorded), ``file`` and ``run`` (after the end), ``problem`` (why
    the recording stopped, None if it did not), ``num_tokens`` (recorded so far by this process).

    An error during recording stops the recording with ``RecordingStopped``, while the model runs on; the passes before
    it become the run. After an exception of the caller's code inside the block no file is left. With several processes
    (``torch.distributed``), all of them must enter and leave the block.
    """

    def __init__(self, model: nn.Module, options: RecordOptions) -> None:
        self.model = core(model)
        self._tuners = tuners_of(model, self.model)
        self._compiled = is_compiled(model)
        self._options = options
        self.model_name = options.model_name or name_of(self.model)
        self.run_id = options.run if options.run is not None else new_run_id(self.model_name)
        self.runs_dir = Path(options.runs_dir) if options.runs_dir is not None else default_runs_dir()
        named = options.named
        self.routers = find_routers(self.model) if named is None else named_routers(self.model, named)
        if not self.routers:
            raise nothing_found(self.model)
        self.passed_over: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self._said: set[str] = set()
        self._remarks = Remarks()
        self.problem: str | None = None
        self.file: Path | None = None
        self.num_tokens = 0
        self._opened: Run | None = None
        self._state = "new"

    @property
    def run(self) -> Run:
        """The sealed run, open.

        Raises:
            UserError: the block has not ended yet, or nothing was recorded.
        """
        if self.file is None:
            raise UserError(
                "there is no run yet: it is sealed when the with-block ends"
                if self.problem is None
                else f"there is no run: {self.problem}",
                field="run",
            )
        if self._opened is None:
            self._opened = Run.open(self.file)
        return self._opened

    def batch(
        self,
        *,
        input_ids: Any = None,
        texts: Sequence[str] | None = None,
        labels: Sequence[Any] | None = None,
        mask: Any = None,
        continues: bool | None = None,
    ) -> None:
        """Describe the next forward pass; what is given replaces what is found in its inputs.

        Args:
            input_ids: (B, T) vocabulary ids.
            texts: One for each sample.
            labels: One for each sample.
            mask: (B, T), False or 0 = padding, which is left out. A model input called ``attention_mask`` of that
                shape is found by itself.
            continues: Whether its samples are the next tokens of those of the pass before, as in a decoding loop. By
                default found in the cache, or in the position, that the model is given.
        """
        self._info = BatchInfo(input_ids, texts, labels, mask, continues)

    def __enter__(self) -> Recorder:
        if self._state != "new":
            raise UserError("a recorder records once: make another one with tokenpaths.record", field="run")
        self._output = RecordedRun(self.run_id, self.runs_dir, self.model_name, self.model, self._options)
        self._info = BatchInfo()
        self._passes = OpenPasses()
        self._ending = threading.Lock()
        self._plan: Plan | None = None
        self._checks = PassChecks()
        self._pending: deque[Batch] = deque()
        self._forwards = self._stray = self._masked = 0
        self._signature = signature_of(self.model)
        self._caches = PassCaches(self.model, self._signature)
        self._texts = JoinedTexts(self._caches.may_go_on, partial(Ends.of, self.model), self._say)
        self._state = "open"
        self._hooks: list[Any] = []
        self._place_hooks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_hooks()
        if kind is not None:
            self._state = "failed"
            self._abort(f"{kind.__name__}: {error}")
            return
        try:
            self._write_pending(to_the_end=True)
            stopped = self.problem
            if self._stray:
                self.notes.append(outside_passes(self._stray, type(self.model).__name__))
            self.notes.extend([*self._texts.notes(), *self._checks.notes(), *self._remarks.sentences()])
            self.file = self._output.seal(self._plan, self.routers, self.notes, self._nothing_recorded)
        except BaseException as failure:
            self._state = "failed"
            reason = sentence_of(failure)
            self._abort(reason)
            if not isinstance(failure, Exception) or isinstance(failure, RecordingStopped):
                raise
            self.problem = self.problem or reason
            self._warn(f"there is no run {self.run_id!r}: {self.problem}")
            return
        self._state = "sealed"
        if stopped is not None:
            self._warn(f"run {self.run_id!r} holds {self.num_tokens} tokens, recorded before {stopped}")

    def _place_hooks(self) -> None:
        if self._compiled:
            torch.compiler.reset()  # code that was compiled before knows no hooks
        model = self.model
        self._hooks = []
        for entry in (model, *self._tuners):
            self._hooks += [
                entry.register_forward_pre_hook(ModuleHook(entry, self._before), with_kwargs=True, prepend=True),
                entry.register_forward_hook(ModuleHook(entry, self._after)),
                entry.register_forward_hook(ModuleHook(entry, self._closed), always_call=True),
            ]
        watched: dict[int, nn.Module] = {}
        for router in self.routers:
            for candidate in (router, router.around):
                if candidate is not None and id(candidate.module) not in watched:
                    module = watched[id(candidate.module)] = candidate.module
                    hook = ModuleHook(module, self._hook_of(candidate))
                    self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        # Compiled experts would keep a break in their graph for good.
        watchable = [] if self._compiled or self._options.read is not None else self.routers
        self._experts = ExpertCalls(model, watchable, self._open_rows)

    def _remove_hooks(self) -> None:
        self._experts.close()
        self._caches.close()
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()
        self._passes.clear()
        if self._compiled:
            torch.compiler.reset()

    # Hooks: whatever is wrong with a recording must not reach the model --------------------------------------------

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._state != "open" or in_backward():
            return
        number, self._forwards = self._forwards, self._forwards + 1
        try:
            forward = None
            if number % self._options.every == 0:
                named = named_inputs(self._signature, args, kwargs)
                given = self._caches.begin(named) if self._options.every == 1 else NOTHING_GIVEN
                forward = Forward(number, self._info, args, kwargs, named, given, self._experts.new_rows())
            self._passes.begin(forward)
        except Exception as error:
            self._stop(error, number)
        self._info = BatchInfo()

    def _open_rows(self) -> ExpertRows | None:
        forward = self._passes.innermost
        return None if forward is None or in_backward() else forward.expert_rows

    def _hook_of(self, router: Router) -> Callable[..., None]:
        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if in_backward():
                return
            forward = self._passes.innermost
            if forward is None:
                if not self._passes.any_open and self._state == "open":
                    self._stray += 1
                    if self._stray == 1:
                        self._warn_of_assumption(called_outside(router.name, type(self.model).__name__))
                return
            try:
                self._passes.check_thread()
                with torch.no_grad():
                    self._keep(forward, router, module, args, kwargs, output)
            except Exception as error:
                self._stop(error, forward.number)

        return after

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        forward = self._passes.innermost
        if forward is None or self._state != "open" or in_backward():
            return
        if forward.says_nothing:
            return
        with self._ending:
            try:
                with torch.no_grad():
                    self._pending.append(self._batch_of(forward))
                    if self._options.every == 1:
                        self._caches.end(forward.number, forward.given, output)
            except Exception as error:
                self._stop(error, forward.number)
                return
            self._write_pending()

    def _closed(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """The end of a pass, also of one that failed."""
        if not in_backward():
            self._passes.end()

    def _stop(self, error: Exception, number: int) -> None:
        """Stop recording and report the reason; the model runs on."""
        self._passes.clear()
        self._state = "stopped"
        self.problem = f"forward pass {number}: {sentence_of(error)}"
        self._note(f"the recording stopped at {self.problem}")
        self._warn(f"recording {self.run_id!r} stopped at {self.problem}; the model runs on, unrecorded")

    def _warn(self, sentence: str) -> None:
        warnings.warn(RecordingStopped(sentence, field="run"), stacklevel=3)

    def _note(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(note)

    def _say(self, kind: str, note: str) -> None:
        """Note the first of each kind: shapes in them may differ from pass to pass."""
        if kind not in self._said:
            self._said.add(kind)
            self._note(note)

    def _assume(self, sentence: str) -> None:
        self._note(sentence)
        self._warn_of_assumption(sentence)

    def _warn_of_assumption(self, sentence: str) -> None:
        warnings.warn(sentence, RecordingAssumed, stacklevel=4)

    # What a forward pass says --------------------------------------------------------------------------------------

    def _keep(
        self,
        forward: Forward,
        router: Router,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        """Copy the output of a router, so that later in-place changes by the model have no effect."""
        rows = forward.rows_of_input(args, kwargs)
        if self._options.read is not None:
            tensors = read_by_caller(self._options.read, router, module, args, output)
            rows = tensors[0].shape[0]
        else:
            tensors = [tensor.detach() for tensor in tensors_of(output, ABSENT)]
        if self._plan is None or forward.raw:
            forward.raw.append((router, [tensor.clone() for tensor in tensors], rows))
            return
        forward.take(self._plan, router, tensors, rows, copy=True)

    def _settle(self, forward: Forward) -> Plan:
        """The plan, made of the first pass to end."""
        plan, forward.calls, self.routers, self.passed_over = decide(
            self.model, forward.raw, self.routers, self._options.router_settings, forward.expert_rows
        )
        self._experts.keep(plan.verified)
        if plan.assumed:
            self._assume(assumption(plan.assumed, plan.top_k))
        if plan.uncalled:
            self._assume(left_out(plan.uncalled))
        return plan

    def _batch_of(self, forward: Forward) -> Batch:
        if self._plan is None:
            self._plan = self._settle(forward)
        else:
            forward.read(self._plan)
        forward.raw.clear()
        forward.check_whole(self._plan)
        return batch_of(
            forward,
            renormalise=self._options.renormalise,
            batch_first=self._options.batch_first,
            rank=self._output.rank,
            parameters=() if self._signature is None else self._signature.parameters,
            counted=bool(self._plan.verified),
            say=self._say,
            remarks=self._remarks,
        )

    # The way of the passes into the run ----------------------------------------------------------------------------

    def _write_pending(self, to_the_end: bool = False) -> None:
        """Write the passes that have arrived, or all of them; an invalid one stops the recording."""
        while self._pending and (to_the_end or len(self._pending) > _MOST_PENDING or self._pending[0].ready()):
            batch = self._pending.popleft()
            try:
                self._write(batch)
            except Exception as error:
                self._pending.clear()
                self._stop(error, batch.number)
        if to_the_end:
            self._write_texts(self._texts.rest())

    def _write(self, batch: Batch) -> None:
        """Check a forward pass that has arrived, and pass it to the writer."""
        assert self._plan is not None
        for event in batch.events:
            event.synchronize()
        plan = self._plan
        verifiable = {name: batch.expert_rows[name] for name in plan.verified}
        if self._checks.check(batch.number, plan.calls, batch.chosen, verifiable):
            self._assume(f"forward pass {batch.number}: {UNSEEN_LATER}")
        piece = piece_of(batch, plan, self._say)
        self._output.check(piece.trace, plan, self.routers)
        self._masked += not piece.trace.num_tokens
        self._write_texts(self._texts.add(piece, batch.continued, batch.continues))

    def _write_texts(self, texts: Iterable[TraceBatch]) -> None:
        for trace in texts:
            assert self._plan is not None
            self._output.write(trace, self._plan, self.routers)
        self.num_tokens = self._texts.num_tokens

    def _nothing_recorded(self) -> UserError:
        if self.problem is not None:
            return UserError(self.problem, field="model")
        return nothing_recorded(type(self.model).__name__, self._forwards, self._masked, self._stray)

    def _abort(self, why: str) -> None:
        self._pending.clear()
        self._output.abort(why)
