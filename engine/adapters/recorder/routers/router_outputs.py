"""Reading of a router's output: which of its tensors are ids, weights and logits.

The reading is settled once, on the first output of each router, and applied to all later ones; ``weight_meaning`` says
what the weights mean.
Shapes: n tokens (rows of the router's input), K slots, M experts, S calls of routers in one forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.family import margins_of

_SUM = 0.01
"""tolerance of the sum of probabilities: bfloat16 has 8 bits"""
ABSENT = torch.empty(0)
"""stands for None among the tensors of an output"""
STACKED_ELEMENTS = 1 << 24
"""logits processed at a time, so that wide routers at many layers need no second copy of all of them"""


@dataclass(frozen=True)
class Reading:
    """Position of the decision among the tensors of an output."""

    kind: Literal["ids", "logits", "probabilities", "sparse", "callable"]
    num_experts: int
    top_k: int
    ids: int | None = None
    weights: int | None = None
    logits: int | None = None
    """for kind ids: logits beside the decision, for the entropy"""
    scale: float = 1.0
    entropy: bool = False
    """whether the softmax of the logits is the router's distribution, so that its entropy is defined"""
    drops: bool = False
    """for ids: whether -1 stands for a slot that a token did not use"""
    mask: bool = False
    """for ids: whether they are given as a mask of the chosen experts (n, M)"""

    @property
    def recomputed(self) -> bool:
        """Whether the choice is recomputed by the recorder, as top-k of the router's output."""
        return self.kind in ("logits", "probabilities")

    @property
    def may_be_unused(self) -> bool:
        """Whether a token may use fewer than K experts."""
        return self.kind == "sparse" or self.drops

    @property
    def words(self) -> str:
        if self.kind == "ids":
            beside = "ids and weights" if self.weights is not None else "ids"
            if self.mask:
                return f"{beside} by the gate's mask of the chosen, top {self.top_k} of {self.num_experts}"
            dropped = ", -1 for a slot that was not used" if self.drops else ""
            return f"{beside} as the gate gives them, top {self.top_k} of {self.num_experts}{dropped}"
        if self.kind == "callable":
            return f"ids and weights from read=, top {self.top_k} of {self.num_experts}"
        if self.kind == "sparse":
            return f"scores that are zero but for the {self.top_k} chosen of {self.num_experts}, as given"
        return f"{self.kind} over {self.num_experts} experts; the top {self.top_k} recomputed"


@dataclass(frozen=True)
class Call:
    """The stored tensors of one call of one router."""

    reading: Reading
    ids: Tensor | None
    weights: Tensor | None
    logits: Tensor | None


@dataclass(frozen=True)
class CallGroup:
    """The decisions of several calls of one forward pass."""

    places: list[int]
    """indices of the calls, in the order of the forward pass"""
    ids: Tensor
    """(g, n, K); from ``num_experts`` of the reading on: a slot that a token did not use"""
    weights: Tensor
    """(g, n, K)"""
    entropies: Tensor
    """(g, n)"""
    margins: Tensor
    """(g, n), ``family.margins_of``, NaN where the entropy is"""
    runners: Tensor
    """(g, n), modules of the next score"""
    wrong: Tensor | None = None
    """(g, n), True for ids that are no expert of the router, and for scores that are not sparse; ``ids`` is undefined
    there. None: not possible"""
    reach: Tensor | None = None
    """(g, 2), the smallest and the largest id of each call, as given"""
    counts: Tensor | None = None
    """(g, M), tokens sent to each expert; None: not asked for"""


def tensors_of(output: Any, absent: Tensor | None = None) -> list[Tensor]:
    """All tensors of an output in order: of a tensor, a tuple, a mapping or a dataclass.

    ``absent`` stands where an output has None, so that what is behind it keeps its place.
    """
    if isinstance(output, Tensor):
        return [output]
    if output is None:
        return [] if absent is None else [absent]
    if is_dataclass(output) and not isinstance(output, type):
        # Those of transformers are mappings, too, of what is not None.
        parts: Sequence[Any] = [getattr(output, f.name) for f in fields(output)]
    elif isinstance(output, Mapping):
        parts = list(output.values())
    elif isinstance(output, (tuple, list)):
        parts = output
    else:
        return []
    return [tensor for part in parts for tensor in tensors_of(part, absent)]


def find_reading(
    tensors: Sequence[Tensor], rows: int, num_experts: int | None, top_k: int | None, scale: float | None
) -> Reading | str:
    """How to read such an output, or a message why it holds no decision.

    ``rows`` is the number of tokens that the router received. Ids are preferred to logits.
    """
    wide = [i for i, t in enumerate(tensors) if t.is_floating_point() and _width(t, rows) is not None]
    if num_experts is None:
        widths = {_width(tensors[i], rows) for i in wide} - {1, top_k}
        num_experts = max((w for w in widths if w), default=None)
    problem = "its output holds no integers"
    for i, tensor in enumerate(tensors):
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            continue
        slots = _width(tensor, rows)
        problem = _no_ids(tensor, rows, slots, num_experts, top_k) or ""
        if problem or slots is None:
            continue
        if num_experts is None:
            return (
                f"it gives ids up to {int(tensor.max())} in the first forward pass, but it cannot be told of how "
                "many experts: give num_experts="
            )
        equal = [j for j in wide if _width(tensors[j], rows) == slots]
        # (logits, weights, ids) of a gate that chooses all its experts: the weights stand nearer to the ids.
        weights = equal[-1] if equal and (slots < num_experts or len(equal) > 1) else None
        logits = next((j for j in wide if j != weights and _width(tensors[j], rows) == num_experts), None)
        drops = bool((tensor.detach() < 0).any())
        return Reading("ids", num_experts, slots, i, weights, logits, scale or 1.0, drops=drops)
    if num_experts is None:
        return f"{problem or 'its output holds no ids'}, and it cannot be told how many experts it has"
    scores = [i for i in wide if _width(tensors[i], rows) == num_experts]
    sparse = top_k is not None and any(
        _is_sparse(tensors[i].detach().reshape(rows, num_experts), top_k) for i in scores
    )
    for i, tensor in enumerate(tensors):
        if top_k is not None and not sparse and _is_mask(tensor, rows, num_experts, top_k):
            weights = next((j for j in wide if top_k == 1 and _width(tensors[j], rows) == 1), None)
            logits = scores[0] if scores else None
            return Reading("ids", num_experts, top_k, i, weights, logits, scale or 1.0, drops=True, mask=True)
    if not scores:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors if t.shape != ABSENT.shape) or "nothing"
        return f"{problem}, and none of its outputs ({shapes}) is {rows} tokens × {num_experts} experts"
    if top_k is None:
        return f"it gives scores for {num_experts} experts, but no top_k stands on it, beside it or in a configuration"
    if top_k > num_experts:
        raise UserError(f"top_k is {top_k}, but a router has {num_experts} experts only", field="top_k")
    kinds = {i: _kind_of_scores(tensors[i].detach().reshape(rows, num_experts), top_k) for i in scores}
    for kind in ("sparse", "logits", "probabilities"):
        for i in scores:
            if kinds[i] == kind:
                applied = (scale or 1.0) if kind == "sparse" else 1.0
                return Reading(kind, num_experts, top_k, logits=i, scale=applied)  # type: ignore[arg-type]
    raise AssertionError("every tensor of scores has a kind")


def _width(tensor: Tensor, rows: int) -> int | None:
    """Number of values per token (last axis) of a tensor with ``rows`` tokens; None for other shapes."""
    if rows < 1 or tensor.dim() == 0 or tensor.numel() == 0 or tensor.numel() % rows:
        return None
    width = tensor.numel() // rows
    return width if width == 1 or tensor.shape[-1] == width else None


def _no_ids(tensor: Tensor, rows: int, slots: int | None, num_experts: int | None, top_k: int | None) -> str | None:
    """Why integers are not ids of chosen experts; None: they are."""
    if slots is None:
        return f"its integers have shape {tuple(tensor.shape)}, not {rows} tokens × slots"
    if top_k is not None and slots != top_k:
        return f"its integers have {slots} values a token, top_k is {top_k}"
    if num_experts is not None and slots > num_experts:
        return f"its integers have {slots} values a token, more than its {num_experts} experts"
    values = tensor.detach().reshape(rows, slots)
    low, high = int(values.min()), int(values.max())
    # -1 in some slots: the token was dropped by an expert that is full.
    if low < -1 or high < 0 or (num_experts is not None and high >= num_experts):
        return f"its integers reach from {low} to {high}, which are no ids of {num_experts or 'any'} experts"
    ordered = values.sort(dim=1).values
    if slots > 1 and bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any()):
        return "its integers repeat within a token, so they are no ids"
    return None


def _is_mask(tensor: Tensor, rows: int, num_experts: int, top_k: int) -> bool:
    """Whether integers or booleans are 1 for the chosen experts of each token; fewer than K: it was dropped."""
    if tensor.is_floating_point() or tensor.is_complex() or _width(tensor, rows) != num_experts or top_k >= num_experts:
        return False
    values = tensor.detach().reshape(rows, num_experts)
    return bool(((values == 0) | (values == 1)).all()) and int(values.sum(dim=1).max()) == top_k


def ids_of_mask(mask_nM: Tensor, top_k: int) -> Tensor:
    """Ids (n, K) of the experts whose place holds 1, -1 behind them; M, which is no id, where there are more than K."""
    chosen_nK, ids_nK = mask_nM.to(torch.int32).topk(top_k, dim=1)
    ids_nK = ids_nK.masked_fill(chosen_nK == 0, -1)
    too_many_n = (mask_nM != 0).sum(dim=1, keepdim=True) > top_k
    return ids_nK.masked_fill(too_many_n, mask_nM.shape[1])


def _is_sparse(scores: Tensor, top_k: int) -> bool:
    chosen = (scores != 0).sum(dim=1)
    # Fewer than K: a token was dropped, by one expert that is full or by all of them.
    return top_k < scores.shape[1] and 0 < int(chosen.max()) <= top_k and bool((scores >= 0).all())


def _kind_of_scores(scores: Tensor, top_k: int) -> str:
    if _is_sparse(scores, top_k):
        return "sparse"
    sums = scores.float().sum(dim=1)
    return "probabilities" if bool((scores >= 0).all()) and bool(((sums - 1).abs() < _SUM).all()) else "logits"


def read_calls(calls: Sequence[Call], rows: int, renormalise: bool, counted: bool = False) -> list[CallGroup]:
    """The decisions of ``calls`` in compact types, slots by weight, on the router's device; similar calls are stacked.

    Ids are uint8 up to 256 experts, else int16 (int32 above 32,768), weights and entropies float16. An entropy is NaN
    if the softmax of the logits is not the router's distribution. ``counted``: also the tokens of each expert.
    """
    return [_read_group(places, [calls[i] for i in places], renormalise, counted) for places in _alike(calls, rows)]


def _alike(calls: Sequence[Call], rows: int) -> list[list[int]]:
    """Indices of calls that can be stacked: same reading, device and types, bounded in size."""
    groups: dict[Any, list[list[int]]] = {}
    for place, call in enumerate(calls):
        there = [t for t in (call.ids, call.weights, call.logits) if t is not None]
        key = (call.reading, tuple((t.device, t.dtype) for t in there))
        most = max(1, STACKED_ELEMENTS // max(1, rows * call.reading.num_experts))
        parts = groups.setdefault(key, [[]])
        if len(parts[-1]) >= most:
            parts.append([])
        parts[-1].append(place)
    return [group for parts in groups.values() for group in parts]


def _read_group(places: list[int], calls: Sequence[Call], renormalise: bool, counted: bool) -> CallGroup:
    """The decisions of similar calls with the indices ``places``."""
    reading = calls[0].reading
    size = reading.num_experts
    ids, weights, logits = (_stacked([getattr(c, name) for c in calls]) for name in ("ids", "weights", "logits"))
    given = ids is not None
    wrong = reach = counts = unused = None
    if ids is None:
        assert logits is not None
        ids = logits.topk(reading.top_k, dim=-1).indices
    else:
        # Looked at before they are narrowed, where 300 would become 44; judged on the host, so that nothing waits.
        ids = ids.long()
        if reading.drops:
            unused = ids == -1
        wrong = ((ids < (-1 if reading.drops else 0)) | (ids >= size)).any(dim=-1)
        reach = torch.stack([ids.amin(dim=(1, 2)), ids.amax(dim=(1, 2))], dim=1) if ids.numel() else None
        ids = ids.clamp(0, size - 1)  # a gather with an id that is none would end the model's own CUDA context
    if counted:
        of_call = ids.flatten(1)
        counts = torch.zeros(len(ids), size, dtype=torch.int32, device=ids.device)
        sent = torch.ones_like(of_call) if unused is None else ~unused.flatten(1)
        counts.scatter_add_(1, of_call, sent.to(torch.int32))
    probs = None
    if logits is not None and reading.kind in ("sparse", "probabilities"):
        probs = logits.float()
    elif logits is not None and reading.entropy:
        probs = logits.float().softmax(dim=-1)
    if weights is None:
        weights = (
            torch.full(ids.shape, 1 / reading.top_k, device=ids.device) if probs is None else probs.gather(-1, ids)
        )
    weights = weights.float() / reading.scale
    if unused is not None:
        weights = weights.masked_fill(unused, float("-inf"))  # behind all others
    if reading.top_k > 1 and given:
        # Before rounding to 16 bits, which makes ties: slot 0 is the largest weight.
        weights, order = weights.sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, order)
        unused = None if unused is None else unused.gather(-1, order)
    if renormalise and reading.recomputed:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    if reading.kind == "sparse":
        assert logits is not None
        wrong = ((logits != 0).sum(dim=-1) > reading.top_k) | (logits < 0).any(dim=-1)
        unused = weights <= 0
    narrow = _narrow_ids(size + reading.top_k if reading.may_be_unused else size)
    if probs is not None and reading.entropy:
        entropies = torch.special.entr(probs).sum(dim=-1)
        margins, runners = margins_of(probs, ids)
        if unused is not None:  # no top-k of the scores
            margins = margins.masked_fill(unused.any(dim=-1), float("nan"))
    else:
        entropies = margins = torch.full(ids.shape[:2], float("nan"), device=ids.device)
        runners = torch.zeros(ids.shape[:2], dtype=narrow, device=ids.device)
    if unused is not None:
        weights = weights.masked_fill(unused, 0)
        # Numbered from the first unused slot on, so that equal sets of experts are one path.
        slot = torch.arange(reading.top_k, device=ids.device)
        ids = torch.where(unused, size + slot - (~unused).sum(dim=-1, keepdim=True), ids)
    small = weights.to(torch.float16), entropies.to(torch.float16)
    return CallGroup(places, ids.to(narrow), *small, margins, runners.to(narrow), wrong, reach, counts)


def _narrow_ids(number: int) -> torch.dtype:
    return torch.uint8 if number <= 256 else torch.int16 if number <= 2**15 else torch.int32


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    there = [t for t in tensors if t is not None]
    return torch.stack(there) if there else None
