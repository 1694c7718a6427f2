"""What a model's configuration tells, so that requests are checked before anything is loaded. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenpaths.engine.adapters.huggingface.config import Layout
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import CONFIG, check_sizes
from tokenpaths.engine.families.edit_plan import Routers, plan_routes
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS, check_controls, read_expert_controls

T = TypeVar("T")


@dataclass(frozen=True)
class FamilyOutline:
    """A checkpoint of one of our families, known from its ``config.json``."""

    name: str
    about: dict[str, Any]

    @property
    def family(self) -> str:
        return str(self.about.get("family"))

    @property
    def modality(self) -> Any:
        """vision or text; None if the configuration does not say."""
        return self._config.get("modality")

    @property
    def _config(self) -> dict[str, Any]:
        config = self.about.get("config")
        return config if isinstance(config, dict) else {}

    def check_controls(self, values: dict[str, Any] | None) -> None:
        """UserError for controls that do not fit the model; ``field`` names the one."""
        try:
            check_sizes(self._config)
        except ValueError as error:
            raise UserError(f"{CONFIG} of {self.name} cannot be used: {error}", field="model") from None
        check_controls(self.family, self._config, values)

    def check_bans(self) -> None:
        """UserError for a family whose modules cannot be banned."""
        if self.family in FAMILY_CONTROLS and "ban" not in FAMILY_CONTROLS[self.family].EDITS:
            raise UserError(f"modules of a {self.family} model cannot be banned")


@dataclass(frozen=True)
class ExpertsOutline:
    """A Hugging Face checkpoint, known from its ``config.json``. What that does not tell, such as the limits of its
    gates, is refused when the model is loaded.
    """

    name: str
    layout: Layout
    modality: str = "text"

    def __post_init__(self) -> None:
        if self.layout.layers == 0:
            raise UserError(f"no layer of {self.name} routes to experts, so there is nothing to trace", field="model")

    def check_controls(self, values: dict[str, Any] | None) -> None:
        """UserError for controls that do not fit the model; ``field`` names the one."""
        if not values:
            return
        controls, layout = read_expert_controls(values), self.layout
        if controls.ban_share or any(edit.edit == "ban" for edit in controls.edits or ()):
            self.check_bans()
        if controls.edits and None not in (layout.layers, layout.choices, layout.top_k):
            routers = Routers((tuple(range(layout.choices or 0)),) * (layout.layers or 0), layout.top_k or 0)
            plan_routes(controls.edits, routers)

    def check_bans(self) -> None:
        """UserError if top-k needs all experts of a layer."""
        choices, top_k = self.layout.choices, self.layout.top_k
        if choices is not None and top_k is not None and choices <= top_k:
            raise UserError(f"no expert of {self.name} can be banned: a layer has {choices}, and {top_k} must be left")


def under_field(name: str, work: Callable[..., T], *values: Any) -> T:
    """Call ``work``, prefixing the field of its errors with ``name``, except for errors of the model itself."""
    try:
        return work(*values)
    except UserError as error:
        if error.field != "model":
            error.field = f"{name}.{error.field}" if error.field and error.field != name else name
        raise
