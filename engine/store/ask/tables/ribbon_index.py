"""Ranks of given ribbons in a run: an exact look-up over all its paths, by hash and comparison.

The hashes of all paths are cached while the run is open, 12 bytes a path; ribbons are compared only where hashes agree.

Shapes: P paths, n ribbons, V = S·K visits, slots of a step in ascending order as in table ``path``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.ask.tables.near_paths import ribbon_parts
from tokenpaths.engine.store.ask.tables.path_ribbons import ribbons_of_ranks

_PRIME = 0x100000001B3
"""of FNV-1a, 64 bits"""
_OFFSET = 0xCBF29CE484222325


@dataclass(frozen=True)
class _Hashes:
    """Hash and rank of each path, in any order: to sort millions takes longer than to look through them for a while."""

    hashes_P: np.ndarray
    rank_P: np.ndarray

    @property
    def num_bytes(self) -> int:
        return self.hashes_P.nbytes + self.rank_P.nbytes

    def ranks_with(self, wanted_n: np.ndarray) -> np.ndarray:
        """Ranks of the paths with one of these hashes."""
        is_wanted = np.zeros(2**16, dtype=bool)
        is_wanted[_short(wanted_n)] = True
        near = np.flatnonzero(is_wanted[_short(self.hashes_P)])
        ranks: np.ndarray = self.rank_P[near[np.isin(self.hashes_P[near], wanted_n)]]
        return ranks


def _short(hashes: np.ndarray) -> np.ndarray:
    """Sixteen bits of each, where they lie."""
    return hashes.view(np.uint16)[::4]


def ranks_of(run: RunFile, ribbons_nV: Integer[np.ndarray, "n V"]) -> Int64[np.ndarray, " n"]:
    """The rank of the path that each ribbon is; 0 where no token of the run takes it."""
    ranks = np.zeros(len(ribbons_nV), dtype=np.int64)
    if not len(ribbons_nV):
        return ranks
    index = cached(run, "ribbon hashes", lambda: _read(run), lambda part: part.num_bytes)
    candidates = np.sort(index.ranks_with(_hashes(ribbons_nV.T)))
    kept = {tuple(ribbon): rank for rank, ribbon in ribbons_of_ranks(run, candidates.tolist()).items()}
    for place, ribbon in enumerate(ribbons_nV.tolist()):
        ranks[place] = kept.get(tuple(ribbon), 0)
    return ranks


def _read(run: RunFile) -> _Hashes:
    parts = [(_hashes(ids_VP), rank_P) for rank_P, ids_VP in ribbon_parts(run)]
    hashes_P, rank_P = (np.concatenate([pair[i] for pair in parts]) for i in (0, 1))
    return _Hashes(hashes_P, rank_P)


def _hashes(ids_VP: Integer[np.ndarray, "V P"]) -> UInt64[np.ndarray, " P"]:
    """FNV-1a over the visits; equal ribbons have equal hashes."""
    hashes = np.full(ids_VP.shape[1], _OFFSET, dtype=np.uint64)
    for ids_P in ids_VP:
        hashes ^= ids_P.astype(np.uint64)
        hashes *= np.uint64(_PRIME)
    return hashes
