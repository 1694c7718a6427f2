"""One forward pass of a recorded model: its tokens, and the copy of its decisions to the host.

Shapes: B samples, T tokens each, n tokens kept, S steps, K slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenpaths.engine.adapters.recorder.router_outputs import CallGroup, read_calls
from tokenpaths.engine.adapters.recorder.router_plan import Plan, RawCall, RouterCall
from tokenpaths.engine.adapters.recorder.user_model import BatchInfo, first_size, kept_positions, read_mask, tokens_of
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
    calls: list[RouterCall] = field(default_factory=list)
    raw: list[RawCall] = field(default_factory=list)
    """first pass only: the outputs of all candidates"""


@dataclass
class Batch:
    """A forward pass whose copies to the host are under way."""

    number: int
    """of the forward pass"""
    groups: list[CallGroup]
    num_tokens: int
    shape: tuple[int, int]
    """samples, tokens per sample, padding included; rows are samples one after the other"""
    token_ids: Tensor | None
    mask: Tensor | None
    """(B, T) as given or found; read once it has been copied, so that no step waits for it"""
    mask_was_given: bool
    samples: list[SampleRecord]
    transposed: bool
    compact: bool
    """True: the routers received only the tokens kept by the mask"""
    events: list[torch.cuda.Event]

    def ready(self) -> bool:
        return all(event.query() for event in self.events)


def batch_of(
    forward: Forward,
    *,
    renormalise: bool,
    batch_first: bool,
    rank: int | None,
    say: Callable[[str], None],
    remarks: Remarks,
) -> Batch:
    """Start the copies of one forward pass to the host.

    ``say`` receives notes on what could not be recorded, ``remarks`` counts labels that are changed or left out.

    Raises:
        UserError: routers saw different tokens, or ``Recorder.batch`` described another batch.
    """
    counts = {rows for _, _, rows in forward.calls}
    if len(counts) > 1:
        other = next(r.name for r, _, rows in forward.calls if rows != forward.calls[0][2])
        raise UserError(
            f"{forward.calls[0][0].name} saw {forward.calls[0][2]} tokens and {other} saw "
            f"{next(rows for r, _, rows in forward.calls if r.name == other)}: a run follows the same tokens "
            "through all steps, so record one kind of router at a time with routers=",
            field="routers",
        )
    rows = counts.pop()
    groups = read_calls([call for _, call, _ in forward.calls], rows, renormalise)
    info = forward.info
    token_ids, mask = tokens_of(info, forward.args, forward.named, batch_first)
    shape, compact = _shape_of(forward, rows, token_ids, mask, batch_first, say)
    if token_ids is not None and tuple(token_ids.shape) != shape:
        if info.input_ids is not None:
            raise UserError(
                f"input_ids has shape {tuple(token_ids.shape)}, but the routers saw {shape[0]} × {shape[1]} tokens",
                field="input_ids",
            )
        say(
            f"the input has {tuple(token_ids.shape)} ids, the routers saw {shape[0]} × {shape[1]} tokens: "
            "recorded without token ids"
        )
        token_ids = None
    if mask is not None and tuple(mask.shape) != shape:
        if info.mask is not None:
            raise UserError(f"mask has shape {tuple(mask.shape)}, it should be {shape}", field="mask")
        mask = None
    return Batch(
        forward.number,
        [_moved(group) for group in groups],
        rows,
        shape,
        _to_host(token_ids),
        _to_host(mask),
        info.mask is not None,
        _samples_of(forward, shape, rank, remarks),
        not batch_first,
        compact,
        _events([*(group.ids for group in groups), token_ids, mask]),
    )


def _shape_of(
    forward: Forward, rows: int, ids: Tensor | None, mask: Tensor | None, batch_first: bool, say: Callable[[str], None]
) -> tuple[tuple[int, int], bool]:
    """Number of samples and of tokens per sample; whether padding was removed before the routers."""
    for tokens in (ids, mask):
        if tokens is None:
            continue
        if tokens.numel() == rows:
            return (tokens.shape[0], tokens.shape[1]), False
        if mask is not None and tokens.shape == mask.shape:
            keep = kept_positions(mask)
            if isinstance(keep, Tensor) and int(keep.sum()) == rows:
                return (tokens.shape[0], tokens.shape[1]), True
    size = ids.shape[0] if ids is not None else first_size(forward.args, forward.kwargs, 0 if batch_first else 1)
    if size < 1 or rows % size:
        size = 1
        say(f"{rows} tokens cannot be shared among the samples of the input: each forward pass is one sample")
    return (size, rows // size), False


def _samples_of(forward: Forward, shape: tuple[int, int], rank: int | None, remarks: Remarks) -> list[SampleRecord]:
    info = forward.info
    for name, values in (("texts", info.texts), ("labels", info.labels)):
        if values is not None and len(values) != shape[0]:
            raise UserError(f"{len(values)} {name} for {shape[0]} samples: give one for each", field=name)
    process = "" if rank is None else f"rank {rank}, "
    return [
        SampleRecord(
            num_tokens=shape[1],
            label=None if info.labels is None else _label(info.labels[i], f"forward pass {forward.number}", remarks),
            text=None if info.texts is None else info.texts[i],
            source=f"{process}forward pass {forward.number}, sample {i}",
        )
        for i in range(shape[0])
    ]


def _moved(group: CallGroup) -> CallGroup:
    """Start the copies of a group's tensors to the host."""

    def there(tensor: Tensor) -> Tensor:
        return tensor.to("cpu", non_blocking=True)

    return CallGroup(
        group.places,
        there(group.ids),
        there(group.weights),
        there(group.entropies),
        there(group.margins),
        there(group.runners),
        None if group.wrong is None else there(group.wrong),
        None if group.reach is None else there(group.reach),
    )


def _to_host(tensor: Tensor | None) -> Tensor | None:
    # A copy also on the host: a loader may use its buffer again for the next batch.
    return None if tensor is None else tensor.detach().to("cpu", non_blocking=True, copy=True)


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


def trace_batch(batch: Batch, plan: Plan, say: Callable[[str], None]) -> TraceBatch:
    """Rows of tokens, samples one after the other, without padding.

    Raises:
        UserError: a router returned invalid ids or weights, or the given mask cannot be read.
    """
    steps, top_k = len(plan.layers), plan.top_k
    kind = np.uint8 if all(layer.num_experts <= 256 for layer in plan.layers) else np.int32
    ids = np.empty((batch.num_tokens, steps, top_k), dtype=kind)
    weights = np.empty((batch.num_tokens, steps, top_k), dtype=np.float32)
    entropies, margins = (np.empty((batch.num_tokens, steps), dtype=np.float32) for _ in range(2))
    runners = np.zeros((batch.num_tokens, steps), dtype=kind)
    wrong = np.zeros((batch.num_tokens, steps), dtype=bool)
    for group in batch.groups:
        for target, source in (
            (ids, group.ids),
            (weights, group.weights),
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
    _check_ids(wrong, batch.groups, plan)
    _check_weights(weights, plan)
    return TraceBatch(
        samples=[replace(s, num_tokens=int(n)) for s, n in zip(batch.samples, lengths, strict=True) if n],
        module_ids=ids,
        weights=np.clip(weights, 0.0, 1.0),
        gate_entropy=np.maximum(entropies, 0),
        margin=margins,
        runner_up=runners,
        flops=np.full(len(ids), plan.flops_per_token, dtype=np.float32),
        token_id=None if batch.token_ids is None else batch.token_ids.numpy()[keep].astype(np.int64),
    )


def _check_ids(wrong_nS: np.ndarray, groups: Sequence[CallGroup], plan: Plan) -> None:
    if not wrong_nS.any():
        return
    step = int(wrong_nS.any(axis=0).argmax())
    layer = plan.layers[step]
    reach = next(
        group.reach[group.places.index(step)].tolist()
        for group in groups
        if step in group.places and group.reach is not None
    )
    raise UserError(
        f"router {layer.name} gave ids from {reach[0]} to {reach[1]} for {int(wrong_nS[:, step].sum())} tokens, it has "
        f"the experts 0 … {layer.num_experts - 1}: give num_experts= if there are more, or read= if another number "
        "means that a token was dropped",
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
