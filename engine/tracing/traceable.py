"""``Traceable``: what tracing, edits, sweeps and jobs need of a model, whoever wrote it.

Our families meet it as ``engine.tracing.loaded_model.LoadedModel``, Hugging Face checkpoints as
``engine.adapters.huggingface.tracing.HuggingFaceModel``.

Shapes: B samples or windows, T tokens each, S steps, K slots, C classes or vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from tokenpaths.engine.base.records import Modality, ModuleInfo
from tokenpaths.engine.data.tokenizer import Encoded
from tokenpaths.engine.families.controls import ControlsBase
from tokenpaths.engine.models.family import Traced

NO_TARGET = -100
"""in place of a class or a next token that is not known"""


@dataclass(frozen=True)
class TextWindow:
    """A stretch of one text that fits the model's context."""

    ids: Integer[np.ndarray, " T"]
    next_id: int | None
    """the token behind it; None at the end of the text"""


@dataclass(frozen=True)
class ModelInput:
    """The input of one forward pass, on the host."""

    raw: Tensor
    """pixels (B, 3, H, W) as uint8, or token ids (B, T)"""
    targets: Tensor
    """classes (B,) or next tokens (B, T); ``NO_TARGET`` where none is known"""
    valid: Tensor | None
    """bool (B, T): positions that are tokens of a text, one stretch of each row; None for images"""

    @property
    def real_targets(self) -> Tensor:
        """Targets of the images, or of the tokens of texts, one after the other."""
        return self.targets if self.valid is None else self.targets[self.valid]

    def real_rows(self, values: Tensor) -> Tensor:
        """``values`` (B, …) of images, or (B, T, …) without padding: (n, …)."""
        return values if self.valid is None else values[self.valid.to(values.device)]

    def ribbons(self, traced: Traced) -> Integer[np.ndarray, "n S K"]:
        """Module ids of every token, padding left out."""
        ids = traced.module_ids.flatten(0, 1)
        return (ids if self.valid is None else ids[self.valid.flatten()]).numpy()


@runtime_checkable
class Traceable(Protocol):
    """A model on a device, ready to be traced, under ``controls`` or as it was trained.

    Immutable: ``with_controls`` and ``without_controls`` give other views of the same weights.
    """

    @property
    def name(self) -> str:
        """As its runs say; a checkpoint of the hub has its owner before a slash."""

    @property
    def sha256(self) -> str:
        """Of the weights; empty for an untrained twin."""

    @property
    def device(self) -> torch.device:
        """Where inputs go."""

    @property
    def controls(self) -> ControlsBase | None:
        """What is changed of the model; None: nothing."""

    @property
    def modality(self) -> Modality:
        """What it takes: images or texts."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of a vision model."""

    @property
    def image_size(self) -> int:
        """Side of the square images that it takes, in pixels; 0 for texts."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of an image; (0, 0) for texts."""

    @property
    def context(self) -> int:
        """Tokens of the longest window of a text; 0 for images."""

    @property
    def before(self) -> tuple[int, ...]:
        """Token ids put before every window, which are no tokens of a text (``<s>``)."""

    @property
    def num_steps(self) -> int:
        """S."""

    @property
    def num_modules(self) -> int:
        """M, of the step that has the most."""

    @property
    def must_leave(self) -> int:
        """Modules of a step that a ban has to leave."""

    @property
    def edit_kinds(self) -> tuple[str, ...]:
        """The kinds of edit that mean something here, of ``engine.families.edit_values.KINDS``."""

    @property
    def pass_tokens(self) -> int:
        """Tokens of one forward pass that a job may not interrupt; a longer window goes alone."""

    def with_controls(self, values: dict[str, Any] | None) -> Traceable:
        """The same model under controls given as plain values.

        Raises:
            UserError: a control that it has not, or that does not fit it; ``field`` names it.
        """

    def without_controls(self) -> Traceable:
        """The same model as it was trained."""

    def untrained(self) -> Traceable | None:
        """The same architecture at initialisation, the null of every path statistic; None where it is too large."""

    def module_table(self) -> list[ModuleInfo]:
        """Everything that a router can pick."""

    def choices(self) -> list[Sequence[int]]:
        """The modules of each step that a sweep may ban."""

    def run_fields(self) -> dict[str, Any]:
        """What a ``RunInfo`` says of the model and of its controls."""

    def encode(self, text: str) -> Encoded:
        """Tokens of a text.

        Raises:
            UserError: the text cannot be encoded, or it holds a token that the model does not know.
        """

    def token_texts(self) -> dict[int, str]:
        """Readable text of every vocabulary entry; empty for images."""

    def run(self, batch: ModelInput) -> Traced:
        """One forward pass under the model's controls: logits on the device, decisions on the host.

        Raises:
            UserError: NaN or infinite scores, or controls that do not fit a sample.
        """

    def token_flops(self, traced: Traced, valid: Tensor | None) -> Float[Tensor, "B T"]:
        """Floating-point operations that the visited modules spent on each token."""


def edits_of(model: Traceable) -> tuple[Any, ...]:
    """The edits among a model's controls."""
    return getattr(model.controls, "edits", None) or ()
