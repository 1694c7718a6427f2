"""From the number of a path to its rank and ribbon, for the tokens of a sample, and from its rank to its share.

``path`` lies in the order of ranks, and 300 paths by number are spread over all of it: finding them there reads a
column of every path. ``path_page`` holds the same by number, ``PAGE_PATHS`` in a row, so that 300 paths are at most 300
rows. It is not compressed: DuckDB would compress 2048 rows in one piece, and unpack them all for one of them.
``path_count`` says how many paths have each count; the CDF of any rank follows from it.

Shapes: P paths, p of them, V = S·K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.arrow_insert import insert_columns
from tokenpaths.engine.store.write.path_dictionary import PathBook

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

PAGE_PATHS = 1024
PAGES_AT_ONCE = 256


def write_pages(con: duckdb.DuckDBPyConnection, layout: Layout, book: PathBook, order: np.ndarray) -> None:
    """Fill ``path_page``; ``order`` (P,) is the number of each rank. Ribbons only where tokens have no ids."""
    rank_of = np.empty(len(order), dtype="<i4")
    rank_of[order] = np.arange(1, len(order) + 1, dtype=np.int32)
    at_once = PAGES_AT_ONCE * PAGE_PATHS
    for start in range(0, len(order), at_once):
        numbers = np.arange(start, min(start + at_once, len(order)))
        ranks = [rank_of[numbers[i : i + PAGE_PATHS]].tobytes() for i in range(0, len(numbers), PAGE_PATHS)]
        ribbons: list[bytes | None] = [None] * len(ranks)
        if layout.by_path:
            rows = book.ribbons(numbers)
            ribbons = [rows[i : i + PAGE_PATHS].tobytes() for i in range(0, len(numbers), PAGE_PATHS)]
        first = start // PAGE_PATHS
        insert_columns(
            con,
            "path_page",
            {
                "page": np.arange(first, first + len(ranks), dtype=np.int32),
                "ranks": pa.array(ranks, pa.binary()),
                "ribbons": pa.array(ribbons, pa.binary()),
            },
        )


def write_counts(con: duckdb.DuckDBPyConnection, kind: str, counts: np.ndarray) -> None:
    """How many paths have each count, the largest first; ``counts`` (P,) falling."""
    values, num_paths = np.unique(counts, return_counts=True)
    for start in range(0, len(values), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        insert_columns(
            con,
            "path_count",
            {
                "kind": pa.repeat(kind, len(values[part])),
                "count": values[::-1][part],
                "num_paths": num_paths[::-1][part],
            },
        )


def look_up(run: Run, path_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank (p,) and ribbon (p, V) of these paths; of a file without pages, or with ids in the tokens, see ``Run``."""
    pages, page_of = np.unique(path_ids // PAGE_PATHS, return_inverse=True)
    ranks = np.empty(len(path_ids), dtype=np.int64)
    ribbons = np.empty((len(path_ids), run.layout.visits if run.layout.by_path else 0), dtype=run.layout.id_dtype)
    columns = "page, ranks, ribbons" if run.layout.by_path else "page, ranks"
    for start in range(0, len(pages), PAGES_AT_ONCE):
        some = pages[start : start + PAGES_AT_ONCE]
        # A list of values is looked up in the rows; a join would build a table of them first.
        marks = ", ".join("?" * len(some))
        sql = f"SELECT {columns} FROM path_page WHERE page IN ({marks}) ORDER BY page"
        if len(some) == int(some[-1] - some[0]) + 1:
            sql = f"SELECT {columns} FROM path_page WHERE page BETWEEN {some[0]} AND {some[-1]} ORDER BY page"
            marks = ""
        found = run.rows(Query(sql, tuple(some.tolist()) if marks else ()))
        here = np.flatnonzero((page_of >= start) & (page_of < start + len(some)))
        sizes = np.array([len(row[1]) // 4 for row in found])
        place = (np.cumsum(sizes) - sizes)[page_of[here] - start] + path_ids[here] % PAGE_PATHS
        ranks[here] = np.frombuffer(b"".join(row[1] for row in found), dtype="<i4")[place]
        if run.layout.by_path:
            flat = np.frombuffer(b"".join(row[2] for row in found), dtype=run.layout.id_dtype)
            ribbons[here] = flat.reshape(-1, run.layout.visits)[place]
    return ranks, ribbons


class Shares:
    """The CDF of ranks, from the table of counts."""

    def __init__(self, counts: np.ndarray, num_paths: np.ndarray, num_tokens: int) -> None:
        self._counts, self._last = counts, np.cumsum(num_paths)
        self._tokens = np.cumsum(counts * num_paths)
        self._num_tokens = num_tokens

    @classmethod
    def of(cls, run: Run) -> Shares:
        """Of the run's own paths."""
        rows = run.arrays(Query("SELECT count, num_paths FROM path_count WHERE kind = 'observed' ORDER BY count DESC"))
        return cls(rows["count"].astype(np.int64), rows["num_paths"].astype(np.int64), run.row["num_tokens"])

    def counts(self) -> np.ndarray:
        """(P,) tokens of each path, in the order of ranks."""
        narrow = np.int32 if self._counts.max(initial=0) < 2**31 else np.int64
        return np.repeat(self._counts.astype(narrow), np.diff(self._last, prepend=0))

    def cdf(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) share of the tokens on the paths of rank 1 … r."""
        place = np.searchsorted(self._last, ranks)
        return (self._tokens[place] - (self._last[place] - ranks) * self._counts[place]) / self._num_tokens
