"""Recipes of DiPaCo training: path model, inner and outer optimiser, sharding, router; learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.train.recipes import Beta


class DiPaCoRecipe(BaseModel):
    """One DiPaCo training run; the defaults of the outer optimiser are the paper's (section 7.1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    model: DiPaCoConfig
    inner_iterations: int = Field(gt=0, description="τ, AdamW iterations of each path between outer steps")
    outer_steps: int = Field(gt=0)
    batch_size: int = Field(gt=0, description="sequences")
    learning_rate: float = Field(1e-3, gt=0, allow_inf_nan=False)
    final_rate: float = Field(1e-4, ge=0, allow_inf_nan=False)
    warmup: int = Field(20, ge=0, description="iterations")
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: float = Field(0.1, ge=0, allow_inf_nan=False)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: float = Field(1e-15, gt=0, allow_inf_nan=False)
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    learn_prefix: bool = Field(True, description="train on the routing prefix too (figure 3), or only behind it")

    outer_rate: float = Field(0.7, gt=0, allow_inf_nan=False)
    outer_momentum: float = Field(0.9, ge=0, lt=1)
    weigh_shards: bool = Field(True, description="weigh a path's change by its shard's size (equation 3)")
    rescale: bool = Field(True, description="scale a module's change by the square root of its number of paths")

    replicas: int = Field(
        1, ge=1, description="workers a path, each on its part of the shard; DiLoCo: one path, several"
    )

    overlap: int = Field(1, ge=1, description="nearest paths that a sequence trains (section 2.4.4)")
    first_router: Literal["kmeans", "product"] = Field("kmeans", description="before a discriminative one")
    standardise: bool = Field(False, description="give every dimension of the features unit variance before clustering")
    reshard_at: tuple[NonNegativeInt, ...] = Field((), description="outer steps that re-shard discriminatively")
    router_share: float = Field(0.05, gt=0, lt=1, description="documents set aside to fit the router")
    stop_share: float = Field(0.02, ge=0, lt=1, description="documents set aside for early stopping")
    patience: int | None = Field(None, gt=0, description="outer steps without a better loss after which a path stops")
    seed: int = 0
    split_seed: int = Field(
        0, description="chooses the documents set aside: the base's, which must not have learnt them"
    )
    bfloat16: bool = Field(True, description="autocast where bfloat16 products are quicker")

    @model_validator(mode="after")
    def _consistent(self) -> DiPaCoRecipe:
        if self.overlap > self.model.num_paths:
            raise ValueError(f"overlap {self.overlap} is larger than the {self.model.num_paths} paths")
        discriminative = self.model.router == "discriminative"
        steps = list(self.reshard_at)
        if discriminative != bool(steps):
            raise ValueError(f"reshard_at {steps} and router {self.model.router!r} do not go together")
        if steps != sorted(set(steps)):
            raise ValueError(f"reshard_at {steps} should name each outer step once, in order")
        if steps and steps[-1] >= self.outer_steps:
            raise ValueError(f"reshard_at {steps} is not before outer_steps {self.outer_steps}")
        if discriminative and self.first_router == "product" and self.model.width % len(self.model.levels):
            raise ValueError(
                f"width {self.model.width} cannot be cut into {len(self.model.levels)} parts for first_router 'product'"
            )
        if self.patience is not None and not self.stop_share:
            raise ValueError("patience needs documents to stop on: set stop_share above 0")
        return self

    @property
    def iterations(self) -> int:
        """Inner iterations of one path in the whole run."""
        return self.inner_iterations * self.outer_steps


def learning_rate(recipe: DiPaCoRecipe, iteration: int) -> float:
    """Linear warm-up, then cosine to ``final_rate``, or constant."""
    if iteration < recipe.warmup:
        return recipe.learning_rate * (iteration + 1) / recipe.warmup
    if recipe.schedule == "constant":
        return recipe.learning_rate
    done = (iteration - recipe.warmup) / max(1, recipe.iterations - recipe.warmup)
    return recipe.final_rate + (recipe.learning_rate - recipe.final_rate) * (1 + math.cos(math.pi * done)) / 2


FILES = ("text/english_train.parquet", "text/english_val.parquet")
_PATH: dict[str, Any] = dict(width=128, heads=4, mlp_width=512, vocab_size=8192, context=256)
_TWO_LEVELS: dict[str, Any] = dict(**_PATH, blocks=(2, 2), rerouter=True)
_DISCRIMINATIVE = DiPaCoConfig(**_TWO_LEVELS, levels=(2, 2), router="discriminative")
# 120 iterations of 16 sequences of each path: under an hour of one core for all runs together. Between outer steps lie
# 15 iterations, where the paper has 150: its outer momentum, which moves seven times as far, makes the loss rise from
# step to step (docs/decisions.md), so what the paths changed is averaged and no more: with the paper's √P too,
# embeddings that all paths share would move √P times as far as any path went.
_PLAIN_MEAN: dict[str, Any] = dict(outer_rate=1.0, outer_momentum=0.0, rescale=False)
_TRAIN: dict[str, Any] = dict(inner_iterations=15, outer_steps=8, batch_size=16, router_share=0.03, **_PLAIN_MEAN)

RECIPES: dict[str, DiPaCoRecipe] = {
    recipe.name: recipe
    for recipe in (
        # What all others start from, and what the routing features come from.
        DiPaCoRecipe(
            name="base",
            model=DiPaCoConfig(**_PATH, levels=(1,), blocks=(4,)),
            inner_iterations=20,
            outer_steps=50,
            batch_size=32,
            learning_rate=1.5e-3,
            schedule="constant",
            warmup=50,
            **_PLAIN_MEAN,
        ),
        # The base trained on for as many iterations as each path of the others.
        DiPaCoRecipe(name="dense", model=DiPaCoConfig(**_PATH, levels=(1,), blocks=(4,)), **_TRAIN),
        DiPaCoRecipe(
            name="flat",
            reshard_at=(4,),
            **_TRAIN,
            model=DiPaCoConfig(**_PATH, levels=(4,), blocks=(4,), own_ends=True, router="discriminative"),
        ),
        DiPaCoRecipe(name="kmeans", model=DiPaCoConfig(**_TWO_LEVELS, levels=(2, 2)), **_TRAIN),
        DiPaCoRecipe(name="product", model=DiPaCoConfig(**_TWO_LEVELS, levels=(2, 2), router="product"), **_TRAIN),
        DiPaCoRecipe(name="dipaco-2x2", reshard_at=(4,), **_TRAIN, model=_DISCRIMINATIVE),
        DiPaCoRecipe(
            name="dipaco-4x4",
            reshard_at=(4,),
            first_router="product",
            **_TRAIN,
            model=DiPaCoConfig(**_TWO_LEVELS, levels=(4, 4), router="discriminative"),
        ),
        # The rest of the paper's tables: what each of them changes, and nothing else.
        DiPaCoRecipe(name="diloco", model=DiPaCoConfig(**_PATH, levels=(1,), blocks=(4,)), replicas=4, **_TRAIN),
        DiPaCoRecipe(name="overlap", overlap=2, reshard_at=(4,), **_TRAIN, model=_DISCRIMINATIVE),
        DiPaCoRecipe(name="phases-2", reshard_at=(4, 6), **_TRAIN, model=_DISCRIMINATIVE),
        DiPaCoRecipe(name="phases-3", reshard_at=(2, 4, 6), **_TRAIN, model=_DISCRIMINATIVE),
        DiPaCoRecipe(
            name="path-specific",
            reshard_at=(4,),
            **_TRAIN,
            model=_DISCRIMINATIVE.model_copy(update={"path_blocks": (1, 3)}),
        ),
        DiPaCoRecipe(
            name="own-ends", reshard_at=(4,), **_TRAIN, model=_DISCRIMINATIVE.model_copy(update={"own_ends": True})
        ),
        *(
            DiPaCoRecipe(
                name=f"{router}-16{'-standardised' * standardise}",
                standardise=standardise,
                **_TRAIN,
                model=DiPaCoConfig(**_TWO_LEVELS, levels=(4, 4), router=router),
            )
            for router in ("kmeans", "product")
            for standardise in (False, True)
        ),
    )
}
