"""Bans at the gates of Hugging Face models measured pass by pass, so that a long measurement can stop between two.

``tokenpaths.engine.edits.expert_bans.measure_bans`` and ``usage_of_experts`` give the same numbers in one call.

Shapes: n tokens, S gates (the steps), K slots, M experts, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.adapters.huggingface import tracing as hf
from tokenpaths.engine.adapters.huggingface.library import HuggingFaceError
from tokenpaths.engine.adapters.huggingface.loading import HuggingFaceModel
from tokenpaths.engine.analysis.route_changes import RouteChange, edited_steps
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.sample import Sample
from tokenpaths.engine.edits.expert_bans import banned_experts, check_banned, plan_bans, what_follows
from tokenpaths.engine.edits.expert_controls import ExpertControls
from tokenpaths.engine.edits.measure import OutputChange, effect_answer
from tokenpaths.engine.models.family import read_controls_of

PASS_TOKENS = 512
"""of one forward pass on a CPU, padding counted; a longer window goes alone. Small: nothing can stop inside a pass"""
DEVICE_PASS_TOKENS = 2048
"""the same on a GPU, which is quicker and needs more at once to be busy"""


def pass_tokens(loaded: HuggingFaceModel) -> int:
    """Tokens of one forward pass of this model where it lies."""
    return PASS_TOKENS if loaded.device.type == "cpu" else DEVICE_PASS_TOKENS


@dataclass(frozen=True)
class PaddedTexts:
    """Windows for one pass, each tensor (windows, positions)."""

    inputs: Int[Tensor, "B T"]
    attended: Int[Tensor, "B T"]
    keep: Any
    """bool: the positions that are tokens of a text"""
    targets: Int[Tensor, "B T"]


class TextPasses:
    """Texts as the passes that a model sees them in. ``add`` each, then ``close``; then it is a sequence of passes."""

    def __init__(self, loaded: HuggingFaceModel) -> None:
        self._loaded = loaded
        self._pass_tokens = pass_tokens(loaded)
        self._known = loaded.model.get_input_embeddings().weight.shape[0]
        self.windows: list[Any] = []
        self.batches: list[list[int]] = []
        """numbers of the windows of each pass"""
        self.num_samples = self.num_targets = 0

    def add(self, sample: Sample) -> None:
        """Tokens of one text.

        Raises:
            UserError: a sample without text, or a token that the model does not know.
        """
        if not sample.text:
            raise UserError(f"{sample.source or 'the sample'} holds no text", field="text")
        ids = self._loaded.tokenizer.encode(sample.text).ids
        if len(ids) and int(ids.max()) >= self._known:
            raise HuggingFaceError(
                f"{self._loaded.name}: the tokenizer gave id {int(ids.max())}, the model knows {self._known} tokens"
            )
        self.windows += hf._windows(ids, self._loaded.context)
        self.num_samples += 1
        self.num_targets += max(0, len(ids) - 1)

    def close(self) -> TextPasses:
        """All texts are there: deal them out among passes.

        Raises:
            UserError: there is none.
        """
        if not self.windows:
            raise UserError("the data set holds no sample, so there is nothing to measure", field="data")
        self.batches = list(hf._alike(self.windows, self._pass_tokens, len(self._loaded.tokenizer.before)))
        return self

    def __getitem__(self, place: int) -> PaddedTexts:
        windows = [self.windows[number] for number in self.batches[place]]
        return PaddedTexts(*hf._padded(windows, self._loaded.tokenizer.before))

    def __iter__(self) -> Iterator[PaddedTexts]:
        return (self[place] for place in range(len(self.batches)))


Said = tuple[Int[np.ndarray, "n S K"], Float[Tensor, "n V"]]
"""what the gates chose, and the logits behind each token"""


def run_pass(loaded: HuggingFaceModel, batch: PaddedTexts) -> Said:
    """One forward pass, as the gates are at this moment."""
    recorded, logits = hf._decisions(
        loaded.model, loaded.gates, loaded.device, batch.inputs, batch.attended, batch.keep
    )
    return recorded.ids.numpy(), logits[batch.keep.to(logits.device)]


class UnchangedPasses:
    """What the unchanged model says to each pass: kept in memory where that is little, else worked out again."""

    MOST_BYTES = 1 << 28

    def __init__(self, loaded: HuggingFaceModel, data: TextPasses) -> None:
        self._loaded, self._data = loaded, data
        self._kept: dict[int, Said] = {}
        self._bytes = 0

    def __getitem__(self, place: int) -> Said:
        if place in self._kept:
            return self._kept[place]
        ids, logits = said = run_pass(self._loaded, self._data[place])
        size = logits.numel() * logits.element_size() + ids.nbytes
        if self._bytes + size <= self.MOST_BYTES:
            self._kept[place] = said
            self._bytes += size
        return said


class BanMeasurement:
    """What bans change of ``loaded`` over ``data``, a pass at a time; beside it ``measure_bans``.

    Raises:
        UserError: edits that do not fit the model, a gate that cannot be edited.
    """

    def __init__(
        self,
        loaded: HuggingFaceModel,
        data: TextPasses,
        edits: Sequence[Mapping[str, Any]],
        unchanged: UnchangedPasses | None = None,
    ) -> None:
        self._loaded, self._data, self._plan = loaded, data, plan_bans(loaded.gates, edits)
        self._edits = read_controls_of(ExpertControls, {"edits": [dict(edit) for edit in edits]}, "moe").edits or ()
        self._unchanged = unchanged or UnchangedPasses(loaded, data)
        self._outputs = OutputChange()
        self._routes = RouteChange(
            max(gate.num_choices for gate in loaded.gates), edited_steps(edit.get("step") for edit in edits)
        )
        self._top5: dict[str, Any] = {}
        self.done = 0
        """passes"""

    @property
    def finished(self) -> bool:
        return self.done == len(self._data.batches)

    def advance(self) -> None:
        """The next pass, unchanged and changed; in between the model is as it was."""
        batch = self._data[self.done]
        before_ids, before = self._unchanged[self.done]
        with banned_experts(self._loaded.gates, self._plan):
            after_ids, after = run_pass(self._loaded, batch)
        check_banned(torch.from_numpy(after_ids), self._loaded.gates, self._plan)
        self._outputs.add(before, after, batch.targets[batch.keep])
        self._routes.add(before_ids, after_ids)
        if self._data.num_samples == 1:
            part = self._data.batches[self.done]
            self._top5 |= what_follows(self._loaded, self._data.windows, part, (before, after))
        self.done += 1

    def answer(self) -> dict[str, Any]:
        """The effect as plain JSON, see ``tokenpaths.engine.edits.measure``."""
        return (
            effect_answer(self._outputs, self._routes, num_samples=self._data.num_samples, text=True, edits=self._edits)
            | self._top5
        )


class ExpertUsage:
    """How many tokens chose each expert of each layer, unedited; a pass at a time. Beside it ``usage_of_experts``."""

    def __init__(self, loaded: HuggingFaceModel) -> None:
        shape = len(loaded.gates), max(gate.num_choices for gate in loaded.gates)
        self.counts: Int[np.ndarray, "S M"] = np.zeros(shape, dtype=np.int64)
        self.batches = 0

    def add(self, unchanged: UnchangedPasses) -> None:
        """The next pass."""
        ids, _ = unchanged[self.batches]
        for step, counts in enumerate(self.counts):
            counts += np.bincount(ids[:, step].ravel(), minlength=len(counts))
        self.batches += 1
