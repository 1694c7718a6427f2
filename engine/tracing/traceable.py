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

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import Modality, ModuleInfo
from tokenpaths.engine.data.tokenizer import Encoded
from tokenpaths.engine.families.controls import ControlsBase
from tokenpaths.engine.models.family import Traced

NO_TARGET = -100
"""stands for an unknown class or next token"""


@dataclass(frozen=True)
class TextWindow:
    """A window of one text that fits the model's context."""

    ids: Integer[np.ndarray, " T"]
    next_id: int | None
    """the token that follows it; None at the end of the text"""


@dataclass(frozen=True)
class ModelInput:
    """The input of one forward pass, on the host."""

    raw: Tensor
    """pixels (B, 3, H, W) as uint8, or token ids (B, T)"""
    targets: Tensor
    """classes (B,) or next tokens (B, T); ``NO_TARGET`` where none is known, or where it is no prediction"""
    valid: Tensor | None
    """bool (B, T): positions of text tokens, contiguous in each row; None for images"""

    @property
    def real_targets(self) -> Tensor:
        """Targets of the images, or of the text tokens, concatenated."""
        return self.targets if self.valid is None else self.targets[self.valid]

    def real_rows(self, values: Tensor) -> Tensor:
        """``values`` (B, …) of images, or (B, T, …) without padding: (n, …)."""
        return values if self.valid is None else values[self.valid.to(values.device)]

    def ribbons(self, traced: Traced) -> Integer[np.ndarray, "n S K"]:
        """Module ids of every token, without padding."""
        return self.real_decisions(traced.module_ids)

    def real_decisions(self, ids_BTSK: Tensor) -> Integer[np.ndarray, "n S K"]:
        """Module ids on the host, of one pass, without padding."""
        ids = ids_BTSK.flatten(0, 1)
        return (ids if self.valid is None else ids[self.valid.flatten()]).numpy()


@runtime_checkable
class Traceable(Protocol):
    """A model on a device that can be traced, with or without ``controls``.

    Immutable: ``with_controls`` and ``without_controls`` return other views of the same weights.
    """

    @property
    def name(self) -> str:
        """Name used in runs; that of a hub checkpoint begins with its owner and a slash."""

    @property
    def sha256(self) -> str:
        """Of the weights; empty for an untrained twin."""

    @property
    def device(self) -> torch.device:
        """Device of the inputs."""

    @property
    def controls(self) -> ControlsBase | None:
        """Changes to the model; None: unchanged."""

    @property
    def modality(self) -> Modality:
        """Type of input: images or texts."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of a vision model."""

    @property
    def image_size(self) -> int:
        """Side of the square input images in pixels; 0 for texts."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of an image; (0, 0) for texts."""

    @property
    def context(self) -> int:
        """Maximum tokens of a text window; 0 for images."""

    @property
    def before(self) -> tuple[int, ...]:
        """Token ids prepended to every window that are not tokens of a text (``<s>``)."""

    @property
    def first_prediction(self) -> int:
        """First position of a text window whose prediction has a target: see ``RoutedModel.first_prediction``."""

    @property
    def num_steps(self) -> int:
        """Number of steps S."""

    @property
    def num_modules(self) -> int:
        """Number of modules M, of the step that has the most."""

    @property
    def must_leave(self) -> int:
        """Number of modules of a step that a ban must leave."""

    @property
    def edit_kinds(self) -> tuple[str, ...]:
        """The supported kinds of edit, of ``engine.families.edit_values.KINDS``."""

    @property
    def pass_tokens(self) -> int:
        """Tokens of one forward pass, which a job cannot interrupt; a longer window is a pass of its own."""

    def with_controls(self, values: dict[str, Any] | None) -> Traceable:
        """The same model under controls given as plain values.

        Raises:
            UserError: a control that the model does not have or that does not fit it; ``field`` names it.
        """

    def without_controls(self) -> Traceable:
        """The same model without controls."""

    @property
    def has_small_twin(self) -> bool:
        """Whether the untrained twin is small enough to be traced beside every run."""

    def untrained(self, seed: int = 0) -> Traceable:
        """The same architecture at initialisation and without controls: the null model of path statistics."""

    def module_table(self) -> list[ModuleInfo]:
        """All modules that routers can choose."""

    def choices(self) -> list[Sequence[int]]:
        """The modules of each step that a sweep may ban."""

    def run_fields(self) -> dict[str, Any]:
        """Fields of ``RunInfo`` that describe the model and its controls."""

    def encode(self, text: str) -> Encoded:
        """Tokens of a text.

        Raises:
            UserError: the text cannot be encoded, or it holds a token unknown to the model.
        """

    def token_texts(self) -> dict[int, str]:
        """Readable text of every vocabulary entry; empty for images."""

    def run(self, batch: ModelInput) -> Traced:
        """One forward pass under the model's controls: logits on the device, decisions on the host.

        Raises:
            UserError: NaN or infinite scores, or controls that do not fit a sample.
        """

    def choose(self, batch: ModelInput) -> Integer[np.ndarray, "n S K"]:
        """Module ids of every token as ``run`` decides them; without logits, where a model can leave them out."""

    def token_flops(self, traced: Traced, valid: Tensor | None) -> Float[Tensor, "B T"]:
        """FLOPs of the visited modules for each token."""


def as_untrained(model: Traceable, seed: int = 0) -> Traceable:
    """The untrained twin as a model of its own, to be traced and compared with the trained one sample by sample.

    Raises:
        UserError: ``model`` is under controls; the twin is that of the unedited model.
    """
    if model.controls is not None and model.controls.given():
        raise UserError("an untrained twin has no edits; leave the controls out", field="untrained")
    return model.untrained(seed)


def edits_of(model: Traceable) -> tuple[Any, ...]:
    """The edits among a model's controls."""
    return getattr(model.controls, "edits", None) or ()
