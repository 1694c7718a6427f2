"""The choices of one network over a data set, and what it puts out for each sample."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from tokenpaths.engine.analysis.path_statistics import canonical, unique_rows
from tokenpaths.engine.analysis.ribbon_costs import Work, module_units
from tokenpaths.engine.edits.prepared import PreparedSet
from tokenpaths.engine.tracing.loaded_model import LoadedModel


@dataclass
class Observed:
    """The choices of one network over a data set. Shapes: n tokens, S steps, K slots, b samples."""

    ids_nSK: np.ndarray
    sample_n: Int[np.ndarray, " n"]
    compute_n: Float[np.ndarray, " n"]
    reuse_n: Float[np.ndarray, " n"]
    active: Bool[np.ndarray, "S M"]
    """modules of each step that do work"""
    loss_b: Float[np.ndarray, " b"] | None = None
    """nats, mean over the predictions of a sample; None of untrained networks"""
    correct_b: Float[np.ndarray, " b"] | None = None
    confidence_b: Float[np.ndarray, " b"] | None = None
    """probability of the likeliest answer"""

    @cached_property
    def path_n(self) -> Int[np.ndarray, " n"]:
        return unique_rows(canonical(self.ids_nSK))[1]

    @cached_property
    def path_count_n(self) -> Int[np.ndarray, " n"]:
        """How many tokens take the path of each token."""
        return np.bincount(self.path_n)[self.path_n]

    @property
    def num_samples(self) -> int:
        return int(self.sample_n.max()) + 1

    def by_sample(self, values_n: np.ndarray) -> Float[np.ndarray, " b"]:
        """Mean over the tokens of each sample."""
        sums = np.bincount(self.sample_n, weights=values_n, minlength=self.num_samples)
        return sums / np.bincount(self.sample_n, minlength=self.num_samples)

    def frequent(self, part: float, among: Bool[np.ndarray, " n"] | None = None) -> Bool[np.ndarray, " n"]:
        """Tokens on the most frequent paths that together hold ``part`` of all tokens (``among`` some), whole paths."""
        counts = np.bincount(self.path_n if among is None else self.path_n[among], minlength=int(self.path_n.max()) + 1)
        order = np.argsort(-counts, kind="stable")
        leading = order[: int(np.searchsorted(np.cumsum(counts[order]), part * counts.sum())) + 1]
        mask: np.ndarray = np.isin(self.path_n, leading)
        return mask if among is None else mask & among

    @cached_property
    def shared(self) -> Bool[np.ndarray, " n"]:
        """Tokens on paths that are met in two samples or more."""
        pairs = np.unique(self.path_n * self.num_samples + self.sample_n)
        return np.bincount(pairs // self.num_samples, minlength=int(self.path_n.max()) + 1)[self.path_n] > 1

    @cached_property
    def visits(self) -> Int[np.ndarray, "b S M"]:
        """Visits of each sample's tokens to the modules that do work."""
        width, steps = self.active.shape[1], self.ids_nSK.shape[1]
        cells = (self.sample_n[:, None, None] * steps + np.arange(steps)[:, None]) * width + self.ids_nSK
        counts = np.bincount(cells.ravel(), minlength=self.num_samples * steps * width)
        return counts.reshape(self.num_samples, steps, width) * self.active


def observe(model: LoadedModel, data: PreparedSet, *, outputs: bool) -> Observed:
    """Run a network over the batches of a set; with ``outputs`` also its losses."""
    ids, owners = [], []
    sums = np.zeros((4, data.num_samples))
    for number, (batch, sample_R) in enumerate(zip(data.batches, data.samples, strict=True)):
        if outputs:
            traced = model.run(batch)
            ids.append(batch.ribbons(traced))
            add_outputs(sums, batch.real_rows(traced.logits), batch.real_targets, sample_R.numpy())
        else:
            ids.append(model.choose(batch))
        owners.append(np.repeat(sample_R.numpy(), len(ids[-1]) // len(sample_R)))
        print(f"{model.name} {number + 1}/{len(data.batches)}", end="\r", file=sys.stderr, flush=True)
    ids_nSK = np.concatenate(ids)
    _, units = module_units(model.module_table(), model.num_steps, model.num_modules)
    work = Work.of(ids_nSK, units)
    observed = Observed(ids_nSK, np.concatenate(owners).astype(np.int64), work.compute, work.reuse, units >= 0)
    if outputs:
        observed.loss_b, observed.correct_b, observed.confidence_b = sums[1:] / np.maximum(1, sums[0])
    return observed


def add_outputs(sums: np.ndarray, logits_RC: torch.Tensor, target_R: torch.Tensor, sample_R: np.ndarray) -> None:
    """Add counts, losses, hits and confidences of known targets to those of their samples."""
    known = (target_R >= 0).numpy()
    logs = logits_RC.float().log_softmax(dim=-1).cpu()
    best = logs.max(dim=-1)
    losses = -logs.gather(1, target_R.clamp(min=0)[:, None]).squeeze(1)
    rows = (torch.ones_like(losses), losses, (best.indices == target_R).float(), best.values.exp())
    for row, values in zip(sums, rows, strict=True):
        np.add.at(row, sample_R[known], values.double().numpy()[known])
