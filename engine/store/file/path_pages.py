"""Paths by their numbers (``path_page``), the CDF of their ranks (``path_count``) and lists of them (``path_top``).

``path`` lies in the order of ranks, and 300 paths by number are spread over all of it: finding them there reads a
column of every path. ``path_page`` holds the same by number, ``PAGE_PATHS`` in a row, so that 300 paths are at most 300
rows. It is not compressed: DuckDB would compress 2048 rows in one piece, and unpack them all for one of them.
``path_count`` says how many paths have each count; the CDF of any rank follows from it. ``path_top`` holds the first
``TOP_ROWS`` rows of lists that would have to be sorted or counted: by compute, by reuse, and of each label.

Shapes: P paths, p of them.
"""

from __future__ import annotations

import numpy as np

PAGE_PATHS = 1024
PAGES_AT_ONCE = 256
TOP_ROWS = 1000


class Shares:
    """The CDF of ranks.

    Args:
        counts: distinct numbers of tokens of a path, falling.
        num_paths: how many paths have each.
        num_tokens: tokens of the run.
    """

    def __init__(self, counts: np.ndarray, num_paths: np.ndarray, num_tokens: int) -> None:
        self._counts, self._last = counts, np.cumsum(num_paths)
        self._tokens = np.cumsum(counts * num_paths)
        self._num_tokens = num_tokens

    def counts(self) -> np.ndarray:
        """(P,) tokens of each path, in the order of ranks."""
        narrow = np.int32 if self._counts.max(initial=0) < 2**31 else np.int64
        return np.repeat(self._counts.astype(narrow), np.diff(self._last, prepend=0))

    def cdf(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) share of the tokens on the paths of rank 1 … r."""
        place = np.searchsorted(self._last, ranks)
        return (self._tokens[place] - (self._last[place] - ranks) * self._counts[place]) / self._num_tokens
