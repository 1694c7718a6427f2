"""One forward pass of a recorded model: its tokens, and the copy of its decisions to the host.

Shapes: B samples, T tokens each, n tokens kept, S steps, K slots.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenpaths.engine.adapters.recorder.joined_texts import Piece
from tokenpaths.engine.adapters.recorder.pass_caches import Continued, GivenCache
from tokenpaths.engine.adapters.recorder.pass_tokens import PIECES, Say, packed_texts, read_mask, tokens_of_pass
from tokenpaths.engine.adapters.recorder.routers.choice_verification import ExpertRows, rows_of
from tokenpaths.engine.adapters.recorder.routers.router_outputs import CallGroup, read_calls
from tokenpaths.engine.adapters.recorder.routers.router_plan import (
    Plan,
    RawCall,
    RouterCall,
    called_later,
    other_order,
    rows_of_call,
)
from tokenpaths.engine.adapters.recorder.routers.router_search import Router
from tokenpaths.engine.adapters.recorder.user_model import BatchInfo
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord, TraceBatch
from tokenpaths.engine.data.labels import Remarks, read_label

_OVER = 1e-3
"""tolerance of weights outside [0, 1]: half precision"""


@dataclass
class Forward:
    """A forward pass in progress."""

    number: int
    info: BatchInfo
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    named: dict[str, Any]
    """inputs by name, including positional ones"""
    given: GivenCache
    expert_rows: ExpertRows = field(default_factory=dict)
    """rows that the watched experts received so far"""
    calls: list[RouterCall] = field(default_factory=list)
    raw: list[RawCall] = field(default_factory=list)
    """the outputs of all candidates, until the first pass to end has settled how they are read"""
    calls_itself: bool = False
    """whether the model was called inside this pass"""
    received: tuple[int, ...] = ()
    """shape of the first input of a router, of three axes if there is one"""

    def rows_of_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Number of tokens that a router received."""
        if args and isinstance(args[0], Tensor) and len(self.received) < args[0].dim() <= 3:
            self.received = tuple(args[0].shape)
        return rows_of(args, kwargs)

    @property
    def says_nothing(self) -> bool:
        """Whether all that it did was the passes inside it, or an empty batch shows nothing of how routers are read."""
        if not (self.calls or self.raw):
            return self.calls_itself
        return not self.calls and not any(rows for _, _, rows in self.raw)

    def take(self, plan: Plan, router: Router, tensors: Sequence[Tensor], rows: int, *, copy: bool) -> None:
        """Keep the output of a router as the plan has it.

        Raises:
            UserError: the plan has another router at this place, or an output of another shape.
        """
        place, expected = len(self.calls), plan.calls
        # The candidates that were passed over at first are still watched where they stand inside others.
        if not any(earlier.module is router.module for earlier, _ in expected):
            if any(router.module in (late.module, late.around and late.around.module) for late in plan.uncalled):
                raise called_later(router)
            return
        if place >= len(expected) or expected[place][0].module is not router.module:
            raise other_order(router, [earlier.name for earlier, _ in expected], place)
        self.calls.append((router, rows_of_call(tensors, expected[place][1], rows, router, copy=copy), rows))

    def read(self, plan: Plan) -> None:
        """Keep what routers gave before there was a plan: this pass is around the first one to end."""
        for router, tensors, rows in self.raw:
            self.take(plan, router, tensors, rows, copy=False)

    def check_whole(self, plan: Plan) -> None:
        """UserError if the pass left out a router."""
        if len(self.calls) != len(plan.calls):
            missing = plan.calls[len(self.calls)][0].name
            raise UserError(
                f"it called {len(self.calls)} routers, the first one {len(plan.calls)}: {missing} was left out; a run "
                "needs every step of every token",
                field="routers",
            )


@dataclass
class Batch:
    """A forward pass whose copies to the host are under way."""

    number: int
    """of the forward pass"""
    groups: list[CallGroup]
    num_tokens: int
    shape: tuple[int, int]
    """of its ``PassTokens``, like the next four"""
    token_ids: Tensor | None
    mask: Tensor | None
    compact: bool
    places: Tensor | None
    mask_was_given: bool
    samples: list[SampleRecord]
    transposed: bool
    expert_rows: ExpertRows
    continued: Continued | None
    continues: bool | None
    """what the caller says of it"""
    events: list[torch.cuda.Event]

    def ready(self) -> bool:
        return all(event.query() for event in self.events)

    def chosen(self, place: int) -> np.ndarray:
        """Tokens that a call sends to each expert (M,), where they were counted."""
        group = next(group for group in self.groups if place in group.places)
        assert group.counts is not None
        return group.counts[group.places.index(place)].numpy()


def batch_of(
    forward: Forward,
    *,
    renormalise: bool,
    batch_first: bool,
    rank: int | None,
    parameters: Collection[str],
    counted: bool,
    say: Say,
    remarks: Remarks,
) -> Batch:
    """Start the copies of one forward pass to the host.

    ``say`` receives notes on what could not be recorded, ``remarks`` counts labels that are changed or left out.
    ``parameters`` are the names of the model's inputs; ``counted``: the tokens of each expert are needed.

    Raises:
        UserError: routers saw different tokens, or ``Recorder.batch`` described another batch.
    """
    counts = {rows for _, _, rows in forward.calls}
    times = max(Counter(id(router.module) for router, _, _ in forward.calls).values())
    if len(counts) > 1:
        other = next(r.name for r, _, rows in forward.calls if rows != forward.calls[0][2])
        if other == forward.calls[0][0].name:
            each = [rows for router, _, rows in forward.calls if router.name == other]
            raise UserError(f"{other} was called with {', '.join(map(str, each))} tokens: {PIECES}", field="routers")
        raise UserError(
            f"{forward.calls[0][0].name} saw {forward.calls[0][2]} tokens and {other} saw "
            f"{next(rows for r, _, rows in forward.calls if r.name == other)}: a run follows the same tokens "
            "through all steps, so record one kind of router at a time with routers=",
            field="routers",
        )
    rows = counts.pop()
    groups = read_calls([call for _, call, _ in forward.calls], rows, renormalise, counted)
    info = forward.info
    tokens = tokens_of_pass(
        rows,
        info,
        forward.args,
        forward.kwargs,
        forward.named,
        parameters,
        batch_first=batch_first,
        past=forward.given.past,
        say=say,
        received=forward.received,
        times=times,
    )
    return Batch(
        forward.number,
        [_moved(group) for group in groups],
        rows,
        tokens.shape,
        None if tokens.ids is None else _to_host(tokens.ids),
        None if tokens.mask is None else _to_host(tokens.mask),
        tokens.compact,
        None if tokens.places is None else _to_host(tokens.places),
        info.mask is not None,
        _samples_of(forward, tokens.shape, rank, say, remarks),
        not batch_first,
        forward.expert_rows,
        forward.given.continued,
        info.continues,
        _events([*(group.ids for group in groups), tokens.ids, tokens.mask, tokens.places]),
    )


def _samples_of(
    forward: Forward, shape: tuple[int, int], rank: int | None, say: Say, remarks: Remarks
) -> list[SampleRecord]:
    info = forward.info
    texts, labels = (
        _for_each_sample(name, values, shape[0], forward, say)
        for name, values in (("texts", info.texts), ("labels", info.labels))
    )
    process = "" if rank is None else f"rank {rank}, "
    return [
        SampleRecord(
            num_tokens=shape[1],
            label=None if labels is None else _label(labels[i], f"forward pass {forward.number}", remarks),
            text=None if texts is None else texts[i],
            source=f"{process}forward pass {forward.number}, sample {i}",
        )
        for i in range(shape[0])
    ]


def _for_each_sample(
    name: str, values: Sequence[Any] | None, samples: int, forward: Forward, say: Say
) -> Sequence[Any] | None:
    """What the caller said of each sample; of each prompt, where ``generate`` has several samples of each."""
    if values is None or (not isinstance(values, str) and len(values) == samples):
        return values
    if isinstance(values, str):
        raise UserError(f"{name} is {values[:40]!r}: give a list with one for each sample", field=name)
    generates = forward.given.cache is not None or forward.named.get("use_cache") or _inside_generate()
    if generates and len(values) and not samples % len(values):
        times = samples // len(values)
        say(
            f"{name} of prompts",
            f"forward pass {forward.number} has {samples} samples and {len(values)} {name}: each is that of {times} "
            "samples one after the other, as generate() makes them for beams and num_return_sequences",
        )
        return [value for value in values for _ in range(times)]
    raise UserError(f"{len(values)} {name} for {samples} samples: give one for each", field=name)


def _inside_generate() -> bool:
    """Whether a method called ``generate`` is at work: without a cache, its passes look like those of a training."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "generate":
            return True
        frame = frame.f_back
    return False


def _moved(group: CallGroup) -> CallGroup:
    """Start the copies of a group's tensors to the host."""

    def there(tensor: Tensor) -> Tensor:
        return tensor.to("cpu", non_blocking=_has_events(tensor))

    def there_too(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else there(tensor)

    return CallGroup(
        group.places,
        there(group.ids),
        there(group.weights),
        there(group.entropies),
        there(group.margins),
        there(group.runners),
        there_too(group.wrong),
        there_too(group.reach),
        there_too(group.counts),
    )


def _to_host(tensor: Tensor) -> Tensor:
    # A copy also on the host: a loader may use its buffer again for the next batch.
    return tensor.detach().to("cpu", non_blocking=_has_events(tensor), copy=True)


def _has_events(tensor: Tensor) -> bool:
    """Whether ``_events`` tells when a copy has arrived; on other devices (MPS, XPU) a copy is waited for."""
    return tensor.is_cuda


def _events(tensors: Sequence[Tensor | None]) -> list[torch.cuda.Event]:
    """One event per GPU, recorded after the copies."""
    events = []
    for device in {t.device for t in tensors if t is not None and t.is_cuda}:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        events.append(event)
    return events


def _label(value: Any, where: str, remarks: Remarks) -> str | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    label, kinds = read_label(value)
    remarks.add(kinds, where)
    return label


def piece_of(batch: Batch, plan: Plan, say: Say) -> Piece:
    """Rows of tokens, samples one after the other, without padding.

    Raises:
        UserError: a router returned invalid ids or weights, or the given mask cannot be read.
    """
    steps, top_k = len(plan.layers), plan.top_k
    kind = np.uint8 if plan.num_modules <= 256 else np.int32
    ids = np.empty((batch.num_tokens, steps, top_k), dtype=kind)
    weights = np.zeros((batch.num_tokens, steps, top_k), dtype=np.float32)
    entropies, margins = (np.empty((batch.num_tokens, steps), dtype=np.float32) for _ in range(2))
    runners = np.zeros((batch.num_tokens, steps), dtype=kind)
    wrong = np.zeros((batch.num_tokens, steps), dtype=bool)
    for group in batch.groups:
        slots, places = group.ids.shape[2], group.places
        ids[:, places, :slots] = np.moveaxis(group.ids.numpy(), 0, 1)
        weights[:, places, :slots] = np.moveaxis(group.weights.numpy(), 0, 1)
        if slots < top_k:  # the layer has fewer slots than another
            size = plan.calls[places[0]][1].num_experts
            used = (ids[:, places, :slots] < size).sum(axis=2, keepdims=True)
            ids[:, places, slots:] = size + np.arange(slots, top_k) - used
        for target, source in (
            (entropies, group.entropies),
            (margins, group.margins),
            (runners, group.runners),
            (wrong, group.wrong),
        ):
            if source is not None:
                target[:, group.places] = np.moveaxis(source.numpy(), 0, 1)
    mask = None if batch.mask is None else read_mask(batch.mask, batch.mask_was_given, say)
    keep = np.ones(batch.shape, dtype=bool) if mask is None else mask.numpy()
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
        ids, weights, entropies, wrong = ids[rows], weights[rows], entropies[rows], wrong[rows]
        margins, runners = margins[rows], runners[rows]
    # Padding may hold anything; it has been left out.
    _check_weights(weights, plan)
    _check_ids(wrong, batch.groups, plan)
    for step in plan.sparse_steps:
        # Unused slots have the ids behind the experts of all layers.
        ids[:, step] += ids.dtype.type(plan.unused_from - plan.layers[step].num_experts) * (
            ids[:, step] >= plan.layers[step].num_experts
        )
    trace = TraceBatch(
        samples=[replace(s, num_tokens=int(n)) for s, n in zip(batch.samples, lengths, strict=True)],
        module_ids=ids,
        weights=np.clip(weights, 0.0, 1.0),
        gate_entropy=np.maximum(entropies, 0),
        margin=margins,
        runner_up=runners,
        flops=plan.flops(ids),
        token_id=None if batch.token_ids is None else batch.token_ids.numpy()[keep].astype(np.int64),
    )
    return Piece(batch.number, trace, keep, packed_texts(batch.places, keep, say))


def _check_ids(wrong_nS: np.ndarray, groups: Sequence[CallGroup], plan: Plan) -> None:
    if not wrong_nS.any():
        return
    step = int(wrong_nS.any(axis=0).argmax())
    layer, number = plan.layers[step], int(wrong_nS[:, step].sum())
    if plan.calls[step][1].kind == "sparse":
        raise UserError(
            f"router {layer.name} gave more than {plan.top_k} scores that are not zero, or scores below 0, for "
            f"{number} tokens, so its choice cannot be told from them as in the first forward pass: give read=",
            field="read",
        )
    reach = next(
        group.reach[group.places.index(step)].tolist()
        for group in groups
        if step in group.places and group.reach is not None
    )
    raise UserError(
        f"router {layer.name} gave ids from {reach[0]} to {reach[1]} for {number} tokens, it has "
        f"the experts 0 … {layer.num_experts - 1}: give num_experts= if there are more, or read= if another number "
        "means that a token was dropped: there −1 says so",
        field="num_experts",
    )


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
        raise UserError(
            f"router {name} gave NaN or infinite weights: the model or its input is damaged", field="weights"
        )
    raise UserError(
        f"router {name} gave weights from {weights_nSK[:, step].min():.4g} to {weights_nSK[:, step].max():.4g}, a run "
        "keeps weights in [0, 1]: give scale=, what the gate multiplies them by, or read=",
        field="scale",
    )
