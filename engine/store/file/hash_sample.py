"""Seeded hash sample of tokens, independent of how a run was cut into batches.

Shapes: n tokens of a batch.
"""

from __future__ import annotations

import numpy as np

KNOWN_TOKENS = 20_000
"""sample size for the association of paths with properties: sealing and queries draw the same tokens"""


def mix(values: np.ndarray, seed: int) -> np.ndarray:
    """splitmix64 of integers (n,): the same on every machine and in every version."""
    z = values.astype(np.uint64) + np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class HashSample:
    """Keeps the ``size`` tokens with the smallest hashes of their position in the run.

    The sample depends only on the seed and the number of tokens, not on the batches.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.seed = seed
        self._limit = np.uint64(2**64 - 1)
        self._parts: list[dict[str, np.ndarray]] = []
        self._kept = 0

    def add(self, first_row: int, columns: dict[str, np.ndarray]) -> None:
        """Offer n tokens that start at position ``first_row``; ``columns`` are (n,) arrays."""
        chosen = self.choose(first_row, len(next(iter(columns.values()))))
        self.keep(first_row, chosen, {name: values[chosen] for name, values in columns.items()})

    def choose(self, first_row: int, num_tokens: int) -> np.ndarray:
        """Which of the next tokens may be in the sample, by their place among these."""
        hashes = mix(np.arange(first_row, first_row + num_tokens, dtype=np.uint64), self.seed)
        return np.flatnonzero(hashes <= self._limit)

    def keep(self, first_row: int, chosen: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """Add the tokens that ``choose`` gave, and no others."""
        self._parts.append({"hash": mix(first_row + chosen, self.seed), **columns})
        self._kept += len(chosen)
        if self._kept > 2 * self.size:
            self._parts = [self.columns()]
            self._limit = self._parts[0]["hash"].max()
            self._kept = len(self._parts[0]["hash"])

    def merge(self, columns: dict[str, np.ndarray]) -> None:
        """Add ``columns`` of another sample of the same seed, of other tokens."""
        self._parts.append(columns)
        self._kept += len(columns["hash"])
        if self._kept > 2 * self.size:
            self._parts = [self.columns()]
            self._kept = len(self._parts[0]["hash"])

    def columns(self) -> dict[str, np.ndarray]:
        """The sample (at most ``size`` rows), in hash order."""
        joined = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        order = np.argsort(joined["hash"], kind="stable")[: self.size]
        return {name: values[order] for name, values in joined.items()}
