"""What is counted while batches arrive, or by hashes, is what is counted from the finished tables one by one."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.compiled_loops import run_loops
from tokenpaths.engine.analysis.path_statistics import independent_steps, sorted_slots
from tokenpaths.engine.base.records import SampleRecord
from tokenpaths.engine.store.file.flow_counter import FlowCounter
from tokenpaths.engine.store.file.pages import profile_pages
from tokenpaths.engine.store.file.schema import ALL_LABELS, Layout
from tokenpaths.engine.store.write import seal_nulls, seal_pages
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, distinct_paths, one_thread
from tokenpaths.engine.store.write.flows import while_writing
from tokenpaths.engine.store.write.flows.while_writing import EvenFlows, Visits
from tokenpaths.engine.store.write.path_dictionary import PathDictionary
from tokenpaths.engine.store.write.seal_pages import ProfilePages, write_members, write_profiles

LAYOUTS = [Layout(6, 4, 20), Layout(1, 2, 5), Layout(4, 3, 7), Layout(3, 2, 300)]


def batch(layout: Layout, lengths: list[int], seed: int, level: int = 32) -> CompactBatch:
    n = sum(lengths)
    shape = (n, layout.num_steps, layout.num_modules)
    ids = np.random.default_rng(seed).random(shape).argsort(2)[:, :, : layout.top_k].astype(layout.id_dtype)
    nothing = np.zeros(n, dtype=np.float32)
    weights = np.full((n, layout.visits), level, dtype=np.uint8)
    return CompactBatch([SampleRecord(length) for length in lengths], ids, weights, nothing, {}, nothing, None, {}, {})


def tables() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TABLE flow (step INT, source INT, target INT, count DOUBLE, weight DOUBLE, label_id INT)")
    con.execute("CREATE TABLE usage (step INT, module INT, count BIGINT, weight DOUBLE, label_id INT)")
    con.execute("CREATE TABLE profile_page (first_sample INT, num_samples INT, counts BLOB, places BLOB, large BLOB)")
    con.execute("CREATE TABLE null_usage (kind VARCHAR, step INT, module INT, count BIGINT)")
    return con


WAYS = ["numpy", "interpreted", "compiled"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", [32, 0])
@pytest.mark.parametrize("layout", [*LAYOUTS, Layout(3, 8, 130)])
def test_even_flows_are_those_of_the_chunked_counter(
    layout: Layout, level: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loops(way, monkeypatch)
    monkeypatch.setattr(while_writing, "EVEN_ROWS", 50)
    batches = [batch(layout, [60, 1, 90], 1, level), batch(layout, [70], 2, level), batch(layout, [5, 6], 3, level)]
    labels = [np.array([0, -1, 1]), np.array([1]), np.array([-1, 0])]
    counted: EvenFlows | None = EvenFlows(layout)
    for of_batch, one in zip(labels, batches, strict=True):
        assert counted is not None
        counted = counted.add(of_batch, one)
    con = tables()
    assert counted is not None
    counted.write(con)
    ids = np.concatenate([one.ids for one in batches])
    label_n = np.concatenate([np.repeat(a, one.lengths) for a, one in zip(labels, batches, strict=True)])
    for label in (ALL_LABELS, 0, 1):
        naive = FlowCounter(layout, range(layout.num_steps - 1))
        own = ids if label == ALL_LABELS else ids[label_n == label]
        naive.add(own, np.full(own.shape, level, dtype=np.uint8))
        for table, keys, rows in (("flow", 3, naive.flow_rows()), ("usage", 2, naive.usage_rows())):
            found = con.execute(f"SELECT * EXCLUDE (label_id) FROM {table} WHERE label_id = {label}").fetchall()
            assert [row[: keys + 1] for row in found] == [row[: keys + 1] for row in rows]
            assert np.allclose([row[-1] for row in found], [row[-1] for row in rows], rtol=1e-9, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", [Layout(5, 1, 6, by_path=True), Layout(4, 1, 6, by_path=True, unused_from=4)])
def test_chains_of_one_slot_are_those_of_the_chunked_counter(
    layout: Layout, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loops(way, monkeypatch)
    visits, labels = Visits(layout), [np.array([0, -1, 1]), np.array([1])]
    batches = [batch(layout, [60, 1, 90], 1), batch(layout, [70], 2)]
    naive = FlowCounter(layout, range(layout.num_steps - 1))
    for of_batch, one in zip(labels, batches, strict=True):
        one.weights[:] = np.random.default_rng(len(of_batch)).integers(0, 256, one.weights.shape)
        assert visits.add(of_batch, one) is visits
        naive.add(one.ids, one.weights.reshape(one.ids.shape))
    total = visits.total()
    assert sorted(visits.by_label) == [-1, 0, 1]
    assert total.tokens.tolist() == naive.usage_count.tolist()
    assert np.allclose(total.levels / layout.weights.whole, naive.usage_weight, rtol=1e-9)
    step, source, target = np.nonzero(total.links)
    links = zip(step.tolist(), source.tolist(), target.tolist(), total.links[step, source, target], strict=True)
    assert sorted(links) == sorted(row[:4] for row in naive.flow_rows())
    assert visits.by_label[0].tokens.sum() == 60 * layout.num_steps


@pytest.mark.parametrize("way", WAYS)
def test_distinct_paths_of_samples_are_counted_in_every_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_loops(way, monkeypatch)
    lengths = np.array([1, 40, 3, 300, 2])
    for most in (1, 7, 2**31):
        path_ids = np.random.default_rng(0).integers(0, most, lengths.sum()).astype(np.int32)
        wanted = [len(np.unique(part)) for part in np.split(path_ids, np.cumsum(lengths)[:-1])]
        assert distinct_paths(path_ids, lengths).tolist() == wanted
    assert distinct_paths(np.arange(346, dtype=np.int32), lengths).tolist() == lengths.tolist()


def test_weights_that_differ_are_left_to_the_sealing() -> None:
    layout = LAYOUTS[0]
    first = batch(layout, [10], 1)
    first.weights[3, 4] = 7
    assert EvenFlows(layout).add(np.array([0]), first) is None
    counted = EvenFlows(layout).add(np.array([0]), batch(layout, [10], 1, level=30))
    assert counted is not None
    assert counted.add(np.array([0]), batch(layout, [10], 1, level=31)) is None


@pytest.mark.parametrize("way", WAYS)
def test_profiles_counted_on_the_way_are_those_of_the_tokens(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_loops(way, monkeypatch)
    monkeypatch.setattr(profile_pages, "PAGE_SAMPLES", 4)
    monkeypatch.setattr(profile_pages, "LARGEST", {1: 3, 2: 5})
    monkeypatch.setattr(seal_pages, "LEAST_TOKENS", 1)
    layout = LAYOUTS[2]
    pages, book = ProfilePages(layout), PathDictionary(layout.id_dtype)
    on_the_way, afterwards = tables(), tables()
    afterwards.execute("CREATE TABLE token (sample INT, path_id INT)")
    monkeypatch.setattr(while_writing, "EVEN_ROWS", 5)
    monkeypatch.setattr(while_writing, "MOST_BESIDE", 1)
    lengths = [[9, 2], [1], [3, 3, 3, 8, 1, 1, 40], [2, 2]]
    flows, by_products = EvenFlows(layout), []
    first = 0
    for number, of_batch in enumerate(lengths):
        one = batch(layout, of_batch, number)
        assert flows.add(np.arange(len(of_batch)) % 3 - 1, one) is not None
        by_products.append(flows.of_samples is not None)
        pages.add(one.lengths, one.ids, flows.of_samples)
        path_ids, _ = book.add(one.ids)
        samples = np.repeat(np.arange(first, first + len(of_batch)), one.lengths)
        afterwards.executemany("INSERT INTO token VALUES (?, ?)", np.stack([samples, path_ids], axis=1).tolist())
        first += len(of_batch)
    pages.write(on_the_way, book.num_tokens)
    write_profiles(afterwards, layout, book, first)
    sql = "SELECT * FROM profile_page ORDER BY first_sample"
    assert on_the_way.execute(sql).fetchall() == afterwards.execute(sql).fetchall()
    assert len(on_the_way.execute(sql).fetchall()) == 3
    assert by_products == [True, False, True, False]  # long samples and short ones


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("times_each", [3, 1])
@pytest.mark.parametrize("layout", [Layout(3, 1, 4), Layout(4, 2, 5), Layout(2, 3, 300)])
def test_the_null_by_hashes_is_the_null_of_ribbons(
    layout: Layout, times_each: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loops(way, monkeypatch)
    book = PathDictionary(layout.id_dtype, tmp_path)
    book.add(batch(layout, [400], 5).ids)
    chosen = np.arange(0, book.num_paths, 2)
    times = np.arange(len(chosen)) % times_each + 1
    counts, used = seal_nulls._independent(layout, book, chosen, times)
    naive = PathDictionary(layout.id_dtype, tmp_path)
    shuffled = independent_steps(book.ribbons(chosen), times, layout.num_steps, seal_nulls.NULL_SEED)
    naive.add(shuffled)
    assert sorted(counts.tolist()) == sorted(naive.counts().tolist())
    assert counts.sum() == times.sum()
    for step in range(layout.num_steps):
        assert used[step].tolist() == np.bincount(shuffled[:, step].reshape(-1), minlength=layout.num_modules).tolist()


def test_sorted_slots_that_are_known_count_as_the_others() -> None:
    layout, one = LAYOUTS[0], batch(LAYOUTS[0], [30, 40], 8)
    plain, told = PathDictionary(layout.id_dtype), PathDictionary(layout.id_dtype)
    assert plain.add(one.ids)[0].tolist() == told.add(one.ids, sorted_slots(one.ids))[0].tolist()


@pytest.mark.parametrize("paths", [1, 7, 500])
def test_members_sorted_in_memory_are_those_sorted_by_duckdb(paths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(paths)
    path_ids = rng.integers(paths, size=500) if paths < 500 else rng.permutation(500)
    order = rng.permutation(paths)
    found = []
    for most in (500, 499):
        monkeypatch.setattr(seal_pages, "SORTED_TOKENS", most)
        monkeypatch.setattr(seal_pages, "SORTED_OF_MANY_PATHS", most)
        monkeypatch.setattr(seal_pages, "CHUNK_ROWS", 64)
        con = duckdb.connect()
        con.execute("CREATE TABLE token_coded AS SELECT unnest(?)::INTEGER AS path_id", [path_ids.tolist()])
        con.execute(
            "CREATE TABLE path_coded AS SELECT unnest(?)::INTEGER AS path_id, unnest(?)::INTEGER AS rank",
            [order.tolist(), list(range(1, paths + 1))],
        )
        write_members(con, order, 500)
        rows = con.execute("SELECT * FROM member").fetchall()
        found.append((rows, [column[:2] for column in con.description or ()]))
    assert found[0] == found[1]
    assert len(found[0][0]) == 500


def test_one_thread_is_left_as_many_as_before() -> None:
    con = duckdb.connect(config={"threads": 3})

    def threads() -> list[tuple[int, ...]]:
        return con.execute("SELECT current_setting('threads')").fetchall()

    with one_thread(con):
        assert threads() == [(1,)]
    assert threads() == [(3,)]
    with pytest.raises(ZeroDivisionError), one_thread(con):
        raise ZeroDivisionError
    assert threads() == [(3,)]
