"""Runs in which k varies: some slots of some tokens hold no module."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.support.runs.arrays import RunArrays
from tokenpaths.engine.base.records import UNUSED_KIND, ModuleInfo, TraceBatch


def with_unused(made: RunArrays, share: float = 0.2, seed: int = 0) -> RunArrays:
    """``made`` with about ``share`` of its slots unused, whole steps among them (dropped tokens).

    A loop over tokens and steps: what is left moves to the first slots, stand-ins count up behind it.
    """
    rng = np.random.default_rng(seed)
    info, first = made.info, made.info.num_modules
    batches = [_without_some(batch, first, share, rng) for batch in made.batches]
    twin = None
    if made.twin is not None and len(made.twin):
        twin = made.twin.copy()
        _drop(twin, np.zeros(twin.shape), first, share, rng)
    stand_ins = [
        ModuleInfo(step, first + slot, "unused slot", UNUSED_KIND, 0, 0)
        for step in range(info.num_steps)
        for slot in range(info.top_k)
    ]
    info = replace(info, num_modules=first + info.top_k)
    return replace(made, info=info, modules=[*made.modules, *stand_ins], batches=batches, twin=twin)


def _without_some(batch: TraceBatch, first: int, share: float, rng: np.random.Generator) -> TraceBatch:
    ids, weights = batch.module_ids.copy(), batch.weights.copy()
    _drop(ids, weights, first, share, rng)
    return replace(batch, module_ids=ids, weights=weights)


def _drop(ids: np.ndarray, weights: np.ndarray, first: int, share: float, rng: np.random.Generator) -> None:
    for token in range(len(ids)):
        for step in range(ids.shape[1]):
            keep = rng.random(ids.shape[2]) >= share
            keep &= rng.random() >= share / 2  # all K slots: the token was dropped
            kept_ids, kept_weights = ids[token, step][keep].tolist(), weights[token, step][keep].tolist()
            missing = ids.shape[2] - len(kept_ids)
            ids[token, step] = kept_ids + [first + slot for slot in range(missing)]
            weights[token, step] = kept_weights + [0.0] * missing
