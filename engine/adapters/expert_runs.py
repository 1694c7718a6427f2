"""Definitions shared by all runs of mixtures of experts, whatever the source of their routing decisions.

A step is a routed layer, a module is an expert of that layer: expert 3 of layer 0 and expert 3 of layer 1 are
different modules with the same id. Needs numpy only, so importers do not load torch.

Shapes: n tokens, S routed layers, K slots, M experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Integer

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo

FAMILY = "moe"
"""``RunInfo.family`` of every run made by an adapter"""
KIND = "expert"
_SECRET = re.compile(
    r"secret|passw(or)?d|passphrase|credential|authori[sz]ation|bearer|(api|access|private|signing|encryption)_?key"
    r"|(api|access|auth|hub|hf|hugging_?face|wandb|session|refresh)_?token$|^token$",
    re.IGNORECASE,
)
"""names of settings that nobody means to send to others"""
_FOLDER = re.compile(r"(/|~/|[A-Za-z]:[\\/])[^/\\\n]+[/\\][^\n]*[^/\\\n][/\\]*")
"""a path of several components from the root or the home folder"""
_LEFT_OUT = object()
_DEEPEST = 40
"""levels of a configuration; one that holds itself has no last one"""


@dataclass(frozen=True)
class ExpertLayer:
    """One routed layer: its name and its experts."""

    name: str
    """module name in the model or log: ``model.layers.3.mlp.gate``, ``layer 3``"""
    num_experts: int
    params_per_expert: int = 0
    """0 if unknown"""
    flops_per_token: int = 0
    """of one expert; 0 if unknown"""


@dataclass(frozen=True)
class WeightSemantics:
    """Meaning of the routing weights of a run; stored in ``RunInfo.weight_semantics``.

    ``weights_recorded`` False: the source gave ids only, each weight is set to 1/K.
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
    """whether a bias that is not part of the weights affects the selection"""
    scale: float = 1.0
    """factor that the model applies to the recorded weights (``routed_scaling_factor``); not included in the weights,
    which stay in [0, 1]"""
    groups: tuple[int, int] | None = None
    """(groups of experts, groups that a token may use), where routing is limited to groups"""
    shared_experts: int | None = None
    """experts that every token visits; not part of the ribbon"""
    weights_recorded: bool = True
    source: str = ""
    """source of the decisions: a hook point or a file format"""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The value of ``RunInfo.weight_semantics``."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["groups"] = list(self.groups) if self.groups else None
        return values | {"decision": "hard", "unit": "token", "reading": "one expert a slot, largest weight first"}


@dataclass(frozen=True)
class Series:
    """Position of a run within a training: name of the series and number of iterations.

    Stored in ``RunInfo.config["series"]`` as ``{"name": …, "iteration": …}``.
    """

    name: str
    iteration: int
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "iteration": self.iteration, **self.extra}


def shareable_config(config: Mapping[Any, Any]) -> dict[str, Any]:
    """A model's configuration as a run keeps it, which is sent to others.

    Left out is what is no JSON, secrets (``api_key``), and where a checkpoint lay (``_name_or_path``); of other paths
    the last component is kept.
    """
    shareable: dict[str, Any] = _shareable(config, _DEEPEST)
    return shareable


def _shareable(value: Any, levels: int) -> Any:
    if isinstance(value, (Mapping, list, tuple)) and not levels:
        return _LEFT_OUT
    if isinstance(value, Mapping):
        items = {
            str(name): _shareable(item, levels - 1)
            for name, item in value.items()
            if str(name).lstrip("_") != "name_or_path" and not _SECRET.search(str(name))
        }
        return {name: item for name, item in items.items() if item is not _LEFT_OUT}
    if isinstance(value, (list, tuple)):
        listed = [_shareable(item, levels - 1) for item in value]
        return _LEFT_OUT if any(item is _LEFT_OUT for item in listed) else listed
    if isinstance(value, str) and _FOLDER.fullmatch(value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return _LEFT_OUT


def expert_modules(layers: Sequence[ExpertLayer]) -> list[ModuleInfo]:
    """One ``ModuleInfo`` per expert and layer.

    Raises:
        UserError: there is no layer, or a layer has no experts.
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
    """Sort slots by weight, largest first; the sort is stable."""
    order = np.argsort(-weights, axis=2, kind="stable")
    return np.take_along_axis(ids, order, axis=2), np.take_along_axis(weights, order, axis=2)


def even_weights(ids: Integer[np.ndarray, "n S K"]) -> Float[np.ndarray, "n S K"]:
    """Weights of 1/K for sources that give ids only: a view of one number."""
    return np.broadcast_to(np.float32(1 / ids.shape[2]), ids.shape)
