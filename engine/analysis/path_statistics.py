"""Paths: equality of ribbons, how often each path occurs, and the rank–frequency law.

Shapes: n ribbons, S steps, K slots, V = S·K visits, P distinct paths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer, UInt64


def canonical(module_ids: Integer[np.ndarray, "n S K"]) -> Integer[np.ndarray, "n V"]:
    """Identity of each ribbon: the ids of every step in rising order, steps one after the other."""
    num_ribbons, num_steps, top_k = module_ids.shape
    ordered = np.sort(module_ids, axis=2) if top_k > 1 else module_ids
    return ordered.reshape(num_ribbons, num_steps * top_k)


def sorted_slots(module_ids: Integer[np.ndarray, "n S K"]) -> Integer[np.ndarray, "n V"]:
    """``canonical`` by a sorting network (Batcher's), ten times as fast."""
    num_ribbons, num_steps, top_k = module_ids.shape
    slots = np.ascontiguousarray(module_ids.reshape(-1, top_k).T)
    smaller = np.empty_like(slots[0])
    for low, high in _network(top_k):
        np.minimum(slots[low], slots[high], out=smaller)
        np.maximum(slots[low], slots[high], out=slots[high])
        slots[low] = smaller
    return np.ascontiguousarray(slots.T).reshape(num_ribbons, num_steps * top_k)


def _network(width: int) -> list[tuple[int, int]]:
    """Pairs of places to compare and exchange, in order, that sort any ``width`` values."""
    pairs = []
    block = 1
    while block < width:
        step = block
        while step >= 1:
            for start in range(step % block, width - step, 2 * step):
                for offset in range(min(step, width - start - step)):
                    low, high = start + offset, start + offset + step
                    if low // (2 * block) == high // (2 * block):
                        pairs.append((low, high))
            step //= 2
        block *= 2
    return pairs


def row_hashes(rows: Integer[np.ndarray, "n V"]) -> UInt64[np.ndarray, " n"]:
    """A 64-bit number for each row; equal rows have equal numbers, unequal rows hardly ever."""
    rng = np.random.default_rng(0x70617468)
    multipliers = rng.integers(0, 2**64, size=(rows.shape[1],), dtype=np.uint64)
    hashes = np.zeros(rows.shape[0], dtype=np.uint64)
    for column in range(rows.shape[1]):
        hashes += rows[:, column].astype(np.uint64) * (multipliers[column] | np.uint64(1))
    return hashes


def unique_rows(rows: Integer[np.ndarray, "n V"]) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " n"]]:
    """Index of one row of each kind, and for every row the number of its kind.

    Exact: hashes that collide are noticed and the rows compared themselves.
    """
    _, first_P, kind_n = np.unique(row_hashes(rows), return_index=True, return_inverse=True)
    if not np.array_equal(rows[first_P][kind_n], rows):
        _, first_P, kind_n = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first_P.astype(np.int64), kind_n.reshape(-1).astype(np.int64)


def rank_order(ribbons: Integer[np.ndarray, "P V"], counts: Int[np.ndarray, " P"]) -> Int[np.ndarray, " P"]:
    """Positions of the paths from rank 1 on: most frequent first, ties by the ribbon's ids."""
    keys = [ribbons[:, column] for column in reversed(range(ribbons.shape[1]))]
    return np.lexsort([*keys, -counts]).astype(np.int64)


def effective_paths(counts: Int[np.ndarray, " P"]) -> float:
    """exp H(π), the effective number of paths: exp(−Σ p ln p) with p = count / Σ count; 1 … P."""
    shares = counts[counts > 0] / counts.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


@dataclass(frozen=True)
class RankFit:
    """Least-squares line through (ln rank, ln frequency); None where no line is determined."""

    slope: float | None
    r2: float | None


def rank_frequency_fit(counts: Int[np.ndarray, " P"]) -> RankFit:
    """Slope of log frequency on log rank over all paths, and the share of variance it explains.

    ``counts`` in rank order (falling). One path has no slope; equal counts have slope 0 and no r².
    """
    if len(counts) < 2:
        return RankFit(None, None)
    return least_squares(np.log(np.arange(1, len(counts) + 1)), np.log(counts.astype(np.float64)))


def least_squares(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> RankFit:
    """The line through n points (x, y); equal y have slope 0 and no r²."""
    x, y = x - x.mean(), y - y.mean()
    slope = float((x * y).sum() / (x * x).sum())
    total = float((y * y).sum())
    if total < 1e-12:
        return RankFit(0.0, None)
    residual = y - slope * x
    return RankFit(slope, 1.0 - float((residual * residual).sum()) / total)


def log_spaced_ranks(num_paths: int, most: int = 200) -> Int[np.ndarray, " R"]:
    """At most ``most`` ranks from 1 to ``num_paths``, evenly spaced on a logarithmic axis."""
    if num_paths <= most:
        return np.arange(1, num_paths + 1)
    return np.unique(np.rint(np.geomspace(1, num_paths, most)).astype(np.int64))


def independent_steps(
    ribbons: Integer[np.ndarray, "P V"], counts: Int[np.ndarray, " P"], num_steps: int, seed: int = 0
) -> Integer[np.ndarray, "n S K"]:
    """The null of independent steps: every step's choices (K-tuples) shuffled over the n tokens."""
    rng = np.random.default_rng(seed)
    ribbons_PSK = ribbons.reshape(len(ribbons), num_steps, -1)
    owner_n = np.repeat(np.arange(len(counts)), counts)
    shuffled = np.empty((len(owner_n), *ribbons_PSK.shape[1:]), dtype=ribbons.dtype)
    for step in range(num_steps):
        shuffled[:, step] = ribbons_PSK[rng.permutation(owner_n), step]
    return shuffled


def path_distance(first: Integer[np.ndarray, "S K"], second: Integer[np.ndarray, "S K"]) -> Float[np.ndarray, " S"]:
    """Distance of two ribbons per step: 1 − |S ∩ S′| / K; its sum is the Hamming distance for K = 1."""
    shared_S = (first[:, :, None] == second[:, None, :]).any(axis=2).sum(axis=1)
    distance_S: np.ndarray = 1.0 - shared_S / first.shape[1]
    return distance_S
