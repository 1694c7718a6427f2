"""The model of the family ``halves``: step 0 parts the patches by their brightness, step 1 by their place."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tokenpaths_halves import HalvesConfig, HalvesControls, halves_plan
from torch import Tensor, nn

from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.families.controls import ControlsBase, Edits
from tokenpaths.engine.models.family import RoutedModel, Traced

NAMES = (("dark", "bright"), ("upper", "lower"))


class Halves(RoutedModel):
    """Two modules a step, one for each token."""

    family: ClassVar[str] = "halves"
    Config: ClassVar[type[HalvesConfig]] = HalvesConfig
    Controls: ClassVar[type[ControlsBase]] = HalvesControls
    WEIGHT_SEMANTICS: ClassVar[dict[str, Any]] = {"score_function": "none", "decision": "hard", "unit": "token"}

    def __init__(self, config: HalvesConfig) -> None:
        super().__init__()
        self.config, self.head = config, nn.Linear(3, config.num_classes)

    def trace(self, inputs: Tensor, valid: Tensor | None = None, edits: Edits = None) -> Traced:
        """Controls that are given arrive as keywords by their names, here ``edits``."""
        patches = nn.functional.avg_pool2d(inputs, self.config.patch).flatten(2)
        bright = (patches.mean(1) > 0).long()
        places = torch.arange(patches.shape[2], device=inputs.device)
        lower = (places >= len(places) // 2).long().expand_as(bright)
        steps = [bright, lower]
        plan = halves_plan(self.config, edits)
        for step, change in enumerate(plan.steps if plan else ()):
            for banned in change.banned if change else ():
                steps[step] = torch.full_like(bright, 1 - banned)
        ids = torch.stack(steps, dim=-1).unsqueeze(-1)
        return Traced(
            self.head(patches.mean(2)),
            ids,
            weights=torch.ones(ids.shape, device=ids.device),
            gate_entropy=torch.full(ids.shape[:3], float("nan"), device=ids.device),
            flops=torch.ones(bright.shape, device=ids.device),  # without it ``token_flops`` has to work it out
        )

    def module_table(self) -> list[ModuleInfo]:
        return [
            ModuleInfo(step, module, name, "block", num_params=0, flops_per_token=1)
            for step, names in enumerate(NAMES)
            for module, name in enumerate(names)
        ]
