"""A family of models, by value: its configuration, and what may be changed when a trained model runs. No torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from tokenpaths.engine.families.controls import EditControls, Edits, only_those
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes


class HalvesConfig(BaseModel):
    """What ``config.json`` of a checkpoint holds.

    ``modality``, ``num_steps``, ``num_modules`` and ``top_k`` are read of every family; of images ``image_size`` and
    ``grid`` (rows and columns of tokens) too, of texts ``context`` and ``vocab_size``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["vision"] = "vision"
    image_size: int = 16
    patch: int = 4
    num_classes: int = 2
    num_steps: int = 2
    num_modules: int = 2
    top_k: int = 1

    @property
    def grid(self) -> tuple[int, int]:
        return (self.image_size // self.patch, self.image_size // self.patch)


class HalvesControls(EditControls):
    """Each field is a control, and None leaves it as trained; ``edits`` is inherited."""

    FAMILY: ClassVar[str] = "halves"
    MODEL: ClassVar[str] = "tokenpaths_halves_model:Halves"
    CONFIG: ClassVar[type[BaseModel]] = HalvesConfig
    EDITS: ClassVar[tuple[str, ...]] = ("ban",)
    WHY_NOT: ClassVar[dict[str, str]] = {"top_k": "a patch goes to one module"}

    @classmethod
    def check_edits(cls, config: dict[str, Any], edits: Edits) -> None:
        """Refuse what does not fit, before any weights are loaded."""
        halves_plan(HalvesConfig.model_validate(config), edits)


def halves_plan(config: HalvesConfig, edits: Edits) -> RoutePlan | None:
    """What each step does differently; None for no edits. UserError for steps and modules that are not there."""
    only_those(edits, "this model bans a module for all tokens")
    return plan_routes(edits, Routers(((0, 1),) * config.num_steps, config.top_k))
