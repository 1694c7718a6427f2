"""Writes the paged tables: paths by number, their counts and lists (``file.pages.path_pages``), and profiles of samples
(``file.pages.profile_pages``).

Shapes: n tokens, P paths, S steps, M modules, D = S·M, V = S·K visits of a token.
"""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.compiled.loops import ready
from tokenpaths.engine.store.file.columns import MEMBER_SQL, MEMBERS, PATH_TABLE, PATHS, TABLE
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS
from tokenpaths.engine.store.file.pages.path_pages import (
    PAGE_PATHS,
    PAGES_AT_ONCE,
    TOP_ROWS,
    WORK_COLUMNS,
    encode_ranks,
    with_ribbons,
)
from tokenpaths.engine.store.file.pages.profile_pages import Page, encode_page, page_samples
from tokenpaths.engine.store.file.pages.ribbon_planes import encode_planes, id_bits, pack_planes, plane_rows
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.arrow_tables import insert_columns, one_thread
from tokenpaths.engine.store.write.path_dictionary import PathDictionary

MOST_LABELS = 64
"""number of labels with a sealed list, those with the most tokens"""
_ROW = "rank, ribbon, count, cdf, compute, reuse, top_label, top_label_share"
LEAST_TOKENS = 100_000
"""minimum tokens of a run with sealed profiles: those of smaller runs are computed on demand quickly enough"""
READ_ROWS = 262_144
_ROW_BITS = np.uint64(2**32 - 1)
SORTED_TOKENS = 32 * 2**20
"""tokens that are sorted by rank in memory, eight bytes each; more are sorted by DuckDB, on the disk if need be"""
SORTED_OF_MANY_PATHS = 128 * 2**20
"""the same where most tokens have a path of their own, sixteen bytes each: DuckDB would join them with as many paths"""


def write_members(con: duckdb.DuckDBPyConnection, order: np.ndarray, num_tokens: int) -> None:
    """Fill ``member``: every token once, by the rank of its path; ``order`` (P,) is the number of each rank."""
    if num_tokens > (SORTED_OF_MANY_PATHS if 2 * len(order) > num_tokens else SORTED_TOKENS):
        con.execute(MEMBER_SQL)
        return
    rank_of = np.empty(len(order), dtype=np.uint64)
    rank_of[order] = np.arange(1, len(order) + 1, dtype=np.uint64) << np.uint64(32)
    keys = np.empty(num_tokens, dtype=np.uint64)
    done = 0
    for batch in con.execute(f"SELECT rowid, path_id FROM {TABLE}").to_arrow_reader(READ_ROWS):
        rows, path_ids = (batch.column(name).to_numpy() for name in ("rowid", "path_id"))
        keys[done : done + len(rows)] = rank_of[path_ids] | rows.astype(np.uint64)
        done += len(rows)
    keys.sort()
    con.execute(f"CREATE TABLE {MEMBERS} (rank INTEGER, row BIGINT)")
    with one_thread(con):
        for start in range(0, num_tokens, CHUNK_ROWS):
            part = keys[start : start + CHUNK_ROWS]
            columns = {"rank": (part >> np.uint64(32)).astype(np.int32), "row": (part & _ROW_BITS).astype(np.int64)}
            insert_columns(con, MEMBERS, columns)


def write_pages(con: duckdb.DuckDBPyConnection, layout: Layout, book: PathDictionary, order: np.ndarray) -> None:
    """Fill ``path_page`` and ``path_planes``; ``order`` (P,) is the number of each rank.

    Ribbons by number only where tokens have no ids; by rank as ``plane_rows``.
    """
    rank_of = np.empty(len(order), dtype="<i4")
    rank_of[order] = np.arange(1, len(order) + 1, dtype=np.int32)
    at_once = PAGES_AT_ONCE * PAGE_PATHS
    for start in range(0, len(order), at_once):
        numbers = np.arange(start, min(start + at_once, len(order)))
        ranks = [encode_ranks(rank_of[numbers[i : i + PAGE_PATHS]], layout) for i in range(0, len(numbers), PAGE_PATHS)]
        ribbons: list[bytes | None] = [None] * len(ranks)
        if layout.by_path:
            rows = book.ribbons(numbers)
            parts = (rows[i : i + PAGE_PATHS] for i in range(0, len(numbers), PAGE_PATHS))
            ribbons = [encode_planes(part, id_bits(layout)).tobytes() for part in parts]
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

    for row in plane_rows(layout, len(order), int(np.count_nonzero(book.counts() > 1))):
        numbers = order[row.ranks(np.arange(row.num_paths)) - 1]
        insert_columns(
            con,
            "path_planes",
            {
                "first_rank": np.array([row.first_rank], dtype=np.int32),
                "num_paths": np.array([row.num_paths], dtype=np.int32),
                "planes": pa.array([pack_planes(book.ribbons(numbers), layout)], pa.binary()),
            },
        )


def write_counts(con: duckdb.DuckDBPyConnection, kind: str, counts: np.ndarray) -> None:
    """Number of paths with each count, in descending order; ``counts`` (P,) descending."""
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


def write_tops(con: duckdb.DuckDBPyConnection, layout: Layout, book: PathDictionary, order: np.ndarray) -> None:
    """Fill ``path_top`` and ``label_path`` from those of paths and ``on_path``; ``order`` (P,): number of each rank."""

    def with_ribbons(some: str) -> str:
        return _with_ribbons(con, layout, book, order, some)

    con.execute(
        f"CREATE TABLE path_top AS SELECT 'rank' AS list, NULL::INTEGER AS label_id, 0 AS place, {_ROW} "
        "FROM path LIMIT 0"
    )
    if layout.unique:  # their ribbons are those of tokens all over the file
        listed = with_ribbons(f"SELECT * FROM {PATHS} WHERE rank <= {TOP_ROWS}")
        con.execute(f"INSERT INTO path_top SELECT 'rank', NULL, rank - 1, {_ROW} FROM {listed} ORDER BY 3")
    # Equal for all, as of a log without costs: the first ranks, and no sort of millions.
    alike = " AND ".join(f"min({name}) = max({name})" for name in WORK_COLUMNS)
    (all_equal,) = con.execute(f"SELECT {alike} FROM {PATH_TABLE}").fetchall()[0]
    for measure in ("compute", "reuse"):
        equal = all_equal
        if not equal:
            (equal,) = con.execute(f"SELECT min({measure}) = max({measure}) FROM {PATHS}").fetchall()[0]
        some = f" WHERE rank <= {TOP_ROWS}" if equal else ""
        largest = f"SELECT * FROM {PATHS}{some} ORDER BY {measure} DESC, rank LIMIT {TOP_ROWS}"
        con.execute(
            f"INSERT INTO path_top SELECT '{measure}', NULL, row_number() OVER (ORDER BY {measure} DESC, rank) - 1, "
            f"{_ROW} FROM {with_ribbons(largest)} ORDER BY 3"
        )
    con.execute("CREATE TABLE label_path (label_id INTEGER, num_paths BIGINT)")
    con.execute("INSERT INTO label_path SELECT label_id, count(*) FROM on_path GROUP BY label_id ORDER BY label_id")
    rank_of = np.empty(len(order), dtype=np.int32)
    rank_of[order] = np.arange(1, len(order) + 1, dtype=np.int32)
    largest = "SELECT label_id FROM label ORDER BY num_tokens DESC, label_id LIMIT ?"
    for (label_id,) in sorted(con.execute(largest, [MOST_LABELS]).fetchall()):
        columns = con.execute("SELECT path_id, n FROM on_path WHERE label_id = ?", [label_id]).fetchnumpy()
        ranks = rank_of[columns["path_id"]]
        first = np.argsort(ranks, kind="stable")[:TOP_ROWS]
        if not len(first):
            continue
        con.execute("CREATE TEMP TABLE listed (rank INTEGER, n BIGINT, place INTEGER)")
        insert_columns(
            con,
            "listed",
            {
                "rank": ranks[first],
                "n": columns["n"][first].astype(np.int64),
                "place": np.arange(len(first), dtype=np.int32),
            },
        )
        # Paths lie in the order of ranks: without the bounds, the ribbons of all of them would be read.
        some = (
            f"SELECT place, n, path.* FROM listed JOIN {PATHS} AS path USING (rank) "
            f"WHERE path.rank BETWEEN {ranks[first[0]]} AND {ranks[first[-1]]}"
        )
        con.execute(
            f"INSERT INTO path_top SELECT 'rank', {int(label_id)}, place, rank, ribbon, n, cdf, compute, reuse, "
            f"top_label, top_label_share FROM {with_ribbons(some)} ORDER BY place"
        )
        con.execute("DROP TABLE listed")


def _with_ribbons(
    con: duckdb.DuckDBPyConnection, layout: Layout, book: PathDictionary, order: np.ndarray, some: str
) -> str:
    """``path_pages.with_ribbons``; in the layout *unique*, where their tokens lie all over the file, from ``book``."""
    if not layout.unique:
        return with_ribbons(layout, some)
    con.execute(f"CREATE OR REPLACE TEMP TABLE few AS SELECT * EXCLUDE (first_token) FROM ({some})")
    ranks = con.execute("SELECT rank FROM few ORDER BY rank").fetchnumpy()["rank"]
    ribbons = np.ascontiguousarray(book.ribbons(order[ranks - 1]))
    offsets = np.arange(0, ribbons.size + 1, layout.visits, dtype=np.int64)
    con.execute(f"CREATE OR REPLACE TEMP TABLE few_ribbon (rank INTEGER, ribbon {layout.id_type}[])")
    lists = pa.LargeListArray.from_arrays(offsets, ribbons.reshape(-1))
    insert_columns(con, "few_ribbon", {"rank": ranks, "ribbon": lists})
    return "(SELECT few.*, few_ribbon.ribbon FROM few JOIN few_ribbon USING (rank))"


MOST_CELLS = 2
"""cells of the samples' counts for each visit up to which they are counted by the compiled loop"""


class ProfilePages:
    """``profile_page`` made while batches arrive, with one page of counts in memory; as ``write_profiles``.

    ``first_sample``: of the run, for the pages of a part of it; pages begin where those of the whole run do.
    """

    def __init__(self, layout: Layout, first_sample: int = 0) -> None:
        self._layout = layout
        self._size, self._width = page_samples(layout), layout.num_steps * layout.num_modules
        self._first_V = np.repeat(np.arange(layout.num_steps, dtype=np.int64) * layout.num_modules, layout.top_k)
        self._counts = np.zeros((0, self._width), dtype=np.int64)
        self._filled = 0
        self._room = self._size - first_sample % self._size
        """samples of the page that is being filled"""
        self._pages: list[tuple[int, tuple[bytes, bytes, bytes]]] = []

    def add(self, lengths: np.ndarray, ids: np.ndarray, counted: np.ndarray | None = None) -> None:
        """Count the ids (n, S, K) of samples with these numbers of tokens; ``counted``: (B, S, M), if that is known."""
        sample_n = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        ids_nV = ids.reshape(len(ids), -1)
        compiled = ready(ids.dtype)
        if counted is None and compiled is not None and len(lengths) * self._width <= MOST_CELLS * ids.size:
            counted = np.zeros((len(lengths), ids.shape[1], self._width // ids.shape[1]), dtype=np.int64)
            compiled.count_visits(np.ascontiguousarray(ids), sample_n, counted)
        begun = 0
        while begun < len(lengths):
            if self._filled == self._room:
                self._end_page()
            count = min(len(lengths) - begun, self._room - self._filled)
            if self._filled + count > len(self._counts):
                larger = np.zeros((min(self._size, 2 * (self._filled + count)), self._width), dtype=np.int64)
                larger[: self._filled] = self._counts[: self._filled]
                self._counts = larger
            if counted is not None:
                self._counts[self._filled : self._filled + count] = counted[begun : begun + count].reshape(count, -1)
            else:
                low, high = np.searchsorted(sample_n, (begun, begun + count))
                _count(self._counts, sample_n[low:high] - begun + self._filled, ids_nV[low:high], self._first_V)
            begun += count
            self._filled += count

    def _end_page(self) -> None:
        self._pages.append((self._filled, encode_page(self._counts[: self._filled])))
        self._counts[:] = 0
        self._filled, self._room = 0, self._size

    def pages(self) -> list[tuple[int, tuple[bytes, bytes, bytes]]]:
        """Number of samples and content of each page; the first and last may be parts of one."""
        if self._filled:
            self._end_page()
        return self._pages

    def add_pages(self, pages: Iterable[tuple[int, tuple[bytes, bytes, bytes]]]) -> None:
        """Add ``pages`` of the samples that come next."""
        for num_samples, encoded in pages:
            if not self._filled and num_samples == self._size:
                self._pages.append((num_samples, encoded))
                continue
            page = Page.of((0, num_samples, *encoded), self._layout)
            counts = page.low_nD.astype(np.int64)
            counts[page.rows, page.cells] = page.counts
            self._counts = np.concatenate([self._counts[: self._filled], counts])
            self._filled += num_samples
            if self._filled == self._size:
                self._end_page()

    def write(self, con: duckdb.DuckDBPyConnection, num_tokens: int) -> None:
        """Fill ``profile_page``, if a run of ``num_tokens`` has it."""
        if num_tokens < LEAST_TOKENS:
            return
        first = 0
        for num_samples, encoded in self.pages():
            _insert_page(con, first, num_samples, encoded)
            first += num_samples


def write_profiles(con: duckdb.DuckDBPyConnection, layout: Layout, book: PathDictionary, num_samples: int) -> None:
    """Fill ``profile_page``; reads ``token`` once, by sample, with one page in memory."""
    if book.num_tokens < LEAST_TOKENS:
        return
    size, width = page_samples(layout), layout.num_steps * layout.num_modules
    first_V = np.repeat(np.arange(layout.num_steps, dtype=np.int64) * layout.num_modules, layout.top_k)
    for first in range(0, num_samples, size):
        counts = np.zeros((min(size, num_samples - first), width), dtype=np.int64)
        sql = f"SELECT sample, path_id FROM token WHERE sample >= {first} AND sample < {first + len(counts)}"
        for batch in con.execute(sql).to_arrow_reader(READ_ROWS):
            _count(
                counts,
                batch.column("sample").to_numpy().astype(np.int64) - first,
                book.ribbons(batch.column("path_id").to_numpy()),
                first_V,
            )
        _insert_page(con, first, len(counts), encode_page(counts))


def _count(counts: np.ndarray, sample_n: np.ndarray, ribbons_nV: np.ndarray, first_V: np.ndarray) -> None:
    """Add the visits of some tokens; touches only the rows from their first to their last sample."""
    if not len(sample_n):
        return
    low, high = int(sample_n.min()), int(sample_n.max()) + 1
    part, width = counts[low:high].reshape(-1), counts.shape[1]
    base_n = (sample_n - low) * width
    for visit, first in enumerate(first_V.tolist()):
        part += np.bincount(base_n + (ribbons_nV[:, visit] + np.int64(first)), minlength=len(part))


def _insert_page(
    con: duckdb.DuckDBPyConnection, first: int, num_samples: int, encoded: tuple[bytes, bytes, bytes]
) -> None:
    columns = zip(("counts", "places", "large"), encoded, strict=True)
    insert_columns(
        con,
        "profile_page",
        {
            "first_sample": np.array([first], dtype=np.int32),
            "num_samples": np.array([num_samples], dtype=np.int32),
            **{name: pa.array([value], pa.binary()) for name, value in columns},
        },
    )
