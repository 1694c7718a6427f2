"""Distances of one ribbon to every path of a run, exact, and the nearest paths.

Packed bit planes of up to ``MOST_HELD_BYTES`` are cached, those of a larger run are read each time. They are unpacked a
row at a time, into memory that stays in the processor's cache, which takes no longer than reading unpacked ones from
memory. Packed layouts have no planes: of many choices among many modules they would take as much room as the ribbons.
Distances are those of ``analysis.path_distance.ribbon_distance``, integers 0 … V.

Shapes: P paths, V = S·K visits, S steps, K slots, B bits of an id, W words of 64 paths, C bits of a count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tokenpaths.engine.analysis.compiled import comparisons
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.ask.tables.path_ribbons import path_ribbons
from tokenpaths.engine.store.file.pages.path_pages import Shares
from tokenpaths.engine.store.file.pages.ribbon_planes import PLANE_PATHS, decode_planes, id_bits, unpack_planes

MOST_HELD_BYTES = 128 * 2**20
_ALL = np.uint64(2**64 - 1)
_PackedPlanes = tuple[int, int, bytes]
"""first rank, number of paths, ``planes`` of a row of ``path_planes``"""


@dataclass(frozen=True)
class Planes:
    """Paths of consecutive ranks, 64 a word."""

    first_rank: int
    num_paths: int
    words_VBW: np.ndarray
    """uint64"""


@dataclass(frozen=True)
class Near:
    """The nearest paths, nearest first."""

    ranks: np.ndarray
    distances: np.ndarray
    ribbons_nV: np.ndarray


class Distances(ABC):
    """Distances of one ribbon to some paths."""

    @property
    @abstractmethod
    def least_rank(self) -> int:
        """The smallest rank among them."""

    @abstractmethod
    def counts(self) -> np.ndarray:
        """(V + 1,) number of paths at each distance."""

    @abstractmethod
    def tokens(self, shares: Shares) -> np.ndarray:
        """(V + 1,) int64 number of tokens on the paths at each distance."""

    @abstractmethod
    def ranks_at(self, distance: int) -> np.ndarray:
        """Ranks of the paths at this distance, ascending."""

    @abstractmethod
    def ribbons(self, ranks: np.ndarray) -> np.ndarray:
        """(n, V) ids of these of the paths."""


@dataclass
class DistancesInPlanes(Distances):
    """How many ids each path shares with the ribbon, as a number whose bits lie in C words for 64 paths.

    Compared and added up like that, a path costs some operations on bits where its bytes would cost one each.
    """

    planes: Planes
    own_SK: np.ndarray
    shared_CW: list[np.ndarray] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        compiled = comparisons.ready(self.planes.words_VBW.nbytes)
        if compiled is None:
            self._compare()
            return
        width = self.planes.words_VBW.shape[-1]
        shared_CW = np.empty(((self.own_SK.size * self.own_SK.shape[1]).bit_length(), width), dtype=np.uint64)
        counts = np.empty((self.own_SK.size + 1, width), dtype=np.uint8)
        own_SK = np.ascontiguousarray(self.own_SK, dtype=np.int64)
        compiled.count_shared(self.planes.words_VBW, own_SK, self.planes.num_paths, shared_CW, counts)
        self.shared_CW, self._paths_in_words = list(shared_CW), counts

    def _compare(self) -> None:
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

    @property
    def _present_W(self) -> np.ndarray:
        """The paths that there are: the last word may not be full."""
        present = np.full(self.planes.words_VBW.shape[-1], _ALL)
        if filled := self.planes.num_paths % 64:
            present[-1] = np.uint64(2**filled - 1)
        return present

    def _at(self, distance: int) -> np.ndarray:
        """(W,) the paths at this distance."""
        if "_at_each" in self.__dict__:
            return self._at_each[distance]
        shared, found = self.own_SK.size - distance, self._present_W
        for bit, held in enumerate(self.shared_CW):
            found &= held if shared >> bit & 1 else ~held
        return found

    @cached_property
    def _at_each(self) -> list[np.ndarray]:
        """``_at`` for all distances, which share most of what there is to do."""
        most, found = self.own_SK.size, {0: self._present_W}
        for bit in reversed(range(len(self.shared_CW))):
            with_bit = {shared | 1 << bit: paths & self.shared_CW[bit] for shared, paths in found.items()}
            found = {shared: paths ^ with_bit[shared | 1 << bit] for shared, paths in found.items()} | with_bit
            found = {shared: paths for shared, paths in found.items() if shared <= most}
        return [found[most - distance] for distance in range(most + 1)]

    @property
    def least_rank(self) -> int:
        return self.planes.first_rank

    @cached_property
    def _paths_in_words(self) -> np.ndarray:
        """(V + 1, W) uint8 number of paths of each word at each distance."""
        counts = np.empty((self.own_SK.size + 1, self.planes.words_VBW.shape[-1]), dtype=np.uint8)
        for found, into in zip(self._at_each, counts, strict=True):
            np.bitwise_count(found, out=into)
        return counts

    @cached_property
    def _counts(self) -> np.ndarray:
        counts: np.ndarray = self._paths_in_words.sum(axis=1, dtype=np.int64)
        return counts

    def counts(self) -> np.ndarray:
        return self._counts

    def tokens(self, shares: Shares) -> np.ndarray:
        num_paths, first_rank = self.planes.num_paths, self.planes.first_rank
        most, least = shares.counts_of(np.array([first_rank, first_rank + num_paths - 1])).tolist()
        if most == least:  # as of millions that a single token takes
            total: np.ndarray = self.counts() * least
            return total
        first_W = first_rank + np.arange(0, num_paths, 64)
        least_W = shares.counts_of(np.minimum(first_W + 63, first_rank + num_paths - 1))
        # Paths lie by count: most words hold 64 paths of one count, as the words beside them do.
        starts = np.flatnonzero(np.diff(least_W, prepend=-1))
        total = np.add.reduceat(self._paths_in_words, starts, axis=1, dtype=np.int64) @ least_W[starts]
        mixed = np.flatnonzero(shares.counts_of(first_W) != least_W)
        ranks = np.minimum(first_W[mixed, None] + np.arange(64), first_rank + num_paths - 1)
        more = shares.counts_of(ranks.reshape(-1)) - np.repeat(least_W[mixed], 64)  # none for paths that are not there
        sums = np.bincount(self._distances_in(mixed).reshape(-1), more, self.own_SK.size + 1)
        total += np.rint(sums).astype(np.int64)
        return total

    def _distances_in(self, words: np.ndarray) -> np.ndarray:
        """(n, 64) distances of the paths of some words."""
        distance = np.full((len(words), 64), self.own_SK.size, dtype=np.int64)
        for bit, held in enumerate(self.shared_CW):
            ones = held[words, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
            distance -= ones.astype(np.int64) << bit
        return distance

    def ranks_at(self, distance: int) -> np.ndarray:
        if "_counts" in self.__dict__ and not self._counts[distance]:
            return np.zeros(0, dtype=np.int64)
        found_W = self._at(distance)
        words = np.flatnonzero(found_W)
        ones = np.flatnonzero(np.unpackbits(found_W[words].view(np.uint8), bitorder="little"))
        ranks: np.ndarray = 64 * words[ones >> 6] + (ones & 63) + self.planes.first_rank
        return ranks

    def ribbons(self, ranks: np.ndarray) -> np.ndarray:
        place = ranks - self.planes.first_rank
        ones_VBn = self.planes.words_VBW[:, :, place >> 6] >> (place & 63).astype(np.uint64) & np.uint64(1)
        bits = np.arange(ones_VBn.shape[1], dtype=np.uint64)[:, None]
        ids_nV: np.ndarray = (ones_VBn << bits).sum(axis=1).astype(np.int64).T
        return ids_nV


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

    @property
    def least_rank(self) -> int:
        return int(self.rank_P.min(initial=np.iinfo(np.int32).max))

    def counts(self) -> np.ndarray:
        return np.bincount(self.distance_P, minlength=self.own_SK.size + 1)

    def tokens(self, shares: Shares) -> np.ndarray:
        sums = np.bincount(self.distance_P, shares.counts_of(self.rank_P), self.own_SK.size + 1)
        return np.rint(sums).astype(np.int64)

    def ranks_at(self, distance: int) -> np.ndarray:
        return np.sort(self.rank_P[self.distance_P == distance])

    def ribbons(self, ranks: np.ndarray) -> np.ndarray:
        order = np.argsort(self.rank_P)
        places = order[np.searchsorted(self.rank_P, ranks, sorter=order)]
        return self.ids_VP[:, places].T.astype(np.int64)


def nearest_paths(run: RunFile, own_SK: np.ndarray, limit: int) -> Near:
    """The ``limit`` paths nearest to a ribbon; ties by frequency."""
    return _nearest(_distances(run, own_SK), own_SK.size, limit)


def nearest_and_counts(run: RunFile, own_SK: np.ndarray, limit: int) -> tuple[Near, np.ndarray, np.ndarray]:
    """``nearest_paths``, and (V + 1,) the number of paths and of tokens at each distance."""
    num_paths, num_tokens = (np.zeros(own_SK.size + 1, dtype=np.int64) for _ in range(2))

    def added_up() -> Iterator[Distances]:
        for part in _distances(run, own_SK):
            num_paths[:] += part.counts()
            num_tokens[:] += part.tokens(run.shares)
            yield part

    near = _nearest(added_up(), own_SK.size, limit)
    return near, num_paths, num_tokens


def _nearest(parts: Iterable[Distances], visits: int, limit: int) -> Near:
    best: list[tuple[int, int, list[int]]] = []  # distance, rank and ribbon
    for part in parts:
        found: list[tuple[int, int]] = []
        for distance in range(visits + 1):
            if len(found) >= limit or (len(best) == limit and best[-1][:2] < (distance, part.least_rank)):
                break
            found += [(distance, rank) for rank in part.ranks_at(distance)[: limit - len(found)].tolist()]
        if found:
            ribbons = part.ribbons(np.array([rank for _, rank in found]))
            best = sorted(best + [(*pair, ribbon) for pair, ribbon in zip(found, ribbons.tolist(), strict=True)])
            del best[limit:]
    distances, ranks = (np.array([row[i] for row in best], dtype=np.int64) for i in (0, 1))
    return Near(ranks, distances, np.array([row[2] for row in best], dtype=np.int64).reshape(len(best), visits))


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
    if num_bytes > MOST_HELD_BYTES:
        yield from ribbon_parts(run)
    else:
        yield from cached(run, "ribbons", lambda: list(ribbon_parts(run)), lambda _: num_bytes)


def _planes(run: RunFile) -> Iterator[Planes]:
    """All paths of the run by rank, a row at a time; RunFileError if they are corrupt."""
    layout = run.layout
    for first, number, packed in _packed_planes(run):
        try:
            planes_VBW = unpack_planes(packed, number, layout)
        except (ValueError, OSError) as error:
            raise run.damaged("path_planes") from error
        spare = -planes_VBW.shape[-1] % 8
        whole = np.pad(planes_VBW, ((0, 0), (0, 0), (0, spare))) if spare else planes_VBW
        yield Planes(first, number, whole.view(np.uint64))


def _packed_planes(run: RunFile) -> Iterator[_PackedPlanes]:
    """The rows of ``path_planes``, cached if they are small enough together."""
    # No packing makes them larger by more than a few bytes.
    num_bytes = -(-run.row["num_paths"] // 64) * 8 * run.layout.visits * id_bits(run.layout)
    if num_bytes > MOST_HELD_BYTES:
        yield from _read(run)
    else:
        yield from cached(
            run, "planes", lambda: list(_read(run)), lambda rows: sum(len(packed) for _, _, packed in rows)
        )


def _read(run: RunFile) -> Iterator[_PackedPlanes]:
    """Rows from the file, one at a time; RunFileError if they are others than the paths need."""
    num_paths = int(run.row["num_paths"])
    one = "SELECT num_paths, coalesce(planes, ''::BLOB) FROM path_planes WHERE first_rank = ?"
    with run.cursor() as cursor:  # one for all: to make a cursor takes as long as to read a row
        for first in range(1, num_paths + 1, PLANE_PATHS):
            number = min(PLANE_PATHS, num_paths + 1 - first)
            rows = cursor.execute(one, [first]).fetchall()
            # Before anything is unpacked: a file of a stranger may say that a row holds any number of paths.
            if [row[0] for row in rows] != [number]:
                raise run.damaged("path_planes")
            yield first, number, rows[0][1]


def _same(words_BW: np.ndarray, own: int) -> np.ndarray:
    """(W,) the paths with this id at a visit."""
    width = words_BW.shape[-1]
    if own >> len(words_BW):
        return np.zeros(width, dtype=np.uint64)
    same, other = np.full(width, _ALL), np.zeros(width, dtype=np.uint64)
    for bit, words in enumerate(words_BW):
        if own >> bit & 1:
            same &= words
        else:
            other |= words
    return np.bitwise_and(same, ~other, out=same)
