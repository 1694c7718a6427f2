"""Distances of one ribbon to every path of a run, exact, and the nearest paths.

Bit planes of up to ``MOST_HELD_BYTES`` are cached, those of a larger run are read in parts each time. Packed layouts
have no planes: of many choices among many modules they would take as much room as the ribbons. Distances are those of
``analysis.path_distance.ribbon_distance``, integers 0 … V.

Shapes: P paths, V = S·K visits, S steps, K slots, B bits of an id, W words of 64 paths, C bits of a count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.ask.tables.path_ribbons import path_ribbons
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.pages.ribbon_planes import PLANE_PATHS, decode_planes, id_bits, unpack_planes

MOST_HELD_BYTES = 128 * 2**20
_ALL = np.uint64(2**64 - 1)
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Planes:
    """Paths of consecutive ranks, 64 a word."""

    first_rank: int
    num_paths: int
    words_VBW: np.ndarray
    """uint64"""


@dataclass(frozen=True)
class Near:
    """The nearest paths, and the number of paths at each distance."""

    ranks: np.ndarray
    distances: np.ndarray
    num_paths: np.ndarray
    """(V + 1,) by distance"""


class Distances(ABC):
    """Distances of one ribbon to some paths."""

    @abstractmethod
    def counts(self) -> np.ndarray:
        """(V + 1,) number of paths at each distance."""

    @abstractmethod
    def ranks_at(self, distance: int) -> np.ndarray:
        """Ranks of the paths at this distance."""

    @abstractmethod
    def more_tokens(self, more: np.ndarray) -> np.ndarray:
        """(V + 1,) sums by distance of ``more``, which is by rank and 0 beyond its end."""


@dataclass
class DistancesInPlanes(Distances):
    """How many ids each path shares with the ribbon, as a number whose bits lie in C words for 64 paths.

    Compared and added up like that, a path costs some operations on bits where its bytes would cost one each.
    """

    planes: Planes
    own_SK: np.ndarray
    shared_CW: list[np.ndarray] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        num_steps, top_k = self.own_SK.shape
        added = 0
        for step in range(num_steps):
            for own in self.own_SK[step].tolist():
                for slot in range(top_k):
                    added += 1
                    self._add(_same(self.planes.words_VBW[step * top_k + slot], own), added)

    def _add(self, carry: np.ndarray, added: int) -> None:
        """Add one bit for each path, the ``added``-th."""
        for bit, held in enumerate(self.shared_CW):
            self.shared_CW[bit], carry = held ^ carry, held & carry
        if added.bit_length() > len(self.shared_CW):
            self.shared_CW.append(carry)

    def _at(self, distance: int) -> np.ndarray:
        """(W,) the paths at this distance."""
        shared = self.own_SK.size - distance
        found = np.full(self.planes.words_VBW.shape[-1], _ALL)
        for bit, held in enumerate(self.shared_CW):
            found &= held if shared >> bit & 1 else ~held
        if filled := self.planes.num_paths % 64:
            found[-1] &= np.uint64(2**filled - 1)
        return found

    def counts(self) -> np.ndarray:
        width = self.own_SK.size + 1
        return np.array([int(np.bitwise_count(self._at(d)).sum(dtype=np.int64)) for d in range(width)])

    def ranks_at(self, distance: int) -> np.ndarray:
        ones = np.unpackbits(self._at(distance).view(np.uint8), count=self.planes.num_paths, bitorder="little")
        return np.flatnonzero(ones) + self.planes.first_rank

    def more_tokens(self, more: np.ndarray) -> np.ndarray:
        width = self.own_SK.size + 1
        here = more[self.planes.first_rank - 1 : self.planes.first_rank - 1 + self.planes.num_paths]
        distance = np.full(len(here), width - 1, dtype=np.int64)
        for bit, held in enumerate(self.shared_CW):
            distance -= np.unpackbits(held.view(np.uint8), count=len(here), bitorder="little").astype(np.int64) << bit
        return np.bincount(distance, here, width)


@dataclass
class DistancesOfIds(Distances):
    """Of paths in any order, from their ids."""

    rank_P: np.ndarray
    ids_VP: np.ndarray
    own_SK: np.ndarray
    distance_P: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        num_steps, top_k = self.own_SK.shape
        shared: np.ndarray = np.zeros(len(self.rank_P), dtype=np.uint8 if num_steps * top_k <= 255 else np.uint16)
        for step in range(num_steps):
            for own in self.own_SK[step].tolist():
                for slot in range(top_k):
                    shared += self.ids_VP[step * top_k + slot] == own
        self.distance_P = np.subtract(shared.dtype.type(num_steps * top_k), shared, out=shared)

    def counts(self) -> np.ndarray:
        return np.bincount(self.distance_P, minlength=self.own_SK.size + 1)

    def ranks_at(self, distance: int) -> np.ndarray:
        return np.sort(self.rank_P[self.distance_P == distance])

    def more_tokens(self, more: np.ndarray) -> np.ndarray:
        often = np.flatnonzero(self.rank_P <= len(more))
        return np.bincount(self.distance_P[often], more[self.rank_P[often] - 1], self.own_SK.size + 1)


def nearest_paths(run: RunFile, own_SK: np.ndarray, limit: int) -> Near:
    """The ``limit`` paths nearest to a ribbon; ties by frequency."""
    return _nearest(_distances(run, own_SK), own_SK.size, limit)


def nearest_and_tokens(run: RunFile, own_SK: np.ndarray, limit: int) -> tuple[Near, np.ndarray]:
    """``nearest_paths``, and (V + 1,) the number of tokens at each distance."""
    further = cached(run, "further tokens", lambda: run.shares.counts(least=2) - 1.0, lambda counts: counts.nbytes)
    more = np.zeros(own_SK.size + 1)

    def added_up() -> Iterator[Distances]:
        for part in _distances(run, own_SK):
            more[:] += part.more_tokens(further)
            yield part

    near = _nearest(added_up(), own_SK.size, limit)
    return near, near.num_paths + np.rint(more).astype(np.int64)


def _nearest(parts: Iterable[Distances], visits: int, limit: int) -> Near:
    num_paths = np.zeros(visits + 1, dtype=np.int64)
    best: list[tuple[int, int]] = []  # distance and rank
    for part in parts:
        here = part.counts()
        num_paths += here
        found: list[tuple[int, int]] = []
        for distance in np.flatnonzero(here).tolist():
            if len(found) >= limit or (len(best) == limit and best[-1][0] < distance):
                break
            found += [(distance, rank) for rank in part.ranks_at(distance)[: limit - len(found)].tolist()]
        best = sorted(best + found)[:limit]
    distances, ranks = (np.array([pair[i] for pair in best], dtype=np.int64) for i in (0, 1))
    return Near(ranks, distances, num_paths)


def ribbon_parts(run: RunFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ranks (P,) and ribbons (V, P) of all paths of the run, in parts, in any order."""
    layout = run.layout
    if layout.packed:
        for columns, ids_PV in path_ribbons(run, "rank"):
            yield columns["rank"].astype(np.int32), np.ascontiguousarray(ids_PV.T)
        return
    for part in _planes(run):
        ids_VP = decode_planes(part.words_VBW.view(np.uint8), part.num_paths, layout.id_dtype)
        yield np.arange(part.first_rank, part.first_rank + part.num_paths, dtype=np.int32), ids_VP


def _distances(run: RunFile, own_SK: np.ndarray) -> Iterator[Distances]:
    if not run.layout.packed:
        return (DistancesInPlanes(part, own_SK) for part in _planes(run))
    return (DistancesOfIds(rank_P, ids_VP, own_SK) for rank_P, ids_VP in _ribbons(run))


def _ribbons(run: RunFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """``ribbon_parts``, cached if they are small enough together."""
    num_bytes = run.row["num_paths"] * (run.layout.visits * run.layout.id_dtype.itemsize + 4)
    yield from _held(run, "ribbons", num_bytes, ribbon_parts)


def _planes(run: RunFile) -> Iterator[Planes]:
    """All paths of the run by rank, cached if they are small enough together."""
    num_bytes = -(-run.row["num_paths"] // 64) * 8 * run.layout.visits * id_bits(run.layout)
    yield from _held(run, "planes", num_bytes, _read)


def _held(run: RunFile, name: str, num_bytes: int, read: Callable[[RunFile], Iterator[_Part]]) -> Iterator[_Part]:
    """What ``read`` gives, which takes ``num_bytes``: cached if that is little enough."""
    if num_bytes > MOST_HELD_BYTES:
        yield from read(run)
    else:
        yield from cached(run, name, lambda: list(read(run)), lambda _: num_bytes)


def _read(run: RunFile) -> Iterator[Planes]:
    """Planes from the file, a row at a time; RunFileError if they are corrupt."""
    num_paths, layout = int(run.row["num_paths"]), run.layout
    for first in range(1, num_paths + 1, PLANE_PATHS):
        number = min(PLANE_PATHS, num_paths + 1 - first)
        rows = run.rows(
            Query("SELECT num_paths, coalesce(planes, ''::BLOB) FROM path_planes WHERE first_rank = ?", (first,))
        )
        # Before anything is unpacked: a file of a stranger may say that a row holds any number of paths.
        if [row[0] for row in rows] != [number]:
            raise run.damaged("path_planes")
        try:
            planes_VBW = unpack_planes(rows[0][1], number, layout)
        except (ValueError, OSError) as error:
            raise run.damaged("path_planes") from error
        spare = -planes_VBW.shape[-1] % 8
        whole = np.pad(planes_VBW, ((0, 0), (0, 0), (0, spare))) if spare else planes_VBW
        yield Planes(first, number, whole.view(np.uint64))


def _same(words_BW: np.ndarray, own: int) -> np.ndarray:
    """(W,) the paths with this id at a visit."""
    if own >> len(words_BW):
        return np.zeros(words_BW.shape[-1], dtype=np.uint64)
    differs = np.zeros(words_BW.shape[-1], dtype=np.uint64)
    for bit, words in enumerate(words_BW):
        differs |= ~words if own >> bit & 1 else words
    return ~differs
