"""Layout of ``profile_page``: visits of each sample to each module, step by step.

Comparing a sample with all others would otherwise count every token. A row holds ``PAGE_SAMPLES`` samples: one byte for
each sample, step and module, two where more than ``LARGE_SHARE`` of the counts are above 255, and larger counts beside
them. Counts are exact. 0.7 bytes a token for samples of 250 tokens and profiles of 180 numbers: Zstandard takes a third
off, and half of the time of a first question to unpack.

Shapes: n samples of a page, S steps, M modules, D = S·M.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenpaths.engine.analysis.compiled import comparisons
from tokenpaths.engine.store.file.schema import Layout

PAGE_SAMPLES = 4096
PAGE_CELLS = 1 << 20
"""maximum number of cells per page: wide profiles have fewer samples per page"""
LARGEST = {1: 255, 2: 65_535}
"""count in so many bytes"""
LARGE_SHARE = 1 / 8
"""a count beside the others takes eight bytes"""


@dataclass(frozen=True)
class Page:
    """Counts of consecutive samples."""

    first: int
    """number of the first sample"""
    low_nD: np.ndarray
    """uint8 or uint16; larger values are in ``counts``"""
    rows: np.ndarray
    """ascending; with ``cells`` the positions of ``counts``"""
    cells: np.ndarray
    counts: np.ndarray
    visits_n: np.ndarray
    """visits per step: tokens · K"""
    scale_n: np.ndarray
    """√(1/(2S · visits)): the length of a profile beside that of the roots of counts; 0 for a sample without tokens"""

    @classmethod
    def of(cls, row: tuple[int, int, bytes, bytes, bytes], layout: Layout) -> Page:
        """Decode a row of ``profile_page``.

        Raises:
            ValueError: it holds no counts.
        """
        first, num_samples, counts_of_all, places, large = row
        width = layout.num_steps * layout.num_modules
        wide = len(counts_of_all) == 2 * num_samples * width
        low = np.frombuffer(counts_of_all, dtype="<u2" if wide else np.uint8).reshape(num_samples, width)
        place, counts = np.frombuffer(places, dtype="<i4"), np.frombuffer(large, dtype="<i4")
        if len(place) != len(counts) or (len(place) and not 0 <= place.min() <= place.max() < low.size):
            raise ValueError("counts without a place")
        rows, cells = np.divmod(place, width)
        # Every step has as many. Sums that floats hold exactly, in a tenth of the time of a sum of integers.
        ones = np.ones(layout.num_modules, dtype=np.float64 if wide else np.float32)
        visits = (low[:, : layout.num_modules].astype(ones.dtype) @ ones).astype(np.int64)
        first_step = cells < layout.num_modules
        np.add.at(visits, rows[first_step], counts[first_step] - LARGEST[low.itemsize])
        share = np.divide(0.5 / layout.num_steps, visits, out=np.zeros(num_samples), where=visits > 0)
        return cls(first, low, rows, cells, counts, visits, np.sqrt(share))

    @property
    def num_bytes(self) -> int:
        parts = (self.low_nD, self.rows, self.cells, self.counts, self.visits_n, self.scale_n)
        return sum(part.nbytes for part in parts)

    def shared(self, own: np.ndarray, room: np.ndarray) -> np.ndarray:
        """(n,) sums of √counts · ``own`` (D,) of each sample; ``room`` (b, D) float64 is for b of them.

        Roots are of single precision, which takes half the time, their sums of double.
        """
        shared: np.ndarray = np.empty(len(self.low_nD))
        if (compiled := comparisons.ready(self.low_nD.nbytes)) is not None:
            compiled.sum_roots(self.low_nD, own, shared)
        else:
            exact = own.astype(np.float64)
            for start in range(0, len(shared), len(room)):
                low = self.low_nD[start : start + len(room)]
                roots = np.sqrt(low, out=room[: len(low)], dtype=np.float32)
                np.dot(roots, exact, out=shared[start : start + len(room)])
        if len(self.counts):
            shared += np.bincount(self.rows, self._more * own[self.cells], len(shared))
        return shared

    @cached_property
    def _more(self) -> np.ndarray:
        """By how much the roots of ``counts`` are larger than those of ``low_nD``."""
        low = self.low_nD[self.rows, self.cells].astype(np.float64)
        more: np.ndarray = np.sqrt(self.counts) - np.sqrt(low)
        return more

    def counts_of(self, rows: np.ndarray) -> np.ndarray:
        """(n, D) float32 counts of these rows, ascending."""
        values: np.ndarray = self.low_nD[rows].astype(np.float32)
        if len(self.counts):
            low, high = np.searchsorted(self.rows, rows), np.searchsorted(self.rows, rows, side="right")
            sizes = high - low
            large = np.arange(sizes.sum()) + np.repeat(low - (np.cumsum(sizes) - sizes), sizes)
            values[np.repeat(np.arange(len(rows)), sizes), self.cells[large]] = self.counts[large]
        return values


def profiles_of_counts(counts_nD: np.ndarray, visits_n: np.ndarray, num_steps: int) -> np.ndarray:
    """(n, D) float32 √(p/(2S)), equal to ``path_distance.profiles``; in place of ``counts_nD`` float32."""
    visits = visits_n.astype(np.float32)[:, None]
    np.divide(counts_nD, visits, out=counts_nD, where=visits > 0)
    counts_nD /= 2 * num_steps
    roots: np.ndarray = np.sqrt(counts_nD, out=counts_nD)
    return roots


def page_samples(layout: Layout) -> int:
    """Number of samples per page."""
    return max(1, min(PAGE_SAMPLES, PAGE_CELLS // (layout.num_steps * layout.num_modules)))


def encode_page(counts: np.ndarray) -> tuple[bytes, bytes, bytes]:
    """``counts``, ``places`` and ``large`` of a row of ``profile_page``, from (n, D) counts."""
    flat = counts.reshape(-1)
    num_bytes = 2 if (flat > LARGEST[1]).mean() > LARGE_SHARE else 1
    places = np.flatnonzero(flat > LARGEST[num_bytes]).astype("<i4")
    low = np.minimum(flat, LARGEST[num_bytes]).astype(f"<u{num_bytes}")
    return low.tobytes(), places.tobytes(), flat[places].astype("<i4").tobytes()
