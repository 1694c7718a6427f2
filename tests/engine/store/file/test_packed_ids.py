"""Packed ids against whole numbers of Python, in every width; their SQL against both."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from tokenpaths.engine.store.file import packed_ids
from tokenpaths.engine.store.file.packed_ids import chooses_sql, id_sql, pack, ribbon_sql, unpack
from tokenpaths.engine.store.file.schema import Layout

LAYOUTS = [
    Layout(16, 8, 64),
    Layout(9, 8, 12),
    Layout(9, 9, 200),
    Layout(9, 8, 256),
    Layout(13, 6, 257),
    Layout(7, 10, 512),
    Layout(70, 1, 2),
    Layout(65, 1, 1),
    Layout(5, 14, 65_536),
]


def some_ids(layout: Layout, n: int = 50) -> np.ndarray:
    ids = np.random.default_rng(0).integers(0, layout.num_modules, (n, layout.visits))
    ids[0], ids[1] = 0, layout.num_modules - 1
    return ids.astype(layout.id_dtype)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_words_hold_the_ids_from_the_lowest_bits_on(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed_ids, "ROWS_AT_ONCE", 7)
    ids, size = some_ids(layout), layout.id_bits
    column = pack(ids, layout)
    naive = [
        [
            sum(int(i) << (place * size) for place, i in enumerate(row[start : start + layout.ids_in_word]))
            for start in range(0, layout.visits, layout.ids_in_word)
        ]
        for row in ids
    ]
    assert column.to_pylist() == naive
    assert {len(words) for words in naive} == {layout.num_words}
    rows = [tuple(words) for words in naive]
    objects = np.array([None] * len(rows))
    objects[:] = [np.array(words, dtype=np.uint64) for words in rows]
    for given in (
        column,
        column[3:],
        pa.chunked_array([column[:20], column[20:]]),
        rows,
        objects,
        np.array(naive, "<u8"),
    ):
        read = unpack(given, layout)
        assert read.dtype == layout.id_dtype
        assert np.array_equal(read, ids[len(ids) - len(given) :])
    assert unpack([], layout).shape == (0, layout.visits)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sql_reads_the_same(layout: Layout):
    ids = some_ids(layout)
    con = duckdb.connect()
    con.register("given", pa.table({"place": np.arange(len(ids)), "ids": pack(ids, layout)}))
    con.execute(f"CREATE TABLE token AS SELECT place, ids::UBIGINT[{layout.num_words}] AS ids FROM given")
    for visit in {0, layout.visits // 2, layout.visits - 1}:
        for expression in (visit, f"{visit}::BIGINT"):
            read = con.execute(f"SELECT {id_sql(layout, expression)} FROM token ORDER BY place").fetchall()
            assert [row[0] for row in read] == ids[:, visit].tolist()
    canonical = np.sort(ids.reshape(len(ids), layout.num_steps, layout.top_k), axis=2).reshape(len(ids), -1)
    read = con.execute(f"SELECT {ribbon_sql(layout, 't.ids')} FROM token AS t ORDER BY place").fetchall()
    assert [row[0] for row in read] == canonical.tolist()
    step, module = layout.num_steps - 1, int(ids[5, -1])
    chosen = con.execute(
        f"SELECT place FROM token WHERE {chooses_sql(layout, step)} ORDER BY place", [module] * layout.top_k
    ).fetchall()
    assert [row[0] for row in chosen] == np.flatnonzero((ids[:, -layout.top_k :] == module).any(axis=1)).tolist()
    assert (5,) in chosen


def test_ids_take_as_few_bits_as_the_file_allows():
    def stored(layout: Layout) -> int:
        width = layout.ids_in_word * layout.id_bits
        return layout.num_words * (width if width <= 56 else 64)

    assert stored(Layout(16, 8, 64)) == 16 * 48  # not 13 words of 60 bits, which would be stored as 64
    assert stored(Layout(48, 8, 128)) == 48 * 56
    assert stored(Layout(58, 8, 256)) == 58 * 64
