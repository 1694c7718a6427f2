"""Bans in Hugging Face mixtures of experts: a gate chooses among the experts that are left, by its own rules.

A gate's scores are masked where its code turns them into a choice: whatever it sends through softmax, sigmoid,
top-k or a maximum over all experts holds −∞ for those that are banned. So their probability is 0 and they are never
picked, and what comes after (renormalising, biases, groups, scales) is the model's own code. What was really picked is
read by the hooks that trace the model: a gate whose choice cannot be changed so is refused.

Shapes: n tokens, S gates (the steps), K slots, M experts, V vocabulary entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tokenpaths.engine.adapters.huggingface import tracing as hf
from tokenpaths.engine.adapters.huggingface.gates import Gate
from tokenpaths.engine.adapters.huggingface.loading import HuggingFaceModel
from tokenpaths.engine.analysis.route_changes import RouteChange, edited_steps
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.progress import followed
from tokenpaths.engine.base.records import RunInfo
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.edits.expert_controls import ExpertControls, ban_plan, read_controls
from tokenpaths.engine.edits.measure import OutputChange, effect_answer, likeliest
from tokenpaths.engine.edits.sweep import share_rows
from tokenpaths.engine.families.edit_plan import RoutePlan
from tokenpaths.engine.families.edit_values import Edit
from tokenpaths.engine.models.family import read_controls_of
from tokenpaths.engine.tracing.trace_run import TraceProgress, new_run_id

__all__ = [
    "ExpertControls",
    "banned_experts",
    "banned_parts",
    "check_banned",
    "edits_of",
    "edits_of_share",
    "measure_bans",
    "plan_bans",
    "read_controls",
    "trace_banned",
    "usage_of_experts",
    "what_follows",
]
_ALL_SCORES = {
    torch.softmax,
    F.softmax,
    Tensor.softmax,
    torch.sigmoid,
    torch.sigmoid_,
    Tensor.sigmoid,
    Tensor.sigmoid_,
    F.sigmoid,
    torch.topk,
    Tensor.topk,
    torch.sort,
    Tensor.sort,
    torch.argsort,
    Tensor.argsort,
}
_ALONG = {torch.max, Tensor.max, torch.argmax, Tensor.argmax}
"""only where they are given a dimension"""


def edits_of(
    loaded: HuggingFaceModel, controls: ExpertControls, samples: Sequence[Sample], *, budget: int = 4096
) -> tuple[dict[str, Any], ...]:
    """The bans that controls stand for: those given, or a share of each layer's experts by how ``samples`` use them.

    Raises:
        UserError: too few experts would be left, or an expert that is not there; a sample without text.
    """
    if controls.ban_share is not None:
        return edits_of_share(loaded, controls, usage_of_experts(loaded, samples, budget=budget))
    edits = tuple(edit.model_dump(exclude_none=True) for edit in controls.edits or ())
    plan_bans(loaded.gates, edits)
    return edits


def edits_of_share(
    loaded: HuggingFaceModel, controls: ExpertControls, usage: Int[np.ndarray, "S M"]
) -> tuple[dict[str, Any], ...]:
    """The bans that ``ban_share`` stands for where tokens chose the experts ``usage`` times, unedited.

    Raises:
        UserError: no expert of any layer can be banned.
    """
    assert controls.ban_share is not None
    choices = [range(gate.num_choices) for gate in loaded.gates]
    try:
        rows = share_rows(usage, [controls.ban_share], choices, loaded.gates[0].top_k, controls.seed or 0)
    except UserError as error:
        raise UserError(str(error), field="ban_share") from None
    edits = next(row.edits for row in rows if row.which == (controls.which or "top"))
    plan_bans(loaded.gates, edits)
    return edits


def plan_bans(gates: Sequence[Gate], edits: Sequence[Mapping[str, Any]] | Sequence[Edit]) -> RoutePlan:
    """The experts that each gate may not choose.

    Raises:
        UserError: no edit, one that is no ban, an expert or a layer that is not there, too few experts left.
    """
    choices = tuple(tuple(range(gate.num_choices)) for gate in gates)
    return ban_plan(edits, choices, gates[0].top_k)


class _Masked(TorchFunctionMode):
    """While it lasts, scores over all choices hold −∞ for the banned ones wherever they are compared."""

    def __init__(self, banned: Sequence[int], num_choices: int) -> None:
        super().__init__()
        self._banned, self._num_choices = list(banned), num_choices

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and (func in _ALL_SCORES or func in _ALONG and (len(args) > 1 or kwargs)):
            args = (self._hidden(args[0]), *args[1:])
        return func(*args, **kwargs)

    def _hidden(self, scores: Any) -> Any:
        if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.dim() == 0:
            return scores
        if scores.shape[-1] != self._num_choices:
            return scores
        hidden = scores.clone()
        hidden[..., self._banned] = float("-inf")
        return hidden


@contextmanager
def banned_experts(gates: Sequence[Gate], plan: RoutePlan) -> Iterator[None]:
    """Every forward pass in here chooses among the experts that are left.

    Raises:
        UserError: a gate that decides at two layers and is to be changed at one of them.
    """
    wanted: dict[int, tuple[nn.Module, frozenset[int], Gate]] = {}
    for gate, step in zip(gates, plan.steps, strict=True):
        owner = gate.block if gate.at_experts else gate.module
        banned = frozenset() if step is None else step.banned
        if id(owner) in wanted and wanted[id(owner)][1] != banned:
            raise UserError(
                f"{gate.name} decides at more than one layer; ban the same experts at each of them", field="edits"
            )
        wanted[id(owner)] = (owner, banned, gate)
    with ExitStack() as stack:
        for owner, banned, gate in wanted.values():
            if banned:
                stack.enter_context(_masked_forward(owner, sorted(banned), gate.num_choices))
        yield


@contextmanager
def _masked_forward(owner: nn.Module, banned: list[int], num_choices: int) -> Iterator[None]:
    there, forward = "forward" in vars(owner), owner.forward

    def masked(*args: Any, **kwargs: Any) -> Any:
        with _Masked(banned, num_choices):
            return forward(*args, **kwargs)

    owner.forward = masked  # type: ignore[method-assign]
    try:
        yield
    finally:
        if there:
            owner.forward = forward  # type: ignore[method-assign]
        else:
            del owner.forward


def check_banned(ids: Any, gates: Sequence[Gate], plan: RoutePlan) -> None:
    """Refuse a pass in which a gate chose a banned expert all the same (one that looks experts up, for example).

    ``ids`` is what was chosen, (n, S, K).

    Raises:
        UserError: names the gate.
    """
    for step, (gate, part) in enumerate(zip(gates, plan.steps, strict=True)):
        for module in sorted(part.banned) if part is not None else ():
            if bool((ids[:, step] == module).any()):
                raise UserError(
                    f"{gate.name} ({type(gate.module).__name__}) chose expert {module} though it is banned: its choice "
                    "is not made by scores over all experts, so it cannot be edited",
                    field="edits",
                )


def measure_bans(
    loaded: HuggingFaceModel, samples: Iterable[Sample], edits: Sequence[Mapping[str, Any]], *, budget: int = 4096
) -> dict[str, Any]:
    """What bans change of a model over texts: the same answer as ``tokenpaths.engine.edits.measure.measure_effect``.

    Raises:
        UserError: edits that do not fit the model, a gate that cannot be edited, no text.
    """
    plan = plan_bans(loaded.gates, edits)
    outputs = OutputChange()
    edited = edited_steps(edit.get("step") for edit in edits)
    routes = RouteChange(max(gate.num_choices for gate in loaded.gates), edited)
    windows, count = _windows(loaded, samples)
    top5: dict[str, Any] = {}
    for part in hf._alike(windows, budget, len(loaded.tokenizer.before)):
        inputs, attended, keep, targets = hf._padded([windows[i] for i in part], loaded.tokenizer.before)
        passes = [hf._decisions(loaded.model, loaded.gates, loaded.device, inputs, attended, keep)]
        with banned_experts(loaded.gates, plan):
            passes.append(hf._decisions(loaded.model, loaded.gates, loaded.device, inputs, attended, keep))
        check_banned(passes[1][0].ids, loaded.gates, plan)
        before, after = (logits[keep.to(logits.device)] for _, logits in passes)
        outputs.add(before, after, targets[keep])
        routes.add(passes[0][0].ids.numpy(), passes[1][0].ids.numpy())
        top5 |= what_follows(loaded, windows, part, (before, after)) if count == 1 else {}
    return effect_answer(outputs, routes, num_samples=count, text=True, edits=_read(edits)) | top5


def what_follows(
    loaded: HuggingFaceModel, windows: Sequence[Any], part: Sequence[int], both: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    """``top5`` of an effect: the likeliest tokens behind the end of a text, before and after; nothing where the pass of
    the windows ``part`` does not hold the end. ``both`` are logits (n, V) of the tokens of these windows."""
    last = len(windows) - 1
    if last not in part:
        return {}
    row = sum(len(windows[number].ids) for number in part[: part.index(last) + 1]) - 1
    names = loaded.tokenizer.token_texts()
    sides = zip(("before", "after"), both, strict=True)
    return {"top5": {when: likeliest(logits[row], names) for when, logits in sides}}


def usage_of_experts(loaded: HuggingFaceModel, samples: Iterable[Sample], *, budget: int = 4096) -> np.ndarray:
    """How many tokens chose each expert of each layer, unedited: (S, M), as
    ``tokenpaths.engine.edits.sweep.share_rows`` takes it.

    Raises:
        UserError: no text.
    """
    counts = np.zeros((len(loaded.gates), max(gate.num_choices for gate in loaded.gates)), dtype=np.int64)
    windows, _ = _windows(loaded, samples)
    for part in hf._alike(windows, budget, len(loaded.tokenizer.before)):
        inputs, attended, keep, _ = hf._padded([windows[i] for i in part], loaded.tokenizer.before)
        recorded, _ = hf._decisions(loaded.model, loaded.gates, loaded.device, inputs, attended, keep)
        for step in range(len(loaded.gates)):
            counts[step] += np.bincount(recorded.ids[:, step].numpy().ravel(), minlength=counts.shape[1])
    return counts


def trace_banned(
    loaded: HuggingFaceModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    edits: Sequence[Mapping[str, Any]],
    *,
    run_id: str | None = None,
    dataset: str = "upload",
    split: str = "",
    batch_size: int = 64,
    total: int | None = None,
    overwrite: bool = False,
    effect: Mapping[str, Any] | None = None,
    on_progress: Callable[[TraceProgress], None] = lambda p: None,
) -> Path:
    """Trace texts through a model under bans into a run that says so; returns its path.

    ``effect`` is kept with the run (``measure_bans``). ``batch_size`` counts stretches of 64 tokens. An exception on
    the way leaves no file behind.

    Raises:
        UserError: edits that do not fit the model, a gate that cannot be edited, a sample that cannot be traced, or
            the run id is taken.
    """
    info = hf.run_info(loaded, run_id or new_run_id(loaded.name.rsplit("/", 1)[-1], f"after {dataset}"), dataset, split)
    found = {} if effect is None else {"effect": dict(effect)}
    parts = banned_parts(
        loaded,
        samples,
        runs_dir,
        edits,
        replace(info, findings=info.findings | found),
        batch_size=batch_size,
        total=total,
        overwrite=overwrite,
    )
    return followed(parts, on_progress)


def banned_parts(
    loaded: HuggingFaceModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    edits: Sequence[Mapping[str, Any]],
    info: RunInfo,
    *,
    batch_size: int = 64,
    total: int | None = None,
    overwrite: bool = False,
) -> Generator[TraceProgress, None, Path]:
    """``trace_banned`` pass by pass: yields after each forward pass, between which the gates are as they were, and
    returns the run's path. Closing it early (``close()``) leaves no file behind.

    ``info`` is that of the unchanged run; its configuration gets the bans.

    Raises:
        UserError: as ``trace_banned``; edits that do not fit are refused at once.
    """
    plan = plan_bans(loaded.gates, edits)
    controls = {"edits": json.loads(json.dumps([edit.model_dump(exclude_none=True) for edit in _read(edits)]))}
    return hf.trace_parts(
        # The untrained twin is the null of the model as it is, not of an edited one.
        replace(loaded, twin=None),
        samples,
        runs_dir,
        replace(info, config=info.config | {"controls": controls}),
        batch_size=batch_size,
        total=total,
        overwrite=overwrite,
        changed=lambda: banned_experts(loaded.gates, plan),
        check=lambda batch: check_banned(batch.module_ids, loaded.gates, plan),
    )


def _read(edits: Sequence[Mapping[str, Any]]) -> tuple[Edit, ...]:
    return read_controls_of(ExpertControls, {"edits": [dict(edit) for edit in edits]}, "moe").edits or ()


def _windows(loaded: HuggingFaceModel, samples: Iterable[Sample]) -> tuple[list[Any], int]:
    windows, count = [], 0
    for sample in samples:
        if not sample.text:
            raise UserError(f"{sample.source or 'the sample'} holds no text", field="text")
        windows += hf._windows(loaded.tokenizer.encode(sample.text).ids, loaded.context)
        count += 1
    if not windows:
        raise UserError("the data set holds no sample, so there is nothing to measure", field="data")
    return windows, count
