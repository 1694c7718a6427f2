"""Controls of one forward pass of an H-Model, validated before anything runs.

Shapes: B samples (or 1 for all), I iterations with the input step, A sources, Z targets.
Source: H-Model, section 3.5 (equations 4 and 5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import check_table
from tokenpaths.engine.families.edit_plan import RoutePlan
from tokenpaths.engine.families.hmodel_config import HModelConfig, check_sharpening


@dataclass(frozen=True)
class RouteSettings:
    """What holds for one call."""

    alpha: float
    alpha_rate: float
    top_k: int | None
    connections: Float[Tensor, "B I A Z"] | None
    """given c instead of the heads' own"""
    plan: RoutePlan | None = None
    """edits; a step is the iteration before it"""

    def alpha_at(self, iteration: int) -> float:
        """α of an iteration; the input step is number 0."""
        return self.alpha * self.alpha_rate**iteration

    def rows(self, index: Int[Tensor, " R"]) -> RouteSettings:
        """The same for some of the samples."""
        given = self.connections
        return self if given is None or len(given) == 1 else replace(self, connections=given[index])


def route_settings(
    config: HModelConfig,
    *,
    device: torch.device,
    training: bool = False,
    alpha: float | None = None,
    alpha_rate: float | None = None,
    top_k: int | None = None,
    connections: Tensor | None = None,
    plan: RoutePlan | None = None,
) -> RouteSettings:
    """What is given, and the configuration's values for the rest (its top-k at inference only).

    Raises:
        UserError: a value that cannot work; ``field`` names it.
    """
    check_sharpening(config, alpha, alpha_rate, top_k, connections=connections is not None, plan=plan)
    alpha = config.alpha if alpha is None else alpha
    alpha_rate = config.alpha_rate if alpha_rate is None else alpha_rate
    if top_k is None and not training:
        top_k = config.route_top_k
    if connections is not None:
        connections = _checked(config, connections.to(device, torch.float32))
    return RouteSettings(alpha, alpha_rate, top_k, connections, plan)


def _checked(config: HModelConfig, given: Tensor) -> Tensor:
    shape = (config.iterations + 1, config.num_modules + len(config.inputs), config.num_targets)
    given = given.unsqueeze(0) if given.ndim == 3 else given
    if given.shape[1:] != shape:
        raise UserError(
            f"connections have shape {tuple(given.shape[-3:])}; this model has (iterations, sources, "
            f"targets) = {shape}",
            field="connections",
        )
    if not bool(((given >= 0) & (given <= 1)).all()):  # NaN is neither
        raise UserError("connections hold values that are not between 0 and 1", field="connections")
    return given


def given_connections(values: tuple[tuple[tuple[float, ...], ...], ...]) -> Tensor:
    """Connections given as plain values.

    Raises:
        UserError: they are ragged, or not between 0 and 1.
    """
    check_table("connections", values, ("iteration", "source", "target"))
    return torch.tensor(values)


def edit_logits(logits: Tensor, plan: RoutePlan | None, iteration: int) -> Tensor:
    """Logits (…, Z) of what a source sends, as edits want them: −∞ closes a connection, ∞ opens it."""
    step = None if plan is None or iteration >= len(plan.steps) else plan.steps[iteration]
    if step is None:
        return logits
    logits = logits.clone()
    for module, value in step.bias:
        logits[..., module] += value
    for force in step.forced:
        logits[..., force.module] = float("inf")
    if step.banned:
        logits[..., sorted(step.banned)] = float("-inf")
    return logits
