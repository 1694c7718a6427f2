"""Reading of a router's output: which of its tensors are ids, weights and logits, and what the weights mean.

The reading is settled once, on the first output of each router, and applied to all later ones.
Shapes: n tokens (rows of the router's input), K slots, M experts, S calls of routers in one forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.family import margins_of

TOLERANCE = 0.01
"""tolerance when matching a weight against a formula: bfloat16 has 8 bits"""
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

    @property
    def recomputed(self) -> bool:
        """Whether the choice is recomputed by the recorder, as top-k of the router's output."""
        return self.kind in ("logits", "probabilities")

    @property
    def words(self) -> str:
        if self.kind == "ids":
            beside = "ids and weights" if self.weights is not None else "ids"
            return f"{beside} as the gate gives them, top {self.top_k} of {self.num_experts}"
        if self.kind == "callable":
            return f"ids and weights from read=, top {self.top_k} of {self.num_experts}"
        if self.kind == "sparse":
            return f"scores that are zero but for the {self.top_k} chosen of {self.num_experts}, as given"
        return f"{self.kind} over {self.num_experts} experts; the top {self.top_k} recomputed"


@dataclass(frozen=True)
class Meaning:
    """Semantics of the weights of one router, as inferred."""

    score_function: str
    order: str
    renormalised: bool | None
    bias: bool | None
    note: str


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
    """(g, n, K)"""
    weights: Tensor
    """(g, n, K)"""
    entropies: Tensor
    """(g, n)"""
    margins: Tensor
    """(g, n), ``family.margins_of``, NaN where the entropy is"""
    runners: Tensor
    """(g, n), modules of the next score"""
    wrong: Tensor | None = None
    """(g, n), True for ids that are no expert of the router; ``ids`` is undefined there. None: not possible"""
    reach: Tensor | None = None
    """(g, 2), the smallest and the largest id of each call, as given"""


def tensors_of(output: Any) -> list[Tensor]:
    """All tensors of an output in order: of a tensor, a tuple, a mapping or a dataclass."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        parts: Sequence[Any] = list(output.values())
    elif isinstance(output, (tuple, list)):
        parts = output
    elif is_dataclass(output) and not isinstance(output, type):
        parts = [getattr(output, f.name) for f in fields(output)]
    else:
        return []
    return [tensor for part in parts for tensor in tensors_of(part)]


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
        return Reading("ids", num_experts, slots, i, weights, logits, scale or 1.0)
    if num_experts is None:
        return f"{problem or 'its output holds no ids'}, and it cannot be told how many experts it has"
    scores = [i for i in wide if _width(tensors[i], rows) == num_experts]
    if not scores:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors) or "nothing"
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
    if low < 0 or (num_experts is not None and high >= num_experts):
        return f"its integers reach from {low} to {high}, which are no ids of {num_experts or 'any'} experts"
    ordered = values.sort(dim=1).values
    if slots > 1 and bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        return "its integers repeat within a token, so they are no ids"
    return None


def _kind_of_scores(scores: Tensor, top_k: int) -> str:
    chosen = (scores != 0).sum(dim=1)
    if top_k < scores.shape[1] and bool((chosen == top_k).all()) and bool((scores >= 0).all()):
        return "sparse"
    sums = scores.float().sum(dim=1)
    return "probabilities" if bool((scores >= 0).all()) and bool(((sums - 1).abs() < TOLERANCE).all()) else "logits"


def explain(call: Call, scale: float | int | None, renormalise: bool) -> tuple[Reading, Meaning]:
    """Infer the semantics of the weights of a first call from known formulas; returns the reading with its scale.

    A scale attribute of the gate counts as included if that explains the weights, or if they exceed 1.
    """
    reading = call.reading
    if reading.recomputed:
        of = "softmax of the logits" if reading.kind == "logits" else "probabilities"
        divided = ", divided by their sum" if renormalise else ""
        note = (
            f"recomputed: the ids are the top {reading.top_k} of the recorded {reading.kind}; that the weights are the "
            f"{of} at these ids{divided} is assumed, as is the entropy"
        )
        return replace(reading, entropy=True), Meaning("unknown", "unknown", None, None, note)
    unknown = Meaning("unknown", "unknown", None, None, "as given; no known formula explains the weights")
    if reading.kind == "callable":
        return reading, Meaning("unknown", "unknown", None, None, "ids and weights are what read= gave")
    if reading.kind == "sparse":
        above = call.logits is not None and float(call.logits.max()) > 1 + TOLERANCE
        note = "ids and weights are the scores that are not zero, as given"
        return replace(reading, scale=scale if scale is not None and above else 1.0), replace(unknown, note=note)
    if call.weights is None:
        note = "the gate gives ids only" + (
            ""
            if call.logits is None
            else ("; that the weights are the softmax of its logits at these ids is assumed, as is the entropy")
        )
        return replace(reading, scale=1.0, entropy=call.logits is not None), replace(unknown, note=note)
    weights_nK = call.weights.float()
    for tried in dict.fromkeys((1.0, scale or 1.0)):
        meaning = _formula(call, weights_nK / tried)
        if meaning is not None:
            return replace(reading, scale=tried, entropy=meaning.score_function == "softmax"), meaning
    over = float(weights_nK.max()) > 1 + TOLERANCE
    return replace(reading, scale=scale if scale is not None and over else 1.0), unknown


def _formula(call: Call, weights_nK: Tensor) -> Meaning | None:
    """The formula that reproduces these weights from the logits, within ``TOLERANCE``."""
    if call.logits is None or call.ids is None:
        return None
    ids_nK, logits_nM = call.ids.long(), call.logits.float()
    best = logits_nM.topk(ids_nK.shape[1], dim=1).indices.sort(dim=1).values
    plain = bool((best == ids_nK.sort(dim=1).values).all())
    why = "" if plain else "; the choice is not the top-k of the logits: a bias, groups or noise enter it"
    for score, scores_nM in (("softmax", logits_nM.softmax(dim=1)), ("sigmoid", logits_nM.sigmoid())):
        chosen = scores_nM.gather(1, ids_nK)
        for renormalised, tried in ((False, chosen), (True, chosen / chosen.sum(dim=1, keepdim=True))):
            if renormalised and ids_nK.shape[1] == 1:
                continue
            if float((tried - weights_nK).abs().max()) < TOLERANCE:
                same = " (the same as top-k, then softmax)" if renormalised and score == "softmax" else ""
                note = f"as given; the formula{same} was found by comparing the weights with it{why}"
                return Meaning(score, f"{score}, then top-k", renormalised, False if plain else None, note)
    return None


def read_calls(calls: Sequence[Call], rows: int, renormalise: bool) -> list[CallGroup]:
    """The decisions of ``calls`` in compact types, slots by weight, on the router's device; similar calls are stacked.

    Ids are uint8 up to 256 experts, else int16 (int32 above 32,768), weights and entropies float16. An entropy is NaN
    if the softmax of the logits is not the router's distribution.
    """
    return [_read_group(places, [calls[i] for i in places], renormalise) for places in _alike(calls, rows)]


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


def _read_group(places: list[int], calls: Sequence[Call], renormalise: bool) -> CallGroup:
    """The decisions of similar calls with the indices ``places``."""
    reading = calls[0].reading
    size = reading.num_experts
    narrow = torch.uint8 if size <= 256 else torch.int16 if size <= 2**15 else torch.int32
    ids, weights, logits = (_stacked([getattr(c, name) for c in calls]) for name in ("ids", "weights", "logits"))
    recomputed = ids is None
    wrong = reach = None
    if ids is None:
        assert logits is not None
        ids = logits.topk(reading.top_k, dim=-1).indices
    else:
        # Looked at before they are narrowed, where 300 would become 44; judged on the host, so that nothing waits.
        ids = ids.long()
        wrong = ((ids < 0) | (ids >= size)).any(dim=-1)
        reach = torch.stack([ids.amin(dim=(1, 2)), ids.amax(dim=(1, 2))], dim=1) if ids.numel() else None
        ids = ids.clamp(0, size - 1)  # a gather with an id that is none would end the model's own CUDA context
    probs = None
    if logits is not None and reading.kind in ("sparse", "probabilities"):
        probs = logits.float()
    elif logits is not None and reading.entropy:
        probs = logits.float().softmax(dim=-1)
    if weights is None:
        weights = (
            torch.full(ids.shape, 1 / reading.top_k, device=ids.device)
            if probs is None
            else (probs.gather(-1, ids.long()))
        )
    weights = weights.float() / reading.scale
    if reading.top_k > 1 and not recomputed:
        # Before rounding to 16 bits, which makes ties: slot 0 is the largest weight.
        weights, order = weights.sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, order)
    if renormalise and recomputed:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    if probs is not None and reading.entropy:
        entropies = torch.special.entr(probs).sum(dim=-1)
        margins, runners = margins_of(probs, ids)
    else:
        entropies = margins = torch.full(ids.shape[:2], float("nan"), device=ids.device)
        runners = torch.zeros(ids.shape[:2], dtype=narrow, device=ids.device)
    small = weights.to(torch.float16), entropies.to(torch.float16)
    return CallGroup(places, ids.to(narrow), *small, margins, runners.to(narrow), wrong, reach)


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    there = [t for t in tensors if t is not None]
    return torch.stack(there) if there else None
