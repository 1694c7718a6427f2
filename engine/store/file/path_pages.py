"""Layout of ``path_page`` (paths by number), ``path_count`` (CDF of ranks) and ``path_top`` (first pages of lists).

``path`` is sorted by rank, so looking up 300 paths by number there reads a column of every path. ``path_page`` holds
rank and ribbon by number, ``PAGE_PATHS`` a row: 300 paths are at most 300 rows. It is uncompressed, because DuckDB
compresses 2048 rows together and would decompress them all for one. ``path_count`` holds how many paths have each
count, from which the CDF of any rank follows. ``path_top`` holds the first ``TOP_ROWS`` rows of lists that would have
to be sorted or counted: by compute, by reuse, and of each label.

Shapes: P paths, p of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

PAGE_PATHS = 1024
PAGES_AT_ONCE = 256
TOP_ROWS = 1000


class Shares:
    """Counts and shares of paths by rank, from how many paths have each count: no scan of tokens or paths.

    Args:
        counts: distinct numbers of tokens per path, descending.
        num_paths: number of paths with each count.
        num_tokens: tokens of the run.
    """

    def __init__(self, counts: np.ndarray, num_paths: np.ndarray, num_tokens: int) -> None:
        self._counts, self._last = counts, np.cumsum(num_paths)
        self._tokens = np.cumsum(counts * num_paths)
        self._num_tokens = num_tokens

    def counts(self) -> np.ndarray:
        """(P,) tokens of each path, by rank."""
        narrow = np.int32 if self._counts.max(initial=0) < 2**31 else np.int64
        return np.repeat(self._counts.astype(narrow), np.diff(self._last, prepend=0))

    def cdf(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) share of the tokens on the paths of rank 1 … r."""
        place = np.searchsorted(self._last, ranks)
        cdf: np.ndarray = (self._tokens[place] - (self._last[place] - ranks) * self._counts[place]) / self._num_tokens
        return cdf

    def counts_of(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) tokens on the path of each rank."""
        counts: np.ndarray = self._counts[np.searchsorted(self._last, ranks)]
        return counts

    def cdf_middle(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) share of the tokens on paths with strictly larger counts, plus half of that on paths with equal counts.

        Equal counts have equal values, unlike in ``cdf``; a path that a share s of all tokens take has 1 − s/2 at most.
        """
        place = np.searchsorted(self._last, ranks)
        up_to = np.concatenate([[0], self._tokens])
        middle: np.ndarray = (up_to[place] + up_to[place + 1]) / (2 * self._num_tokens)
        return middle

    def ink_of(self, ranks: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """What a path's colour is made of, for each rank: ``cdf_middle`` and ``path_tokens``, its tokens in the run."""
        asked = np.asarray(ranks, dtype=np.int64)
        pairs = zip(self.cdf_middle(asked).tolist(), self.counts_of(asked).tolist(), strict=True)
        return [{"cdf_middle": middle, "path_tokens": count} for middle, count in pairs]
