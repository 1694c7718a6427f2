"""Configuration, controls and edits of a DNA, which also covers mixture-of-experts and Mixture-of-Depths transformers.

Source: tables 1, 2, 4 and 5 of Distributed Neural Architectures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls, Edits, only_those
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes
from tokenpaths.engine.families.edit_values import KINDS, Ban, Edit

Kind = Literal["transformer", "attention", "mlp", "identity"]
"""what a module of the bank can be"""


class DNAConfig(BaseModel):
    """One DNA by value; every row of the paper's tables 1, 2, 4 and 5 is such a value.

    ``steps=0`` is a dense model of ``backbone`` blocks: the dense twin (see ``dense_twin``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["vision", "text"]
    width: int = Field(gt=0, description="D, width of the residual stream")
    heads: int = Field(gt=0)
    mlp_width: int = Field(gt=0)
    backbone: int = Field(ge=0, description="N_b, transformer blocks that every token passes")
    steps: int = Field(ge=0, description="S, routed steps")
    top_k: int = Field(default=1, gt=0, description="K, modules a token visits at a step")
    transformers: int = Field(default=0, ge=0, description="modules that are transformer blocks")
    attentions: int = Field(default=0, ge=0, description="modules that are attention only")
    mlps: int = Field(default=0, ge=0, description="modules that are MLP only")
    identities: int = Field(default=0, ge=0, description="modules that do nothing: skipped work")
    skip_ratio: float = Field(default=0.0, ge=0, lt=1, description="r, share of slots to skip")
    skip_speed: float = Field(default=0.0, ge=0, description="u, step of the selection bias")
    skip_reference: Literal["tokens", "modules"] = "tokens"

    choices: tuple[tuple[int, ...], ...] | None = Field(
        default=None, description="connectivity mask: the modules that each step may choose; None: any step, any module"
    )
    renormalise: bool = Field(default=False, description="divide the K weights by their sum")
    router: Literal["token", "expert"] = Field(
        default="token", description="token: each token takes its top K modules; expert: each module its top tokens"
    )
    score: Literal["softmax", "sigmoid"] = Field(default="softmax", description="sigmoid: expert choice only")
    capacity: float = Field(default=1.0, gt=0, le=1, description="share of a sample's tokens that a module takes")
    before_step: Literal["none", "attention", "transformer"] = Field(
        default="none", description="a module of its own that every token passes before each routed step"
    )

    image_size: int = Field(default=224, gt=0)
    patch_size: int = Field(default=16, gt=0)
    channels: int = Field(default=3, gt=0)
    stem: Literal["patch", "conv"] = Field(
        default="patch", description="patch: one strided convolution, as in the paper; conv: four small ones"
    )
    num_classes: int = Field(default=1000, gt=0)
    vocab_size: int = Field(default=50257, gt=0)
    context: int = Field(default=1024, gt=0, description="positions of a text model")

    @model_validator(mode="after")
    def _consistent(self) -> DNAConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.modality == "vision" and self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        if self.stem == "conv" and self.patch_size not in (4, 8, 16):
            raise ValueError(f"stem 'conv' needs patch_size 4, 8 or 16, not {self.patch_size}")
        if self.steps and self.top_k > self.num_modules:
            raise ValueError(f"top_k {self.top_k} is larger than the {self.num_modules} modules")
        if self.steps and self.num_modules == self.identities:
            raise ValueError("all modules are identities: nothing would ever be computed")
        if (self.skip_ratio or self.skip_speed) and not self.identities:
            raise ValueError("skip_ratio and skip_speed need at least one identity module")
        self._check_choices()
        self._check_expert_choice()
        return self

    def _check_choices(self) -> None:
        if self.choices is None:
            return
        if len(self.choices) != self.steps:
            raise ValueError(f"choices has {len(self.choices)} rows, it needs one for each of the {self.steps} steps")
        for step, modules in enumerate(self.choices):
            strangers = [m for m in modules if not 0 <= m < self.num_modules]
            if strangers:
                raise ValueError(f"choices of step {step} name module {strangers[0]}; there are {self.num_modules}")
            if len(set(modules)) != len(modules):
                raise ValueError(f"choices of step {step} name a module twice")
            if self.router == "token" and self.top_k > len(modules):
                raise ValueError(f"top_k {self.top_k} is larger than the {len(modules)} choices of step {step}")

    def _check_expert_choice(self) -> None:
        if self.router == "token":
            if self.score != "softmax":
                raise ValueError("score 'sigmoid' is for router 'expert'; a token's choice is a softmax")
            if self.capacity != 1:
                raise ValueError("capacity is for router 'expert'; with 'token' every token chooses top_k modules")
            return
        if self.renormalise:
            raise ValueError("renormalise is for router 'token'; with router 'expert' a token may be taken by none")
        for step in range(self.steps):
            working, idle = self.sides_of(step)
            if not len(working) == len(idle) == self.top_k:
                raise ValueError(
                    f"router 'expert' needs top_k ({self.top_k}) working modules at step {step}, and as many "
                    f"identities for the tokens that they do not take; it has {len(working)} and {len(idle)}"
                )
        if self.skip_speed:
            raise ValueError("skip_speed moves a token's choice; with router 'expert' capacity decides what is skipped")

    def choices_of(self, step: int) -> tuple[int, ...]:
        """The modules that a step may choose."""
        return tuple(range(self.num_modules)) if self.choices is None else self.choices[step]

    def sides_of(self, step: int) -> tuple[list[int], list[int]]:
        """The working modules and the identities among them."""
        kinds, modules = self.kinds, self.choices_of(step)
        return [m for m in modules if kinds[m] != "identity"], [m for m in modules if kinds[m] == "identity"]

    @property
    def kinds(self) -> list[Kind]:
        """Kind of each module, in module order."""
        counts: dict[Kind, int] = {
            "transformer": self.transformers,
            "attention": self.attentions,
            "mlp": self.mlps,
            "identity": self.identities,
        }
        return [kind for kind, count in counts.items() for _ in range(count)]

    @property
    def num_modules(self) -> int:
        return self.transformers + self.attentions + self.mlps + self.identities

    @property
    def num_steps(self) -> int:
        """S; 0 for a dense model."""
        return self.steps

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches (images only)."""
        return (self.image_size // self.patch_size,) * 2

    @property
    def num_tokens(self) -> int:
        """T: patches of an image, or the longest text window."""
        return (self.image_size // self.patch_size) ** 2 if self.modality == "vision" else self.context

    @property
    def active_blocks(self) -> float:
        """Transformer blocks' worth of parameters that a token meets: N_b + S·K·(1−r).

        An attention module counts as a third of a block and an MLP module as two thirds, their
        shares of its parameters at mlp_width = 4·width; re-use is not taken into account.
        """
        active = self.transformers + self.attentions / 3 + self.mlps * 2 / 3
        working = self.num_modules - self.identities
        share = active / working if working else 0.0
        worked = self.capacity if self.router == "expert" else 1 - self.skip_ratio
        shared = self.steps * {"none": 0.0, "attention": 1 / 3, "transformer": 1.0}[self.before_step]
        return self.backbone + shared + self.steps * self.top_k * worked * share

    def dense_twin(self, **changes: object) -> DNAConfig:
        """The same input, output and blocks without routing, at (nearly) equal active parameters."""
        dense = dict(
            backbone=round(self.active_blocks),
            steps=0,
            top_k=1,
            transformers=0,
            attentions=0,
            mlps=0,
            identities=0,
            skip_ratio=0.0,
            skip_speed=0.0,
            choices=None,
            renormalise=False,
            router="token",
            score="softmax",
            capacity=1.0,
            before_step="none",
        )
        return DNAConfig(**(self.model_dump() | dense | changes))


class DNAControls(EditControls):
    """Every edit: a DNA decides for each token at each step, and any module can take any token."""

    FAMILY: ClassVar[str] = "dna"
    CONFIG: ClassVar[type[BaseModel]] = DNAConfig
    MODEL: ClassVar[str] = "tokenpaths.engine.models.dna:DNA"
    TRAININGS: ClassVar[str] = "tokenpaths.engine.train.catalogue:dna_trainings"
    CARD: ClassVar[str] = "tokenpaths.engine.train.dna_card:write_card"
    DREAMS: ClassVar[tuple[str, ...]] = ("choices", "path", "module", "class")
    EDITS: ClassVar[tuple[str, ...]] = KINDS

    @classmethod
    def check_edits(cls, config: dict[str, Any], edits: Edits) -> None:
        dna_plan(DNAConfig.model_validate(config), edits)


WHERE_MODULES_CHOOSE = ("ban", "freeze", "shuffle")
"""the edits of a DNA that mean something where each module takes its tokens (router "expert")"""


def dna_plan(config: DNAConfig, edits: Edits) -> RoutePlan | None:
    """What each step does differently; UserError for an edit that does not fit, see ``edit_plan``."""
    if edits and config.router == "expert":
        _check_expert_edits(edits, config)
    return plan_routes(edits, Routers(tuple(map(config.choices_of, range(config.steps))), config.top_k))


def _check_expert_edits(edits: Sequence[Edit], config: DNAConfig) -> None:
    """Where modules take their tokens, a token has no choice that could be moved."""
    only_those(edits, "each module takes its tokens")
    for place, edit in enumerate(edits):
        if edit.edit not in WHERE_MODULES_CHOOSE:
            raise UserError(
                f"edit {edit.edit!r} changes what a token chooses; here each module takes its tokens. This model has: "
                + ", ".join(WHERE_MODULES_CHOOSE),
                field=f"edits.{place}",
            )
        if isinstance(edit, Ban):
            for step in range(config.steps):
                if edit.step in (None, step):
                    _check_not_idle(edit, step, place, config)


def _check_not_idle(edit: Ban, step: int, place: int, config: DNAConfig) -> None:
    if idle := set(edit.modules) & set(config.sides_of(step)[1]):
        raise UserError(
            f"module {min(idle)} is an identity: it stands for the tokens that no module takes, so a ban would leave "
            "them without one; ban working modules",
            field=f"edits.{place}.modules",
        )
