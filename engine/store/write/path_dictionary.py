"""Dictionary of paths that grows while a run is written: ribbon → path_id, with counts.

Nearly every token of a large mixture of experts has its own path, so the dictionary must hold as many paths as tokens:
beyond ``MEMORY_BYTES`` ribbons go to an unlinked temporary file, and memory holds a hash, a number and a count for each
path (20 bytes), however wide a ribbon is.

Shapes: n ribbons of a batch, P distinct paths so far, S steps, K slots, V = S·K.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from tokenpaths.engine.analysis.compiled.loops import Loops, loops
from tokenpaths.engine.analysis.path_statistics import sorted_slots, word_hashes

MEMORY_BYTES = 64 * 2**20
"""bytes of ribbons kept in memory; beyond, they go to a file"""
TAKE_ROWS = 262_144
"""ribbons read back at once"""


class Growing:
    """An array that grows along its first axis by doubling, so that appending stays cheap."""

    def __init__(self, dtype: np.dtype | type[np.generic], *row_shape: int) -> None:
        self._store = np.empty((1024, *row_shape), dtype=dtype)
        self._length = 0

    @property
    def values(self) -> np.ndarray:
        """The appended rows; a view, valid until the next ``append``."""
        return self._store[: self._length]

    def append(self, values: np.ndarray) -> None:
        self.extend(len(values))[:] = values

    def extend(self, count: int) -> np.ndarray:
        """Append so many rows, which are to be filled; returns them."""
        needed = self._length + count
        if needed > len(self._store):
            larger = np.empty((max(needed, 2 * len(self._store)), *self._store.shape[1:]), dtype=self._store.dtype)
            larger[: self._length] = self.values
            self._store = larger
        added, self._length = self._store[self._length : needed], needed
        return added

    def cut(self, length: int) -> None:
        """Give up all rows behind the first ``length``."""
        self._length = length


class RowFile:
    """Rows (P, V) that are appended and read back: in memory while small, then in an unnamed temporary file.

    The operating system deletes the file when the process ends.
    """

    def __init__(self, dtype: np.dtype, folder: Path | None = None) -> None:
        self.dtype = dtype
        self.width = 0
        """V; 0 before the first row"""
        self._folder = folder
        self._memory: Growing | None = None
        self._file: IO[bytes] | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, rows: np.ndarray) -> None:
        """Append (new, V) rows."""
        self.width = rows.shape[1]
        self._length += len(rows)
        if self._file is None:
            if self._memory is None:
                self._memory = Growing(self.dtype, self.width)
            self._memory.append(rows)
            if self._memory.values.nbytes <= MEMORY_BYTES:
                return
            rows, self._memory = self._memory.values, None
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - as long as the object
        self._file.write(np.ascontiguousarray(rows).data)

    def take(self, numbers: np.ndarray, columns: slice = slice(None)) -> np.ndarray:
        """Copies of the rows with these numbers, in the given order; of some of their columns, if given."""
        if not len(numbers):
            return np.empty((0, self.width), dtype=self.dtype)[:, columns]
        if self._memory is not None:
            return np.asarray(self._memory.values[:, columns][numbers])
        assert self._file is not None, "rows that were numbered were appended"
        self._file.flush()
        # A map that is dropped after use, so that the pages it touched do not stay in the process.
        rows = np.asarray(np.memmap(self._file, self.dtype, mode="r", shape=(self._length, self.width)))
        return np.asarray(rows[:, columns][numbers])


@dataclass(frozen=True)
class _Sorted:
    """Hashes in ascending order and the number of each."""

    hashes: np.ndarray
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)


class HashIndex:
    """Maps 64-bit hashes to numbers: sorted runs, merged in pairs of equal size.

    Each hash is moved about log2(P / n) times, and there are as many runs to search.
    """

    def __init__(self) -> None:
        self._runs: list[_Sorted] = []

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """All hashes, and the number of each."""
        hashes = [np.empty(0, dtype=np.uint64), *(run.hashes for run in self._runs)]
        return np.concatenate(hashes), np.concatenate([np.empty(0, np.int32), *(run.numbers for run in self._runs)])

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Number of each hash (ascending, distinct), −1 if it is new."""
        numbers = np.full(len(hashes), -1, dtype=np.int32)
        for run in self._runs:
            place = np.minimum(np.searchsorted(run.hashes, hashes), len(run) - 1)
            hit = run.hashes[place] == hashes
            numbers[hit] = run.numbers[place[hit]]
        return numbers

    def add(self, hashes: np.ndarray, numbers: np.ndarray) -> None:
        """Add hashes (ascending, distinct) that ``find`` did not know."""
        if not len(hashes):
            return
        self._runs.append(_Sorted(hashes, numbers))
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            later, earlier = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(earlier, later))


def _merged(first: _Sorted, second: _Sorted) -> _Sorted:
    from_second = np.searchsorted(first.hashes, second.hashes) + np.arange(len(second))
    total = len(first) + len(second)
    from_first = np.ones(total, dtype=bool)
    from_first[from_second] = False
    hashes, numbers = np.empty(total, dtype=np.uint64), np.empty(total, dtype=np.int32)
    hashes[from_second], numbers[from_second] = second.hashes, second.numbers
    hashes[from_first], numbers[from_first] = first.hashes, first.numbers
    return _Sorted(hashes, numbers)


class HashTable:
    """``HashIndex`` for large runs, by compiled loops: open addressing, 12 to 16 bytes a hash.

    Args:
        compiled: the loops.
        index: what is known already, of ``num_paths`` paths.
    """

    def __init__(self, compiled: Loops, index: HashIndex, num_paths: int) -> None:
        self._compiled = compiled
        hashes, numbers = index.items()
        self._known = Growing(np.uint64)
        self._known.extend(num_paths)[numbers] = hashes
        self._slots = np.empty(0, dtype=np.int32)
        self._make_room(num_paths, numbers)

    def enter(self, hashes: np.ndarray) -> np.ndarray:
        """(n,) number of each hash; new ones are numbered in their order, from the number of paths on."""
        first = len(self._known.values)
        if 3 * (first + len(hashes)) > 2 * len(self._slots):
            self._make_room(first + len(hashes), self._slots)
        self._known.extend(len(hashes))
        numbers = np.empty(len(hashes), dtype=np.int32)
        self._known.cut(first + self._compiled.enter(self._slots, self._known.values, hashes, first, numbers))
        return numbers

    def skip(self) -> None:
        """Leave out a number: that of a path whose hash another has."""
        self._known.extend(1)

    def _make_room(self, num_paths: int, numbers: np.ndarray) -> None:
        """A table for at least as many hashes with these ``numbers``."""
        self._slots = np.full(1 << (2 * num_paths).bit_length(), -1, dtype=np.int32)
        self._compiled.refill(self._slots, self._known.values, numbers)


class PathDictionary:
    """Numbers distinct paths in order of appearance and counts them exactly.

    Path numbers depend on the batches; ranks do not. A path is found by a 64-bit hash and then compared with the stored
    ribbon, so two ribbons with the same hash remain two paths.

    ``folder``: for ribbons beyond ``MEMORY_BYTES`` (None: the system's temporary folder).
    """

    def __init__(self, id_dtype: np.dtype, folder: Path | None = None) -> None:
        self.folder = folder
        self._id_dtype = id_dtype
        self._index = HashIndex()
        self._table: HashTable | None = None
        self._same_hash: dict[bytes, int] = {}
        self._rows = RowFile(id_dtype, folder)
        self._counts = Growing(np.int64)
        self.num_tokens = 0

    @property
    def num_paths(self) -> int:
        return len(self._rows)

    def add(self, module_ids: np.ndarray, sorted_ids: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Count ribbons (n, S, K); returns the path_id of each (n,) and the ribbons of new paths (new, V).

        ``sorted_ids``: them with sorted slots (n, V), if known.
        """
        if sorted_ids is None:
            sorted_ids = sorted_slots(module_ids.astype(self._id_dtype, copy=False))
        rows = sorted_ids.astype(self._id_dtype, copy=False)
        self.num_tokens += len(rows)
        row_hashes = word_hashes(rows)
        if self._table is None and (compiled := loops(self._id_dtype, self.num_tokens)) is not None:
            self._table, self._index = HashTable(compiled, self._index, self.num_paths), HashIndex()
        if self._table is not None:
            return self._add_by_table(self._table, rows, row_hashes)
        if (path_ids := self._add_strangers(rows, row_hashes)) is not None:
            return path_ids, rows
        hashes, distinct, first, kind_n = _kinds(rows, row_hashes)
        ids_P, new_rows = self._numbers_of(hashes, distinct, first)
        self._counts.append(np.zeros(len(new_rows), dtype=np.int64))
        self._counts.values[ids_P] += np.bincount(kind_n, minlength=len(ids_P))
        return ids_P[kind_n], new_rows

    def _add_strangers(self, rows: np.ndarray, row_hashes: np.ndarray) -> np.ndarray | None:
        """The numbers (n,) of ribbons without two alike and none that is known; None, and nothing done, of others.

        So are nearly all batches of a large mixture, whose rows need neither be gathered nor compared.
        """
        by_hash = np.argsort(row_hashes)
        hashes = row_hashes[by_hash]
        if (hashes[1:] == hashes[:-1]).any() or (self._index.find(hashes) >= 0).any():
            return None
        path_ids = np.arange(self.num_paths, self.num_paths + len(rows), dtype=np.int32)
        self._index.add(hashes, path_ids[by_hash])
        self._rows.append(rows)
        self._counts.append(np.ones(len(rows), dtype=np.int64))
        return path_ids

    def _add_by_table(
        self, table: HashTable, rows: np.ndarray, row_hashes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """``add`` by the compiled table."""
        start = self.num_paths
        path_ids = table.enter(row_hashes)
        fresh, _ = first_seen(path_ids, start - 1)
        old = np.flatnonzero(~fresh)
        new_rows = rows[fresh] if len(old) else rows
        self._rows.append(new_rows)
        self._counts.append(np.ones(len(new_rows), dtype=np.int64))
        if not len(old):
            return path_ids, new_rows
        other = old[(self._rows.take(path_ids[old]) != rows[old]).any(axis=1)]
        late = []
        for i in other.tolist():  # its hash collides with that of another ribbon (very rare)
            path_ids[i] = self._same_hash.setdefault(rows[i].tobytes(), self.num_paths)
            if path_ids[i] == self.num_paths:
                late.append(rows[i : i + 1])
                self._rows.append(late[-1])
                self._counts.append(np.zeros(1, dtype=np.int64))
                table.skip()
        np.add.at(self._counts.values, path_ids[old], 1)
        return path_ids, np.concatenate([new_rows, *late]) if late else new_rows

    def merge(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Add distinct canonical ribbons (n, V) that so many tokens took each; returns the path_id of each (n,).

        Dictionaries of consecutive parts of a run, merged in their order, number the paths as that of the whole run.
        """
        path_ids = np.empty(len(rows), dtype=np.int32)
        for start in range(0, len(rows), TAKE_ROWS):
            part = slice(start, start + TAKE_ROWS)
            path_ids[part] = self.add(rows[part, None], rows[part])[0]
        # Each was counted as one token of its own.
        np.add.at(self._counts.values, path_ids, counts - 1)
        self.num_tokens += int(counts.sum()) - len(counts)
        return path_ids

    def load(self, ribbons: np.ndarray, counts: np.ndarray) -> None:
        """Append paths (n, V) that are numbered and counted already, in order; ``add`` does not find them."""
        self._rows.append(ribbons)
        self._counts.append(counts)
        self.num_tokens += int(counts.sum())

    def _numbers_of(self, hashes: np.ndarray, distinct: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of distinct ribbons ordered by hash, ``first`` seen at these places of the batch; and the new ones.

        New ones are numbered in the order of the batch, so that the numbers of tokens rise where paths seldom come
        back: DuckDB stores them in a few bits then.
        """
        first_of_hash = np.ones(len(hashes), dtype=bool)
        first_of_hash[1:] = hashes[1:] != hashes[:-1]
        ids = np.full(len(hashes), -1, dtype=np.int32)
        ids[first_of_hash] = self._index.find(hashes[first_of_hash])
        old = np.flatnonzero(ids >= 0)
        other = old[(self._rows.take(ids[old]) != distinct[old]).any(axis=1)] if len(old) else old
        new = np.flatnonzero((ids < 0) & first_of_hash)
        in_order = new[np.argsort(first[new])]
        start = self.num_paths
        ids[in_order] = np.arange(start, start + len(new), dtype=np.int32)
        self._index.add(hashes[new], ids[new])
        new_rows = distinct[in_order]
        self._rows.append(new_rows)
        rare = np.concatenate([other, np.flatnonzero(~first_of_hash)]).tolist()
        late = [self._number_of_one(i, hashes, distinct, ids) for i in rare]
        return ids, np.concatenate([new_rows, *late]) if late else new_rows

    def _number_of_one(self, i: int, hashes: np.ndarray, distinct: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Number ribbon ``i``, whose hash collides with that of another (very rare); returns it (1, V) if it is new."""
        row = distinct[i : i + 1]
        owner = self._index.find(hashes[i : i + 1])
        if (self._rows.take(owner) == row).all():
            ids[i] = owner[0]
            return row[:0]
        next_id = self.num_paths
        ids[i] = self._same_hash.setdefault(row.tobytes(), next_id)
        if ids[i] < next_id:
            return row[:0]
        self._rows.append(row)
        return row

    def complete(self) -> None:
        """Free what finds known paths (12 to 16 bytes each); nothing is added afterwards."""
        self._index, self._table = HashIndex(), None

    def ribbons(self, path_ids: np.ndarray | None = None, visits: slice = slice(None)) -> np.ndarray:
        """Canonical ribbons (P, V) of these paths, in the given order; without ``path_ids`` of all."""
        return self._rows.take(np.arange(self.num_paths) if path_ids is None else path_ids, visits)

    def counts(self) -> np.ndarray:
        """Tokens of each path (P,), by path_id."""
        return self._counts.values

    def ranked(self) -> np.ndarray:
        """path_id of each rank (P,), int32: as ``analysis.paths.rank_order``, without all ribbons in memory.

        Sorted by count; ties by the first eight bytes of the ribbon, then by the next eight, and so on: few paths stay
        tied for long.
        """
        counts = self.counts()
        order = np.argsort(-counts, kind="stable").astype(np.int32)
        breaks = np.ones(len(order), dtype=bool)
        breaks[1:] = counts[order[1:]] != counts[order[:-1]]
        place, group = _tied(np.arange(len(order), dtype=np.int32), breaks)
        num_words = -(-self._rows.width * self._id_dtype.itemsize // 8)
        for word in range(num_words):
            if not len(place):
                break
            path_ids = order[place]
            values = self._words(path_ids, word)
            # Equal values are told apart by the next word, so the order among them does not matter.
            by_value = np.argsort(values) if group[0] == group[-1] else np.lexsort((values, group))
            order[place] = path_ids[by_value]
            values, group = values[by_value], group[by_value]
            del path_ids, by_value
            breaks = np.ones(len(place), dtype=bool)
            breaks[1:] = (group[1:] != group[:-1]) | (values[1:] != values[:-1])
            del values
            place, group = _tied(place, breaks)
        return order

    def _words(self, path_ids: np.ndarray, word: int) -> np.ndarray:
        """Eight bytes of each ribbon as an integer with the same order as the ids."""
        per_word = 8 // self._id_dtype.itemsize
        columns = slice(word * per_word, min((word + 1) * per_word, self._rows.width))
        values = np.empty(len(path_ids), dtype=np.uint64)
        for start in range(0, len(path_ids), TAKE_ROWS):
            part = self._rows.take(path_ids[start : start + TAKE_ROWS], columns)
            padded = np.zeros((len(part), per_word), dtype=self._id_dtype.newbyteorder(">"))
            padded[:, : part.shape[1]] = part
            values[start : start + TAKE_ROWS] = padded.view(">u8")[:, 0]
        return values


def first_seen(path_ids: np.ndarray, known: int) -> tuple[np.ndarray, int]:
    """(n,) bool: tokens whose path no token before them took, where paths up to ``known`` are known and new ones are
    numbered as they appear; and the largest number then."""
    highest = np.empty(len(path_ids) + 1, dtype=path_ids.dtype)
    highest[0], highest[1:] = known, path_ids
    np.maximum.accumulate(highest, out=highest)
    return path_ids > highest[:-1], int(highest[-1])


def _tied(place: np.ndarray, breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The elements of ``place`` whose group has more than one member, and an ascending number for each group."""
    group = np.cumsum(breaks, dtype=np.int32)
    several = np.ones(len(breaks), dtype=bool)
    several[:-1] = ~(breaks[:-1] & breaks[1:])
    several[-1:] = ~breaks[-1:]
    return place[several], group[several]


def _kinds(rows: np.ndarray, row_hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Hashes in ascending order, rows and first places of the distinct ones among ``rows`` (n, V), and the kind of each
    row (n,).

    Exact, as ``analysis.paths.unique_rows``: rows with equal hashes are compared, and both are returned.
    """
    hashes, first, kind_n = np.unique(row_hashes, return_index=True, return_inverse=True)
    if not np.array_equal(rows[first][kind_n], rows):
        _, first, kind_n = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        kind_n = kind_n.reshape(-1)
        by_hash = np.argsort(row_hashes[first], kind="stable")
        first = first[by_hash]
        hashes = row_hashes[first]
        place = np.empty(len(by_hash), dtype=np.int64)
        place[by_hash] = np.arange(len(by_hash))
        kind_n = place[kind_n]
    return hashes, rows[first], first, kind_n
