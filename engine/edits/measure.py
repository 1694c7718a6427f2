"""Measure the effect of edits: the unchanged and the edited model on the same inputs, batch by batch (METRICS 5).

Logits are released after each batch; only sums are kept.

Shapes: R rows (images, or tokens of texts), C classes or vocabulary entries, n tokens, S steps, K slots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.analysis.contrast import mean_of, ratio_error
from tokenpaths.engine.analysis.route_changes import RouteChange, change_of, edited_steps
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.prepared import PreparedSet
from tokenpaths.engine.families.edit_values import Edit, check_length, written
from tokenpaths.engine.models.family import Traced
from tokenpaths.engine.tracing.traceable import Traceable, edits_of

TOP = 5
CHUNK_ROWS = 128
"""rows whose probabilities are in memory at once: of a vocabulary of 8,192 four megabytes, which stay in the cache"""


@dataclass
class OutputChange:
    """Sums over the outputs before and after an edit."""

    rows: int = 0
    kl: float = 0.0
    first_changed: int = 0
    five_changed: float = 0.0
    targets: int = 0
    loss: list[float] = field(default_factory=lambda: [0.0, 0.0])
    by_sample: dict[int, tuple[float, int]] = field(default_factory=dict)
    """increase in loss over all targets of each sample, and how many they are"""
    correct: list[int] = field(default_factory=lambda: [0, 0])

    def add(
        self,
        before: Float[Tensor, "R C"],
        after: Float[Tensor, "R C"],
        targets: Int[Tensor, " R"],
        samples: Int[Tensor, " R"],
    ) -> None:
        """Add rows of logits, their targets (−100: unknown) and the samples that they are of.

        Raises:
            UserError: logits that are not finite.
        """
        for start in range(0, len(before), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            both = [logits[part].float().log_softmax(dim=-1) for logits in (before, after)]
            if not all(torch.isfinite(log_probs).all() for log_probs in both):
                raise UserError(
                    "the model's output holds NaN or infinite values: the checkpoint or the input is damaged, or the "
                    "edit drives it out of range"
                )
            self._add(both[0], both[1], targets[part].to(before.device), samples[part])

    def _add(self, p_RC: Tensor, q_RC: Tensor, target_R: Tensor, sample_R: Tensor) -> None:
        self.rows += len(p_RC)
        self.kl += float((p_RC.exp() * (p_RC - q_RC)).sum(dim=-1).clamp(min=0).sum())
        top = min(TOP, p_RC.shape[1])
        five_RF, fives_RF = (x.topk(top, dim=-1).indices for x in (p_RC, q_RC))
        self.first_changed += int((five_RF[:, 0] != fives_RF[:, 0]).sum())
        kept_R = (five_RF[:, :, None] == fives_RF[:, None, :]).any(dim=2).sum(dim=1)
        self.five_changed += float((1 - kept_R / top).sum())
        known_R = target_R >= 0
        self.targets += int(known_R.sum())
        place_R1 = target_R.clamp(min=0).unsqueeze(1)
        losses = [-log_RC.gather(1, place_R1).squeeze(1)[known_R] for log_RC in (p_RC, q_RC)]
        own, place = sample_R[known_R.to(sample_R.device)].unique(return_inverse=True)
        rise = torch.bincount(place, weights=(losses[1] - losses[0]).double().cpu(), minlength=len(own))
        for sample, more, count in zip(own.tolist(), rise.tolist(), place.bincount().tolist(), strict=True):
            total, known = self.by_sample.get(sample, (0.0, 0))
            self.by_sample[sample] = (total + more, known + count)
        for i, best_R in enumerate((five_RF[:, 0], fives_RF[:, 0])):
            self.loss[i] += float(losses[i].double().sum())
            self.correct[i] += int((best_R == target_R)[known_R].sum())

    def answer(self) -> dict[str, Any]:
        """Means over rows: KL(unchanged ‖ edited) in nats, shares, loss and accuracy before and after.

        ``error`` is the standard error of the change in loss, ``low`` and ``high`` are the ends of its 95 % interval,
        samples taken as what was drawn: predictions of one text rise and fall together. None with fewer than two
        samples.
        """
        rows, n = max(1, self.rows), self.targets
        answer: dict[str, Any] = {
            "num_outputs": self.rows,
            "num_targets": n,
            "kl": self.kl / rows,
            "top1_changed": self.first_changed / rows,
            "top5_changed": self.five_changed / rows,
            "loss": None,
            "accuracy": None,
        }
        if n:
            answer["loss"] = change_of(self.loss[0] / n, self.loss[1] / n)
            rise_N, known_N = np.array(list(self.by_sample.values())).T
            change = mean_of(rise_N, known_N)
            assert change is not None  # there are targets
            answer["loss"] |= {"error": ratio_error(rise_N, known_N), "low": change.low, "high": change.high}
            answer["accuracy"] = change_of(self.correct[0] / n, self.correct[1] / n)
        return answer


def steps_edited(given: Mapping[str, Any]) -> frozenset[int] | None:
    """The steps that controls change directly; None if an edit or another control applies to all steps."""
    if set(given) - {"edits"}:
        return None
    return edited_steps(edit.get("step") for edit in given.get("edits") or () if edit["edit"] != "freeze")


class Measurement:
    """Effect of a model's controls over ``data``, measured a batch at a time.

    Args:
        model: under controls.
        data: prepared for it.
        unchanged: outputs of the model without controls, if already known.

    Raises:
        UserError: controls that do not fit a sample.
    """

    def __init__(self, model: Traceable, data: PreparedSet, unchanged: Unchanged | None = None) -> None:
        self._model, self._data = model, data
        for num_tokens in sorted(data.text_lengths):  # as when the texts are prepared for it
            check_length(edits_of(model), num_tokens, model.context)
        self._unchanged = unchanged or Unchanged(model, data)
        self._outputs = OutputChange()
        given = {} if model.controls is None else model.controls.given()
        self._routes = RouteChange(model.num_modules, steps_edited(given))
        self._end: tuple[Tensor, Tensor] | None = None
        self.done = 0
        """batches"""

    @property
    def finished(self) -> bool:
        return self.done == len(self._data.batches)

    def advance(self) -> None:
        """Run the next batch through the unchanged and the edited model."""
        batch = self._data.batches[self.done]
        before, after = self._unchanged[self.done], self._model.run(batch)
        rows = [batch.real_rows(traced.logits) for traced in (before, after)]
        self._outputs.add(rows[0], rows[1], batch.real_targets, self._data.samples[self.done])
        self._routes.add(batch.ribbons(before), batch.ribbons(after))
        if self._data.end is not None and self._data.end[0] == self.done:
            row = self._data.end[1]
            self._end = (rows[0][row], rows[1][row])
        self.done += 1

    def answer(self) -> dict[str, Any]:
        """The effect as plain JSON; for a single sample also its five likeliest classes or next tokens."""
        effect = effect_answer(
            self._outputs,
            self._routes,
            num_samples=self._data.num_samples,
            text=self._model.modality == "text",
            edits=edits_of(self._model),
        )
        if self._end is not None:
            both = zip(("before", "after"), self._end, strict=True)
            effect["top5"] = {when: _top(self._model, logits) for when, logits in both}
        return effect


def effect_answer(
    outputs: OutputChange, routes: RouteChange, *, num_samples: int, text: bool, edits: Sequence[Edit]
) -> dict[str, Any]:
    """Sums as plain JSON."""
    effect = {
        "num_samples": num_samples,
        **routes.answer(),
        **outputs.answer(),
        "perplexity": None,
        "edits": [written(edit) for edit in edits],
    }
    if text and effect["loss"] is not None:
        effect["perplexity"] = change_of(*(math.exp(min(80.0, effect["loss"][when])) for when in ("before", "after")))
    return effect


def measure_effect(model: Traceable, data: PreparedSet, unchanged: Unchanged | None = None) -> dict[str, Any]:
    """Run ``Measurement`` over all of ``data``."""
    work = Measurement(model, data, unchanged)
    while not work.finished:
        work.advance()
    return work.answer()


class Unchanged:
    """Outputs of the unchanged model per batch: cached in memory up to ``most_bytes``, otherwise recomputed."""

    def __init__(self, model: Traceable, data: PreparedSet, most_bytes: int = 1 << 28) -> None:
        self._model, self._data, self._most_bytes = model.without_controls(), data, most_bytes
        self._kept: dict[int, Traced] = {}
        self._bytes = 0

    def __getitem__(self, place: int) -> Traced:
        if place in self._kept:
            return self._kept[place]
        traced = self._model.run(self._data.batches[place])
        size = traced.logits.numel() * traced.logits.element_size()
        if self._bytes + size <= self._most_bytes:
            self._kept[place] = traced
            self._bytes += size
        return traced


def _top(model: Traceable, logits: Float[Tensor, " C"]) -> list[dict[str, Any]]:
    """The five likeliest classes of an image, or next tokens of a text."""
    if model.modality == "text":
        return likeliest(logits, model.token_texts())
    return likeliest(logits, dict(enumerate(model.classes)), unknown="{}")


def likeliest(logits: Float[Tensor, " C"], names: Mapping[int, str], unknown: str = "#{}") -> list[dict[str, Any]]:
    """The five most probable entries; ``unknown`` formats the number of one that ``names`` lacks."""
    probs, places = logits.float().softmax(dim=-1).topk(min(TOP, len(logits)))
    return [
        {"name": names.get(int(i), unknown.format(int(i))), "probability": float(p)}
        for p, i in zip(probs, places, strict=True)
    ]
