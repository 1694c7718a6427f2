"""Layout of ``path_page`` (paths by number), ``path_count`` (CDF of ranks) and ``path_top`` (first pages of lists).

``path`` is sorted by rank, so looking up 300 paths by number there reads a column of every path. ``path_page`` holds
rank and ribbon by number, ``PAGE_PATHS`` a row: 300 paths are at most 300 rows. It is uncompressed, because DuckDB
compresses 2048 rows together and would decompress them all for one. ``path_count`` holds how many paths have each
count, from which the CDF of any rank follows. ``path_top`` holds the first ``TOP_ROWS`` rows of lists that would have
to be sorted or counted: by compute, by reuse, and of each label.

Shapes: P paths, p of them.
"""

from __future__ import annotations

import numpy as np

PAGE_PATHS = 1024
PAGES_AT_ONCE = 256
TOP_ROWS = 1000


class Shares:
    """The CDF over ranks.

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
