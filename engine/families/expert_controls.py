"""What may be changed of a Hugging Face mixture of experts, as values. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls, read_controls_of
from tokenpaths.engine.families.edit_values import KINDS

Which = Literal["top", "bottom", "random"]
"""of the modules of a step, by how often they are used"""


class ExpertControls(EditControls):
    """Every edit, as far as the arithmetic of a model's gates allows it: the model says so when it is loaded."""

    FAMILY: ClassVar[str] = "moe"
    EDITS: ClassVar[tuple[str, ...]] = KINDS

    ban_share: float | None = Field(
        default=None, gt=0, lt=1, description="In place of edits: ban this share of the experts of each layer"
    )
    which: Which | None = Field(default=None, description="With ban_share: top (most used), bottom or random")
    seed: NonNegativeInt | None = Field(default=None, description="With ban_share, of the random ones")


def read_expert_controls(values: Mapping[str, Any]) -> ExpertControls:
    """Controls from plain values; at least one edit.

    Raises:
        UserError: a control or an edit that it has not, or none at all; ``field`` names it.
    """
    controls: ExpertControls = read_controls_of(ExpertControls, dict(values), ExpertControls.FAMILY)
    if not controls.edits and controls.ban_share is None:
        raise UserError("there is no edit; ban an expert, for example", field="controls")
    if controls.edits and controls.ban_share is not None:
        raise UserError("edits and ban_share both say what is banned; give one of the two", field="controls")
    if controls.ban_share is None and (controls.which is not None or controls.seed is not None):
        raise UserError("which and seed say what ban_share means; give ban_share too", field="controls")
    return controls
