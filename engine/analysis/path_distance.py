"""Distances between the path profiles of samples, and between ribbons.

A sample's *path profile* is the share of its visits that went to each module at each step, p_{s,m}: every step sums
to 1. Slots without a module (dropped, unused, not recorded) are visits to one more. The distance of two profiles is
the Hellinger distance d = √(mean over steps of (1 − Σ_m √(p·q))): 0 = the same load, 1 = nothing in common at any
step. It is the Euclidean distance of √(p/(2S)), so one matrix product compares a
sample with all others, and a map of those vectors (``projection.py``) shows the same distances.

The distance of two ribbons is the path distance, the sum over steps of 1 − |S ∩ S′| / K.

Shapes: n samples, R rows (a path of a sample), P paths, S steps, K slots, V = S·K visits, M modules.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float32, Integer

SAME = 1e-6
"""profiles that are no further apart are the same"""


def profiles(
    sample_R: Integer[np.ndarray, " R"],
    count_R: Integer[np.ndarray, " R"],
    ribbons_RV: Integer[np.ndarray, "R V"],
    *,
    num_samples: int,
    num_steps: int,
    num_modules: int,
) -> Float32[np.ndarray, "n D"]:
    """√(p/(2S)) of each sample, D = S·M: a unit of Euclidean distance is a Hellinger distance.

    ``sample_R`` counts from 0; ``count_R`` tokens of the sample are on the path ``ribbons_RV``. A sample without
    tokens stays zero.
    """
    top_k = ribbons_RV.shape[1] // num_steps
    counts_nSM = np.zeros((num_samples, num_steps, num_modules), dtype=np.float32)
    first_R = sample_R.astype(np.int64) * num_modules
    for step in range(num_steps):  # a step at a time: what is counted stays in the cache
        of_step = np.zeros(num_samples * num_modules)
        for visit in range(step * top_k, (step + 1) * top_k):
            of_step += np.bincount(first_R + ribbons_RV[:, visit], count_R, len(of_step))
        counts_nSM[:, step] = of_step.reshape(num_samples, num_modules)
    total_nS1 = counts_nSM.sum(axis=2, keepdims=True)
    shares_nSM = np.divide(counts_nSM, total_nS1, out=counts_nSM, where=total_nS1 > 0)
    shares_nSM /= 2 * num_steps
    profile: np.ndarray = np.sqrt(shares_nSM, out=shares_nSM).reshape(num_samples, num_steps * num_modules)
    return profile


def profile_distance(one: Float[np.ndarray, " D"], many: Float[np.ndarray, "n D"]) -> Float[np.ndarray, " n"]:
    """Hellinger distance of one profile to each of many, in [0, 1]."""
    apart = many.astype(np.float32) - one.astype(np.float32)
    distance = np.sqrt(np.einsum("nd,nd->n", apart, apart, dtype=np.float64))
    distance[distance < SAME] = 0.0  # the same load: what is left is the rounding of square roots
    bounded: np.ndarray = np.minimum(distance, 1.0)
    return bounded


def ribbon_distance(one: Integer[np.ndarray, "S K"], many: Integer[np.ndarray, "P S K"]) -> Integer[np.ndarray, " P"]:
    """K times the path distance of one ribbon to each of many: whole numbers, 0 … V, so that ties are ties.

    The tuple of a step holds a module at most once, so |S ∩ S′| is the number of equal pairs of slots.
    """
    num_steps, top_k = one.shape
    shared_P = np.zeros(len(many), dtype=np.int64)
    for slot in range(top_k):
        for other in range(top_k):
            shared_P += (many[:, :, other] == one[None, :, slot]).sum(axis=1)
    distance_P: np.ndarray = num_steps * top_k - shared_P
    return distance_P


def nearest(distance: Float[np.ndarray, " n"] | Integer[np.ndarray, " n"], limit: int) -> Integer[np.ndarray, " m"]:
    """Places of the ``limit`` smallest, nearest first; of equal ones the earlier."""
    if len(distance) > limit:
        edge = np.partition(distance, limit - 1)[limit - 1]
        near = np.flatnonzero(distance <= edge)
    else:
        near = np.arange(len(distance))
    return near[np.argsort(distance[near], kind="stable")][:limit]
