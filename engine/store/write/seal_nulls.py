"""Null models of path statistics: independent steps, and the untrained twin.

Shapes: P distinct paths, S steps, K slots.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.path_statistics import (
    effective_paths,
    log_spaced_ranks,
    rank_frequency_fit,
    word_hashes,
)
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.arrow_tables import insert_columns, range_array
from tokenpaths.engine.store.write.path_dictionary import PathDictionary
from tokenpaths.engine.store.write.seal_pages import write_counts
from tokenpaths.engine.store.write.twin.twin_paths import TwinPaths, tokens_of_modules

NULL_SEED = 0
INDEPENDENT_BYTES = 256 * 2**20
"""memory for the ribbons of the null model with independent steps; for larger runs it is drawn for as many tokens as
fit (26 million of ten steps), and ``num_tokens`` gives their number"""
PACKED_TOKENS = 1_000_000
"""the same for packed ribbons: of those hardly two tokens share one, and a million say it as surely as more"""
MOST_AT_ONCE = 10**9
STEPS_AT_ONCE = 4
"""steps whose choices are held as numbers, eight bytes a drawn token each"""
_STEP_FACTOR = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Independent:
    """The null of independent steps."""

    counts: np.ndarray
    """tokens of each of its paths, descending"""
    used_SM: np.ndarray


def independent_null(layout: Layout, book: PathDictionary, order: np.ndarray) -> Independent:
    """Of the run's tokens, or a seeded draw from them; ``order`` (P,) is the path_id of each rank."""
    drawn = _thinned(book.counts()[order], layout)
    places = np.flatnonzero(drawn)
    counts, used = _independent(layout, book, order[places], drawn[places])
    return Independent(-np.sort(-counts), used)


class Beside(threading.Thread):
    """``independent_null`` in a thread, while this process waits for others; ``book`` must not change meanwhile."""

    def __init__(self, layout: Layout, book: PathDictionary) -> None:
        super().__init__(daemon=True, name="independent steps")  # whoever gives up does not wait for it
        self._of = layout, book
        self._found: Independent | BaseException | None = None

    def run(self) -> None:
        layout, book = self._of
        try:
            self._found = independent_null(layout, book, book.ranked())
        except BaseException as error:
            self._found = error

    def result(self) -> Independent:
        """Waits for it; raises what it raised."""
        self.join()
        found, self._found = self._found, None  # the counts of millions of paths
        if not isinstance(found, Independent):
            raise found or RuntimeError("the null of independent steps was not begun, or is known already")
        return found


def write_nulls(
    con: duckdb.DuckDBPyConnection,
    layout: Layout,
    book: PathDictionary,
    twin: TwinPaths | None,
    order: np.ndarray,
    independent: Beside | None = None,
) -> None:
    """Rank–frequency of the run, of its untrained twin and of independent steps; usage of the two nulls.

    Args:
        con: the run.
        layout: of it.
        book: its paths.
        twin: its untrained twin.
        order: (P,) path_id of each rank.
        independent: the null, where it was begun before.
    """
    counts = book.counts()[order]
    _fit(con, "observed", counts)
    write_counts(con, "observed", counts)
    del counts
    null = independent_null(layout, book, order) if independent is None else independent.result()
    _write_null(con, "independent", null.counts, null.used_SM)
    if twin is not None:
        write_twin_null(con, twin)


def write_twin_null(con: duckdb.DuckDBPyConnection, twin: TwinPaths) -> None:
    """Rank–frequency and usage of the untrained twin."""
    _write_null(con, "untrained", twin.counts(), twin.used_SM)


def _write_null(con: duckdb.DuckDBPyConnection, kind: str, counts: np.ndarray, used: np.ndarray) -> None:
    """Of one null; ``counts`` (P,) descending, ``used`` (S, M)."""
    for start in range(0, len(counts), CHUNK_ROWS):  # nearly every token has a path of its own
        part = counts[start : start + CHUNK_ROWS]
        ranks = np.arange(start + 1, start + 1 + len(part), dtype=np.int32)
        insert_columns(con, "null_path", {"kind": pa.repeat(kind, len(part)), "rank": ranks, "count": part})
    _fit(con, kind, counts)
    write_counts(con, kind, counts)
    _insert_usage(con, kind, used)


def _thinned(counts: np.ndarray, layout: Layout) -> np.ndarray:
    """The counts themselves, or a seeded subsample of as many of their tokens as fit ``INDEPENDENT_BYTES``.

    From a thousand million tokens on, which numpy cannot draw from at once, tokens are drawn independently, so that the
    number of drawn tokens varies by about its square root.
    """
    most, total = INDEPENDENT_BYTES // (layout.visits * layout.id_dtype.itemsize), int(counts.sum())
    most = min(most, PACKED_TOKENS) if layout.packed else most
    if total <= most:
        return counts
    rng = np.random.default_rng(NULL_SEED)
    if total >= MOST_AT_ONCE:
        return rng.binomial(counts, most / total)
    if total <= 2 * len(counts):
        return _drawn_by_parts(counts, most, rng)
    return rng.multivariate_hypergeometric(counts, most, method="marginals")


def _drawn_by_parts(counts: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """As ``multivariate_hypergeometric``, ten times as fast where most counts are 1: tokens are drawn, not counts.

    The parts share ``most`` as a draw from all tokens would, and each draws its own.
    """
    drawn = np.zeros_like(counts)
    starts = range(0, len(counts), CHUNK_ROWS)
    tokens = np.add.reduceat(counts, list(starts))
    for start, num in zip(starts, rng.multivariate_hypergeometric(tokens, most), strict=True):
        part = counts[start : start + CHUNK_ROWS]
        if part.sum() > 4 * len(part):  # the most frequent paths: their tokens are too many to be drawn from
            drawn[start : start + CHUNK_ROWS] = rng.multivariate_hypergeometric(part, num, method="marginals")
            continue
        chosen = rng.choice(int(part.sum()), num, replace=False, shuffle=False)
        owner = chosen if len(part) == part.sum() else np.searchsorted(np.cumsum(part), chosen, side="right")
        drawn[start : start + CHUNK_ROWS] = np.bincount(owner, minlength=len(part))
    return drawn


def _independent(
    layout: Layout, book: PathDictionary, path_ids: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each path of the null of independent steps, and its usage (S, M).

    Equals ``independent_steps`` of these paths, taken ``counts`` times, counted by a ``PathDictionary``: ribbons are
    not built, but a 64-bit sum of each step's choices follows the same shuffles.
    """
    used = np.zeros((layout.num_steps, layout.num_modules), dtype=np.int64)
    rng = np.random.default_rng(NULL_SEED)
    # Where every path is its token's own, the hashes are those of tokens, and are shuffled themselves.
    owner_n = None if bool((counts == 1).all()) else np.repeat(np.arange(len(counts)), counts)
    sums = np.zeros(int(counts.sum()), dtype=np.uint64)
    room_sP = np.empty((min(STEPS_AT_ONCE, layout.num_steps), len(path_ids)), dtype=np.uint64)
    for first in range(0, layout.num_steps, STEPS_AT_ONCE):
        steps = slice(first, min(first + STEPS_AT_ONCE, layout.num_steps))
        hashes_sP = room_sP[: steps.stop - steps.start]
        used[steps] = _of_steps(layout, book, path_ids, counts, steps, hashes_sP)
        for hashes_P in hashes_sP:
            hashes_n = hashes_P if owner_n is None else hashes_P[owner_n]
            rng.shuffle(hashes_n)
            # Multiplied before it is added, so that the same choices at two steps do not change places unseen.
            sums *= np.uint64(_STEP_FACTOR)
            sums += hashes_n
    # The numbers of a few steps take more memory than all that follows.
    del room_sP, hashes_sP, hashes_P, hashes_n
    sums.sort()
    ends = np.flatnonzero(np.append(sums[1:] != sums[:-1], True))
    del sums
    return np.diff(ends, prepend=-1), used


def _of_steps(
    layout: Layout, book: PathDictionary, path_ids: np.ndarray, counts: np.ndarray, steps: slice, hashes_sP: np.ndarray
) -> np.ndarray:
    """``tokens_of_modules`` (s, M) of paths at some steps; 64-bit numbers of their choices go to ``hashes_sP``."""
    num_steps, visits = steps.stop - steps.start, slice(steps.start * layout.top_k, steps.stop * layout.top_k)
    used = np.zeros((num_steps, layout.num_modules), dtype=np.int64)
    for start in range(0, len(path_ids), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        ribbons = book.ribbons(path_ids[part], visits).reshape(-1, num_steps, layout.top_k)
        used += tokens_of_modules(layout, ribbons, counts[part])
        hashes_sP[:, part] = word_hashes(ribbons.reshape(-1, layout.top_k)).reshape(-1, num_steps).T
    return used


def _insert_usage(con: duckdb.DuckDBPyConnection, kind: str, used: np.ndarray) -> None:
    size = used.shape[1]
    for step, count in enumerate(used):
        insert_columns(
            con,
            "null_usage",
            {"kind": [kind] * size, "step": [step] * size, "module": range_array(size), "count": count},
        )


def _fit(con: duckdb.DuckDBPyConnection, kind: str, counts: np.ndarray) -> None:
    fit = rank_frequency_fit(counts)
    con.execute(
        "INSERT INTO path_fit VALUES (?, ?, ?, ?, ?, ?)",
        [kind, len(counts), int(counts.sum()), effective_paths(counts), fit.slope, fit.r2],
    )
    ranks = log_spaced_ranks(len(counts))
    points = {"rank": ranks.astype(np.int32), "count": counts[ranks - 1]}
    insert_columns(con, "path_point", {"kind": [kind] * len(ranks), **points})
