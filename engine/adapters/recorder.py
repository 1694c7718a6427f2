"""Record any PyTorch model while it runs: hooks on its routers, one run file when the block ends.

    with tokenpaths.record(model, run="mine") as rec:
        for batch in loader:
            model(batch)
    rec.file, rec.run

A forward pass of the model is one batch; calls of routers outside of one (a checkpointed block that is computed
again for its gradient) are not recorded. Hooks copy detached tensors and change nothing, so gradients stay what
they are to the last bit. How routers are found: ``recorder_find.py``; how they are read: ``recorder_read.py``;
several processes: ``recorder_parts.py``.

Shapes: B samples, T tokens each, n tokens kept, S steps, K slots, M experts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.adapters import recorder_parts as parts
from engine.adapters.experts import (
    FAMILY,
    ExpertLayer,
    Series,
    WeightSemantics,
    expert_modules,
)
from engine.adapters.recorder_find import Router, find_routers, named_routers, nothing_found
from engine.adapters.recorder_read import (
    Call,
    Group,
    Meaning,
    Reading,
    explain,
    find_reading,
    read_calls,
    tensors_of,
)
from engine.disk import check_name, run_file
from engine.disk import runs_dir as default_runs_dir
from engine.errors import UserError
from engine.store import Run, RunWriter
from engine.trace import RunInfo, SampleRecord, TraceBatch

Read = Callable[[nn.Module, tuple[Any, ...], Any], tuple[Tensor, Tensor]]
"""(module, inputs, output of one call) -> ids (…, K), weights (…, K)"""
_ID_NAMES = ("input_ids", "tokens", "token_ids", "inputs", "idx", "x")
_MOST_PENDING = 2
"""forward passes whose copies from a GPU may still be on their way"""
_OVER = 1e-3


def record(model: nn.Module, run: str | None = None, **options: Any) -> Recorder:
    """A recorder of ``model``, to be used in a ``with`` statement; the options are those of ``Recorder``."""
    return Recorder(model, run, **options)


@dataclass(frozen=True)
class Plan:
    """What every ribbon of the run is made of; known after the first forward pass."""

    layers: tuple[ExpertLayer, ...]
    top_k: int
    semantics: WeightSemantics
    calls: tuple[tuple[Router, Reading], ...] = ()
    """the calls of routers in one forward pass, in order: a step each"""

    @property
    def flops_per_token(self) -> float:
        return float(sum(layer.flops_per_token for layer in self.layers) * self.top_k)

    def as_json(self) -> dict[str, Any]:
        layers = [[x.name, x.num_experts, x.params_per_expert, x.flops_per_token] for x in self.layers]
        return {"layers": layers, "top_k": self.top_k}


@dataclass
class _Given:
    """What ``Recorder.batch`` said of the next forward pass."""

    input_ids: Any = None
    texts: Sequence[str] | None = None
    labels: Sequence[Any] | None = None
    mask: Any = None


@dataclass
class _Forward:
    """One forward pass while it runs."""

    number: int
    given: _Given
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: list[tuple[Router, Call, int]] = field(default_factory=list)
    """router, what it said, rows of its input"""
    raw: list[tuple[Router, list[Tensor], int]] = field(default_factory=list)
    """of the first pass: everything that came out of every candidate"""


@dataclass
class _Batch:
    """A forward pass on its way to the host."""

    groups: list[Group]
    num_tokens: int
    shape: tuple[int, int]
    """samples, tokens of each, padding included; rows are samples one after the other"""
    token_ids: Tensor | None
    valid: Tensor | None
    samples: list[SampleRecord]
    transposed: bool
    compact: bool
    """True: the routers saw only the tokens that the mask keeps"""
    events: list[torch.cuda.Event]

    def ready(self) -> bool:
        return all(event.query() for event in self.events)


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
        self._read, self._renormalise, self._every = read, renormalise, every
        self._top_k, self._num_experts, self._scale = top_k, num_experts, scale
        self._named = routers is not None
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
        self._given = _Given(input_ids, texts, labels, mask)

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
        self._given = _Given()
        self._forward: _Forward | None = None
        self._plan: Plan | None = None
        self._sink: RunWriter | parts.PartWriter | None = None
        self._pending: deque[_Batch] = deque()
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
        self._forward = _Forward(self._forwards, self._given, args, kwargs) if wanted else None
        self._forwards += 1
        self._given = _Given()

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
        self, forward: _Forward, router: Router, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        """Copy what a router said; whatever the model does to its tensors afterwards, the copy stays."""
        rows = _rows(args, kwargs)
        if self._read is not None:
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
        if not any(known is router for known, _ in expected):
            return
        if place >= len(expected) or expected[place][0] is not router:
            raise _other_order(router, [known.name for known, _ in expected], place)
        forward.calls.append((router, _kept(tensors, expected[place][1], rows, router, copy=True), rows))

    def _called(self, router: Router, module: nn.Module, args: tuple[Any, ...], output: Any) -> list[Tensor]:
        """Ids and weights (n, K) that the caller's function makes of an output."""
        assert self._read is not None
        made = self._read(module, args, output)
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
                self._make_plan(forward)
            assert self._plan is not None
            if len(forward.calls) != len(self._plan.calls):
                missing = self._plan.calls[len(forward.calls)][0].name
                raise UserError(
                    f"forward pass {forward.number} called {len(forward.calls)} routers, the first one "
                    f"{len(self._plan.calls)}: {missing} was left out; a run needs every step of every token",
                    field="routers",
                )  # fmt: skip
            batch = self._batch_of(forward)
        self._pending.append(batch)
        while self._pending and (len(self._pending) > _MOST_PENDING or self._pending[0].ready()):
            self._write(self._pending.popleft())

    def _make_plan(self, forward: _Forward) -> None:
        """Decide, on the first forward pass, which candidates are routers and how they are read."""
        seen: dict[int, list[tuple[list[Tensor], int]]] = {}
        for router, tensors, rows in forward.raw:
            seen.setdefault(id(router.module), []).append((tensors, rows))
        taken: dict[int, tuple[Router, Reading]] = {}
        kept: list[Router] = []
        for router in self.routers:
            reading, chosen, problem = self._choose(router, seen)
            if reading is None:
                self.passed_over.append((router.name, problem))
            elif id(chosen.module) not in taken:
                taken[id(chosen.module)] = (chosen, reading)
                kept.append(chosen)
        if self._named and self.passed_over:
            name, problem = self.passed_over[0]
            raise UserError(f"{name} cannot be read as a router: {problem}", field="routers")
        if not taken:
            if not forward.raw:
                raise UserError(
                    "none of the routers was called in this forward pass. If the model was compiled before the "
                    "recorder came, its code knows no hooks: give record() what torch.compile returned, or call "
                    "torch.compiler.reset() first", field="model",
                )  # fmt: skip
            raise self._nothing_read()
        meanings: list[Meaning] = []
        settled: list[tuple[Router, Reading]] = []
        for router, tensors, rows in forward.raw:
            if id(router.module) not in taken:
                continue
            router, reading = taken[id(router.module)]
            call = _kept(tensors, reading, rows, router, copy=False)
            scale = router.scale if self._scale is None else float(self._scale)
            reading, meaning = explain(call, scale, self._renormalise)
            if self._scale is not None and reading.kind in ("ids", "sparse", "callable"):
                reading = replace(reading, scale=float(self._scale))
            router.reads, router.num_experts, router.top_k = reading.words, reading.num_experts, reading.top_k
            router.steps = (*router.steps, len(settled))
            settled.append((router, reading))
            meanings.append(meaning)
            forward.calls.append((router, replace(call, reading=reading), rows))
        forward.raw.clear()
        self.routers = kept
        self._plan = _plan(settled, meanings)

    def _choose(self, router: Router, seen: dict[int, list[Any]]) -> tuple[Reading | None, Router, str]:
        """The reading of a candidate or of the one around it, which is preferred when it gives the choice itself."""
        problem = "it was not called in the first forward pass"
        for candidate in (router.around, router):
            if candidate is None or id(candidate.module) not in seen:
                continue
            tensors, rows = seen[id(candidate.module)][0]
            if self._read is not None:
                size = self._num_experts or candidate.num_experts
                if size is None:
                    raise UserError(f"it cannot be told how many experts {candidate.name} has: give num_experts=",
                                    field="num_experts")  # fmt: skip
                return Reading("callable", size, int(tensors[0].shape[1]), 0, 1), candidate, ""
            scale = candidate.scale if self._scale is None else float(self._scale)
            size, top_k = self._num_experts or candidate.num_experts, self._top_k or candidate.top_k
            reading = find_reading(tensors, rows, size, top_k, scale)
            if isinstance(reading, str):
                problem = reading
                continue
            given = reading.kind in ("ids", "sparse")
            if candidate.must_give_ids and not given:
                problem = "its name only speaks for it, and its output holds no expert ids"
            elif given or candidate is router or id(router.module) not in seen:
                return reading, candidate, ""
        return None, router, problem

    def _nothing_read(self) -> UserError:
        found = "; ".join(f"{name}: {why}" for name, why in self.passed_over[:4])
        return UserError(
            f"{type(self.model).__name__} has modules that look like routers, but no decision could be read from any "
            f"({found}); give top_k=, name them with routers=, or give read=, a function of (module, inputs, output) "
            "that returns ids and weights", field="routers",
        )  # fmt: skip

    def _batch_of(self, forward: _Forward) -> _Batch:
        """Start the copies of one forward pass to the host."""
        counts = {rows for _, _, rows in forward.calls}
        if len(counts) > 1:
            other = next(r.name for r, _, rows in forward.calls if rows != forward.calls[0][2])
            raise UserError(
                f"{forward.calls[0][0].name} saw {forward.calls[0][2]} tokens and {other} saw "
                f"{next(rows for r, _, rows in forward.calls if r.name == other)}: a run follows the same tokens "
                "through all steps, so record one kind of router at a time with routers=", field="routers",
            )  # fmt: skip
        rows = counts.pop()
        groups = read_calls([call for _, call, _ in forward.calls], rows, self._renormalise)
        token_ids, valid = self._tokens_of(forward)
        shape, compact = self._shape_of(forward, rows, token_ids, valid)
        if token_ids is not None and tuple(token_ids.shape) != shape:
            if forward.given.input_ids is not None:
                raise UserError(f"input_ids has shape {tuple(token_ids.shape)}, but the routers saw "
                                f"{shape[0]} × {shape[1]} tokens", field="input_ids")  # fmt: skip
            self._say(f"the input has {tuple(token_ids.shape)} ids, the routers saw {shape[0]} × {shape[1]} tokens: "
                      "recorded without token ids")  # fmt: skip
            token_ids = None
        if valid is not None and tuple(valid.shape) != shape:
            if forward.given.mask is not None:
                raise UserError(f"mask has shape {tuple(valid.shape)}, it should be {shape}", field="mask")
            valid = None
        moved = [replace(g, **{n: getattr(g, n).to("cpu", non_blocking=True) for n in ("ids", "weights", "entropies")})
                 for g in groups]  # fmt: skip
        return _Batch(
            moved, rows, shape, _to_host(token_ids), _to_host(valid), self._samples_of(forward, shape),
            not self._batch_first, compact, _events([*(g.ids for g in groups), token_ids, valid]),
        )  # fmt: skip

    def _tokens_of(self, forward: _Forward) -> tuple[Tensor | None, Tensor | None]:
        """Vocabulary ids (B, T) and which positions are real (B, T), where they are known."""
        given = forward.given
        ids = _as_tensor(given.input_ids, "input_ids") if given.input_ids is not None else _find_ids(forward)
        if ids is not None and (ids.is_floating_point() or ids.dim() not in (1, 2)):
            raise UserError(f"input_ids is {ids.dtype} {tuple(ids.shape)}, it should be integers (B, T)",
                            field="input_ids")  # fmt: skip
        found = forward.kwargs.get("attention_mask")
        valid = _as_tensor(given.mask, "mask") if given.mask is not None else (
            found if isinstance(found, Tensor) and found.dim() == 2 else None)  # fmt: skip
        ids, valid = (None if t is None else t[None] if t.dim() == 1 else t for t in (ids, valid))
        if not self._batch_first:
            ids = None if ids is None else ids.T
            valid = None if valid is None or given.mask is None else valid.T
        return ids, None if valid is None else valid != 0

    def _shape_of(
        self, forward: _Forward, rows: int, ids: Tensor | None, valid: Tensor | None
    ) -> tuple[tuple[int, int], bool]:
        """Samples and tokens of each; whether the model left the padding out before its routers."""
        for known in (ids, valid):
            if known is None:
                continue
            if known.numel() == rows:
                return (known.shape[0], known.shape[1]), False
            if valid is not None and known.shape == valid.shape and int(valid.sum()) == rows:
                return (known.shape[0], known.shape[1]), True
        axis = 0 if self._batch_first else 1
        first = next((t for t in tensors_of([*forward.args, *forward.kwargs.values()]) if t.dim() >= 2), None)
        size = ids.shape[0] if ids is not None else first.shape[axis] if first is not None else 1
        if size < 1 or rows % size:
            size = 1
            self._say(f"{rows} tokens cannot be shared among the samples of the input: each forward pass is one sample")
        return (size, rows // size), False

    def _samples_of(self, forward: _Forward, shape: tuple[int, int]) -> list[SampleRecord]:
        given = forward.given
        for name, values in (("texts", given.texts), ("labels", given.labels)):
            if values is not None and len(values) != shape[0]:
                raise UserError(f"{len(values)} {name} for {shape[0]} samples: give one for each", field=name)
        rank = f"rank {self._rank}, " if self._meeting is not None else ""
        return [
            SampleRecord(
                num_tokens=shape[1], label=None if given.labels is None else _label(given.labels[i]),
                text=None if given.texts is None else given.texts[i],
                source=f"{rank}forward pass {forward.number}, sample {i}",
            )
            for i in range(shape[0])
        ]  # fmt: skip

    def _say(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < 100:
            self.notes.append(note)

    def _write(self, batch: _Batch) -> None:
        """Check a forward pass that has arrived, and hand it to the writer."""
        assert self._plan is not None
        for event in batch.events:
            event.synchronize()
        trace = _trace_batch(batch, self._plan)
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


def _kept(tensors: Sequence[Tensor], reading: Reading, rows: int, router: Router, *, copy: bool) -> Call:
    """The tensors of a reading as rows of tokens."""

    def rows_of(place: int | None, width: int) -> Tensor | None:
        if place is None:
            return None
        if place >= len(tensors) or tensors[place].numel() != rows * width:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors) or "nothing"
            raise UserError(f"{router.name} gave {shapes} for {rows} tokens, but gave {width} values a token before",
                            field="routers")  # fmt: skip
        return (tensors[place].clone() if copy else tensors[place]).reshape(rows, width)

    return Call(reading, rows_of(reading.ids, reading.top_k), rows_of(reading.weights, reading.top_k),
                rows_of(reading.logits, reading.num_experts))  # fmt: skip


def _other_order(router: Router, names: Sequence[str], place: int) -> UserError:
    expected = names[place] if place < len(names) else "no other router"
    return UserError(f"{router.name} was called where the first forward pass called {expected}: a run needs the same "
                     "steps for every token", field="routers")  # fmt: skip


def _plan(settled: Sequence[tuple[Router, Reading]], meanings: Sequence[Meaning]) -> Plan:
    """Layers, K and semantics of the run from its calls; UserError when they disagree on K."""
    slots = {reading.top_k: router.name for router, reading in settled}
    if len(slots) > 1:
        words = ", ".join(f"{name} {top_k}" for top_k, name in slots.items())
        raise UserError(f"the routers choose different numbers of experts ({words}): record those of one number at a "
                        "time with routers=", field="routers")  # fmt: skip
    layers = []
    for step, (router, reading) in enumerate(settled):
        again = f" (call {router.steps.index(step) + 1})" if len(router.steps) > 1 else ""
        layers.append(ExpertLayer(router.name + again, reading.num_experts, router.params_per_expert,
                                  router.flops_per_token))  # fmt: skip
    first, top_k = meanings[0], settled[0][1].top_k
    alike = all(meaning == first for meaning in meanings)
    scales = {reading.scale for _, reading in settled}
    notes = list(dict.fromkeys(meaning.note for meaning in meanings))
    if len(scales) > 1:
        notes.append(f"the layers were divided by different scales ({', '.join(f'{s:g}' for s in sorted(scales))})")

    def shared(name: str) -> Any:
        values = {getattr(meaning, name) for meaning in meanings}
        return values.pop() if len(values) == 1 else None

    semantics = WeightSemantics(
        score_function=shared("score_function") or "unknown", order=shared("order") or "unknown",
        renormalised=shared("renormalised"), bias=shared("bias"), scale=scales.pop() if len(scales) == 1 else 1.0,
        weights_recorded=all(r.kind != "ids" or r.weights is not None or r.logits is not None for _, r in settled),
        source="; ".join(dict.fromkeys(reading.words for _, reading in settled)),
        note="; ".join(notes) if alike else "the layers differ: " + "; ".join(notes),
    )  # fmt: skip
    return Plan(tuple(layers), top_k, semantics, tuple(settled))


def _find_ids(forward: _Forward) -> Tensor | None:
    """The model's own integer input (B, T): by name, else its first argument."""
    places: list[Mapping[str, Any]] = [forward.kwargs, *(a for a in forward.args if isinstance(a, Mapping))]
    named = [place.get(name) for place in places for name in _ID_NAMES]
    for value in [*named, *forward.args[:1]]:
        if isinstance(value, Tensor) and value.dim() in (1, 2) and not value.is_floating_point() and (
            value.dtype != torch.bool and not value.is_complex()
        ):  # fmt: skip
            return value
    return None


def _as_tensor(values: Any, name: str) -> Tensor:
    try:
        return values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name} is {type(values).__name__}, it should be a tensor or nested lists of equal length",
                        field=name) from None  # fmt: skip


def _to_host(tensor: Tensor | None) -> Tensor | None:
    # A copy also on the host: a loader may use its buffer again for the next batch.
    return None if tensor is None else tensor.detach().to("cpu", non_blocking=True, copy=True)


def _events(tensors: Sequence[Tensor | None]) -> list[torch.cuda.Event]:
    """One event for each GPU, recorded behind the copies."""
    events = []
    for device in {t.device for t in tensors if t is not None and t.is_cuda}:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        events.append(event)
    return events


def _label(value: Any) -> str | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return None if value is None else str(value)


def _trace_batch(batch: _Batch, plan: Plan) -> TraceBatch:
    """Rows of tokens, samples one after the other, padding left out.

    Raises:
        UserError: a router gave weights that are none.
    """
    steps, top_k = len(plan.layers), plan.top_k
    kind = np.uint8 if all(layer.num_experts <= 256 for layer in plan.layers) else np.int32
    ids = np.empty((batch.num_tokens, steps, top_k), dtype=kind)
    weights = np.empty((batch.num_tokens, steps, top_k), dtype=np.float32)
    entropies = np.empty((batch.num_tokens, steps), dtype=np.float32)
    for group in batch.groups:
        for target, source in ((ids, group.ids), (weights, group.weights), (entropies, group.entropies)):
            target[:, group.places] = np.moveaxis(source.numpy(), 0, 1)
    keep = np.ones(batch.shape, dtype=bool) if batch.valid is None else batch.valid.numpy()
    lengths = keep.sum(axis=1)
    rows = np.arange(batch.num_tokens)
    if batch.compact:
        if batch.transposed:
            order = np.zeros(batch.shape, dtype=np.int64)
            order.T[keep.T] = rows
            rows = order[keep]
    else:
        rows = (rows.reshape(batch.shape[::-1]).T if batch.transposed else rows.reshape(batch.shape))[keep]
    if len(rows) != batch.num_tokens or batch.transposed:
        ids, weights, entropies = ids[rows], weights[rows], entropies[rows]
    _check_weights(weights, plan)
    return TraceBatch(
        samples=[replace(s, num_tokens=int(n)) for s, n in zip(batch.samples, lengths, strict=True) if n],
        module_ids=ids, weights=np.clip(weights, 0.0, 1.0), gate_entropy=np.maximum(entropies, 0),
        flops=np.full(len(ids), plan.flops_per_token, dtype=np.float32),
        token_id=None if batch.token_ids is None else batch.token_ids.numpy()[keep].astype(np.int64),
    )  # fmt: skip


def _check_weights(weights_nSK: np.ndarray, plan: Plan) -> None:
    if not weights_nSK.size:
        return
    low, high = float(weights_nSK.min()), float(weights_nSK.max())
    if low >= -_OVER and high <= 1 + _OVER:
        return
    wrong_nS = ~((weights_nSK >= -_OVER) & (weights_nSK <= 1 + _OVER)).all(axis=2)
    step = int(wrong_nS.any(axis=0).argmax())
    name = plan.layers[step].name
    if not np.isfinite(weights_nSK[:, step]).all():
        raise UserError(f"router {name} gave NaN or infinite weights: the model or its input is damaged; nothing of "
                        "this run is kept", field="weights")  # fmt: skip
    raise UserError(
        f"router {name} gave weights from {weights_nSK[:, step].min():.4g} to {weights_nSK[:, step].max():.4g}, a run "
        "keeps weights in [0, 1]: give scale=, what the gate multiplies them by, or read=", field="scale",
    )  # fmt: skip
