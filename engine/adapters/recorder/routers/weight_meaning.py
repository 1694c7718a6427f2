"""What the weights of a router mean: found by comparing those of its first call with the formulas in use.

Shapes: n tokens, K slots, M experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tokenpaths.engine.adapters.recorder.routers.router_outputs import Call, Reading

TOLERANCE = 0.02
"""largest relative difference between a weight and a formula: three roundings of bfloat16, which has 8 bits"""
_LEAST_WEIGHT = 1e-5
"""weights below it have no relative precision left in float16"""
_RIVAL, _FLOAT32 = 4, 1e-5
"""a formula is as good as the best one up to this many times its difference, of which so much is rounding"""
_ABOVE_ONE = 0.01


@dataclass(frozen=True)
class Meaning:
    """Semantics of the weights of one router, as inferred."""

    score_function: str
    order: str
    renormalised: bool | None
    bias: bool | None
    note: str


@dataclass(frozen=True)
class _Formula:
    """One way to compute the weights, and how far it is from them."""

    score: str
    renormalised: bool
    scale: float
    difference: float

    @property
    def words(self) -> str:
        return (
            self.score
            + (", divided by their sum" if self.renormalised else "")
            + (f", times {self.scale:g}" if self.scale != 1 else "")
        )


_UNKNOWN = Meaning("unknown", "unknown", None, None, "as given; no known formula explains the weights")


def explain(call: Call, scale: float | None, renormalise: bool, *, given: bool = False) -> tuple[Reading, Meaning]:
    """Infer the semantics of the weights of a first call; returns the reading with its scale.

    Args:
        scale: factor that may be in the weights: an attribute of the gate.
        renormalise: recomputed weights are divided by their sum.
        given: the caller says that ``scale`` is in the weights.
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
    inside = scale if given and scale is not None else 1.0
    if reading.kind == "callable":
        return replace(reading, scale=inside), replace(_UNKNOWN, note="ids and weights are what read= gave")
    if call.weights is None and reading.kind == "ids":
        note = "the gate gives ids only" + (
            "; that the weights are the softmax of its logits at these ids is assumed, as is the entropy"
            if call.logits is not None
            else ""
        )
        return replace(reading, scale=inside, entropy=call.logits is not None), replace(_UNKNOWN, note=note)
    if reading.kind == "sparse":
        assert call.logits is not None
        note = (
            "ids and weights are the scores that are not zero, as given; a token with fewer of them than "
            f"{reading.top_k} did not use the other slots"
        )
        weights_nK, meaning = call.logits.float().topk(reading.top_k, dim=1).values, replace(_UNKNOWN, note=note)
    else:
        call = _without_drops(call)
        assert call.weights is not None
        weights_nK, meaning = call.weights.float(), _UNKNOWN
        if fitting := _fitting(call, weights_nK, [inside] if given else [1.0, scale or 1.0]):
            meaning = _meaning(call, fitting)
            reading = replace(reading, entropy=meaning.score_function == "softmax")
            if len({formula.scale for formula in fitting}) == 1:
                return replace(reading, scale=fitting[0].scale), meaning
    if given:
        return replace(reading, scale=inside), meaning
    inside, renormalised, words = _scale_of_sums(weights_nK, scale)
    meaning = replace(meaning, renormalised=renormalised, note="; ".join(filter(None, (meaning.note, words))))
    return replace(reading, scale=inside), meaning


def _without_drops(call: Call) -> Call:
    """The tokens of a call that use all K slots: the formulas hold for them alone."""
    if not call.reading.drops:
        return call
    assert call.ids is not None
    whole_n = (call.ids >= 0).all(dim=1)
    ids, weights, logits = (None if t is None else t[whole_n] for t in (call.ids, call.weights, call.logits))
    return Call(call.reading, ids, weights, logits)


def _fitting(call: Call, weights_nK: Tensor, scales: Sequence[float]) -> list[_Formula]:
    """The formulas that reproduce these weights from the logits: the best one, and those that are as good."""
    tried = [formula for scale in dict.fromkeys(scales) for formula in _formulas(call, weights_nK, scale)]
    best = min((formula.difference for formula in tried), default=1.0)
    if best > TOLERANCE:
        return []
    limit = min(TOLERANCE, _RIVAL * max(best, _FLOAT32))
    return [formula for formula in tried if formula.difference <= limit]


def _formulas(call: Call, weights_nK: Tensor, scale: float) -> Iterator[_Formula]:
    if call.logits is None or call.ids is None or not len(call.ids):
        return
    ids_nK, logits_nM = call.ids.long(), call.logits.float()
    for score, scores_nM in (("softmax", logits_nM.softmax(dim=1)), ("sigmoid", logits_nM.sigmoid())):
        chosen = scores_nM.gather(1, ids_nK)
        for renormalised, right in ((False, chosen), (True, chosen / chosen.sum(dim=1, keepdim=True))):
            # A single weight divided by itself is 1 whatever the score.
            if not renormalised or ids_nK.shape[1] > 1:
                yield _Formula(score, renormalised, scale, _difference(right * scale, weights_nK))


def _difference(right: Tensor, weights: Tensor) -> float:
    """Largest relative difference; NaN weights are far from every formula."""
    relative = (right - weights).abs() / (right.abs().maximum(weights.abs()) + _LEAST_WEIGHT)
    return float(relative.nan_to_num(nan=1.0).max())


def _meaning(call: Call, fitting: Sequence[_Formula]) -> Meaning:
    """What all fitting formulas have in common."""
    assert call.logits is not None
    assert call.ids is not None
    ids_nK = call.ids.long()
    best = call.logits.topk(ids_nK.shape[1], dim=1).indices.sort(dim=1).values
    plain = bool((best == ids_nK.sort(dim=1).values).all())
    why = "" if plain else "; the choice is not the top-k of the logits: a bias, groups or noise enter it"

    def shared(name: str) -> Any:
        values = {getattr(formula, name) for formula in fitting}
        return values.pop() if len(values) == 1 else None

    score, renormalised = shared("score"), shared("renormalised")
    if len(fitting) == 1:
        same = " (the same as top-k, then softmax)" if renormalised and score == "softmax" else ""
        note = f"as given; the formula{same} was found by comparing the weights with it{why}"
    else:
        each = "; ".join(formula.words for formula in fitting)
        note = f"as given; the weights of the first forward pass fit several formulas equally well ({each}){why}"
    order = "unknown" if score is None else f"{score}, then top-k"
    return Meaning(score or "unknown", order, renormalised, False if plain else None, note)


def _scale_of_sums(weights_nK: Tensor, scale: float | None) -> tuple[float, bool | None, str]:
    """Factor that is in weights of unknown origin, whether they were divided by their sum, and what to say of it.

    Weights that were divided by their sum and multiplied by a factor have it as their sum, at every token.
    """
    sums_n = weights_nK[(weights_nK > 0).all(dim=1)].sum(dim=1)
    if weights_nK.shape[1] > 1 and len(sums_n):
        for factor in dict.fromkeys((1.0, scale or 1.0)):
            if bool(((sums_n / factor - 1).abs() <= TOLERANCE).all()):
                return factor, True, f"the weights of every token sum to {factor:g}"
    if scale is None or scale == 1:
        return 1.0, None, ""
    if len(weights_nK) and float(weights_nK.max()) > 1 + _ABOVE_ONE:
        return scale, None, ""
    return (
        1.0,
        None,
        f"a factor of {scale:g} stands on the gate, and it is unknown whether the weights hold it, so they are kept as "
        f"given: give scale={scale:g} if they do, scale=1 if not",
    )
