"""A checkpoint of one of our families, loaded onto a device as a ``Traceable``.

Shapes: B samples, T tokens each, S steps, K choices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from tokenpaths.engine.base.device import mixed_precision, pick_device
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import FIRST_PREDICTION, NOT_OFFERED_KIND, WITHOUT_WORK, Modality, ModuleInfo
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.data.tokenizer import Encoded, TextTokenizer
from tokenpaths.engine.families.checkpoint_config import WEIGHTS, Checkpoint, CheckpointError, find_checkpoint
from tokenpaths.engine.families.family_controls import check_controls
from tokenpaths.engine.models.checkpoint import build_model, file_sha256
from tokenpaths.engine.models.family import ControlsBase, RoutedModel, Traced
from tokenpaths.engine.tracing.traceable import ModelInput

PASS_TOKENS = 4096
"""tokens of one forward pass, padding included"""


@dataclass
class LoadedModel:
    """A checkpoint of one of our families on a device: a ``Traceable``."""

    name: str
    checkpoint: Checkpoint
    model: RoutedModel
    sha256: str
    tokenizer: TextTokenizer | None
    device: torch.device
    controls: ControlsBase | None = None

    before: tuple[int, ...] = ()
    pass_tokens: int = PASS_TOKENS
    has_small_twin: bool = True

    def with_controls(self, values: dict[str, Any] | None) -> LoadedModel:
        """See ``Traceable.with_controls``."""
        # Both refuse what does not fit this model, before anything runs: what its configuration tells, and the rest.
        check_controls(self.family, self.checkpoint.config.model_dump(mode="json"), values)
        controls = self.model.read_controls(values)
        self.model.top_k_under(controls)
        return replace(self, controls=controls)

    def without_controls(self) -> LoadedModel:
        return replace(self, controls=None)

    def untrained(self, seed: int = 0) -> LoadedModel:
        """See ``Traceable.untrained``."""
        state = torch.random.get_rng_state()
        torch.manual_seed(seed)
        twin = type(self.model)(self.checkpoint.config).to(self.device).eval().requires_grad_(False)
        torch.random.set_rng_state(state)
        blank = replace(self.checkpoint, validation={})
        return replace(self, name=f"{self.name}-untrained", checkpoint=blank, model=twin, sha256="", controls=None)

    @property
    def family(self) -> str:
        return self.checkpoint.family

    @property
    def top_k(self) -> int:
        """K of the ribbons under the current controls."""
        return self.model.top_k_under(self.controls or self.model.Controls())

    @property
    def first_prediction(self) -> int:
        return self.model.first_prediction

    @property
    def must_leave(self) -> int:
        return self.model.must_leave

    @property
    def edit_kinds(self) -> tuple[str, ...]:
        return getattr(self.model.Controls, "EDITS", ())

    @property
    def num_steps(self) -> int:
        return int(self.checkpoint.config.num_steps)

    @property
    def num_modules(self) -> int:
        return max(module.module for module in self.module_table()) + 1

    @property
    def modality(self) -> Modality:
        modality: Modality = self.checkpoint.config.modality
        return modality

    @property
    def classes(self) -> tuple[str, ...]:
        return self.checkpoint.classes

    @property
    def image_size(self) -> int:
        return int(self.checkpoint.config.image_size) if self.modality == "vision" else 0

    @property
    def grid(self) -> tuple[int, int]:
        grid: tuple[int, int] = self.checkpoint.config.grid if self.modality == "vision" else (0, 0)
        return grid

    @property
    def context(self) -> int:
        return int(self.checkpoint.config.context) if self.modality == "text" else 0

    def module_table(self) -> list[ModuleInfo]:
        return self.model.module_table()

    def choices(self) -> list[Sequence[int]]:
        return choices_of(self.module_table(), self.num_steps, identities=not self.model.identities_stay)

    def run_fields(self) -> dict[str, Any]:
        changed = self.controls.given() if self.controls else {}
        config = json.loads(self.checkpoint.config.model_dump_json())
        findings: dict[str, Any] = {"validation": self.checkpoint.validation} if self.checkpoint.validation else {}
        if self.first_prediction:
            findings[FIRST_PREDICTION] = self.first_prediction
        return {
            "model": self.name,
            "family": self.family,
            "modality": self.modality,
            "num_steps": self.num_steps,
            "num_modules": self.num_modules,
            "top_k": self.top_k,
            "weight_semantics": self.model.weight_semantics,
            "config": config | ({"controls": json.loads(json.dumps(changed))} if changed else {}),
            "checkpoint_sha256": self.sha256,
            "axes": self.model.axis_names(),
            "findings": findings | self.model.findings(self.token_texts()),
            "token_texts": self.token_texts(),
            "predicts_tokens": self.modality == "text",
            "scores": self.model.has_margins,
        }

    def encode(self, text: str) -> Encoded:
        assert self.tokenizer is not None, "load_model gives every text model its tokenizer"
        return self.tokenizer.encode(text)

    def token_texts(self) -> dict[int, str]:
        return self.tokenizer.token_texts if self.tokenizer else {}

    def run(self, batch: ModelInput) -> Traced:
        inputs = normalise(batch.raw) if batch.valid is None else batch.raw
        return run_model(self.model, inputs, self.device, batch.valid, self.controls)

    def choose(self, batch: ModelInput) -> Integer[np.ndarray, "n S K"]:
        if self.controls is not None:
            return batch.ribbons(self.run(batch))
        inputs = normalise(batch.raw) if batch.valid is None else batch.raw
        valid = None if batch.valid is None else batch.valid.to(self.device)
        with torch.inference_mode(), mixed_precision(self.device):
            return batch.real_decisions(self.model.choose(inputs.to(self.device), valid).cpu())

    def token_flops(self, traced: Traced, valid: Tensor | None) -> Tensor:
        return traced.flops if traced.flops is not None else self.model.token_flops(traced.module_ids, valid)


def choices_of(modules: Sequence[ModuleInfo], num_steps: int, *, identities: bool = True) -> list[Sequence[int]]:
    """The modules of each step that may be banned, without identities that only mark an omitted module; without any
    where they may not (``identities``)."""
    missing = {(m.step, m.module) for m in modules if m.kind == NOT_OFFERED_KIND}

    def may_be_banned(module: ModuleInfo, step: int) -> bool:
        if module.step is None:
            return (step, module.module) not in missing and (identities or module.kind not in WITHOUT_WORK)
        return module.step == step and module.kind not in WITHOUT_WORK

    return [[m.module for m in modules if may_be_banned(m, step)] for step in range(num_steps)]


@torch.inference_mode()
def run_model(
    model: RoutedModel,
    inputs: Tensor,
    device: torch.device,
    valid: Tensor | None = None,
    controls: ControlsBase | None = None,
) -> Traced:
    """Logits on the device, decisions on the host."""
    with mixed_precision(device):
        there = None if valid is None else valid.to(device)
        here = inputs.to(device, non_blocking=device.type == "cuda")
        traced = model.trace_with(here, there, controls or model.Controls())
    return to_host(traced)


def to_host(traced: Traced) -> Traced:
    """Move decisions to the host; logits stay on the device, where losses are computed.

    Raises:
        UserError: a router returned NaN or infinite values (top-k would silently pick them first).
    """
    names = ("module_ids", "weights", "gate_entropy", "margin", "runner_up", "flops", "edges", "gates", "blocks")
    given = {name: value for name in names if (value := getattr(traced, name)) is not None}
    # One synchronisation for all copies of a GPU; elsewhere (MPS, XPU) each copy is waited for, as nothing here could
    # tell when it has arrived.
    host = {name: value.to("cpu", non_blocking=value.is_cuda) for name, value in given.items()}
    if traced.module_ids.is_cuda:
        torch.cuda.current_stream(traced.module_ids.device).synchronize()
    moved = replace(traced, **host)
    _check_finite(moved)
    return moved


def _check_finite(traced: Traced) -> None:
    # A NaN weight is a broken router. An entropy may be undefined (NaN), but is never infinite, and a
    # softmax that broke has a NaN weight too.
    bad_BTSK = ~torch.isfinite(traced.weights)
    if bad_BTSK.any():
        step = int(bad_BTSK.any(dim=-1).flatten(0, 1).any(dim=0).nonzero()[0])
        raise UserError(
            f"router {step} gave NaN or infinite scores; the checkpoint or the input is damaged, "
            "nothing of this run was written"
        )
    for name in ("edges", "gates", "blocks"):
        values = getattr(traced, name)
        if values is not None and not torch.isfinite(values).all():
            raise UserError(
                f"the {name} of this model hold NaN or infinite values; the checkpoint or the input is "
                "damaged, nothing of this run was written"
            )


def read_tokenizer(checkpoint: Checkpoint) -> TextTokenizer | None:
    """The tokenizer beside the weights of a model of texts; None for images.

    Raises:
        UserError: it is missing, cannot be read, or has another number of entries than the model.
    """
    if checkpoint.config.modality != "text":
        return None
    tokenizer = TextTokenizer.load(checkpoint.path / "tokenizer.json")
    if tokenizer.vocab_size != checkpoint.config.vocab_size:
        raise CheckpointError(
            f"{checkpoint.name}: the tokenizer has {tokenizer.vocab_size} entries, "
            f"the model {checkpoint.config.vocab_size}"
        )
    return tokenizer


def load_model(name: str | Path, folders: Iterable[Path], device: torch.device | str | None = None) -> LoadedModel:
    """Load a model by name or folder onto a device (selected automatically by default)."""
    checkpoint = find_checkpoint(name, folders)
    if not checkpoint.config.num_steps:
        raise UserError(f"{checkpoint.name} is dense: it has no routers, so there are no paths to trace", field="model")
    device = pick_device(str(device) if device else None)
    tokenizer = read_tokenizer(checkpoint)
    model = build_model(checkpoint, device)  # says what is wrong with the weights before their sum is taken
    sha256 = file_sha256(checkpoint.path / WEIGHTS)
    return LoadedModel(checkpoint.name, checkpoint, model, sha256, tokenizer, device)
