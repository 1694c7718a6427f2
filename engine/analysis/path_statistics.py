"""Paths: equality of ribbons, how often each path occurs, the rank–frequency law, and how alike their tokens are.

Shapes: n ribbons, S steps, K slots, V = S·K visits, P distinct paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Num, UInt64

from tokenpaths.engine.analysis.compiled.loops import SORTED, any_ready, ready

_STEPS_AT_ONCE = 65_536
"""steps whose slots stay in the processor's cache while they are sorted"""
_PATHS_AT_ONCE = 65_536
"""paths whose logarithms are held at once"""


def canonical(module_ids: Integer[np.ndarray, "n S K"]) -> Integer[np.ndarray, "n V"]:
    """Identity of each ribbon: the ids of every step in rising order, steps one after the other."""
    num_ribbons, num_steps, top_k = module_ids.shape
    ordered = np.sort(module_ids, axis=2) if top_k > 1 else module_ids
    return ordered.reshape(num_ribbons, num_steps * top_k)


def sorted_slots(module_ids: Integer[np.ndarray, "n S K"]) -> Integer[np.ndarray, "n V"]:
    """``canonical`` by a sorting network (Batcher's), ten times as fast, or by a compiled loop once there is one."""
    num_ribbons, num_steps, top_k = module_ids.shape
    if (quick := _sorted_sets(module_ids)) is not None:
        return quick
    rows = module_ids.reshape(-1, top_k)
    ordered = np.empty(rows.shape, dtype=rows.dtype)
    exchanges = _network(top_k)
    for start in range(0, len(rows), _STEPS_AT_ONCE):
        block = rows[start : start + _STEPS_AT_ONCE]
        slots = [block[:, slot].copy() for slot in range(top_k)]
        smaller = np.empty_like(slots[0])
        for low, high in exchanges:
            np.minimum(slots[low], slots[high], out=smaller)
            np.maximum(slots[low], slots[high], out=slots[high])
            slots[low], smaller = smaller, slots[low]
        for slot, values in enumerate(slots):
            ordered[start : start + _STEPS_AT_ONCE, slot] = values
    return ordered.reshape(num_ribbons, num_steps * top_k)


def sorted_and_repeats(
    module_ids: Integer[np.ndarray, "n S K"],
) -> tuple[Integer[np.ndarray, "n V"], Bool[np.ndarray, "n S"] | None]:
    """``sorted_slots`` and their ``steps_with_repeats``."""
    if (quick := _sorted_sets(module_ids)) is not None:
        return quick, None
    sorted_nV = sorted_slots(module_ids)
    return sorted_nV, steps_with_repeats(sorted_nV, module_ids.shape[2])


def _sorted_sets(module_ids: Integer[np.ndarray, "n S K"]) -> Integer[np.ndarray, "n V"] | None:
    """``sorted_slots`` by the compiled loop; None where it does not do: before it is compiled, for many modules, and
    of ids that stand twice in a step."""
    compiled, top_k = ready(module_ids.dtype), module_ids.shape[2]
    if compiled is None or top_k == 1:
        return None
    rows = np.ascontiguousarray(module_ids).reshape(-1, top_k)
    ordered = np.empty(rows.shape, dtype=rows.dtype)
    if top_k == 8 and rows.itemsize == 1 and rows.ctypes.data % 8 == 0:
        words = (array.reshape(-1).view(np.uint64) for array in (rows, ordered))
        outcome = compiled.sort_eights(*words)
    else:
        outcome = compiled.sort_slots(rows, ordered)
    if outcome != SORTED:
        return None
    return ordered.reshape(len(module_ids), -1)


def steps_with_repeats(sorted_ids: Integer[np.ndarray, "n V"], top_k: int) -> Bool[np.ndarray, "n S"] | None:
    """Steps at which ids with sorted slots (``sorted_slots``) hold one id twice; None if there is none."""
    flat = sorted_ids.reshape(-1)
    equal = np.zeros(flat.shape, dtype=bool)
    np.equal(flat[1:], flat[:-1], out=equal[1:])
    equal[::top_k] = False  # the first slot of a step has none before it
    if not equal.any():
        return None
    return np.asarray(equal.reshape(len(sorted_ids), -1, top_k).any(axis=2))


@cache
def _network(width: int) -> list[tuple[int, int]]:
    """Pairs of places to compare and exchange, in order, that sort any ``width`` values."""
    pairs = []
    block = 1
    while block < width:
        step = block
        while step >= 1:
            for start in range(step % block, width - step, 2 * step):
                for offset in range(min(step, width - start - step)):
                    low, high = start + offset, start + offset + step
                    if low // (2 * block) == high // (2 * block):
                        pairs.append((low, high))
            step //= 2
        block *= 2
    return pairs


def row_hashes(rows: Integer[np.ndarray, "n V"]) -> UInt64[np.ndarray, " n"]:
    """A 64-bit number for each row; equal rows have equal numbers, unequal rows hardly ever."""
    rng = np.random.default_rng(0x70617468)
    multipliers = rng.integers(0, 2**64, size=(rows.shape[1],), dtype=np.uint64)
    hashes = np.zeros(rows.shape[0], dtype=np.uint64)
    for column in range(rows.shape[1]):
        hashes += rows[:, column].astype(np.uint64) * (multipliers[column] | np.uint64(1))
    return hashes


def unique_rows(rows: Integer[np.ndarray, "n V"]) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " n"]]:
    """Index of one row of each kind, and for every row the number of its kind.

    Exact: hashes that collide are noticed and the rows compared themselves.
    """
    _, first_P, kind_n = np.unique(row_hashes(rows), return_index=True, return_inverse=True)
    if not np.array_equal(rows[first_P][kind_n], rows):
        _, first_P, kind_n = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first_P.astype(np.int64), kind_n.reshape(-1).astype(np.int64)


def rank_order(ribbons: Integer[np.ndarray, "P V"], counts: Int[np.ndarray, " P"]) -> Int[np.ndarray, " P"]:
    """Positions of the paths from rank 1 on: most frequent first, ties by the ribbon's ids."""
    keys = [ribbons[:, column] for column in reversed(range(ribbons.shape[1]))]
    return np.lexsort([*keys, -counts]).astype(np.int64)


def effective_paths(counts: Int[np.ndarray, " P"]) -> float:
    """exp H(π), the effective number of paths: exp(−Σ p ln p) with p = count / Σ count; 1 … P."""
    total, sum_p_log_p = counts.sum(), 0.0
    for part in _parts(len(counts)):
        shares = counts[part][counts[part] > 0] / total
        sum_p_log_p += float((shares * np.log(shares)).sum())
    return float(np.exp(-sum_p_log_p))


def _parts(size: int) -> Iterator[slice]:
    """Of millions of paths, so many at once: arrays of all logarithms would be most of the memory of an import."""
    return (slice(start, min(start + _PATHS_AT_ONCE, size)) for start in range(0, size, _PATHS_AT_ONCE))


@dataclass(frozen=True)
class Histogram:
    """How many paths were taken how often."""

    values: Int[np.ndarray, " U"]
    """different counts, rising"""
    paths: Int[np.ndarray, " U"]
    """paths with that count"""

    @classmethod
    def of(cls, counts: Integer[np.ndarray, " P"]) -> Histogram:
        """Of the counts of all paths; those that nobody took are left out."""
        values, paths = np.unique(counts[counts > 0].astype(np.int64), return_counts=True)
        return cls(values, paths.astype(np.int64))

    def tail(self, x_min: int) -> Histogram:
        """Only paths with at least ``x_min`` tokens."""
        keep = self.values >= x_min
        return Histogram(self.values[keep], self.paths[keep])


@dataclass(frozen=True)
class RankFit:
    """Least-squares line through (ln rank, ln frequency); None where no line is determined."""

    slope: float | None
    r2: float | None


def rank_frequency_fit(counts: Int[np.ndarray, " P"]) -> RankFit:
    """Slope of log frequency on log rank over all paths, and the share of variance it explains.

    ``counts`` in rank order (falling). One path has no slope; equal counts have slope 0 and no r².
    """
    if len(counts) < 2:
        return RankFit(None, None)
    return _line_through(
        len(counts), lambda part: (np.log(np.arange(part.start + 1, part.stop + 1)), np.log(counts[part]))
    )


def least_squares(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> RankFit:
    """The line through n points (x, y); equal y have slope 0 and no r²."""
    return _line_through(len(x), lambda part: (x[part], y[part]))


def _line_through(size: int, points: Callable[[slice], tuple[np.ndarray, np.ndarray]]) -> RankFit:
    """``least_squares`` of ``points`` of each part of ``size``, which are asked for twice: means, squares."""
    sum_x = sum_y = 0.0
    for part in _parts(size):
        x, y = points(part)
        sum_x, sum_y = sum_x + float(x.sum()), sum_y + float(y.sum())
    across = covariance = total = 0.0
    for part in _parts(size):
        x, y = points(part)
        x, y = x - sum_x / size, y - sum_y / size
        across, total = across + float((x * x).sum()), total + float((y * y).sum())
        covariance += float((x * y).sum())
    if total < 1e-12:
        return RankFit(0.0, None)
    return RankFit(covariance / across, covariance / across * covariance / total)


def log_spaced_ranks(num_paths: int, most: int = 200) -> Int[np.ndarray, " R"]:
    """At most ``most`` ranks from 1 to ``num_paths``, evenly spaced on a logarithmic axis."""
    if num_paths <= most:
        return np.arange(1, num_paths + 1)
    return np.unique(np.rint(np.geomspace(1, num_paths, most)).astype(np.int64))


def word_hashes(rows: np.ndarray) -> np.ndarray:
    """A 64-bit hash for each of (n, V) rows, eight bytes at a time."""
    width = rows.shape[1] * rows.itemsize
    if width % 8:
        padded = np.zeros((len(rows), -(-width // 8) * 8), dtype=np.uint8)
        padded[:, :width] = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), width)
        rows = padded
    words = np.ascontiguousarray(rows).view(np.uint64)
    if (compiled := any_ready()) is not None and words.flags.aligned:
        hashed = np.empty(len(words), dtype=np.uint64)
        compiled.hash_words(words, hashed)
        return hashed
    hashes = np.full(len(rows), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in words.T:
        # Each line can be undone, so rows that differ in one word only never share a hash.
        hashes ^= column
        hashes *= np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(32))


def independent_steps(
    ribbons: Integer[np.ndarray, "P V"], counts: Int[np.ndarray, " P"], num_steps: int, seed: int = 0
) -> Integer[np.ndarray, "n S K"]:
    """The null of independent steps: every step's choices (K-tuples) shuffled over the n tokens."""
    rng = np.random.default_rng(seed)
    ribbons_PSK = ribbons.reshape(len(ribbons), num_steps, -1)
    owner_n = np.repeat(np.arange(len(counts)), counts)
    shuffled = np.empty((len(owner_n), *ribbons_PSK.shape[1:]), dtype=ribbons.dtype)
    for step in range(num_steps):
        shuffled[:, step] = ribbons_PSK[rng.permutation(owner_n), step]
    return shuffled


def path_distance(first: Integer[np.ndarray, "S K"], second: Integer[np.ndarray, "S K"]) -> Float[np.ndarray, " S"]:
    """Distance of two ribbons per step: 1 − |S ∩ S′| / K; its sum is the Hamming distance for K = 1."""
    shared_S = (first[:, :, None] == second[:, None, :]).any(axis=2).sum(axis=1)
    distance_S: np.ndarray = 1.0 - shared_S / first.shape[1]
    return distance_S


_LARGEST_TABLE = 1 << 22
"""cells of groups × categories that are counted in one table; larger ones are sorted"""
Looks = Num[np.ndarray, "n *C"]
"""(n, C) numbers, or (n,) codes of categories"""


@dataclass(frozen=True)
class Alike:
    """Likeness of all paths together and of each; NaN where no two samples meet."""

    value: float
    by_path: Float[np.ndarray, " P"]


class PathLikeness:
    """How alike tokens of one path are, in one look after another: in mean colour, or in being words of a kind.

    Likeness is 1 − d/D: d the mean squared distance of two tokens on one path but of different samples, averaged over
    paths by their tokens, D that of any two tokens of different samples. 0 for paths that do not sort by it, 1 for
    equal tokens. Categories that are equal have distance 0, others 1.

    Shapes: n tokens; N samples; P paths; C numbers that a look has.
    """

    def __init__(self, path_n: Integer[np.ndarray, " n"], sample_n: Integer[np.ndarray, " n"], num_paths: int) -> None:
        self.path, self.sample, self.num_paths = path_n.astype(np.int64), sample_n.astype(np.int64), num_paths
        self.num_samples = int(sample_n.max()) + 1
        kinds, within = np.unique(self.path * self.num_samples + self.sample, return_inverse=True)
        self.within, self.owner = within.reshape(-1), kinds // self.num_samples

    def of(
        self, looks: Looks, counts_N: Num[np.ndarray, " N"] | None = None, among_n: Bool[np.ndarray, " n"] | None = None
    ) -> Alike:
        """``counts_N``: how often each sample counts, once by default; ``among_n``: only these tokens on their paths,
        beside any two."""
        everywhere = np.ones(len(self.path)) if counts_N is None else counts_N[self.sample].astype(np.float64)
        weight = everywhere if among_n is None else everywhere * among_n
        own_squares, own_pairs = _pairs(self.within, len(self.owner), weight, looks)
        near_squares, near_pairs = _less(
            _pairs(self.path, self.num_paths, weight, looks),
            np.bincount(self.owner, own_squares, self.num_paths),
            np.bincount(self.owner, own_pairs, self.num_paths),
        )
        own = _pairs(self.sample, self.num_samples, everywhere, looks)
        far_squares, far_pairs = _less(
            _pairs(np.zeros_like(self.path), 1, everywhere, looks), own[0].sum(keepdims=True), own[1].sum(keepdims=True)
        )
        by_path = np.full(self.num_paths, np.nan)
        shared = near_pairs > 1e-9
        if not shared.any() or far_pairs[0] <= 1e-9 or far_squares[0] <= 1e-12 * far_pairs[0]:
            return Alike(float("nan"), by_path)
        far = far_squares[0] / far_pairs[0]
        by_path[shared] = 1.0 - near_squares[shared] / near_pairs[shared] / far
        on_path = np.bincount(self.path, weight, self.num_paths)[shared]
        return Alike(float((on_path * by_path[shared]).sum() / on_path.sum()), by_path)

    def shared(self) -> float:
        """Share of the tokens on a path that tokens of another sample take too."""
        samples_P = np.bincount(self.owner, minlength=self.num_paths)
        return float((samples_P[self.path] > 1).mean())


def _less(
    pairs: tuple[np.ndarray, np.ndarray], squares: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return pairs[0] - squares, pairs[1] - number


def _pairs(group: np.ndarray, size: int, weight: np.ndarray, looks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ w_i w_j |x_i − x_j|² and Σ w_i w_j over the ordered pairs of each group, a token with itself included."""
    total = np.bincount(group, weight, size)
    if looks.ndim == 1:
        width = int(looks.max()) + 1
        if size * width <= _LARGEST_TABLE:
            cells = np.bincount(group * width + looks, weight, size * width).reshape(size, width)
            return total**2 - (cells**2).sum(axis=1), total**2
        kinds, cell = np.unique(group * width + looks, return_inverse=True)
        same = np.bincount(kinds // width, np.bincount(cell.reshape(-1), weight) ** 2, size)
        return total**2 - same, total**2
    sums = [np.bincount(group, weight * column, size) for column in looks.T]
    norms = np.bincount(group, weight * (looks**2).sum(axis=1), size)
    return 2 * (total * norms - sum(column**2 for column in sums)), total**2
