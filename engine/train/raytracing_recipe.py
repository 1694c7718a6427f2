"""Recipes of Ray-Tracing networks, and their image corpora.

Source: "Ray-Tracing for Conditionally Activated Neural Networks", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.bundled import digits
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.train.corpora import ImageCorpus, load_images
from tokenpaths.engine.train.loop import generator_for


class RayTracingRecipe(BaseModel):
    """One training run; the defaults are the paper's where it gives them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    family: Literal["raytracing"] = "raytracing"
    model: RayTracingConfig
    data: Literal["digits", "cifar10"]
    feature_epochs: int = Field(gt=0, description="minimal training of the convolutions")
    epochs: int = Field(default=500, gt=0)
    patience: int = Field(default=10, gt=0)
    batch_size: int = Field(default=128, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    validation_share: float = Field(default=0.2, gt=0, lt=1, description="of the training data, for early stopping")
    seed: int = Field(default=0, ge=0, description="of the network; the wires have theirs in ``model``")
    feature_seed: int = Field(default=0, ge=0, description="of the convolutions and of the validation split")

    @property
    def files(self) -> tuple[str, ...]:
        """What is read below the data folder: nothing for the bundled digits."""
        parts = () if self.data == "digits" else ("train", "test")
        return tuple(f"vision/{self.data}_{part}.parquet" for part in parts)


_DIGITS: dict[str, Any] = dict(image_size=8, conv_channels=(16, 32, 32), conv_pools=(0,))
_TRAIN_DIGITS: dict[str, Any] = dict(data="digits", feature_epochs=3, batch_size=32)
# 10 epochs of convolutions where the paper has 30: one processor core.
_TRAIN_CIFAR10: dict[str, Any] = dict(data="cifar10", feature_epochs=10, batch_size=128)
RELAXED = 80.0
"""θ_out of the relaxed recipes: with the paper's 0.5 of a signal of 105 the output fires at the first threshold"""

RECIPES: dict[str, RayTracingRecipe] = {
    recipe.name: recipe
    for recipe in (
        RayTracingRecipe(name="raytracing-digits", model=RayTracingConfig(**_DIGITS), **_TRAIN_DIGITS),
        RayTracingRecipe(
            name="raytracing-digits-relaxed", model=RayTracingConfig(**_DIGITS, theta_out=RELAXED), **_TRAIN_DIGITS
        ),
        RayTracingRecipe(
            name="raytracing-digits-crossing", model=RayTracingConfig(**_DIGITS, crossing="all"), **_TRAIN_DIGITS
        ),
        RayTracingRecipe(name="raytracing-cifar10", model=RayTracingConfig(), **_TRAIN_CIFAR10),
        RayTracingRecipe(
            name="raytracing-cifar10-relaxed", model=RayTracingConfig(theta_out=RELAXED), **_TRAIN_CIFAR10
        ),
        RayTracingRecipe(name="raytracing-cifar10-crossing", model=RayTracingConfig(crossing="all"), **_TRAIN_CIFAR10),
    )
}


@dataclass(frozen=True)
class Corpora:
    """Images: to learn from, to stop by, to report on."""

    train: ImageCorpus
    val: ImageCorpus
    test: ImageCorpus


def find_recipe(name: str) -> RayTracingRecipe:
    """Raises ``UserError`` where there is none of that name."""
    if name not in RECIPES:
        raise UserError(f"no recipe is called {name!r}; there are: {', '.join(RECIPES)}", field="recipe")
    return RECIPES[name]


def load_corpora(recipe: RayTracingRecipe, data: Path | None) -> Corpora:
    """Digits come with a dependency; CIFAR-10 lies in the data folder as Parquet, train and test.

    Raises:
        UserError: no data folder where one is needed, files missing, or other classes than the recipe's.
    """
    if recipe.data == "digits":
        whole, test = _digit_corpora()
    elif data is None:
        raise UserError(f"{recipe.name} needs the folder with vision/{recipe.data}_train.parquet", field="data")
    else:
        size = recipe.model.image_size
        whole = load_images(data / "vision" / f"{recipe.data}_train.parquet", size)
        test = load_images(data / "vision" / f"{recipe.data}_test.parquet", size, whole.classes)
    if len(whole.classes) != recipe.model.num_classes:
        raise UserError(
            f"{recipe.data} has {len(whole.classes)} classes, {recipe.name} expects {recipe.model.num_classes}",
            field="data",
        )
    order = torch.randperm(len(whole.labels), generator=generator_for(recipe.feature_seed, 0))
    cut = round(len(order) * recipe.validation_share)
    part = lambda rows: ImageCorpus(whole.images[rows], whole.labels[rows], whole.classes)  # noqa: E731
    return Corpora(part(order[cut:]), part(order[:cut]), test)


def _digit_corpora() -> tuple[ImageCorpus, ImageCorpus]:
    images, numbers = digits.load_digits()
    classes = tuple(sorted(digits.LABELS))
    labels = torch.tensor([classes.index(digits.LABELS[number]) for number in numbers])
    pixels = torch.from_numpy(images)[:, None].expand(-1, 3, -1, -1)
    held_out = torch.tensor([digits.is_held_out(row) for row in range(len(numbers))])
    part = lambda rows: ImageCorpus(pixels[rows], labels[rows], classes)  # noqa: E731
    return part(~held_out), part(held_out)
