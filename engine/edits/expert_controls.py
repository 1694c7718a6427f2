"""What may be changed of a mixture of experts that is not ours, as values. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import Field, NonNegativeInt

from tokenpaths.engine.adapters.huggingface.config import Layout
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.reroute_request import RerouteRequest, Which
from tokenpaths.engine.families.controls import EditControls, only_those, read_controls_of
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes
from tokenpaths.engine.families.edit_values import Edit

T = TypeVar("T")


class ExpertControls(EditControls):
    """What may be changed of a mixture of experts that is not ours."""

    FAMILY: ClassVar[str] = "moe"
    EDITS: ClassVar[tuple[str, ...]] = ("ban",)
    WHY_NOT: ClassVar[dict[str, str]] = dict.fromkeys(
        ("force", "swap", "freeze", "shuffle", "top_k", "bias"),
        "the model's own code chooses; only the experts that it may choose from can be fewer",
    )

    ban_share: float | None = Field(
        default=None, gt=0, lt=1, description="In place of edits: ban this share of the experts of each layer"
    )
    which: Which | None = Field(default=None, description="With ban_share: top (most used), bottom or random")
    seed: NonNegativeInt | None = Field(default=None, description="With ban_share, of the random ones")


def read_controls(values: Mapping[str, Any]) -> ExpertControls:
    """Controls of a model that is not ours from plain values; at least one edit.

    Raises:
        UserError: a control or an edit that it has not, or none at all; ``field`` names it.
    """
    controls: ExpertControls = read_controls_of(ExpertControls, dict(values), "moe")
    if not controls.edits and controls.ban_share is None:
        raise UserError("there is no edit; ban an expert, for example", field="controls")
    if controls.edits and controls.ban_share is not None:
        raise UserError("edits and ban_share both say what is banned; give one of the two", field="controls")
    if controls.ban_share is None and (controls.which is not None or controls.seed is not None):
        raise UserError("which and seed say what ban_share means; give ban_share too", field="controls")
    return controls


def ban_plan(
    edits: Sequence[Mapping[str, Any]] | Sequence[Edit], choices: Sequence[Sequence[int]], top_k: int
) -> RoutePlan:
    """The experts that each layer may not choose; ``choices`` are those of each layer.

    Raises:
        UserError: no edit, one that is no ban, an expert or a layer that is not there, too few experts left.
    """
    if not edits:
        raise UserError("there is no edit; ban an expert, for example", field="edits")
    plain = [edit if isinstance(edit, Mapping) else edit.model_dump() for edit in edits]
    controls = read_controls_of(ExpertControls, {"edits": plain}, "moe")
    only_those(controls.edits, "a gate of another program is given one mask for all tokens")
    plan = plan_routes(controls.edits, Routers(tuple(map(tuple, choices)), top_k))
    assert plan is not None
    return plan


def check_experts(request: RerouteRequest, layout: Layout) -> None:
    """Refuse a sweep or controls that do not fit a Hugging Face checkpoint, as far as its configuration tells; reads
    no weights. What it does not tell is refused when the job begins.

    Raises:
        UserError: ``field`` is ``model``, ``sweep``, or begins with ``controls``.
    """
    if layout.layers == 0:
        raise UserError(f"no layer of {request.model} routes to experts, so there is nothing to ban", field="model")
    controls = None if request.sweep is not None else under_field("controls", read_controls, request.controls or {})
    if layout.choices is None or layout.top_k is None:
        return
    if layout.choices <= layout.top_k:
        raise UserError(
            f"no expert of {request.model} can be banned: a layer has {layout.choices}, and {layout.top_k} must be "
            "left",
            field="controls" if request.sweep is None else "sweep",
        )
    if controls is not None and controls.edits and layout.layers is not None:
        under_field("controls", ban_plan, controls.edits, (range(layout.choices),) * layout.layers, layout.top_k)


def under_field(name: str, work: Callable[..., T], *given: Any) -> T:
    """``work``; what it refuses has its field below ``name``."""
    try:
        return work(*given)
    except UserError as error:
        error.field = f"{name}.{error.field}" if error.field and error.field != name else name
        raise
