"""Dataclasses of a trace: what the engine produces and the store writes.

Plain numpy, so that the store, the importers and the tests need no torch.

Shapes: n tokens of a batch (b samples one after the other), S steps, K slots; I iterations, A sources,
Z targets; L layers, H heads, D directions; R threshold steps, P blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Integer

Modality = Literal["vision", "text"]
UNRECORDED_KIND = "unrecorded"
"""kind of the modules that stand for a decision that the source of a run lacks; they are no modules of the model"""
UNUSED_KIND = "unused"
"""kind of the modules that stand for slots that a token did not use (dropped, over capacity, adaptive k); they are no
modules of the model, and their ids are the last ones of a run, so that equal sets of modules are one path"""
STAND_IN_KINDS = (UNRECORDED_KIND, UNUSED_KIND)
NOT_OFFERED_KIND = "not offered"
"""kind of the rows that take a module which several steps share (``step`` None) out of the choice of one step; they are
no modules"""
NO_MODULE_KINDS = (*STAND_IN_KINDS, NOT_OFFERED_KIND)
"""kinds of rows that are no modules of the model, each of one step"""
WITHOUT_WORK = ("identity", *NO_MODULE_KINDS)
"""kinds that do nothing: a ban or a force of such a module of one step means nothing"""
DATA_SHA256 = "data_sha256"
"""finding of a run: ``Dataset.identity`` of what it was traced over"""
FIRST_PREDICTION = "first_prediction"
"""finding of a run whose tokens have a loss from this position of each window on only; without it from the first"""


def engine_version() -> str:
    """Version of the installed package; ``0+source`` where it runs from its source folder alone."""
    try:
        return version("tokenpaths")
    except PackageNotFoundError:
        return "0+source"


@dataclass(frozen=True)
class RunInfo:
    """One model traced over one data set: the row of table ``run``."""

    run_id: str
    model: str
    family: str
    modality: Modality
    dataset: str
    split: str
    num_steps: int
    num_modules: int
    top_k: int
    weight_semantics: dict[str, Any]
    """score function, order of softmax and top-k, renormalised or not, bias, shared experts"""
    config: dict[str, Any]
    checkpoint_sha256: str
    engine_version: str
    regions: tuple[str, ...] = ()
    """names of the values of ``TraceBatch.region``, for example object, background, boundary"""
    token_texts: dict[int, str] = field(default_factory=dict)
    """readable text of each vocabulary id that may occur (may be empty)"""
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """names along the axes of the soft tables: source, target, layer, threshold_step … (may be empty)"""
    findings: dict[str, Any] = field(default_factory=dict)
    """what is known of the model before anything is traced, by name: its validation numbers, a vocabulary …"""
    predicts_tokens: bool = False
    """whether every batch tells which token the model predicts after each"""
    scores: bool = False
    """whether batches may hold ``margin`` and ``runner_up``"""


@dataclass(frozen=True)
class ModuleInfo:
    """One thing that a router can pick; ``step`` None means that any step can pick it."""

    step: int | None
    module: int
    name: str
    kind: str
    num_params: int
    flops_per_token: int
    """multiply-adds × 2 of the projections; attention over received tokens comes on top"""


def unused_slots(steps: Iterable[int], first: int, slots: int = 1) -> list[ModuleInfo]:
    """What stands for unused slots at these steps: the ids from ``first`` on."""
    return [ModuleInfo(step, first + slot, "unused slot", UNUSED_KIND, 0, 0) for step in steps for slot in range(slots)]


@dataclass(frozen=True)
class SampleRecord:
    """One image, text or sequence as a page shows it."""

    num_tokens: int
    label: str | None = None
    """class, domain or language; what the data set calls it"""
    prediction: str | None = None
    confidence: float | None = None
    """probability of the prediction"""
    loss: float | None = None
    """cross-entropy in nats, mean over the tokens that have a target"""
    text: str | None = None
    image: bytes | None = None
    """PNG of exactly what the model saw (cropped to the patch grid), perhaps at a higher resolution"""
    grid: tuple[int, int] | None = None
    """rows and columns of the patch grid"""
    source: str | None = None
    """file name, row or URL that the sample came from"""
    likeliest: tuple[tuple[str, float], ...] = ()
    """the likeliest classes of an image with their probabilities, at most five; kept for a run of one sample only"""


@dataclass(frozen=True)
class TraceBatch:
    """Some samples and all their tokens; module ids as routed, slot 0 = largest weight."""

    samples: list[SampleRecord]
    module_ids: Integer[np.ndarray, "n S K"]
    weights: Float[np.ndarray, "n S K"]
    """the multipliers really used, in [0, 1]"""
    gate_entropy: Float[np.ndarray, "n S"]
    """entropy of the probabilities over all modules, nats"""
    flops: Float[np.ndarray, " n"]
    """floating-point operations spent on the token by the modules it visited"""
    margin: Float[np.ndarray, "n S"] | None = None
    """smallest chosen score less the next one, in probability; NaN where unknown; stored where ``RunInfo.scores``"""
    runner_up: Integer[np.ndarray, "n S"] | None = None
    """the module of the next score; any module where the margin is unknown"""
    loss: Float[np.ndarray, " n"] | None = None
    """nats; NaN where a token has no target"""
    token_id: Integer[np.ndarray, " n"] | None = None
    predicted_id: Integer[np.ndarray, " n"] | None = None
    """the vocabulary id that the model thinks likeliest to follow; stored where ``RunInfo.predicts_tokens``"""
    row: Integer[np.ndarray, " n"] | None = None
    col: Integer[np.ndarray, " n"] | None = None
    char_start: Integer[np.ndarray, " n"] | None = None
    char_end: Integer[np.ndarray, " n"] | None = None
    region: Integer[np.ndarray, " n"] | None = None
    """index into ``RunInfo.regions``; −1 where unknown"""
    edges: Float[np.ndarray, "b I A Z"] | None = None
    """soft routers, one row a sample: weight of each connection by iteration, source and target"""
    gates: Float[np.ndarray, "b L H D"] | None = None
    """gated routers: weight of each direction by layer and head"""
    blocks: Float[np.ndarray, "b R P"] | None = None
    """threshold routers: firing rate of each block at each threshold step, 0 where silent"""

    @property
    def num_tokens(self) -> int:
        return self.module_ids.shape[0]
