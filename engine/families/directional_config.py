"""Configuration, controls and edits of a Directional Routing model.

Source: "Directional Routing in Transformers", section 2 and appendix B.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls, Edits, check_index, check_table, only_those
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes
from tokenpaths.engine.families.edit_values import Freeze

Pooling = Literal["sequence", "prefix"]


class DirectionalConfig(BaseModel):
    """One model by value, the paper's included (see the tests)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["text"] = "text"
    task: Literal["predict"] = "predict"
    width: int = Field(gt=0, description="D, width of the residual stream")
    heads: int = Field(gt=0, description="H, heads of a layer")
    mlp_width: int = Field(gt=0)
    layers: int = Field(gt=0, description="L, layers, each with its own router")
    directions: int = Field(default=4, ge=0, description="K, directions of a head; 0 = the unrouted twin")
    router_width: int = Field(default=64, gt=0, description="hidden width of the routers")
    temperature: float = Field(default=0.5, gt=0, allow_inf_nan=False, description="τ; smaller = closer to on or off")
    pooling: Pooling = Field(
        default="sequence",
        description="what a router reads. sequence: the mean over all positions, one decision a sequence, as in "
        "the paper; a position then sees its future. prefix: the mean up to each position, strictly causal",
    )
    tied: bool = Field(
        default=True, description="one table for embedding and unembedding, as the paper's parameter count says"
    )
    vocab_size: int = Field(default=50257, gt=0)
    context: int = Field(default=1024, gt=0, description="positions")

    @model_validator(mode="after")
    def _consistent(self) -> DirectionalConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.directions > self.head_width:
            raise ValueError(
                f"directions {self.directions} is larger than the width of a head, {self.head_width}; "
                "more directions than dimensions cannot be told apart"
            )
        return self

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def num_steps(self) -> int:
        """S, one step a layer; 0 for the unrouted twin."""
        return self.layers if self.directions else 0

    @property
    def top_k(self) -> int:
        """Slots of a step: every direction of every head is read as on or off."""
        return self.heads * self.directions

    @property
    def num_modules(self) -> int:
        """Each direction, and for each its identity twin: the direction that was left alone."""
        return 2 * self.top_k

    def unrouted_twin(self) -> DirectionalConfig:
        """The same network without directions and routers."""
        return DirectionalConfig(**(self.model_dump() | {"directions": 0}))


class DirectionalFields(EditControls):
    """The fields of ``tokenpaths.engine.models.directional_gates.DirectionalControls``, which knows what they do."""

    FAMILY: ClassVar[str] = "directional"
    CONFIG: ClassVar[type[BaseModel]] = DirectionalConfig
    MODEL: ClassVar[str] = "tokenpaths.engine.models.directional:Directional"
    TRAININGS: ClassVar[str] = "tokenpaths.engine.train.catalogue:directional_trainings"
    CARD: ClassVar[str] = "tokenpaths.engine.train.directional_recipes:write_card"
    DREAMS: ClassVar[tuple[str, ...]] = ("direction",)
    EDITS: ClassVar[tuple[str, ...]] = ("ban", "force", "freeze")
    WHY_NOT: ClassVar[dict[str, str]] = {
        "swap": "a route is a gate for each direction; give another text's as the control gates",
        "shuffle": "a layer decides for the whole text, so there are no tokens to deal decisions out to",
        "top_k": "every gate acts, none is picked",
        "bias": "a gate can be set by hand: give the control gate",
    }

    gate: float | None = Field(None, ge=0, le=1, description="Value of the gates: 0 routing off, 0.5 neutral, 1 full")
    gate_layer: int | None = Field(None, ge=0, description="The layer whose gates take that value; unset: every layer")
    gate_head: int | None = Field(None, ge=0, description="The head whose gates take it; unset: every head")
    gate_direction: int | None = Field(None, ge=0, description="The direction whose gates take it; unset: every one")
    knocked_out: tuple[tuple[int, int], ...] | None = Field(
        None, description="Heads that add nothing, each as [layer, head]"
    )
    gates: tuple[tuple[tuple[float, ...], ...], ...] | None = Field(
        None,
        description="Gates of another input, by layer, head and direction, in place of this one's: what "
        "GET /runs/{run}/gates gives of a sample or a label",
    )
    pooling: Literal["sequence", "prefix"] | None = Field(
        None, description="What the routers read: the whole sequence, or only what stands before (causal)"
    )

    def check_fit(self, config: dict[str, Any]) -> None:
        made = DirectionalConfig.model_validate(config)
        sizes = {"layer": made.layers, "head": made.heads, "direction": made.directions}
        self.check_gate()
        for name, size in sizes.items():
            check_index(f"gate_{name}", getattr(self, f"gate_{name}"), size)
        for layer, head in self.knocked_out or ():
            check_index("knocked_out", layer, made.layers, "layer")
            check_index("knocked_out", head, made.heads, "head")
        if self.gates is not None:
            check_table("gates", self.gates, tuple(sizes), tuple(sizes.values()))
        self.plan(made)

    def check_gate(self) -> None:
        """Refuse a layer, head or direction whose gates are given no value."""
        for name in ("gate_layer", "gate_head", "gate_direction"):
            if self.gate is None and (place := getattr(self, name)) is not None:
                raise UserError(f"{name} {place} needs a value for its gates: give gate as well", field="gate")

    def plan(self, config: DirectionalConfig) -> RoutePlan | None:
        """What each layer does differently.

        Raises:
            UserError: edits that do not fit the model; a layer that is to be frozen and to have gates given.
        """
        plan = directional_plan(config, self.edits)
        if plan is None or not plan.frozen or (self.gate is None and self.gates is None):
            return plan
        if self.gates is not None:
            raise UserError(
                "frozen layers take the gates of the unedited pass, so no others can be put in: leave out freeze or "
                "gates",
                field="gates",
            )
        set_by_hand = tuple(layer for layer in plan.frozen if self.gate_layer in (None, layer))
        for edit in self.edits or ():
            if isinstance(edit, Freeze) and edit.step in set_by_hand:
                raise UserError(
                    f"the router of step {edit.step} is frozen, and its gates are to be {self.gate:g}: leave out "
                    "freeze or gate, or name another gate_layer",
                    field="gate",
                )
        if set_by_hand == plan.frozen:
            raise UserError("gates are given to every router, so none is left to be frozen", field="gate")
        steps = tuple(None if layer in set_by_hand else step for layer, step in enumerate(plan.steps))
        return replace(plan, steps=steps)


def directional_plan(config: DirectionalConfig, edits: Edits) -> RoutePlan | None:
    """What each layer does differently; UserError also for a direction neither to be removed nor to be left alone."""
    only_those(edits, "a layer decides for the whole text")
    both = tuple(range(config.num_modules))
    plan = plan_routes(edits, Routers((both,) * config.num_steps, config.top_k, one_place=False))
    for layer, step in enumerate(plan.steps if plan else ()):
        if step is None:
            continue
        forced = {force.module for force in step.forced}
        for module in range(config.top_k):
            removed, alone = module, module + config.top_k
            which = f"(module {removed}) {{}} left alone (module {alone})"
            if {removed, alone} <= step.banned:
                raise UserError(
                    f"direction {module} of layer {layer} could neither be removed {which.format('nor')}; ban one of "
                    "the two",
                    field="edits",
                )
            if {removed, alone} <= forced:
                raise UserError(
                    f"direction {module} of layer {layer} is to be removed {which.format('and')}; force one of the two",
                    field="edits",
                )
    return plan
