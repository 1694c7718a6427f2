"""Distances of one ribbon to the paths of a run, exact, and the nearest paths.

To every path; of packed layouts with more than ``ribbon_planes.MOST_READ_PATHS`` to those that were drawn at sealing,
whose numbers stand for all, unless every path is asked for.

Packed bit planes of up to ``MOST_HELD_BYTES`` are cached, those of a larger run are read each time. They are unpacked
a few rows at a time, into memory that is used again, which takes no longer than reading unpacked ones. Distances are
those of ``analysis.path_distance.ribbon_distance``, integers 0 … V.

Shapes: P paths, V = S·K visits, S steps, K slots, B bits of an id, W words of 64 paths, C bits of a count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from tokenpaths.engine.analysis.compiled import comparisons
from tokenpaths.engine.base.shared_cores import two_at_once
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import cache
from tokenpaths.engine.store.ask.tables.path_ribbons import path_ribbons
from tokenpaths.engine.store.file.pages.path_pages import Shares
from tokenpaths.engine.store.file.pages.ribbon_planes import PlaneRow, decode_planes, id_bits, plane_rows, unpack_planes

MOST_HELD_BYTES = 128 * 2**20
BYTES_AT_ONCE = 6 * 2**20
"""of unpacked planes that a thread reads, unpacks and compares, a row or more"""
TURNED_PATHS = 256
"""paths whose ids are turned from rows to columns together"""
_ALL = np.uint64(2**64 - 1)
T = TypeVar("T")


@dataclass(frozen=True)
class Planes:
    """The paths of a row of ``path_planes``, 64 a word."""

    row: PlaneRow
    words_VBW: np.ndarray
    """uint64"""


@dataclass(frozen=True)
class Near:
    """The nearest paths, nearest first."""

    ranks: np.ndarray
    distances: np.ndarray
    ribbons_nV: np.ndarray
    num_compared: int
    """paths that were compared"""


class Distances(ABC):
    """Distances of one ribbon to some paths."""

    def weight_beside(self, rank: int | None) -> float:
        """Paths of the run that each of these stands for, but for the one of this ``rank``."""
        return 1.0

    @property
    @abstractmethod
    def num_paths(self) -> int:
        """How many these are."""

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
        shared_CW = np.empty((self.own_SK.size.bit_length(), width), dtype=np.uint64)
        counts = np.empty((self.own_SK.size + 1, width), dtype=np.uint8)
        own_SK = np.ascontiguousarray(self.own_SK, dtype=np.int64)
        compiled.count_shared(self.planes.words_VBW, own_SK, self.planes.row.num_paths, shared_CW, counts)
        self.shared_CW, self._paths_in_words = list(shared_CW), counts

    def _compare(self) -> None:
        top_k = self.own_SK.shape[1]
        nothing = np.zeros(self.planes.words_VBW.shape[-1], dtype=np.uint64)
        self.shared_CW = [nothing] * self.own_SK.size.bit_length()
        for added, own in enumerate(self.own_SK.reshape(-1).tolist()):
            first = added // top_k * top_k
            # No path has a module twice at a step, so there is one bit for all slots.
            same_KW = _same(self.planes.words_VBW[first : first + top_k], own)
            self._add(np.bitwise_or.reduce(same_KW, axis=0), added + 1)

    def _add(self, carry: np.ndarray, added: int) -> None:
        """Add one bit for each path, the ``added``-th."""
        for bit, held in enumerate(self.shared_CW[: added.bit_length()]):
            self.shared_CW[bit], carry = held ^ carry, held & carry

    @property
    def _present_W(self) -> np.ndarray:
        """The paths that there are: the last word may not be full."""
        present = np.full(self.planes.words_VBW.shape[-1], _ALL)
        if filled := self.planes.row.num_paths % 64:
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
    def num_paths(self) -> int:
        return self.planes.row.num_paths

    def weight_beside(self, rank: int | None) -> float:
        return self.planes.row.weight_beside(rank)

    @property
    def least_rank(self) -> int:
        return int(self.planes.row.ranks(np.zeros(1, dtype=np.int64))[0])

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
        row = self.planes.row
        last = row.num_paths - 1
        most, least = shares.counts_of(row.ranks(np.array([0, last]))).tolist()
        if most == least:  # as of millions that a single token takes
            total: np.ndarray = self.counts() * least
            return total
        first_W = np.arange(0, row.num_paths, 64)
        least_W = shares.counts_of(row.ranks(np.minimum(first_W + 63, last)))
        # Paths lie by count: most words hold 64 paths of one count, as the words beside them do.
        starts = np.flatnonzero(np.diff(least_W, prepend=-1))
        total = np.add.reduceat(self._paths_in_words, starts, axis=1, dtype=np.int64) @ least_W[starts]
        mixed = np.flatnonzero(shares.counts_of(row.ranks(first_W)) != least_W)
        ranks = row.ranks(np.minimum(first_W[mixed, None] + np.arange(64), last).reshape(-1))
        more = shares.counts_of(ranks) - np.repeat(least_W[mixed], 64)  # none for paths that are not there
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
        return self.planes.row.ranks(64 * words[ones >> 6] + (ones & 63))

    def ribbons(self, ranks: np.ndarray) -> np.ndarray:
        place = self.planes.row.places(ranks)
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
    def num_paths(self) -> int:
        return len(self.rank_P)

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


def nearest_and_counts(
    run: RunFile, own_SK: np.ndarray, limit: int, own_rank: int | None = None, *, every: bool = False
) -> tuple[Near, np.ndarray, np.ndarray]:
    """``nearest_paths``, and (V + 1,) the number of paths and of tokens at each distance, of a draw estimates.

    Args:
        own_rank: of the path whose ribbon this is: it is there, whether it was drawn or not.
        every: compare every path, also where that reads the ribbons of millions of tokens.
    """
    num_paths, num_tokens = (np.zeros(own_SK.size + 1) for _ in range(2))

    def added_up() -> Iterator[Distances]:
        for part in _distances(run, own_SK, own_rank, every=every):
            weight = part.weight_beside(own_rank)
            num_paths[:] += weight * part.counts()
            num_tokens[:] += weight * part.tokens(run.shares)
            yield part

    near = _nearest(added_up(), own_SK.size, limit)
    if own_rank is not None:  # no other path has this ribbon
        num_paths[0], num_tokens[0] = 1, run.shares.counts_of(np.array([own_rank]))[0]
    return near, np.rint(num_paths).astype(np.int64), np.rint(num_tokens).astype(np.int64)


def _nearest(parts: Iterable[Distances], visits: int, limit: int) -> Near:
    best: list[tuple[int, int, list[int]]] = []  # distance, rank and ribbon
    compared = 0
    for part in parts:
        compared += part.num_paths
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
    return Near(
        ranks, distances, np.array([row[2] for row in best], dtype=np.int64).reshape(len(best), visits), compared
    )


def ribbon_parts(run: RunFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ranks (P,) and ribbons (V, P) of all paths of the run, in parts, in any order."""
    layout = run.layout
    if layout.packed:
        for columns, ids_PV in path_ribbons(run, "rank"):
            yield columns["rank"].astype(np.int32), _by_visit(ids_PV)
        return

    def decoded(part: Planes) -> tuple[np.ndarray, np.ndarray]:
        ids_VP = decode_planes(part.words_VBW.view(np.uint8), part.row.num_paths, layout.id_dtype)
        return part.row.ranks(np.arange(part.row.num_paths)).astype(np.int32), ids_VP

    yield from _each_row(run, decoded)


def _by_visit(ids_PV: np.ndarray) -> np.ndarray:
    """(V, P), a block of paths at a time, which stays in the processor's cache: a seventh of the time."""
    ids_VP = np.empty(ids_PV.shape[::-1], dtype=ids_PV.dtype)
    for start in range(0, len(ids_PV), TURNED_PATHS):
        ids_VP[:, start : start + TURNED_PATHS] = ids_PV[start : start + TURNED_PATHS].T
    return ids_VP


def _distances(
    run: RunFile, own_SK: np.ndarray, own_rank: int | None = None, *, every: bool = False
) -> Iterator[Distances]:
    rows = _rows(run)
    drawn = any(row.drawn for row in rows)
    if not rows or (every and drawn):
        yield from (DistancesOfIds(rank_P, ids_VP, own_SK) for rank_P, ids_VP in _ribbons(run))
        return
    if own_rank is not None and not any(row.holds(own_rank) for row in rows):
        yield DistancesOfIds(np.array([own_rank], dtype=np.int32), own_SK.reshape(-1, 1), own_SK)
    yield from _each_row(run, lambda planes: DistancesInPlanes(planes, own_SK))


def _rows(run: RunFile) -> list[PlaneRow]:
    num_paths = int(run.row["num_paths"])
    if not 0 <= num_paths < 2**31:  # of a file of a stranger: ranks have 32 bits
        raise run.damaged("run")
    return plane_rows(run.layout, num_paths, run.shares.num_paths(least=2))


def _ribbons(run: RunFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """``ribbon_parts``, cached if they are small enough together."""
    num_bytes = run.row["num_paths"] * (run.layout.visits * run.layout.id_dtype.itemsize + 4)
    if num_bytes > MOST_HELD_BYTES:
        yield from ribbon_parts(run)
    else:
        yield from cache.cached(run, "ribbons", lambda: list(ribbon_parts(run)), lambda _: num_bytes)


def _unpacked(run: RunFile, row: PlaneRow, packed: bytes) -> Planes:
    """RunFileError if these are no planes of so many paths."""
    try:
        planes_VBW = unpack_planes(packed, row.num_paths, run.layout)
    except (ValueError, OSError) as error:
        raise run.damaged("path_planes") from error
    spare = -planes_VBW.shape[-1] % 8
    whole = np.pad(planes_VBW, ((0, 0), (0, 0), (0, spare))) if spare else planes_VBW
    return Planes(row, whole.view(np.uint64))


def _each_row(run: RunFile, work: Callable[[Planes], T]) -> Iterator[T]:
    """What ``work`` makes of each row of ``path_planes``, in their order, on two cores.

    The rows are cached as they are in the file, if they are small enough together.
    """
    rows, known = _rows(run), cache.held(run, "planes")
    read: dict[int, bytes] = {}
    # No packing makes them larger by more than a few bytes.
    num_bytes = sum(-(-row.num_paths // 64) for row in rows) * 8 * run.layout.visits * id_bits(run.layout)
    at_once = max(1, BYTES_AT_ONCE * len(rows) // max(1, num_bytes))

    def some(rows_here: Sequence[PlaneRow]) -> list[T]:
        if known is not None:
            packed = [known[row.first_rank] for row in rows_here]
        else:
            packed = _read(run, rows_here)
            if num_bytes <= MOST_HELD_BYTES:
                read.update((row.first_rank, one) for row, one in zip(rows_here, packed, strict=True))
        return [work(_unpacked(run, row, one)) for row, one in zip(rows_here, packed, strict=True)]

    for made in two_at_once((rows[i : i + at_once] for i in range(0, len(rows), at_once)), some):
        yield from made
    if known is None and len(read) == len(rows):
        cache.hold(run, "planes", read, sum(len(one) for one in read.values()))


def _read(run: RunFile, rows: Sequence[PlaneRow]) -> list[bytes]:
    """``planes`` of these rows; RunFileError if they are others than the paths need."""
    one = "SELECT num_paths, coalesce(planes, ''::BLOB) FROM path_planes WHERE first_rank = ?"
    read = []
    with run.cursor() as cursor:  # one for all: to make a cursor takes as long as to read a row
        for row in rows:
            found = cursor.execute(one, [row.first_rank]).fetchall()
            # Before anything is unpacked: a file of a stranger may say that a row holds any number of paths.
            if [num_paths for num_paths, _ in found] != [row.num_paths]:
                raise run.damaged("path_planes")
            read.append(found[0][1])
    return read


def _same(words_KBW: np.ndarray, own: int) -> np.ndarray:
    """(K, W) the paths with this id in a slot."""
    num_slots, num_bits, width = words_KBW.shape
    if own >> num_bits:
        return np.zeros((num_slots, width), dtype=np.uint64)
    same, other = np.full((num_slots, width), _ALL), np.zeros((num_slots, width), dtype=np.uint64)
    for bit in range(num_bits):
        if own >> bit & 1:
            same &= words_KBW[:, bit]
        else:
            other |= words_KBW[:, bit]
    return np.bitwise_and(same, ~other, out=same)
