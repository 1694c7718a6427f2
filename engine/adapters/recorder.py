"""Record any PyTorch model while it runs: hooks on its routers, one run file when the block ends.

    with tokenpaths.record(model, run="mine") as rec:
        for batch in loader:
            model(batch)
    rec.file, rec.run

A forward pass of the model is one batch; calls of routers outside of one (a checkpointed block that is computed
again for its gradient) are not recorded. Hooks copy detached tensors and change nothing, so gradients stay what
they are to the last bit. How routers are found: ``recorder_find.py``; how an output is read: ``recorder_read.py``;
what the first pass settles: ``recorder_plan.py``; the way of a pass to the host: ``recorder_forward.py``; several
processes: ``recorder_parts.py``.

Shapes: B samples, T tokens each, K slots.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from engine.adapters import recorder_parts as parts
from engine.adapters.experts import FAMILY, Series, expert_modules
from engine.adapters.recorder_find import Router, find_routers, named_routers, nothing_found
from engine.adapters.recorder_forward import Batch, Forward, Given, batch_of, trace_batch
from engine.adapters.recorder_plan import Plan, Read, Wanted, decide, kept_call, other_order
from engine.adapters.recorder_read import tensors_of
from engine.disk import check_name, run_file
from engine.disk import runs_dir as default_runs_dir
from engine.errors import UserError
from engine.store import Run, RunWriter
from engine.trace import RunInfo

_MOST_PENDING = 2
"""forward passes whose copies from a GPU may still be on their way"""


def record(model: nn.Module, run: str | None = None, **options: Any) -> Recorder:
    """A recorder of ``model``, to be used in a ``with`` statement; the options are those of ``Recorder``."""
    return Recorder(model, run, **options)


class Recorder:
    """Records the decisions of a model's routers between ``with`` and its end, and seals them as one run.

    Attributes: ``routers`` (what was found, why, and what is read of it), ``passed_over`` (name and reason of what
    looked like a router and is none), ``notes`` (what could not be recorded), ``file`` and ``run`` (after the end),
    ``num_tokens`` (recorded so far by this process).

    An exception inside the block leaves nothing behind. With several processes (``torch.distributed``) all of them
    enter and leave the block; their parts end in one run, in the order of the ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        run: str | None = None,
        *,
        runs_dir: Path | str | None = None,
        routers: str | nn.Module | Sequence[str | nn.Module] | None = None,
        read: Read | None = None,
        top_k: int | None = None,
        num_experts: int | None = None,
        scale: float | int | None = None,
        renormalise: bool = False,
        every: int = 1,
        series: str | None = None,
        iteration: int | None = None,
        model_name: str | None = None,
        dataset: str = "recorded",
        split: str = "",
        token_texts: Mapping[int, str] | Sequence[str] | None = None,
        batch_first: bool = True,
        overwrite: bool = False,
        merge: bool = True,
    ) -> None:
        """Find the routers; nothing is hooked or written before the block begins.

        Parameters
        ----------
        run
            Name of the run; by default the model's class and the time.
        runs_dir
            Folder of the run files; by default the user's.
        routers
            Names (``layers.*.gate``; * stands for anything, dots included) or modules, instead of those found.
        read
            Turns (module, inputs, output) of a call into ids (…, K) and weights (…, K), instead of what is found.
        top_k, num_experts
            Where no attribute says it. ``top_k`` counts for all routers.
        scale
            Number that the gate's weights were multiplied by; they are divided by it.
        renormalise
            Divide recomputed weights by their sum; weights that a gate gives are never changed so.
        every
            Record every n-th forward pass, beginning with the first.
        series, iteration
            This run is a checkpoint of the training ``series`` after ``iteration`` iterations.
        token_texts
            Readable text of the vocabulary ids.
        batch_first
            False: tensors are (T, B, …).
        merge
            False: each process of a group records for itself, under a name of its own.

        Raises:
            UserError: no router was found, or an option makes no sense.
        """
        self.model = _core(model)
        self._compiled = _is_compiled(model)
        _check_options(every=every, top_k=top_k, num_experts=num_experts, scale=scale, series=series,
                       iteration=iteration)  # fmt: skip
        self.model_name = model_name or _name_of(self.model)
        self.run_id = run if run is not None else _new_run_id(self.model_name)
        self.runs_dir = Path(runs_dir) if runs_dir is not None else default_runs_dir()
        self._every = every
        self._wanted = Wanted(routers is not None, read, top_k, num_experts, None if scale is None else float(scale),
                              renormalise)  # fmt: skip
        self._series = None if series is None else Series(series, int(iteration or 0))
        self._dataset, self._split, self._batch_first = dataset, split, batch_first
        texts = token_texts if isinstance(token_texts, Mapping) else dict(enumerate(token_texts or ()))
        self._token_texts = {int(token_id): str(text) for token_id, text in texts.items()}
        self._overwrite, self._merge = overwrite, merge
        wanted = [routers] if isinstance(routers, (str, nn.Module)) else routers
        self.routers = find_routers(self.model) if wanted is None else named_routers(self.model, list(wanted))
        if not self.routers:
            raise nothing_found(self.model)
        self.passed_over: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.file: Path | None = None
        self.num_tokens = 0
        self._opened: Run | None = None
        self._state = "new"

    @property
    def run(self) -> Run:
        """The sealed run, open.

        Raises:
            UserError: the block has not ended yet, or it failed.
        """
        if self.file is None:
            raise UserError("there is no run yet: it is sealed when the with-block ends", field="run")
        if self._opened is None:
            self._opened = Run.open(self.file)
        return self._opened

    def batch(
        self, *, input_ids: Any = None, texts: Sequence[str] | None = None, labels: Sequence[Any] | None = None,
        mask: Any = None,
    ) -> None:
        """Say what the next forward pass is about; only what is given replaces what is found in its inputs.

        ``input_ids`` (B, T) vocabulary ids; ``texts`` and ``labels`` one for each sample; ``mask`` (B, T), False or
        0 = padding, which is left out. A ``model`` input called ``attention_mask`` of that shape is found by itself.
        """
        self._given = Given(input_ids, texts, labels, mask)

    def __enter__(self) -> Recorder:
        if self._state != "new":
            raise UserError("a recorder records once: make another one with tokenpaths.record", field="run")
        problem = self._name_problem()
        self._meeting: parts.Meeting | None = None
        self._rank, world = parts.processes()
        if world > 1 and self._merge:
            self._meeting = parts.agree(self.run_id, self.runs_dir, problem)
        elif problem:
            raise UserError(problem, field="run")
        self._given = Given()
        self._forward: Forward | None = None
        self._plan: Plan | None = None
        self._sink: RunWriter | parts.PartWriter | None = None
        self._pending: deque[Batch] = deque()
        self._forwards = self._stray = 0
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
            self.file = self._finish()
        except BaseException as failure:
            self._state = "failed"
            self._abort(str(failure))
            raise
        self._state = "sealed"

    def _name_problem(self) -> str | None:
        """Why this run cannot be written, before a training has begun; None: it can."""
        try:
            check_name(self.run_id, field="run")
            if run_file(self.runs_dir, self.run_id).exists() and not self._overwrite:
                return (f"there is a run {self.run_id!r} already: choose another name, or say that it may be "
                        "overwritten with overwrite=True")  # fmt: skip
        except UserError as error:
            return str(error)
        return None

    def _place_hooks(self) -> None:
        # Compiled code must call the hooks as they are: tracing through them would bake the first batch in.
        hook = torch.compiler.disable
        if self._compiled:
            torch.compiler.reset()  # code that was compiled before knows no hooks
        self._hooks.append(self.model.register_forward_pre_hook(hook(self._before), with_kwargs=True, prepend=True))
        self._hooks.append(self.model.register_forward_hook(hook(self._after)))
        watched: dict[int, nn.Module] = {}
        for router in self.routers:
            for candidate in (router, router.around):
                if candidate is not None and id(candidate.module) not in watched:
                    watched[id(candidate.module)] = candidate.module
                    self._hooks.append(
                        candidate.module.register_forward_hook(hook(self._hook_of(candidate)), with_kwargs=True)
                    )

    def _remove_hooks(self) -> None:
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()
        self._forward = None
        if self._compiled:
            torch.compiler.reset()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._state != "open" or _in_backward():
            return
        wanted = self._forwards % self._every == 0
        self._forward = Forward(self._forwards, self._given, args, kwargs) if wanted else None
        self._forwards += 1
        self._given = Given()

    def _hook_of(self, router: Router) -> Callable[..., None]:
        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            forward = self._forward
            if forward is None:
                self._stray += 1
                return
            with torch.no_grad():
                self._note(forward, router, module, args, kwargs, output)

        return after

    def _note(
        self, forward: Forward, router: Router, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        """Copy what a router said; whatever the model does to its tensors afterwards, the copy stays."""
        rows = _rows(args, kwargs)
        if self._wanted.read is not None:
            tensors = self._called(router, module, args, output)
            rows = tensors[0].shape[0]
        else:
            tensors = [tensor.detach() for tensor in tensors_of(output)]
        if self._plan is None:
            forward.raw.append((router, [tensor.clone() for tensor in tensors], rows))
            return
        place = len(forward.calls)
        expected = self._plan.calls
        # The candidates that were passed over at first are still watched where they stand inside others.
        if not any(known.module is router.module for known, _ in expected):
            return
        if place >= len(expected) or expected[place][0].module is not router.module:
            raise other_order(router, [known.name for known, _ in expected], place)
        forward.calls.append((router, kept_call(tensors, expected[place][1], rows, router, copy=True), rows))

    def _called(self, router: Router, module: nn.Module, args: tuple[Any, ...], output: Any) -> list[Tensor]:
        """Ids and weights (n, K) that the caller's function makes of an output."""
        assert self._wanted.read is not None
        made = self._wanted.read(module, args, output)
        if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(x, Tensor) for x in made)):
            raise UserError(f"read= gave {type(made).__name__} for {router.name}: it should give two tensors, ids and "
                            "weights, both (…, K)", field="read")  # fmt: skip
        ids, weights = (tensor.detach() for tensor in made)
        if ids.shape != weights.shape or ids.dim() < 2 or ids.is_floating_point() or not weights.is_floating_point():
            raise UserError(
                f"read= gave ids {ids.dtype} {tuple(ids.shape)} and weights {weights.dtype} {tuple(weights.shape)} for "
                f"{router.name}: it should give integers and floats of one shape (…, K)", field="read",
            )  # fmt: skip
        return [ids.reshape(-1, ids.shape[-1]), weights.reshape(-1, weights.shape[-1])]

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        forward, self._forward = self._forward, None
        if forward is None or self._state != "open" or _in_backward():
            return
        with torch.no_grad():
            if self._plan is None:
                self._plan, forward.calls, self.routers, self.passed_over = decide(
                    self.model, forward.raw, self.routers, self._wanted
                )
                forward.raw.clear()
            if len(forward.calls) != len(self._plan.calls):
                missing = self._plan.calls[len(forward.calls)][0].name
                raise UserError(
                    f"forward pass {forward.number} called {len(forward.calls)} routers, the first one "
                    f"{len(self._plan.calls)}: {missing} was left out; a run needs every step of every token",
                    field="routers",
                )  # fmt: skip
            batch = batch_of(
                forward, renormalise=self._wanted.renormalise, batch_first=self._batch_first,
                rank=None if self._meeting is None else self._rank, say=self._say,
            )  # fmt: skip
        self._pending.append(batch)
        while self._pending and (len(self._pending) > _MOST_PENDING or self._pending[0].ready()):
            self._write(self._pending.popleft())

    def _say(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < 100:
            self.notes.append(note)

    def _write(self, batch: Batch) -> None:
        """Check a forward pass that has arrived, and hand it to the writer."""
        assert self._plan is not None
        for event in batch.events:
            event.synchronize()
        trace = trace_batch(batch, self._plan)
        if not trace.samples:
            return
        if self._sink is None:
            self._sink = self._open_sink(self._plan)
        self._sink.write(trace)
        self.num_tokens += trace.num_tokens

    def _open_sink(self, plan: Plan) -> RunWriter | parts.PartWriter:
        if self._meeting is not None and self._rank > 0:
            return parts.PartWriter(self._meeting)
        return RunWriter(self.runs_dir, self._info(plan), expert_modules(plan.layers), overwrite=self._overwrite)

    def _info(self, plan: Plan) -> RunInfo:
        from engine.tracing import engine_version

        found = [{"name": r.name, "why": r.why, "reads": r.reads, "steps": list(r.steps)} for r in self.routers]
        config = _config_of(self.model) | {"recorder": {"every": self._every, "routers": found}}
        if self._series is not None:
            config["series"] = self._series.as_json()
        return RunInfo(
            run_id=self.run_id, model=self.model_name, family=FAMILY, modality="text", dataset=self._dataset,
            split=self._split, num_steps=len(plan.layers), num_modules=max(x.num_experts for x in plan.layers),
            top_k=plan.top_k, weight_semantics=plan.semantics.as_json(), config=config, checkpoint_sha256="",
            engine_version=engine_version(), token_texts=self._token_texts,
        )  # fmt: skip

    def _finish(self) -> Path:
        while self._pending:
            self._write(self._pending.popleft())
        if self._meeting is None:
            if self._sink is None:
                raise self._nothing_recorded()
            assert isinstance(self._sink, RunWriter)
            return self._sink.seal()
        if self._rank > 0:
            if isinstance(self._sink, parts.PartWriter) and self._plan is not None:
                self._sink.seal(self._plan.as_json())
            else:
                self._meeting.tell({"sha256": None, "plan": None})
            file = self._meeting.outcome()
        else:
            file = self._merge_parts(self._meeting)
            self._meeting.announce(file)
        self._meeting.leave()
        self._meeting = None
        return file

    def _merge_parts(self, meeting: parts.Meeting) -> Path:
        """Append the parts of the other processes, in the order of their ranks, and seal."""
        for rank, manifest in enumerate(meeting.others(), start=1):
            if manifest["sha256"] is None:
                continue
            if self._plan is None:
                raise UserError(f"process 0 recorded nothing, process {rank} did: let process 0 run the model too")
            plan = self._plan
            if manifest["plan"] != plan.as_json():
                raise UserError(f"process {rank} recorded other routers than process 0: give all the same model")
            if self._sink is None:
                self._sink = self._open_sink(plan)
            for batch in parts.read_part(meeting.folder, rank, manifest["sha256"], (len(plan.layers), plan.top_k),
                                         plan.flops_per_token):  # fmt: skip
                self._sink.write(batch)
        if self._sink is None:
            raise self._nothing_recorded()
        assert isinstance(self._sink, RunWriter)
        return self._sink.seal()

    def _nothing_recorded(self) -> UserError:
        name = type(self.model).__name__
        if not self._stray:
            return UserError(f"no forward pass of {name} was seen in the block: call the recorded model there, or "
                             "record the module that you call", field="model")  # fmt: skip
        return UserError(
            f"the routers were called {self._stray} times, but never inside a forward pass of {name}: record the "
            "module that you call", field="model",
        )  # fmt: skip

    def _abort(self, why: str) -> None:
        """Leave nothing behind, and let no other process wait."""
        self._pending.clear()
        if self._sink is not None:
            self._sink.abort()
        if self._meeting is not None:
            self._meeting.fail(why)
            self._meeting = None


def _core(model: nn.Module) -> nn.Module:
    """The author's model inside wrappers, so that it is recorded however it is called."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is {type(model).__name__}, it should be a torch.nn.Module", field="model")
    while True:
        if isinstance(model, nn.DataParallel):
            raise UserError("nn.DataParallel runs copies of the model in threads, which cannot be recorded: use "
                            "DistributedDataParallel, or record the model inside", field="model")  # fmt: skip
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _is_compiled(model: nn.Module) -> bool:
    return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())


def _in_backward() -> bool:
    """Whether autograd is at work: a forward pass then is one computed again for its gradient."""
    return bool(torch._C._current_graph_task_id() != -1)


def _check_options(
    *, every: int, top_k: int | None, num_experts: int | None, scale: float | int | None, series: str | None,
    iteration: int | None,
) -> None:
    for name, value, least in (("every", every, 1), ("top_k", top_k, 1), ("num_experts", num_experts, 2)):
        if value is not None and value < least:
            raise UserError(f"{name} is {value}, it should be at least {least}", field=name)
    if scale is not None and not scale > 0:
        raise UserError(f"scale is {scale}, it should be above 0", field="scale")
    if (series is None) != (iteration is None):
        raise UserError("series and iteration belong together: the name of the training, and how many iterations it "
                        "had", field="series")  # fmt: skip
    if series is not None:
        check_name(series, "name of a series", field="series")
    if iteration is not None and iteration < 0:
        raise UserError(f"iteration is {iteration}, it should not be negative", field="iteration")


def _name_of(model: nn.Module) -> str:
    named = getattr(getattr(model, "config", None), "name_or_path", None)
    return named if isinstance(named, str) and named else type(model).__name__


def _new_run_id(model_name: str) -> str:
    from engine.tracing import new_run_id

    return new_run_id(model_name.rpartition("/")[2], "recorded")


def _config_of(model: nn.Module) -> dict[str, Any]:
    """The model's own configuration, where it can be written as JSON."""
    config = getattr(model, "config", None)
    as_dict = getattr(config, "to_dict", None) or getattr(config, "model_dump", None)
    values = as_dict() if callable(as_dict) else getattr(config, "__dict__", {})
    plain = {}
    for name, value in dict(values).items():
        try:
            plain[str(name)] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return plain


def _rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many tokens a router was given: the rows of its first input."""
    for tensor in tensors_of([*args, *kwargs.values()]):
        if tensor.is_floating_point() and tensor.dim() >= 1 and tensor.shape[-1]:
            return tensor.numel() // tensor.shape[-1]
    return 0
