"""What every run of a mixture of experts has in common, however its decisions were come by.

A step is a routed layer, a module is an expert of that layer: expert 3 of layer 0 and expert 3 of layer 1 are
different modules with the same id. Plain numpy: importers need no torch.

Shapes: n tokens, S routed layers, K slots, M experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Integer

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo

FAMILY = "moe"
"""``RunInfo.family`` of every run made by an adapter"""
KIND = "expert"


@dataclass(frozen=True)
class ExpertLayer:
    """One routed layer: where it stands in its model, and what it can pick."""

    name: str
    """as the model or the log calls it: ``model.layers.3.mlp.gate``, ``layer 3``"""
    num_experts: int
    params_per_expert: int = 0
    """0 where a log does not say"""
    flops_per_token: int = 0
    """of one expert; 0 where unknown"""


@dataclass(frozen=True)
class WeightSemantics:
    """What a weight of this run means; every field ends in ``RunInfo.weight_semantics``.

    ``weights_recorded`` False: the source gave ids only, 1/K stands in for each weight.
    """

    score_function: Literal["softmax", "sigmoid", "softmax of top-k", "unknown"]
    order: Literal[
        "softmax, then top-k",
        "top-k, then softmax",
        "sigmoid, then top-k",
        "top-k, then sigmoid",
        "expert choice",
        "unknown",
    ]
    renormalised: bool | None
    """whether the K weights are divided by their sum; None: unknown"""
    bias: bool | None = None
    """whether a bias that is no part of the weights enters the choice"""
    scale: float = 1.0
    """the model multiplies the recorded weights by this (``routed_scaling_factor``); not in the weights, which
    stay in [0, 1]"""
    groups: tuple[int, int] | None = None
    """(groups of experts, groups that a token may use), where routing is limited to groups"""
    shared_experts: int | None = None
    """experts that every token visits; they are no decision and not on the ribbon"""
    weights_recorded: bool = True
    source: str = ""
    """what the decisions were read from: the name of a hook point, a file format"""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The value of ``RunInfo.weight_semantics``."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["groups"] = list(self.groups) if self.groups else None
        return values | {"decision": "hard", "unit": "token", "reading": "one expert a slot, largest weight first"}


@dataclass(frozen=True)
class Series:
    """A run's place among runs of one model in training: which series, and after how many iterations.

    It stands in ``RunInfo.config["series"]`` as ``{"name": …, "iteration": …}``.
    """

    name: str
    iteration: int
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "iteration": self.iteration, **self.extra}


def expert_modules(layers: Sequence[ExpertLayer]) -> list[ModuleInfo]:
    """One ``ModuleInfo`` for each expert of each layer.

    Raises:
        UserError: no layer, or a layer without experts.
    """
    if not layers:
        raise UserError("there is no routed layer, so there are no decisions to keep", field="layers")
    for layer in layers:
        if layer.num_experts < 1:
            raise UserError(f"{layer.name} has {layer.num_experts} experts, it should have at least 1", field="layers")
    return [
        ModuleInfo(step, expert, f"expert {expert}", KIND, layer.params_per_expert, layer.flops_per_token)
        for step, layer in enumerate(layers)
        for expert in range(layer.num_experts)
    ]


def by_weight(
    ids: Integer[np.ndarray, "n S K"], weights: Float[np.ndarray, "n S K"]
) -> tuple[Integer[np.ndarray, "n S K"], Float[np.ndarray, "n S K"]]:
    """Slots in order of weight, largest first; equal weights keep the order that they came in."""
    order = np.argsort(-weights, axis=2, kind="stable")
    return np.take_along_axis(ids, order, axis=2), np.take_along_axis(weights, order, axis=2)


def even_weights(ids: Integer[np.ndarray, "n S K"]) -> Float[np.ndarray, "n S K"]:
    """1/K for each slot: what stands in where a source gives ids only."""
    return np.full(ids.shape, 1 / ids.shape[2], dtype=np.float32)
