"""Recipes of the shipped DNA checkpoints, by value.

Scaled down from "Distributed Neural Architectures" (appendix A.1, A.2) to what two processor cores train in an
evening; each departure is explained beside its line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, SerializeAsAny, model_validator

from tokenpaths.engine.models.dna import DNAConfig
from tokenpaths.engine.models.family import family_class

if TYPE_CHECKING:
    FamilyConfig = Any  # every family has a configuration class of its own
else:
    FamilyConfig = SerializeAsAny[InstanceOf[BaseModel]]


Share = Annotated[float, Field(ge=0, le=1)]


class AugmentConfig(BaseModel):
    """Vision augmentation; zero switches a part off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    crop_padding: int = Field(default=8, ge=0)
    """pixels of reflected border before the random crop, fewer than the image has a side"""
    flip: bool = True
    jitter: Share = 0.3
    """brightness, contrast and saturation, each scaled by 1 ± so much"""
    auto_augment: Share = 0.0
    """share of images that pass through the AutoAugment policy"""
    erase: Share = 0.25
    """share of images that lose a random rectangle"""
    mix: Share = 0.0
    """share of batches that are mixed, by MixUp or CutMix with equal chance"""
    mixup_alpha: float = Field(default=0.8, gt=0, allow_inf_nan=False)
    cutmix_alpha: float = Field(default=1.0, gt=0, allow_inf_nan=False)


Beta = Annotated[float, Field(ge=0, lt=1)]


class Recipe(BaseModel):
    """One training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    family: str = "dna"
    model: FamilyConfig = Field(description="the family's configuration")
    train_file: str = Field(description="Parquet file below the data folder")
    val_file: str
    batch_size: int = Field(gt=0, description="images, or text windows of ``context`` tokens")
    iterations: int = Field(gt=0)
    learning_rate: float = Field(1e-3, gt=0, allow_inf_nan=False)
    start_rate: float = Field(1e-7, ge=0, allow_inf_nan=False)
    final_rate: float = Field(1e-6, ge=0, allow_inf_nan=False)
    warmup: int = Field(100, ge=0, description="iterations, at most half of them all")
    schedule: Literal["cosine", "constant-linear"] = "cosine"
    weight_decay: float = Field(0.05, ge=0, allow_inf_nan=False)
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    eps: float = Field(1e-8, gt=0, allow_inf_nan=False)
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    balance: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="weight of the load-balancing loss; 0: none, as in the paper"
    )
    augment: AugmentConfig = AugmentConfig()
    seed: int = 0
    bfloat16: bool = Field(True, description="autocast where bfloat16 products are quicker")

    @model_validator(mode="before")
    @classmethod
    def _model_of_the_family(cls, values: Any) -> Any:
        """A configuration given as plain values becomes one of the family's class."""
        if isinstance(values, dict) and isinstance(values.get("model"), dict):
            config = family_class(values.get("family", "dna")).Config(**values["model"])
            return values | {"model": config}
        return values

    @model_validator(mode="after")
    def _something_to_balance(self) -> Recipe:
        if self.balance and not (self.family == "dna" and self.model.steps and self.model.router == "token"):
            raise ValueError("balance is for a DNA with routed steps whose tokens choose their modules")
        if self.balance and self.model.choices is not None:
            # A router would lower the loss by what it gives to modules that the step does not offer.
            raise ValueError("balance is for steps that may choose any module, not for a model with choices")
        return self

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Recipe:
        task = getattr(self.model, "task", "predict" if self._modality == "text" else "classify")
        if self.label_smoothing and task == "predict":
            raise ValueError(f"label_smoothing {self.label_smoothing:g} is for classes; a model that predicts takes 0")
        if self.family == "dna" and self.model.skip_ratio and not self.model.skip_speed:
            raise ValueError(
                f"skip_ratio {self.model.skip_ratio:g} is reached by skip_speed, which is 0: give both or neither"
            )
        return self

    @model_validator(mode="after")
    def _crops_inside_the_image(self) -> Recipe:
        side = getattr(self.model, "image_size", None) if self._modality == "vision" else None
        if side is not None and self.augment.crop_padding >= side:
            raise ValueError(
                f"augment.crop_padding {self.augment.crop_padding} is not below image_size {side}: a border reflects "
                "the image"
            )
        return self

    @property
    def _modality(self) -> str | None:
        """None for a plugin's model that does not say."""
        return getattr(self.model, "modality", None)

    def dense_twin(self) -> Recipe:
        """The same recipe for the dense twin of the model, which has nothing to balance."""
        dense = {"name": f"{self.name}-dense", "model": self.model.dense_twin(), "balance": 0.0}
        return self.model_copy(update=dense)


_VISION: dict[str, Any] = dict(
    modality="vision", image_size=64, patch_size=8, stem="conv", num_classes=50, backbone=1, steps=5
)
_TEXT: dict[str, Any] = dict(
    modality="text", vocab_size=8192, context=256, width=160, heads=5, mlp_width=640, backbone=1
)

_TRAIN_VISION: dict[str, Any] = dict(
    train_file="vision/tiny_imagenet_50_train.parquet",
    val_file="vision/tiny_imagenet_50_val.parquet",
    batch_size=128,
    iterations=2_340,  # 12 epochs of 25 000 images
    learning_rate=1.5e-3,
    warmup=200,
    schedule="cosine",
    weight_decay=0.05,
    betas=(0.9, 0.99),
    label_smoothing=0.1,
    # MixUp, CutMix and AutoAugment pay over hundreds of epochs, and cost accuracy over 12.
    augment=AugmentConfig(crop_padding=8, jitter=0.3, erase=0.25, mix=0.0, auto_augment=0.0),
)
_TRAIN_TEXT: dict[str, Any] = dict(
    train_file="text/english_train.parquet",
    val_file="text/english_val.parquet",
    batch_size=32,
    iterations=1_300,  # 10.6 M tokens, one pass
    learning_rate=1.5e-3,
    warmup=100,
    schedule="constant-linear",
    weight_decay=0.1,
    betas=(0.9, 0.95),
    eps=1e-15,
    label_smoothing=0.0,
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        # 6 active blocks of width 192: 2.65 M active block parameters.
        Recipe(
            name="dna-vision-top1",
            model=DNAConfig(**_VISION, width=192, heads=3, mlp_width=768, top_k=1, transformers=12),
            **_TRAIN_VISION,
        ),
        # 8.5 active blocks of width 160 after 25 % skipping: 2.61 M active block parameters.
        Recipe(
            name="dna-vision-top2-skip",
            model=DNAConfig(
                **_VISION,
                width=160,
                heads=5,
                mlp_width=640,
                top_k=2,
                transformers=16,
                identities=4,
                skip_ratio=0.25,
                skip_speed=1e-3,
            ),
            **_TRAIN_VISION,
        ),
        # DNA-n: attention and MLP are modules of their own, so that a step is half a block. 11 steps, a tenth of them
        # skipped, and the backbone: 6 active blocks if both kinds are taken equally often.
        Recipe(
            name="dna-n-vision-top1",
            model=DNAConfig(
                **(_VISION | {"steps": 11}),
                width=192,
                heads=3,
                mlp_width=768,
                top_k=1,
                attentions=12,
                mlps=12,
                identities=2,
                skip_ratio=0.1,
                # Of one module a step: with 1e-3 routers take to identities faster than the bias turns them away, and
                # three quarters of the work were skipped between iterations 400 and 1,000.
                skip_speed=3e-3,
            ),
            **_TRAIN_VISION,
        ),
        # 7 active blocks of width 160.
        Recipe(name="dna-text-top1", model=DNAConfig(**_TEXT, steps=6, top_k=1, transformers=14), **_TRAIN_TEXT),
        # 6.6 active blocks of width 160 after 30 % skipping.
        Recipe(
            name="dna-text-top2-skip",
            model=DNAConfig(**_TEXT, steps=4, top_k=2, transformers=14, identities=4, skip_ratio=0.3, skip_speed=1e-3),
            **_TRAIN_TEXT,
        ),
        # The same without skipping: 9 active blocks.
        Recipe(name="dna-text-top2", model=DNAConfig(**_TEXT, steps=4, top_k=2, transformers=14), **_TRAIN_TEXT),
    )
}
# 60 epochs, half of whose batches are mixed.
_LONG: dict[str, Any] = {
    "name": "dna-vision-top1-long",
    "iterations": 11_700,
    "warmup": 500,
    "augment": RECIPES["dna-vision-top1"].augment.model_copy(update={"mix": 0.5}),
}
RECIPES["dna-vision-top1-long"] = RECIPES["dna-vision-top1"].model_copy(update=_LONG)
RECIPES["dense-vision"] = RECIPES["dna-vision-top1"].dense_twin().model_copy(update={"name": "dense-vision"})
RECIPES["dense-vision-long"] = (
    RECIPES["dna-vision-top1-long"].dense_twin().model_copy(update={"name": "dense-vision-long"})
)
# Four passes. Without balance nine tenths of the tokens of a step take one module after one pass already.
_LONG_TEXT: dict[str, Any] = {"name": "dna-text-top1-long", "iterations": 5_200, "warmup": 400, "balance": 0.01}
RECIPES["dna-text-top1-long"] = RECIPES["dna-text-top1"].model_copy(update=_LONG_TEXT)
RECIPES["dense-text-long"] = RECIPES["dna-text-top1-long"].dense_twin().model_copy(update={"name": "dense-text-long"})
RECIPES["dense-text"] = RECIPES["dna-text-top1"].dense_twin().model_copy(update={"name": "dense-text"})
