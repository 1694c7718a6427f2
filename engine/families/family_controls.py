"""The families by name, and the controls of Hugging Face experts: what API, page and jobs may ask. No torch.

A family declares itself by its controls: they name its model, its edits and its dreams. Plugins add families by entry
points of the group ``tokenpaths.families``, each the class of its controls (``docs/extending.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginError, PluginRegistry
from tokenpaths.engine.families.controls import EditControls, read_controls_of
from tokenpaths.engine.families.dipaco_config import DiPaCoControls
from tokenpaths.engine.families.directional_config import DirectionalFields
from tokenpaths.engine.families.dna_config import DNAControls
from tokenpaths.engine.families.edit_values import KINDS
from tokenpaths.engine.families.hmodel_config import HModelControls
from tokenpaths.engine.families.raytracing_config import RayTracingControls

OWN = (DNAControls, DirectionalFields, HModelControls, DiPaCoControls, RayTracingControls)


def _check_plugin(name: str, value: Any) -> type[EditControls]:
    if not (isinstance(value, type) and issubclass(value, EditControls)):
        raise UserError("it is no class derived from tokenpaths.engine.families.controls.EditControls")
    missing = [part for part in ("FAMILY", "MODEL", "EDITS") if not hasattr(value, part)]
    if missing:
        raise UserError(f"its controls lack {', '.join(missing)}")
    if name != value.FAMILY:
        raise UserError(f"its controls are of the family {str(value.FAMILY)[:40]!r}, which is not the name")
    return value


FAMILY_CONTROLS: PluginRegistry[type[EditControls]] = PluginRegistry(
    "tokenpaths.families", "family", {controls.FAMILY: controls for controls in OWN}, _check_plugin
)


def controls_class(family: str) -> type[EditControls]:
    """The controls by which a family declares itself.

    Raises:
        UserError: no family has this name.
    """
    if family not in FAMILY_CONTROLS:
        known = ", ".join(FAMILY_CONTROLS)
        raise UserError(f"family {family!r} is unknown to this version; known: {known}", field="family")
    return FAMILY_CONTROLS[family]


def named_object(name: str) -> Any:
    """The object ``module:name`` that a family declares; its module is imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def declared_model(family: str) -> Any:
    """What a family declares as its model; imports its module, and torch with it.

    Raises:
        UserError: no family has this name; or it is a plugin's whose model cannot be imported.
    """
    declared = controls_class(family).MODEL
    if family in FAMILY_CONTROLS.own:
        return named_object(declared)
    try:
        return named_object(declared)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise PluginError(f"the model {declared} of the family {family!r} cannot be imported ({reason})") from error


def config_class(family: str) -> type[BaseModel]:
    """The configuration of a family's checkpoints; of a plugin that declares none, that of its model, imported now.

    Raises:
        UserError: no family has this name; or it is a plugin's whose model cannot be used.
    """
    if (config := getattr(controls_class(family), "CONFIG", None)) is None:
        config = getattr(declared_model(family), "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise PluginError(f"the family {family!r} declares no configuration")
    return config


def check_controls(family: str, config: dict[str, Any], values: dict[str, Any] | None) -> EditControls | None:
    """Controls from plain values, checked against a model's configuration; None for a family unknown here.

    Raises:
        UserError: a control that the family has not, a value outside its bounds or those of this model, edits that do
            not fit it, controls that do not go together; ``field`` names it. Or it is no configuration of the family.
    """
    if family not in FAMILY_CONTROLS:
        return None
    controls: EditControls = read_controls_of(FAMILY_CONTROLS[family], values, family)
    try:
        controls.check_fit(config)
    except (ValidationError, KeyError, TypeError):
        raise UserError(f"the configuration of this {family} model is damaged", field="model") from None
    return controls


# Hugging Face mixtures of experts ------------------------------------------------------------------------------

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
