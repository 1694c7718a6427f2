"""The controls of one forward pass of an H-Model: checked once, before anything runs.

Shapes: B samples (or 1 for all), I iterations with the input step, A sources, Z targets.
Source: H-Model, section 3.5 (equations 4 and 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from engine.errors import UserError
from engine.models.family import Controls
from engine.models.hmodel_config import HModelConfig


class HModelControls(Controls):
    """The live controls: they replace the configuration's values for one call."""

    alpha: float | None = Field(default=None, ge=0.01, le=10, description="α: small makes connections all or nothing")
    alpha_rate: float | None = Field(default=None, ge=0.1, le=10, description="factor of α at every iteration")
    top_k: int | None = Field(default=None, ge=1, description="connections kept of each layer's outgoing ones")


@dataclass(frozen=True)
class RouteSettings:
    """What holds for one call."""

    alpha: float
    alpha_rate: float
    top_k: int | None
    connections: Float[Tensor, "B I A Z"] | None
    """given c instead of the heads' own"""

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
) -> RouteSettings:
    """What is given, and the configuration's values for the rest (its top-k at inference only).

    Raises:
        UserError: a value that cannot work; ``field`` names it.
    """
    alpha = config.alpha if alpha is None else alpha
    alpha_rate = config.alpha_rate if alpha_rate is None else alpha_rate
    for name, value in (("alpha", alpha), ("alpha_rate", alpha_rate)):
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{name} is {value}; it must be a number above 0", field=name)
    # Logarithms, because the power itself may overflow.
    exponent = math.log10(alpha) + config.iterations * math.log10(alpha_rate)
    if not -9 <= exponent <= 9:
        raise UserError(f"alpha {alpha:g} times alpha_rate {alpha_rate:g} at each of {config.iterations} iterations "
                        f"ends at 1e{exponent:.0f}; stay between 1e-9 and 1e9", field="alpha_rate")  # fmt: skip
    if top_k is None and not training:
        top_k = config.route_top_k
    if top_k is not None and not 1 <= top_k <= config.num_targets:
        raise UserError(f"top_k is {top_k}; a layer has {config.num_targets} targets ({config.num_modules} hidden "
                        f"layers, {len(config.outputs)} outputs), so give 1 to {config.num_targets}",
                        field="top_k")  # fmt: skip
    if connections is not None:
        connections = _checked(config, connections.to(device, torch.float32))
    return RouteSettings(alpha, alpha_rate, top_k, connections)


def _checked(config: HModelConfig, given: Tensor) -> Tensor:
    shape = (config.iterations + 1, config.num_modules + len(config.inputs), config.num_targets)
    given = given.unsqueeze(0) if given.ndim == 3 else given
    if given.shape[1:] != shape:
        raise UserError(f"connections have shape {tuple(given.shape[-3:])}; this model has (iterations, sources, "
                        f"targets) = {shape}", field="connections")  # fmt: skip
    if not bool(((given >= 0) & (given <= 1)).all()):  # NaN is neither
        raise UserError("connections hold values that are not between 0 and 1", field="connections")
    return given
