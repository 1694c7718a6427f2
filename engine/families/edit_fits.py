"""Check whether controls fit a model, from its configuration alone: no weights, no torch.

The models call the same ``*_plan`` functions, so a job that would fail later is refused on submission.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls, only_those, read_controls_of
from tokenpaths.engine.families.directional_config import DirectionalConfig
from tokenpaths.engine.families.dna_config import DNAConfig
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes
from tokenpaths.engine.families.edit_values import Ban, Edit
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS
from tokenpaths.engine.families.hmodel_config import HModelConfig
from tokenpaths.engine.families.raytracing_config import RayTracingConfig

Edits = Sequence[Edit] | None
WHERE_MODULES_CHOOSE = ("ban", "freeze", "shuffle")
"""the edits of a DNA that mean something where each module takes its tokens (router "expert")"""


def check_controls(family: str, config: dict[str, Any], values: dict[str, Any] | None) -> EditControls | None:
    """Controls from plain values, checked against a model's configuration; None for a family unknown here.

    Raises:
        UserError: a control that the family has not, a value outside its bounds, edits that do not fit this model;
            ``field`` names it. Or the configuration is none of the family.
    """
    if family not in FAMILY_CONTROLS:
        return None
    controls: EditControls = read_controls_of(FAMILY_CONTROLS[family], values, family)
    try:
        _PLANS[family](config, controls.edits)
    except (ValidationError, KeyError, TypeError):
        raise UserError(f"the configuration of this {family} model is damaged", field="model") from None
    return controls


def dna_plan(config: DNAConfig, edits: Edits) -> RoutePlan | None:
    """What each step does differently; UserError for an edit that does not fit, see ``edit_plan``."""
    if edits and config.router == "expert":
        _check_expert_edits(edits, config)
    return plan_routes(edits, Routers(tuple(map(config.choices_of, range(config.steps))), config.top_k))


def hmodel_plan(config: HModelConfig, edits: Edits) -> RoutePlan | None:
    """What is sent differently before each iteration; UserError for edits that do not fit."""
    only_those(edits, "a layer sends to all positions")
    # A step needs one layer that something can be sent to.
    return plan_routes(edits, Routers((tuple(range(config.num_modules)),) * config.iterations, 1))


def dipaco_plan(levels: Sequence[int], edits: Edits) -> RoutePlan | None:
    """What is chosen differently at each level; UserError for edits that do not fit.

    Paths are all the combinations of the levels' modules, so one is left wherever each level has a module left.
    """
    only_those(edits, "a path is chosen for a whole text or chunk")
    return plan_routes(edits, Routers(tuple(tuple(range(count)) for count in levels), top_k=1))


def directional_plan(config: DirectionalConfig, edits: Edits) -> RoutePlan | None:
    """What each layer does differently; UserError also for a direction neither to be removed nor to be left alone."""
    only_those(edits, "a layer decides for the whole text")
    both = tuple(range(config.num_modules))
    plan = plan_routes(edits, Routers((both,) * config.num_steps, config.top_k))
    for layer, step in enumerate(plan.steps if plan else ()):
        for module in sorted(step.banned if step else ()):
            if step is not None and module + config.top_k in step.banned:
                raise UserError(
                    f"direction {module} of layer {layer} could neither be removed (module {module}) nor left "
                    f"alone (module {module + config.top_k}); ban one of the two",
                    field="edits",
                )
    return plan


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


_PLANS: dict[str, Callable[[dict[str, Any], Edits], RoutePlan | None]] = {
    "dna": lambda config, edits: dna_plan(DNAConfig.model_validate(config), edits),
    "hmodel": lambda config, edits: hmodel_plan(HModelConfig.model_validate(config), edits),
    "dipaco": lambda config, edits: dipaco_plan(config["levels"], edits),
    "directional": lambda config, edits: directional_plan(DirectionalConfig.model_validate(config), edits),
    "raytracing": lambda config, edits: raytracing_plan(RayTracingConfig.model_validate(config), edits),
}
