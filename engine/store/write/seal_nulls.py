"""Null models of path statistics: independent steps, and the untrained twin.

Shapes: P distinct paths, S steps, K slots.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.path_statistics import (
    effective_paths,
    independent_steps,
    log_spaced_ranks,
    rank_frequency_fit,
)
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.arrow_tables import insert_columns, range_array
from tokenpaths.engine.store.write.path_dictionary import PathDictionary
from tokenpaths.engine.store.write.seal_pages import write_counts

NULL_SEED = 0
INDEPENDENT_BYTES = 256 * 2**20
"""memory for the ribbons of the null model with independent steps; for larger runs it is drawn for as many tokens as
fit (26 million of ten steps), and ``num_tokens`` gives their number"""
MOST_AT_ONCE = 10**9


def write_nulls(
    con: duckdb.DuckDBPyConnection, layout: Layout, book: PathDictionary, twin: PathDictionary, order: np.ndarray
) -> None:
    """Rank–frequency of the run, of its untrained twin and of independent steps; usage of the two nulls.

    ``order`` (P,) is the path_id of each rank.
    """
    counts = book.counts()[order]
    _fit(con, "observed", counts)
    write_counts(con, "observed", counts)
    independent = PathDictionary(layout.id_dtype, book.folder)
    drawn = _thinned(counts, layout)
    places = np.flatnonzero(drawn)
    shuffled = independent_steps(book.ribbons(order[places]), drawn[places], layout.num_steps, NULL_SEED)
    for start in range(0, len(shuffled), CHUNK_ROWS):
        independent.add(shuffled[start : start + CHUNK_ROWS])
    for kind, null in (("independent", independent), ("untrained", twin)):
        if not null.num_tokens:
            continue
        null_order = np.argsort(-null.counts(), kind="stable")
        null_counts = null.counts()[null_order]
        for start in range(0, len(null_counts), CHUNK_ROWS):  # nearly every token has a path of its own
            part = null_counts[start : start + CHUNK_ROWS]
            ranks = np.arange(start + 1, start + 1 + len(part), dtype=np.int32)
            insert_columns(con, "null_path", {"kind": pa.repeat(kind, len(part)), "rank": ranks, "count": part})
        _fit(con, kind, null_counts)
        write_counts(con, kind, null_counts)
        _null_usage(con, kind, layout, null)


def _thinned(counts: np.ndarray, layout: Layout) -> np.ndarray:
    """The counts themselves, or a seeded subsample of as many of their tokens as fit ``INDEPENDENT_BYTES``.

    From a thousand million tokens on, which numpy cannot draw from at once, tokens are drawn independently, so that the
    number of drawn tokens varies by about its square root.
    """
    most = INDEPENDENT_BYTES // (layout.visits * layout.id_dtype.itemsize)
    if counts.sum() <= most:
        return counts
    rng = np.random.default_rng(NULL_SEED)
    if counts.sum() >= MOST_AT_ONCE:
        return rng.binomial(counts, most / counts.sum())
    return rng.multivariate_hypergeometric(counts, most, method="marginals")


def _null_usage(con: duckdb.DuckDBPyConnection, kind: str, layout: Layout, book: PathDictionary) -> None:
    used = np.zeros((layout.num_steps, layout.num_modules), dtype=np.int64)
    for start in range(0, book.num_paths, CHUNK_ROWS):
        path_ids = np.arange(start, min(start + CHUNK_ROWS, book.num_paths))
        ribbons_PSK = book.ribbons(path_ids).reshape(-1, layout.num_steps, layout.top_k)
        counts_PK = np.repeat(book.counts()[path_ids], layout.top_k)
        for step in range(layout.num_steps):
            # Sums of whole numbers in float64 are exact below 2**53.
            chosen = np.bincount(ribbons_PSK[:, step].reshape(-1), counts_PK, layout.num_modules)
            used[step] += chosen.astype(np.int64)
    size = layout.num_modules
    for step in range(layout.num_steps):
        insert_columns(
            con,
            "null_usage",
            {"kind": [kind] * size, "step": [step] * size, "module": range_array(size), "count": used[step]},
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
