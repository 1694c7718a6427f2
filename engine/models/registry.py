"""The families by name; a family's file is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.family import RoutedModel

FAMILIES: dict[str, tuple[str, str]] = {
    "dna": ("tokenpaths.engine.models.dna", "DNA"),
    "hmodel": ("tokenpaths.engine.models.hmodel.hmodel", "HModel"),
    "dipaco": ("tokenpaths.engine.models.dipaco", "DiPaCo"),
    "directional": ("tokenpaths.engine.models.directional", "Directional"),
    "raytracing": ("tokenpaths.engine.models.raytracing", "RayTracing"),
}


def family_class(name: str) -> type[RoutedModel]:
    """The model class of a family.

    Raises:
        UserError: no family has this name.
    """
    if name not in FAMILIES:
        raise UserError(f"family {name!r} is unknown to this version; known: {', '.join(FAMILIES)}", field="family")
    module, cls = FAMILIES[name]
    return getattr(import_module(module), cls)
