"""Configuration, controls and edits of an H-Model, with every check that makes it invalid.

Source: H-Model, sections 3.2 to 3.5 and 6.7 to 6.9.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls, Edits, check_table, only_those
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes

InputName = Literal["image", "text"]
OutputName = Literal["predict", "classify"]
Pooling = Literal["prefix", "sequence", "last"]
"""what a layer's connections are chosen from: the mean up to each position, that of the whole sequence, or the last
token up to each position"""

PRIMARY: dict[str, InputName] = {"text": "text", "vision": "image"}
"""the input that a modality is about"""


class HiddenLayerConfig(BaseModel):
    """One hidden layer; every value that is not given is the model's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["transformer", "convolution", "pretrained"] = "transformer"
    width: int | None = Field(default=None, gt=0, description="width inside the layer; None: the shared width")
    projection: bool = Field(default=False, description="linear maps from the shared width to the layer's and back")
    kernel: int = Field(default=5, gt=0, description="convolution: positions of a text, patches of an image each way")
    architecture: dict[str, Any] | None = Field(default=None, description="pretrained: Hugging Face configuration")
    path: str | None = Field(default=None, description="pretrained: the layer's name inside that model")

    @model_validator(mode="after")
    def _consistent(self) -> HiddenLayerConfig:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}; it must be odd, so that a position has a middle")
        if self.kind == "pretrained" and not (self.architecture and self.path and self.width):
            raise ValueError("a pretrained layer needs architecture, path and width; take_layer fills them in")
        if self.kind != "pretrained" and (self.architecture or self.path):
            raise ValueError(f"architecture and path belong to pretrained layers; this one is a {self.kind}")
        return self


class HModelConfig(BaseModel):
    """One H-Model by value; ``hidden`` takes kinds ("transformer") or whole layer configurations."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    modality: Literal["vision", "text"] = Field(description="the input whose tokens or patches a trace shows")
    task: OutputName = Field(default="predict", description="the output that ``logits`` holds")
    inputs: tuple[InputName, ...] = Field(default_factory=lambda v: (PRIMARY[v["modality"]],), min_length=1)
    outputs: tuple[OutputName, ...] = Field(default_factory=lambda v: (v["task"],), min_length=1)
    hidden: tuple[HiddenLayerConfig, ...] = Field(min_length=1)
    iterations: int = Field(ge=1, description="T, times that the hidden layers run")
    width: int = Field(gt=0, description="D, width of the states that layers send each other")
    heads: int = Field(gt=0)
    mlp_width: int = Field(gt=0)
    connection_width: int = Field(default=64, gt=0, description="hidden width of the connection heads")
    alpha: float = Field(default=1.0, gt=0, description="α: small makes connections all or nothing")
    alpha_rate: float = Field(default=1.0, gt=0, description="α is multiplied by this at every iteration")
    route_top_k: int | None = Field(default=None, ge=1, description="at inference, connections kept of each source")
    pooling: Pooling = Field(default_factory=lambda v: "prefix" if "predict" in v.get("outputs", ()) else "sequence")

    image_size: int = Field(default=64, gt=0)
    patch_size: int = Field(default=8, gt=0)
    channels: int = Field(default=3, gt=0)
    num_classes: int | None = Field(default=None, gt=1)
    vocab_size: int = Field(default=4096, gt=1)
    context: int = Field(default=128, gt=0, description="positions of a text")

    @field_validator("hidden", mode="before")
    @classmethod
    def _kinds(cls, hidden: Any) -> Any:
        if isinstance(hidden, (list, tuple)):
            return tuple({"kind": layer} if isinstance(layer, str) else layer for layer in hidden)
        return hidden

    @model_validator(mode="after")
    def _consistent(self) -> HModelConfig:
        if PRIMARY[self.modality] not in self.inputs:
            raise ValueError(
                f"inputs {self.inputs} lack {PRIMARY[self.modality]!r}, which modality {self.modality!r} is about"
            )
        for name in ("inputs", "outputs"):
            if len(set(values := getattr(self, name))) < len(values):
                raise ValueError(f"{name} {values} name one of them twice")
        if self.task not in self.outputs:
            raise ValueError(f"task {self.task!r} is not among the outputs {self.outputs}")
        if "predict" in self.outputs and "text" not in self.inputs:
            raise ValueError("outputs hold 'predict', which predicts tokens, but no input is a text")
        if "classify" in self.outputs and self.num_classes is None:
            raise ValueError("num_classes is missing; output 'classify' needs it")
        if "image" in self.inputs and self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        if self.route_top_k is not None and self.route_top_k > self.num_targets:
            raise ValueError(
                f"route_top_k is {self.route_top_k}, but a layer has {self.num_targets} targets "
                f"({self.num_modules} hidden layers, {len(self.outputs)} outputs)"
            )
        for index, layer in enumerate(self.hidden):
            inner = layer.width or self.width
            if inner != self.width and not layer.projection:
                raise ValueError(
                    f"hidden.{index}.projection is off, but the layer's width {inner} is not the shared "
                    f"width {self.width}; switch it on"
                )
            if layer.kind == "transformer" and inner % self.heads:
                raise ValueError(f"hidden.{index}.width {inner} is not a multiple of heads {self.heads}")
        return self

    @property
    def num_modules(self) -> int:
        """H."""
        return len(self.hidden)

    @property
    def num_steps(self) -> int:
        """S: the layer of step s is the one that the chain visits at iteration s + 1."""
        return self.iterations

    @property
    def top_k(self) -> int:
        """Slots of the ribbon: the chain follows one connection; ``route_top_k`` is what sharpens them."""
        return 1

    @property
    def num_targets(self) -> int:
        """Z = H + O."""
        return len(self.hidden) + len(self.outputs)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return (self.image_size // self.patch_size,) * 2

    @property
    def causal(self) -> bool:
        """Whether positions see only earlier ones."""
        return "predict" in self.outputs


class HModelControls(EditControls):
    """The live controls: they replace the configuration's values for one call.

    A step of an edit is the iteration at which the layer would run, the first being step 0: a banned layer is sent
    nothing, a forced one everything, a bias moves the logit of the connection to it.
    """

    FAMILY: ClassVar[str] = "hmodel"
    CONFIG: ClassVar[type[BaseModel]] = HModelConfig
    MODEL: ClassVar[str] = "tokenpaths.engine.models.hmodel.hmodel:HModel"
    TRAININGS: ClassVar[str] = "tokenpaths.engine.train.catalogue:hmodel_trainings"
    CARD: ClassVar[str] = "tokenpaths.engine.train.hmodel_recipes:write_card"
    DREAMS: ClassVar[tuple[str, ...]] = ("connection",)
    EDITS: ClassVar[tuple[str, ...]] = ("ban", "force", "bias")
    WHY_NOT: ClassVar[dict[str, str]] = {
        "swap": "a route is a matrix of weights here; give another sample's as the control connections",
        "freeze": "a route is a matrix of weights here; give the unedited run's as the control connections",
        "shuffle": "a layer sends to all others at once, so there are no single choices to deal out",
        "top_k": "there is a control of that name",
    }

    alpha: float | None = Field(default=None, ge=0.01, le=10, description="α: small makes connections all or nothing")
    alpha_rate: float | None = Field(default=None, ge=0.1, le=10, description="factor of α at every iteration")
    top_k: int | None = Field(default=None, ge=1, description="connections kept of each layer's outgoing ones")
    connections: tuple[tuple[tuple[float, ...], ...], ...] | None = Field(
        default=None,
        description="connections of another sample by iteration, source and target, in place of this one's: what "
        "GET /runs/{run}/edges gives of a sample or a label",
    )

    def check_fit(self, config: dict[str, Any]) -> None:
        made = HModelConfig.model_validate(config)
        plan, given = hmodel_plan(made, self.edits), self.connections is not None
        check_sharpening(made, self.alpha, self.alpha_rate, self.top_k, connections=given, plan=plan)
        if self.connections is not None:
            sizes = (made.iterations + 1, made.num_modules + len(made.inputs), made.num_targets)
            check_table("connections", self.connections, ("iteration", "source", "target"), sizes)


def check_sharpening(
    config: HModelConfig,
    alpha: float | None,
    alpha_rate: float | None,
    top_k: int | None,
    *,
    connections: bool,
    plan: RoutePlan | None,
) -> None:
    """Refuse values that cannot work, or that change nothing because ``connections`` are given; None: as configured.

    Raises:
        UserError: ``field`` names the value.
    """
    # A bias moves the logits of given connections too, and α says how far.
    biased = plan is not None and any(step is not None and step.bias for step in plan.steps)
    idle = {"top_k": top_k} if biased else {"alpha": alpha, "alpha_rate": alpha_rate, "top_k": top_k}
    for name, given in idle.items():
        if connections and given is not None:
            raise UserError(
                f"{name} shapes what the layers say, and connections replace that: give one of the two", field=name
            )
    alpha = config.alpha if alpha is None else alpha
    alpha_rate = config.alpha_rate if alpha_rate is None else alpha_rate
    for name, value in (("alpha", alpha), ("alpha_rate", alpha_rate)):
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{name} is {value}; it must be a number above 0", field=name)
    # Logarithms, because the power itself may overflow.
    exponent = math.log10(alpha) + config.iterations * math.log10(alpha_rate)
    if not -9 <= exponent <= 9:
        raise UserError(
            f"alpha {alpha:g} times alpha_rate {alpha_rate:g} at each of {config.iterations} iterations "
            f"ends at 1e{exponent:.0f}; stay between 1e-9 and 1e9",
            field="alpha_rate",
        )
    if top_k is not None and not 1 <= top_k <= config.num_targets:
        raise UserError(
            f"top_k is {top_k}; a layer has {config.num_targets} targets ({config.num_modules} hidden "
            f"layers, {len(config.outputs)} outputs), so give 1 to {config.num_targets}",
            field="top_k",
        )


def hmodel_plan(config: HModelConfig, edits: Edits) -> RoutePlan | None:
    """What is sent differently before each iteration; UserError for edits that do not fit."""
    only_those(edits, "a layer sends to all positions")
    # A step needs one layer that something can be sent to.
    return plan_routes(edits, Routers((tuple(range(config.num_modules)),) * config.iterations, 1, one_place=False))
