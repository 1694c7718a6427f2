"""The first pages of lists of paths that would have to be sorted or counted: by compute, by reuse, and of each label.

``path_top`` holds their first ``TOP_ROWS`` rows in the columns of an answer; what lies beyond is worked out when asked.
"""

from __future__ import annotations

import duckdb
import numpy as np

from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.write.arrow_insert import insert_columns

TOP_ROWS = 1000
MOST_LABELS = 64
"""labels with a list, those with the most tokens"""
_ROW = "rank, ribbon, path.count AS count, cdf, compute, reuse, top_label, top_label_share"


def write_tops(con: duckdb.DuckDBPyConnection, order: np.ndarray) -> None:
    """Fill ``path_top`` and ``label_path`` from ``path`` and ``on_path``; ``order`` (P,) is the number of each rank."""
    con.execute(
        f"CREATE TABLE path_top AS SELECT 'rank' AS list, NULL::INTEGER AS label_id, 0 AS place, {_ROW} "
        "FROM path LIMIT 0"
    )
    for measure in ("compute", "reuse"):
        con.execute(
            f"INSERT INTO path_top SELECT '{measure}', NULL, row_number() OVER (ORDER BY {measure} DESC, rank) - 1, * "
            f"FROM (SELECT {_ROW} FROM path ORDER BY {measure} DESC, rank LIMIT {TOP_ROWS}) ORDER BY 3"
        )
    con.execute("CREATE TABLE label_path (label_id INTEGER, num_paths BIGINT)")
    con.execute("INSERT INTO label_path SELECT label_id, count(*) FROM on_path GROUP BY label_id ORDER BY label_id")
    rank_of = np.empty(len(order), dtype=np.int32)
    rank_of[order] = np.arange(1, len(order) + 1, dtype=np.int32)
    largest = "SELECT label_id FROM label ORDER BY num_tokens DESC, label_id LIMIT ?"
    for (label_id,) in sorted(con.execute(largest, [MOST_LABELS]).fetchall()):
        found = con.execute("SELECT path_id, n FROM on_path WHERE label_id = ?", [label_id]).fetchnumpy()
        ranks = rank_of[found["path_id"]]
        first = np.argsort(ranks, kind="stable")[:TOP_ROWS]
        con.execute("CREATE TEMP TABLE listed (rank INTEGER, n BIGINT, place INTEGER)")
        insert_columns(
            con,
            "listed",
            {
                "rank": ranks[first],
                "n": found["n"][first].astype(np.int64),
                "place": np.arange(len(first), dtype=np.int32),
            },
        )
        con.execute(
            f"INSERT INTO path_top SELECT 'rank', {int(label_id)}, place, rank, ribbon, n, cdf, compute, reuse, "
            "top_label, top_label_share FROM listed JOIN path USING (rank) ORDER BY place"
        )
        con.execute("DROP TABLE listed")


def top_paths(order: str, label_id: int | None, limit: int, offset: int) -> Query | None:
    """As ``queries.all_paths``, from the sealed list; None beyond its end."""
    if offset + limit > TOP_ROWS:
        return None
    return Query(
        "SELECT rank, ribbon, count, cdf, compute, reuse, top_label, top_label_share FROM path_top "
        "WHERE list = ? AND label_id IS NOT DISTINCT FROM ? AND place BETWEEN ? AND ? ORDER BY place",
        (order, label_id, offset, offset + limit - 1),
    )


def paths_of_label(label_id: int) -> Query:
    """num_paths, and whether the label has a list."""
    return Query(
        "SELECT num_paths, EXISTS (SELECT 1 FROM path_top WHERE label_id = label_path.label_id) FROM label_path "
        "WHERE label_id = ?",
        (label_id,),
    )
