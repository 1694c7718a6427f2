"""Scores of routers as transformers returns them (``router_logits``): (tokens, experts) a layer, from which the top K
follow.

Shapes: t tokens, S layers, M experts, K slots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS, Piece
from tokenpaths.engine.adapters.logs.pieces.wording import few_names, number_of, shortened
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.tensors.batch_inputs import (
    BESIDE_SCORES,
    PADDING,
    check_axes,
    input_sizes,
    inputs_beside,
)
from tokenpaths.engine.analysis.distribution import margin_and_runner_up
from tokenpaths.engine.base.errors import UserError

NOTE = (
    "the log holds scores: the experts are the largest {k} of each, the weights their softmax over all experts, which "
    "the model may have divided by their sum"
)

PROBABILITIES = (
    "the log holds probabilities, which sum to 1: the experts are the largest {k} of each, the weights these "
    "probabilities, which the model may have divided by their sum"
)
SIGMOIDS = (
    "all scores are from 0 to 1, as sigmoids are: if they are, the weights, softmaxes of them, are not the model's"
)
TURNED = "the scores lie as (tokens, layers, experts), as the number of layers that was announced says"
MOST_SCORED = 1024
"""experts of a layer above which numbers are rather hidden states, unless their name says that they are scores"""
SUMS_TO_ONE = 0.02
"""tolerance of a sum of rounded probabilities"""
LOOK_AT = 1 << 16
"""numbers that are looked at together"""


def entropy_of(probs: np.ndarray) -> np.ndarray:
    """−Σ p ln p over the last axis, in nats; 0 for a probability of 0."""
    logarithms = np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    entropy: np.ndarray = np.maximum(-(probs * logarithms).sum(axis=-1), 0)
    return entropy


def weights_and_scores(logits: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (…, K) of the chosen ids, their softmax over all of ``logits`` (…, M), and (…, 3) entropy in nats, margin
    and runner-up, all float32.
    """
    probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    weights = np.take_along_axis(probs, ids, axis=-1).astype(np.float32)
    scored = np.stack([entropy_of(probs), *margin_and_runner_up(probs, ids)], axis=-1).astype(np.float32)
    return weights, scored


def find_scores(value: Any) -> dict[str, np.ndarray] | None:
    """Scores of each layer by name: a tuple, list or dict of arrays (tokens, experts), or one with an axis more.

    None in a tuple or list stands for a dense layer, which has no scores.
    """
    if isinstance(value, dict):
        if "router_logits" in value:
            return find_scores(value["router_logits"])
        named = {str(name): array for name, array in value.items() if name not in BESIDE_SCORES and _is_scores(array)}
        if (only := _of_all_layers(named)) is not None:
            return find_scores(named[only])
        return {name: named[name] for name in _in_order(list(named))} or None
    if isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype.kind == "f":
        value = list(value)
    if isinstance(value, list | tuple) and all(array is None or _is_scores(array) for array in value):
        return {f"layer {layer}": array for layer, array in enumerate(value) if array is not None} or None
    return None


def _of_all_layers(named: dict[str, Any]) -> str | None:
    """The name of the only scores in a file, if they have an axis more and no number says of which layer they are."""
    names = [name for name, array in named.items() if name not in BESIDE_SCORES and _is_scores(array)]
    alone = len(names) == 1 and named[names[0]].ndim == 3 and not re.search("[0-9]", names[0])
    return names[0] if alone else None


def _is_scores(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.ndim in (2, 3) and array.size > 0


def _are_whole(array: np.ndarray) -> bool:
    """Whether all numbers of an array that is not stored as whole numbers are such; it is read as far as they are."""
    flat = array.reshape(-1)
    parts = (flat[start : start + LOOK_AT] for start in range(0, len(flat), LOOK_AT))
    return all(bool((part == np.rint(part)).all()) for part in parts)


def _probabilities(array: np.ndarray) -> tuple[bool, bool]:
    """(Whether all numbers are from 0 to 1, whether those of each token sum to 1 too)."""
    rows = array.reshape(-1, array.shape[-1])
    step, sum_to_one = max(1, LOOK_AT // rows.shape[1]), True
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.float64)
        if not ((part >= 0) & (part <= 1)).all():
            return False, False
        sum_to_one = sum_to_one and bool((np.abs(part.sum(axis=1) - 1) < SUMS_TO_ONE).all())
    return True, sum_to_one


def _in_order(names: list[str]) -> list[str]:
    """Names by the numbers in them, from the left; what stands between comes in the order in which the file has it."""
    texts: dict[str, int] = {}

    def place(name: str) -> list[int]:
        parts = re.split("([0-9]+)", name)
        return [int(part[:18]) if at % 2 else texts.setdefault(part, len(texts)) for at, part in enumerate(parts)]

    return sorted(names, key=place)


def _check_names(file: Path, scores: dict[str, np.ndarray], beside: dict[str, Any], announced: Announced) -> None:
    """Refuse float arrays that are no scores: weights of a model, hidden states.

    Raises:
        UserError: names or sizes say so.
    """
    weight = next((str(name) for name in beside if str(name).endswith((".weight", ".bias"))), None)
    if weight is not None and "router_logits" not in beside:
        raise UserError(
            f"{file}: {shortened(weight)} is a weight of a model, so this is a checkpoint and no log; trace the model "
            "(tokenpaths trace hf:FOLDER --data …), or save the scores of its routers under the key 'router_logits'",
            field="file",
        )
    name, first = next(iter(scores.items()))
    experts = first.shape[-1]
    if experts > MOST_SCORED and "router_logits" not in beside and announced.experts != experts:
        raise UserError(
            f"{file}: {shortened(name)} has {experts:,} numbers a token, as hidden states have; if they are the scores "
            f"of so many experts, save them under the key 'router_logits' or say --experts {experts}",
            field="file",
        )


def _with_layers_first(
    file: Path, scores: dict[str, np.ndarray], beside: dict[str, Any], announced: Announced
) -> tuple[dict[str, np.ndarray], str]:
    """(Scores of each layer, a note) of what is by its place the array (tokens, experts) of a layer.

    Raises:
        UserError: what stands beside them says that they are those of a token.
    """
    first = next(iter(scores.values()))
    by_place = list(scores) == [f"layer {place}" for place in range(len(scores))]
    if not by_place or first.ndim != 2 or len({array.shape for array in scores.values()}) > 1:
        return scores, ""
    if len(scores) != announced.layers == len(first):
        turned = np.stack(list(scores.values()), axis=1)
        return {f"layer {layer}": turned[layer] for layer in range(len(turned))}, TURNED
    shape = (len(scores), *first.shape)
    hint = f", or say --layers {len(first)}"
    what = f"{file}: the scores of shape {shape}"
    check_axes(input_sizes(beside), what, "(layers, tokens, experts)", len(first), len(scores), hint)
    return scores, ""


def _check_finite(part: np.ndarray, top_k: int, where: str, tokens: np.ndarray, names: list[str]) -> None:
    """Refuse scores (t, S, M) that are no numbers; −∞ is that of an expert which a token must not choose.

    Args:
        tokens: numbers of these tokens, for the message.
        names: of the layers.
    """
    wrong = np.isnan(part) | np.isposinf(part)
    if wrong.any():
        token, layer, _ = np.argwhere(wrong)[0].tolist()
        raise UserError(f"{where}: token {tokens[token]} has a score at {names[layer]} that is no number", field="file")
    left = np.isfinite(part).sum(axis=2)
    if (left < top_k).any():
        token, layer = np.argwhere(left < top_k)[0].tolist()
        raise UserError(
            f"{where}: token {tokens[token]} has {number_of(int(left[token, layer]), 'score')} above −∞ at "
            f"{names[layer]}, fewer than the {number_of(top_k, 'expert')} that it uses",
            field="file",
        )


def open_scores(file: Path, scores: dict[str, np.ndarray], beside: dict[str, Any], announced: Announced) -> Log:
    """The log of the largest K scores of each layer; ``beside``: all that the file holds by name."""
    _check_names(file, scores, beside, announced)
    scores, turned = _with_layers_first(file, scores, beside, announced)
    first_name, first = next(iter(scores.items()))
    experts, top_k = first.shape[-1], announced.top_k
    if all(map(_are_whole, scores.values())):
        raise UserError(
            f"{file}: {first_name} holds whole numbers only, stored as {first.dtype}: ids do, scores of routers do "
            "not; save ids as whole numbers, under the name 'ids' (tokens, layers, top-k)",
            field="file",
        )
    for name, array in scores.items():
        if array.shape != first.shape:
            raise UserError(
                f"{file}: {name} has scores of shape {array.shape}, {first_name} of {first.shape}; all routers should "
                "have scored the same tokens",
                field="file",
            )
    if top_k is not None and top_k > experts:
        raise UserError(
            f"{file}: holds the scores of {experts} experts at {number_of(len(scores), 'layer')}, of which a token "
            f"cannot use {top_k}; say --top-k of the model (num_experts_per_tok): 1 to {experts} would fit",
            field="top_k",
        )
    if top_k is None:
        raise UserError(
            f"{file}: holds the scores of {experts} experts at {number_of(len(scores), 'layer')}, but not how many of "
            f"them a token uses; say --top-k of the model (num_experts_per_tok): 1 to {experts} would fit",
            field="top_k",
        )
    announced.check(str(file), layers=len(scores))
    num_sequences = first.size // (first.shape[-2] * experts)
    known = {"router_logits", *scores, *filter(None, [_of_all_layers({str(k): held for k, held in beside.items()})])}
    inputs = inputs_beside(beside, num_sequences, first.shape[-2], known)
    batch = [array.reshape(*inputs.shape, experts) for array in scores.values()]
    from_0_to_1, sum_to_one = map(all, zip(*map(_probabilities, batch), strict=True))

    def read() -> Iterator[Piece | tuple[str, int]]:
        for sample in range(len(batch[0])):
            name = f"{file.name}, sequence {sample}" if len(batch[0]) > 1 else file.name
            tokens = np.flatnonzero(inputs.mask[sample])
            if padding := inputs.padding(sample):
                yield PADDING, padding
            for start in range(0, len(tokens), CUT_TOKENS):
                keep = tokens[start : start + CUT_TOKENS]
                part = np.stack([rows[sample, keep] for rows in batch], axis=1)
                with np.errstate(invalid="ignore"):  # what is no number is refused below
                    part = part.astype(np.float64)
                where = f"{file}, row {keep[0]}" if len(batch[0]) == 1 else f"{file}, sequence {sample}"
                if not np.isfinite(part).all():
                    _check_finite(part, top_k, where, keep, list(scores))
                if sum_to_one:  # whose softmax are the probabilities themselves
                    part = np.log(np.maximum(part, np.finfo(np.float64).tiny))
                ids = np.argsort(-part, axis=2, kind="stable")[:, :, :top_k]
                weights, scored = weights_and_scores(part, ids)
                source = name
                if len(tokens) > CUT_TOKENS:
                    source = f"{name}, tokens {start} to {start + len(ids) - 1}"
                words = None if inputs.words is None else inputs.words[sample, keep]
                yield Piece(ids, where, weights, words, source=source, scored=scored)

    names = tuple(re.sub(r"^layer_(\d+)$", r"layer \1", name) for name in scores)
    numbers = [int(match[1]) for name in names if (match := re.fullmatch("layer ([0-9]{1,4})", name))]
    dense = sorted({*range(max(numbers, default=0))} - {*numbers}) if len(numbers) == len(names) else []
    missing = few_names("layers without scores, dense ones perhaps", [f"layer {number}" for number in dense])
    weights = (PROBABILITIES if sum_to_one else NOTE).format(k=top_k)
    note = "; ".join(
        filter(None, [weights, SIGMOIDS if from_0_to_1 > sum_to_one else "", turned, missing, inputs.note])
    )
    by_axes = list(names) == [f"layer {place}" for place in range(len(names))] and not turned
    shape = LogShape(names, top_k, True, scores=True, by_axes=by_axes)
    return Log(file, "router-logits", shape, announced.num_experts(experts, str(file)), read, note=note)
