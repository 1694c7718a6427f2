"""Configuration, controls and edits of a Ray-Tracing network: its sizes and every wire.

A wire starts at one neuron (of an input module, or of a block) and ends at exactly one block of a later layer, or at
the output. Wires are drawn from ``seed`` unless they are given, and the configuration then holds them, so that a
checkpoint and a run carry the network as it is.

Names: block p of layer l is number l·blocks + p; the output is number layers·blocks.
Source: "Ray-Tracing for Conditionally Activated Neural Networks", sections 2 and 3.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls, Edits, only_those
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes

Wires = tuple[tuple[int, ...], ...]


class RayTracingConfig(BaseModel):
    """One network by value; the defaults are the paper's experiment (section 3)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["vision"] = "vision"
    task: Literal["classify"] = "classify"
    image_size: int = Field(default=32, gt=0)
    channels: int = Field(default=3, gt=0)
    num_classes: int = Field(default=10, gt=1)

    conv_channels: tuple[int, ...] = Field(
        default=(16, 32, 32, 64, 64), min_length=1, description="width of each convolution of the feature extractor"
    )
    conv_kernel: int = Field(default=5, gt=0)
    conv_pools: tuple[int, ...] = Field(
        default=(0, 1, 2), description="convolutions (from 0) that a maximum over 2 × 2 positions follows"
    )

    input_neurons: tuple[int, ...] = Field(
        default=(5, 10, 15, 20, 25, 30), min_length=1, description="neurons of each input module"
    )
    input_density: float = Field(
        default=0.01, gt=0, le=1, description="share of the features that one input neuron reads"
    )
    layers: int = Field(default=4, gt=0)
    blocks: int = Field(default=16, gt=0, description="blocks of a layer")
    width: int = Field(default=16, gt=0, description="neurons, and so outgoing wires, of a block")
    next_layer: float = Field(
        default=0.5, ge=0, le=1, description="p, chance that a wire ends in the next layer and skips none"
    )
    theta: float = Field(default=1.0, gt=0, le=1, description="θ(0), the first threshold")
    decay: float = Field(default=0.9, gt=0, lt=1, description="θ(t) / θ(t − 1)")
    theta_out: float = Field(
        default=0.5, gt=0, allow_inf_nan=False, description="θ_out, the signal at the output that ends the relaxation"
    )
    crossing: Literal["one", "all"] = Field(
        default="one", description="layers that a signal crosses within one threshold step"
    )
    theta_steps: int = Field(default=44, gt=0, description="most threshold steps; 0.9^43 is about 0.01")

    seed: int = Field(default=0, ge=0, description="of the wires, and of the features that each input neuron reads")
    input_wires: Wires = Field(
        default=(), description="for each input module, the block that each neuron feeds; empty: drawn"
    )
    block_wires: Wires = Field(default=(), description="for each block, where each neuron's wire ends; empty: drawn")

    @model_validator(mode="after")
    def _consistent(self) -> RayTracingConfig:
        _check_features(self)
        if any(n < 1 for n in self.input_neurons):
            raise ValueError(f"input_neurons {self.input_neurons} holds a module without neurons; each needs one")
        if self.theta_out >= self.signal:
            raise ValueError(
                f"theta_out {self.theta_out:g} is not below {self.signal}, the sum of input_neurons: signals are only "
                "lost on the way, so the output could never fire"
            )
        drawn_inputs, drawn_blocks = draw_wires(self)
        # The one place where the frozen value is completed: afterwards every wire is a number in it.
        object.__setattr__(self, "input_wires", self.input_wires or drawn_inputs)
        object.__setattr__(self, "block_wires", self.block_wires or drawn_blocks)
        _check_input_wires(self)
        _check_block_wires(self)
        return self

    @property
    def num_blocks(self) -> int:
        """P, over all layers; also the number by which a wire names the output."""
        return self.layers * self.blocks

    @property
    def signal(self) -> int:
        """What the input modules send in all, whatever the image: module j sends as much as it has neurons."""
        return sum(self.input_neurons)

    @property
    def num_features(self) -> int:
        """F, activations of the last convolution."""
        side = self.image_size >> len(self.conv_pools)
        return self.conv_channels[-1] * side * side

    @property
    def fan_in(self) -> int:
        """k, features that one input neuron reads."""
        return round(self.input_density * self.num_features)

    @property
    def num_steps(self) -> int:
        """S: a layer of blocks is a step of the ribbon."""
        return self.layers

    @property
    def top_k(self) -> int:
        """K: every block of a layer is read, as on or as off."""
        return self.blocks

    @property
    def num_modules(self) -> int:
        """M: each block of a layer, and its identity twin for when it was silent."""
        return 2 * self.blocks

    @property
    def grid(self) -> tuple[int, int]:
        """An image is one token."""
        return (1, 1)

    def sources(self) -> list[list[int]]:
        """For every block, and last for the output, the numbers of the wires that end there, ascending.

        Wires are numbered through: first those of the input modules, then those of the blocks.
        """
        ends = [end for module in self.input_wires for end in module]
        ends += [end for block in self.block_wires for end in block]
        wires_into: list[list[int]] = [[] for _ in range(self.num_blocks + 1)]
        for wire, end in enumerate(ends):
            wires_into[end].append(wire)
        return wires_into


def draw_wires(config: RayTracingConfig) -> tuple[Wires, Wires]:
    """Input wires and block wires as section 3 draws them, the same for a seed on every machine.

    With chance p a wire ends in the next layer, else evenly in a deeper one; for the wires of blocks the
    output counts as one of the deeper layers, and the last layer knows only the output. Within a layer
    every block is as likely. A block may be left without any wire: it is silent for ever.
    """
    rng = random.Random(config.seed)

    def end(layer: int, last: int) -> int:
        deeper = range(layer + 2, last + 1)
        target = layer + 1
        if deeper and rng.random() >= config.next_layer:
            target = deeper[int(rng.random() * len(deeper))]
        if target == config.layers:
            return config.num_blocks
        return target * config.blocks + int(rng.random() * config.blocks)

    inputs = tuple(tuple(end(-1, config.layers - 1) for _ in range(n)) for n in config.input_neurons)
    blocks = tuple(
        tuple(end(block // config.blocks, config.layers) for _ in range(config.width))
        for block in range(config.num_blocks)
    )
    return inputs, blocks


def _check_features(config: RayTracingConfig) -> None:
    if any(width < 1 for width in config.conv_channels):
        raise ValueError(f"conv_channels {config.conv_channels} holds a convolution of no width")
    if config.conv_kernel % 2 == 0:
        raise ValueError(f"conv_kernel {config.conv_kernel} is even; an odd one keeps the image's size")
    convolutions = range(len(config.conv_channels))
    if len(set(config.conv_pools)) < len(config.conv_pools) or not set(config.conv_pools) <= set(convolutions):
        raise ValueError(f"conv_pools {config.conv_pools} must name convolutions 0 to {convolutions[-1]}, each once")
    if config.image_size % 2 ** len(config.conv_pools):
        raise ValueError(
            f"image_size {config.image_size} cannot be halved {len(config.conv_pools)} times, as conv_pools asks"
        )
    if config.fan_in < 1:
        raise ValueError(
            f"input_density {config.input_density:g} of {config.num_features} features leaves an input neuron none; "
            f"give at least {1 / config.num_features:.2g}"
        )


def _check_input_wires(config: RayTracingConfig) -> None:
    given = tuple(len(module) for module in config.input_wires)
    if given != config.input_neurons:
        raise ValueError(f"input_wires has {given} wires by module, input_neurons is {config.input_neurons}")
    for module, ends in enumerate(config.input_wires):
        for end in ends:
            if not 0 <= end < config.num_blocks:
                raise ValueError(
                    f"input_wires: module {module} has a wire to {end}; blocks are 0 to {config.num_blocks - 1}"
                )


def _check_block_wires(config: RayTracingConfig) -> None:
    if len(config.block_wires) != config.num_blocks:
        raise ValueError(
            f"block_wires has {len(config.block_wires)} blocks, "
            f"{config.layers} layers of {config.blocks} are {config.num_blocks}"
        )
    for block, ends in enumerate(config.block_wires):
        if len(ends) != config.width:
            raise ValueError(f"block_wires: block {block} has {len(ends)} wires, width is {config.width}")
        layer = block // config.blocks
        for end in ends:
            if not 0 <= end <= config.num_blocks:
                raise ValueError(
                    f"block_wires: block {block} has a wire to {end}; blocks are 0 to {config.num_blocks - 1}, "
                    f"{config.num_blocks} is the output"
                )
            if end // config.blocks <= layer:
                raise ValueError(
                    f"block_wires: block {block} of layer {layer} has a wire to block {end} of layer "
                    f"{end // config.blocks}; wires lead to later layers only"
                )


class RayTracingControls(EditControls):
    """Where the relaxation of a trained network ends; with both, at one threshold step for every sample.

    In an edit a step is a layer, a module a block of it; a banned block never fires.
    """

    FAMILY: ClassVar[str] = "raytracing"
    CONFIG: ClassVar[type[BaseModel]] = RayTracingConfig
    MODEL: ClassVar[str] = "tokenpaths.engine.models.raytracing:RayTracing"
    TRAININGS: ClassVar[str] = "tokenpaths.engine.train.catalogue:raytracing_trainings"
    CARD: ClassVar[str] = "tokenpaths.engine.train.train_raytracing:write_card"
    DREAMS: ClassVar[tuple[str, ...]] = ("block", "class")
    EDITS: ClassVar[tuple[str, ...]] = ("ban",)
    WHY_NOT: ClassVar[dict[str, str]] = {
        "force": "a block below the threshold has nothing to send",
        "swap": "a block fires when enough signal reaches it, nobody sends it there",
        "freeze": "there is no router: a block fires when enough signal reaches it",
        "shuffle": "an image is one token, so there are no decisions to deal out",
        "top_k": "every block above the threshold fires; give theta_out or theta_steps",
        "bias": "there is no choice that could be pushed; give theta_out or theta_steps",
    }

    theta_out: float | None = Field(
        default=None, gt=0, le=1000, description="θ_out, the signal at the output at which a sample stops"
    )
    theta_steps: int | None = Field(default=None, ge=1, le=1000, description="most threshold steps")

    def check_fit(self, config: dict[str, Any]) -> None:
        made = RayTracingConfig.model_validate(config)
        raytracing_plan(made, self.edits)
        check_steps(made, self.theta_steps)


def check_steps(config: RayTracingConfig, theta_steps: int | None) -> None:
    """Refuse more threshold steps than the network was trained for, or none."""
    if theta_steps is not None and not 1 <= theta_steps <= config.theta_steps:
        raise UserError(f"theta_steps {theta_steps} is not between 1 and {config.theta_steps}", field="theta_steps")


def raytracing_plan(config: RayTracingConfig, edits: Edits) -> RoutePlan | None:
    """The blocks of each layer that never fire; UserError where none at all would be left."""
    only_those(edits, "an image is one token")
    # Signals pass by a layer without blocks: none of its own has to be left.
    plan = plan_routes(edits, Routers((tuple(range(config.blocks)),) * config.layers, 0))
    if plan is not None and all(step is not None and len(step.banned) == config.blocks for step in plan.steps):
        raise UserError(
            f"all {config.num_blocks} blocks are banned, so nothing could reach the output; ban fewer", field="edits"
        )
    return plan
