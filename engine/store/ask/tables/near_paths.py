"""Distances of one ribbon to every path of a run, exact, and the nearest paths.

Ribbons of up to ``MOST_HELD_BYTES`` are cached, one contiguous row for each visit; those of a larger run are read in
parts each time. Distances are those of ``analysis.path_distance.ribbon_distance``, integers 0 … V.

Shapes: P paths, V = S·K visits, S steps, K slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.ask.tables.path_ribbons import path_ribbons
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.path_pages import PAGES_AT_ONCE

MOST_HELD_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Part:
    """Some paths, in any order."""

    rank_P: np.ndarray
    ids_VP: np.ndarray
    often: np.ndarray
    """indices of the paths taken by more than one token"""
    more: np.ndarray
    """number of further tokens"""

    @classmethod
    def of(cls, rank_P: np.ndarray, ids_VP: np.ndarray, counts: np.ndarray) -> Part:
        """``counts``: tokens of the paths by rank, as far as they are more than one."""
        often = np.flatnonzero(rank_P <= len(counts))
        return cls(rank_P, ids_VP, often.astype(np.int32), (counts[rank_P[often] - 1] - 1).astype(np.float64))

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in (self.rank_P, self.ids_VP, self.often, self.more))

    def distance(self, own_SK: np.ndarray) -> np.ndarray:
        """(P,) path distances, in the smallest unsigned type."""
        num_steps, top_k = own_SK.shape
        shared: np.ndarray = np.zeros(len(self.rank_P), dtype=np.uint8 if num_steps * top_k <= 255 else np.uint16)
        for step in range(num_steps):
            for own in own_SK[step].tolist():
                for slot in range(top_k):
                    shared += self.ids_VP[step * top_k + slot] == own
        distance: np.ndarray = np.subtract(shared.dtype.type(num_steps * top_k), shared, out=shared)
        return distance


@dataclass(frozen=True)
class Near:
    """The nearest paths, and the number of paths and tokens at each distance."""

    ranks: np.ndarray
    distances: np.ndarray
    num_paths: np.ndarray
    """(V + 1,) by distance, like ``num_tokens``"""
    num_tokens: np.ndarray


def nearest_paths(run: RunFile, own_SK: np.ndarray, limit: int) -> Near:
    """The ``limit`` paths nearest to a ribbon; ties by frequency."""
    width = own_SK.size + 1
    num_paths, more = np.zeros(width, dtype=np.int64), np.zeros(width)
    best = np.empty(0, dtype=np.int64)  # distance and rank in one number
    far = int(run.row["num_paths"]) + 1
    for part in ribbon_parts(run):
        distance = part.distance(own_SK)
        here = (
            np.array([np.count_nonzero(distance == step) for step in range(width)])
            if width <= 64
            else np.bincount(distance, minlength=width)
        )
        num_paths += here
        more += np.bincount(distance[part.often], part.more, width)
        edge = min(int(np.searchsorted(np.cumsum(here), limit)), width - 1)
        near = np.flatnonzero(distance <= edge)
        keys = distance[near].astype(np.int64) * far + part.rank_P[near]
        if len(keys) > limit:
            keys = np.partition(keys, limit - 1)[:limit]
        best = np.sort(np.concatenate([best, keys]))[:limit]
    distances, ranks = np.divmod(best, far)
    return Near(ranks, distances, num_paths, num_paths + np.rint(more).astype(np.int64))


def ribbon_parts(run: RunFile) -> Iterator[Part]:
    """All paths of the run, in parts that are cached if they are small enough together."""
    layout, num_paths = run.layout, int(run.row["num_paths"])
    read = _from_pages if layout.by_path else _from_table
    if num_paths * (layout.visits * layout.id_dtype.itemsize + 12) <= MOST_HELD_BYTES:
        yield from cached(run, "ribbons", lambda: list(read(run)), lambda parts: sum(part.num_bytes for part in parts))
    else:
        yield from read(run)


def _from_pages(run: RunFile) -> Iterator[Part]:
    """Some pages at a time, as bytes used without conversion; without an order, for to sort pages copies them."""
    layout, counts = run.layout, run.shares.counts(least=2)
    ((num_pages,),) = run.rows(Query("SELECT count(*) FROM path_page"))
    for first in range(0, num_pages, PAGES_AT_ONCE):
        between = (first, first + PAGES_AT_ONCE - 1)
        rows = run.rows(Query("SELECT ranks, ribbons FROM path_page WHERE page BETWEEN ? AND ?", between))
        ranks = np.frombuffer(b"".join(row[0] for row in rows), dtype="<i4")
        ids = np.frombuffer(b"".join(row[1] for row in rows), dtype=layout.id_dtype).reshape(-1, layout.visits)
        yield Part.of(ranks, np.ascontiguousarray(ids.T), counts)


def _from_table(run: RunFile) -> Iterator[Part]:
    """For layouts whose pages hold no ribbons."""
    counts = run.shares.counts(least=2)
    for columns, ids_PV in path_ribbons(run, "rank"):
        yield Part.of(columns["rank"].astype(np.int32), np.ascontiguousarray(ids_PV.T), counts)
