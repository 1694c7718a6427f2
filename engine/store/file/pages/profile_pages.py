"""Layout of ``profile_page``: visits of each sample to each module, step by step.

Comparing a sample with all others would otherwise count every token. A row holds ``PAGE_SAMPLES`` samples: one byte for
each sample, step and module, and counts above 255 beside them. Counts are exact. 0.7 bytes a token for samples of 250
tokens and profiles of 180 numbers: Zstandard takes a third off, and half of the time of a first question to unpack.

Shapes: n samples of a page, S steps, M modules, D = S·M.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenpaths.engine.store.file.schema import Layout

PAGE_SAMPLES = 4096
PAGE_CELLS = 1 << 20
"""maximum number of cells per page: wide profiles have fewer samples per page"""
LARGEST = 255


@dataclass(frozen=True)
class Page:
    """Counts of consecutive samples."""

    first: int
    """number of the first sample"""
    low_nD: np.ndarray
    """uint8; larger values are in ``counts``"""
    rows: np.ndarray
    """ascending; with ``cells`` the positions of ``counts``"""
    cells: np.ndarray
    counts: np.ndarray
    visits_n: np.ndarray
    """visits per step: tokens · K"""

    @classmethod
    def of(cls, row: tuple[int, int, bytes, bytes, bytes], layout: Layout) -> Page:
        """Decode a row of ``profile_page``.

        Raises:
            ValueError: it holds no counts.
        """
        first, num_samples, counts_of_all, places, large = row
        width = layout.num_steps * layout.num_modules
        low = np.frombuffer(counts_of_all, dtype=np.uint8).reshape(num_samples, width)
        place, counts = np.frombuffer(places, dtype="<i4"), np.frombuffer(large, dtype="<i4")
        if len(place) != len(counts) or (len(place) and not 0 <= place.min() <= place.max() < low.size):
            raise ValueError("counts without a place")
        rows, cells = np.divmod(place, width)
        visits = low[:, : layout.num_modules].sum(axis=1, dtype=np.int64)  # every step has as many
        first_step = cells < layout.num_modules
        np.add.at(visits, rows[first_step], counts[first_step] - LARGEST)
        return cls(first, low, rows, cells, counts, visits)

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in (self.low_nD, self.rows, self.cells, self.counts, self.visits_n))

    def block(self, start: int, stop: int) -> np.ndarray:
        """(stop − start, D) float32 counts of a range of rows."""
        values = self.low_nD[start:stop].astype(np.float32)
        large = slice(*np.searchsorted(self.rows, (start, stop)))
        values[self.rows[large] - start, self.cells[large]] = self.counts[large]
        return values

    def profiles(self, rows: np.ndarray, num_steps: int) -> np.ndarray:
        """(n, D) float32 √(p/(2S)) of these rows, ascending: equals ``path_distance.profiles``."""
        values = self.low_nD[rows].astype(np.float32)
        low, high = np.searchsorted(self.rows, rows), np.searchsorted(self.rows, rows, side="right")
        for place in np.flatnonzero(high > low).tolist():
            large = slice(low[place], high[place])
            values[place, self.cells[large]] = self.counts[large]
        visits = self.visits_n[rows].astype(np.float32)[:, None]
        np.divide(values, visits, out=values, where=visits > 0)
        values /= 2 * num_steps
        roots: np.ndarray = np.sqrt(values, out=values)
        return roots


def page_samples(layout: Layout) -> int:
    """Number of samples per page."""
    return max(1, min(PAGE_SAMPLES, PAGE_CELLS // (layout.num_steps * layout.num_modules)))


def encode_page(counts: np.ndarray) -> tuple[bytes, bytes, bytes]:
    """``counts``, ``places`` and ``large`` of a row of ``profile_page``, from (n, D) counts."""
    flat = counts.reshape(-1)
    places = np.flatnonzero(flat > LARGEST).astype("<i4")
    low = np.minimum(flat, LARGEST).astype(np.uint8)
    return low.tobytes(), places.tobytes(), flat[places].astype("<i4").tobytes()
