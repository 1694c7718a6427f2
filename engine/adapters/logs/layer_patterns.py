"""Patterns in the choices of layers that no router makes: layers that never change, equal layers, views read flat.

Shapes: t tokens of a piece, S layers, K slots, M experts; w windows of m tokens.
"""

from __future__ import annotations

import math

import numpy as np

from tokenpaths.engine.analysis.compiled.loops import any_ready
from tokenpaths.engine.analysis.path_statistics import word_hashes

LEAST_TOKENS = 16
"""below that nothing is said of layers that never change or are equal"""
LEAST_VARIED = 8
"""tokens that must have another set of experts than the first one, where layers are compared without some tokens"""
SURE = math.log(1e6)
"""how much less likely than one in a million chance must make an artefact"""
LIKELY = math.log(1e-3)
"""of a part of a permutation, above which its tokens could well be apart by themselves"""
MOST_HELD = 65_536
"""tokens that are kept for the test of strides"""
_ODD = np.uint64(0x9E3779B97F4A7C15)


class LayerSets:
    """What tells of layers that never change, and of equal ones, from a hash of each set of experts (t, S)."""

    def __init__(self, layers: int) -> None:
        self.tokens = 0
        self.varied_S = np.zeros(layers, dtype=np.int64)
        """tokens with another set than the layer's first one; counted until there are ``LEAST_TOKENS``"""
        self._sums_S = np.zeros(layers, dtype=np.uint64)
        self._first_S = np.zeros(layers, dtype=np.uint64)
        self._known_S = np.zeros(layers, dtype=bool)

    def add(self, rows_tS: np.ndarray, lacking_tS: np.ndarray | None) -> np.ndarray:
        """Returns (t,) a number for the sets of each token; ``lacking_tS``: tokens without a decision, which change no
        layer."""
        for layer in np.flatnonzero(~self._known_S).tolist():
            known = rows_tS[:1, layer] if lacking_tS is None else rows_tS[~lacking_tS[:, layer], layer][:1]
            if len(known):
                self._first_S[layer], self._known_S[layer] = known[0], True
        few = self.varied_S < LEAST_TOKENS
        if few.any():
            differs = rows_tS[:, few] != self._first_S[few]
            self.varied_S[few] += (differs if lacking_tS is None else differs & ~lacking_tS[:, few]).sum(axis=0)
        places = (np.arange(self.tokens + 1, self.tokens + 1 + len(rows_tS), dtype=np.uint64) * _ODD) | np.uint64(1)
        layers = (np.arange(rows_tS.shape[1], dtype=np.uint64) * np.uint64(2654435761)) | np.uint64(1)
        self.tokens += len(rows_tS)
        if (compiled := any_ready()) is not None:
            of_tokens = np.empty(len(rows_tS), dtype=np.uint64)
            compiled.sum_sets(np.ascontiguousarray(rows_tS), places, layers, self._sums_S, of_tokens)
            return of_tokens
        self._sums_S += (rows_tS * places[:, None]).sum(axis=0, dtype=np.uint64)
        return np.asarray((rows_tS * layers).sum(axis=1, dtype=np.uint64))

    def equal(self, least_varied: int) -> set[frozenset[int]]:
        """Groups of layers that have the same sets throughout, and so many that are not their first one."""
        groups: dict[int, set[int]] = {}
        for layer in np.flatnonzero(self.varied_S >= least_varied).tolist():
            groups.setdefault(int(self._sums_S[layer]), set()).add(layer)
        return {frozenset(same) for same in groups.values() if len(same) > 1}


class StridedWindows:
    """Tests whether consecutive tokens are parts of permutations of all experts, once their number M is known."""

    def __init__(self, layers: int, top_k: int) -> None:
        self._top_k = top_k
        self._kept: list[np.ndarray] = []
        self._held = 0
        self._layers = layers

    def add(self, ordered: np.ndarray) -> None:
        """Keep the ids of the first tokens of some samples: an artefact of strides is everywhere."""
        if self._held < MOST_HELD:
            part = ordered[: MOST_HELD - self._held]
            self._kept.append(part.astype(np.int32))
            self._held += len(part)

    def artefacts(self, experts: int) -> tuple[np.ndarray, np.ndarray]:
        """Two (S,) bool: layers of which nearly all windows of M/K tokens are partitions, and of which nearly all parts
        of such (at the end of samples, or where M/K is not whole) repeat no expert, where chance makes that all but
        impossible."""
        none = np.zeros(self._layers, dtype=bool)
        if experts < 2 * self._top_k:
            return none, none
        windows = self._by_size(experts)
        whole = none
        if experts % self._top_k == 0 and (flat := windows.pop(experts // self._top_k, None)) is not None:
            partitions = (flat == np.arange(experts)).all(axis=2).sum(axis=0)
            whole = self._sure(partitions, np.full(self._layers, len(flat)), self._chance(experts, flat.shape[2]))
        chances = {size: self._chance(experts, size * self._top_k) for size in windows}
        used = [size for size, chance in chances.items() if chance < LIKELY]
        counts, apart = np.zeros((2, self._layers), dtype=np.int64)
        for size in used:
            flat = windows[size]
            distinct: np.ndarray = np.asarray((flat[:, :, 1:] > flat[:, :, :-1]).all(axis=2))
            keys = word_hashes(flat.reshape(-1, flat.shape[2])).reshape(flat.shape[:2])
            for layer in range(self._layers):
                # Beginnings and ends of samples may be the same words each time: such are one window.
                first = np.unique(keys[:, layer], return_index=True)[1]
                counts[layer] += len(first)
                apart[layer] += int(distinct[first, layer].sum())
        return whole, self._sure(apart, counts, max(chances[size] for size in used)) if used else none

    def _by_size(self, experts: int) -> dict[int, np.ndarray]:
        """Tokens m of a window → sorted ids (w, S, m·K): of those tokens that lie within one permutation, if the log is
        permutations read flat; samples begin with one."""
        found: dict[int, list[np.ndarray]] = {}
        for ids in self._kept:
            number = np.arange(-(-len(ids) * self._top_k // experts))
            starts = -(-number * experts // self._top_k)
            sizes = np.minimum((number + 1) * experts // self._top_k, len(ids)) - starts
            for size in sorted(set(sizes[sizes > 1].tolist())):
                sets = ids[starts[sizes == size, None] + np.arange(size)].transpose(0, 2, 1, 3)
                found.setdefault(size, []).append(np.sort(sets.reshape(len(sets), self._layers, -1), axis=2))
        return {size: np.concatenate(parts) for size, parts in found.items()}

    def _chance(self, experts: int, slots: int) -> float:
        """ln of the chance that the sets of so many slots are disjoint: (M−K choose K) / (M choose K) · …"""
        each = _ln_choose(experts, self._top_k)
        return sum(_ln_choose(experts - used, self._top_k) - each for used in range(0, slots, self._top_k))

    def _sure(self, found_S: np.ndarray, windows_S: np.ndarray, chance: float) -> np.ndarray:
        # Decode steps behind a prompt dilute the windows, so a tenth of them is enough where chance gives none.
        ways = np.array([_ln_choose(int(w), int(n)) for w, n in zip(windows_S, found_S, strict=True)])
        sure: np.ndarray = (found_S >= np.maximum(2, 0.1 * windows_S)) & (-(ways + found_S * chance) > SURE)
        return sure


def _ln_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
