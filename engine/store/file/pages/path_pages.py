"""Layout of the tables of paths: ``path_coded`` and its views ``path_row`` and ``path``, ``path_page`` (paths by
number), ``path_count`` (CDF of ranks) and ``path_top`` (first pages of lists).

Two layouts, chosen at sealing by how many paths there are. *Dictionary*: ``path_coded`` holds the ribbon of every path;
equal counts are ranked by their ribbons. *Unique*, where ribbons are long and most tokens have a path of their own:
``path_coded`` holds the row of the first token of every path, whose ids are its ribbon; paths are numbered, and equal
counts ranked, in the order of their first tokens. The view ``path`` has ribbons in both; it decodes them in SQL, so
what needs none reads ``path_row``, and what needs many of them ``ask.tables.path_ribbons``.

The view ``path_row`` works out ``cdf``, ``compute`` and ``reuse`` from counts: as numbers of their own each would take
up to eight bytes a path. They are no generated columns of the table, as DuckDB would work those out for every inserted
row, too.

``path_coded`` is sorted by rank, so looking up 300 paths by number there reads a column of every path. ``path_page``
holds rank and ribbon by number, ``PAGE_PATHS`` a row: 300 paths are at most 300 rows. It is not compressed, as DuckDB
compresses 2048 rows together and would decompress them all for one. ``path_count`` holds how many paths have each
count, from which the CDF of any rank follows. ``path_top`` holds the first ``TOP_ROWS`` rows of lists that would
have to be sorted or counted: by compute, by reuse, and of each label; in the layout *unique* also by rank, as ribbons
are those of tokens all over the file.

Shapes: P paths, p of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.store.file.columns import PATH_TABLE, PATHS, TABLE
from tokenpaths.engine.store.file.packed_ids import ribbon_sql
from tokenpaths.engine.store.file.schema import Layout

DICTIONARY, UNIQUE = "dictionary", "unique"
WORK_COLUMNS = ("active", "known", "distinct_active")
"""columns of ``path_coded`` that compute and reuse are worked out from, as ``ribbon_costs.Work``"""
PAGE_PATHS = 4096
"""DuckDB reads a vector of 2048 rows whole where it lies in two segments. In blocks of 64 kB a segment of BLOBs holds
4,095 rows: tables of up to 16.8 million paths are one segment"""
PAGES_AT_ONCE = 64
TOP_ROWS = 1000


def path_table(layout: Layout, num_tokens: int) -> str:
    """SQL that creates ``path_coded``, ``path_row`` and ``path`` of a run of so many tokens."""
    own, kind = own_column(layout), "BIGINT" if layout.unique else f"{layout.id_type}[]"
    work = ", ".join(WORK_COLUMNS)
    measured = (
        f"path_id, rank, {own}, count, ((first_member + count) / {num_tokens})::DOUBLE AS cdf, "
        "(CASE WHEN known = 0 THEN 1 ELSE active / known END)::DOUBLE AS compute, "
        "(CASE WHEN active = 0 THEN 0 ELSE 1 - distinct_active / active END)::DOUBLE AS reuse, "
        f"first_member, top_label, top_label_share, {work}"
    )
    return (
        f"CREATE TABLE {PATH_TABLE} (path_id INTEGER, rank INTEGER, {own} {kind}, count BIGINT, first_member BIGINT, "
        f"top_label VARCHAR, top_label_share DOUBLE, {', '.join(f'{name} INTEGER' for name in WORK_COLUMNS)});\n"
        f"CREATE VIEW {PATHS} AS SELECT {measured} FROM {PATH_TABLE};\n"
        f"CREATE VIEW path AS SELECT * EXCLUDE ({work}) "
        f"FROM {with_ribbons(layout, f'SELECT rowid, {measured} FROM {PATH_TABLE}')};\n"
    )


def own_column(layout: Layout) -> str:
    """Column of ``path_coded`` that tells its ribbon: the ribbon, or the row of its first token."""
    return "first_token" if layout.unique else "ribbon"


def with_ribbons(layout: Layout, some: str) -> str:
    """FROM clause: the query ``some`` of all columns of a few rows of ``path_row``, with their ``ribbon``."""
    if not layout.unique:
        return f"({some})"
    ribbon = ribbon_sql(layout, "of_first.ids")
    return (
        f"(SELECT listed.* EXCLUDE (first_token), {ribbon} AS ribbon FROM ({some}) AS listed "
        f"JOIN {TABLE} AS of_first ON of_first.rowid = listed.first_token)"
    )


def encode_ranks(ranks: np.ndarray, layout: Layout) -> bytes:
    """The ranks (p,) of the paths of a page; differences, which are nearly all 1, in the layout *unique*."""
    if not layout.unique:
        return ranks.astype("<i4").tobytes()
    return zlib.compress(np.diff(ranks.astype("<i4"), prepend=np.int32(0)).tobytes(), 1)


def decode_ranks(page: bytes, layout: Layout) -> np.ndarray:
    """Inverse of ``encode_ranks``."""
    if not layout.unique:
        return np.frombuffer(page, dtype="<i4")
    ranks: np.ndarray = np.cumsum(np.frombuffer(zlib.decompress(page), dtype="<i4"), dtype=np.int32)
    return ranks


class Shares:
    """Counts and shares of paths by rank, from how many paths have each count: no scan of tokens or paths.

    Args:
        counts: distinct numbers of tokens per path, descending.
        num_paths: number of paths with each count.
        num_tokens: tokens of the run.
    """

    def __init__(self, counts: np.ndarray, num_paths: np.ndarray, num_tokens: int) -> None:
        self._counts, self._last = counts, np.cumsum(num_paths)
        self._tokens = np.cumsum(counts * num_paths)
        self._num_tokens = num_tokens

    def counts(self, least: int = 1) -> np.ndarray:
        """Tokens of each path by rank, as far as they are at least ``least``: (P,) for 1."""
        narrow = np.int32 if self._counts.max(initial=0) < 2**31 else np.int64
        many = self._counts >= least
        return np.repeat(self._counts[many].astype(narrow), np.diff(self._last, prepend=0)[many])

    def num_paths(self, least: int = 1) -> int:
        """Paths that at least so many tokens take."""
        several = np.count_nonzero(self._counts >= least)
        return int(self._last[several - 1]) if several else 0

    def cdf(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) share of the tokens on the paths of rank 1 … r."""
        place = np.searchsorted(self._last, ranks)
        cdf: np.ndarray = (self._tokens[place] - (self._last[place] - ranks) * self._counts[place]) / self._num_tokens
        return cdf

    def counts_of(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) tokens on the path of each rank."""
        counts: np.ndarray = self._counts[np.searchsorted(self._last, ranks)]
        return counts

    def first_members(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) row of the first token of each path in ``member``: the tokens of all paths of smaller ranks."""
        place = np.searchsorted(self._last, ranks)
        first: np.ndarray = self._tokens[place] - (self._last[place] - ranks + 1) * self._counts[place]
        return first

    def cdf_middle(self, ranks: np.ndarray) -> np.ndarray:
        """(p,) share of the tokens on paths with strictly larger counts, plus half of that on paths with equal counts.

        Equal counts have equal values, unlike in ``cdf``; a path that a share s of all tokens take has 1 − s/2 at most.
        """
        place = np.searchsorted(self._last, ranks)
        up_to = np.concatenate([[0], self._tokens])
        middle: np.ndarray = (up_to[place] + up_to[place + 1]) / (2 * self._num_tokens)
        return middle

    def ink_of(self, ranks: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """What a path's colour is made of, for each rank: ``cdf_middle`` and ``path_tokens``, its tokens in the run."""
        asked = np.asarray(ranks, dtype=np.int64)
        pairs = zip(self.cdf_middle(asked).tolist(), self.counts_of(asked).tolist(), strict=True)
        return [{"cdf_middle": middle, "path_tokens": count} for middle, count in pairs]
