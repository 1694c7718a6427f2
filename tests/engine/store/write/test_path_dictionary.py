"""The dictionary of paths and the counting of packed ribbons against their naive twins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.compiled_loops import run_loops
from tests.support.runs import make
from tokenpaths.engine.analysis.compiled import loops
from tokenpaths.engine.analysis.path_statistics import (
    canonical,
    rank_order,
    sorted_and_repeats,
    sorted_slots,
    steps_with_repeats,
)
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.flow_counter import FlowCounter
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write import path_dictionary
from tokenpaths.engine.store.write.first_rows import FirstSeen, first_rows_of_paths
from tokenpaths.engine.store.write.flows.packed_flows import PackedFlows, fits
from tokenpaths.engine.store.write.path_dictionary import HashIndex, PathDictionary, RowFile, word_hashes


def some_batches(modules: int, steps: int, top_k: int, seed: int = 0) -> list[np.ndarray]:
    """Nine batches of 50 ribbons: some frequent, some that occur once, in several batches."""
    rng = np.random.default_rng(seed)
    known = rng.random((40, steps, modules)).argsort(2)[:, :, :top_k]
    batches = []
    for _ in range(9):
        ids = known[rng.zipf(1.4, 50) % 40].copy()
        stray = rng.random(50) < 0.3
        ids[stray, -1] = rng.random((stray.sum(), modules)).argsort(1)[:, :top_k]
        batches.append(ids)
    return batches


LAYOUTS = [
    (np.dtype(np.uint8), 12, 3, 2),
    (np.dtype("<u2"), 600, 5, 3),
    (np.dtype(np.uint8), 5, 1, 1),
    (np.dtype(np.uint8), 64, 16, 8),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("memory_bytes", [1 << 26, 100])
@pytest.mark.parametrize("hash_bits", [64, 3])
@pytest.mark.parametrize("way", ["numpy", "interpreted", "compiled", "compiled later"])
def test_paths_are_numbered_counted_and_ranked_as_by_sorting_whole_ribbons(
    layout, memory_bytes: int, hash_bits: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_loops(way.split()[0], monkeypatch)
    if way == "compiled later":
        monkeypatch.setattr(loops, "LEAST_TOKENS", 200)
    monkeypatch.setattr(path_dictionary, "MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(path_dictionary, "TAKE_ROWS", 37)
    mask = np.uint64(2**hash_bits - 1)
    monkeypatch.setattr(path_dictionary, "word_hashes", lambda rows: word_hashes(rows) & mask)
    id_dtype, modules, steps, top_k = layout
    batches = some_batches(modules, steps, top_k)
    book = PathDictionary(id_dtype, tmp_path)
    path_ids = np.concatenate([book.add(ids)[0] for ids in batches])
    rows = canonical(np.concatenate(batches).astype(id_dtype))
    distinct, kind, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    assert book.num_paths == len(distinct)
    assert np.array_equal(book.ribbons(path_ids), rows)
    assert np.array_equal(book.counts()[path_ids], counts[kind.reshape(-1)])
    assert np.array_equal(book.ranked(), rank_order(book.ribbons(), book.counts()))
    assert os.listdir(tmp_path) == []  # what lies on the disk has no name


def test_new_ribbons_come_back_once_in_the_order_of_their_numbers():
    book = PathDictionary(np.dtype(np.uint8))
    new = [book.add(ids)[1] for ids in some_batches(12, 3, 2)]
    assert np.array_equal(np.concatenate(new), book.ribbons())


@pytest.mark.parametrize("way", ["numpy", "interpreted", "compiled"])
def test_new_paths_are_numbered_in_the_order_of_the_tokens(way: str, monkeypatch: pytest.MonkeyPatch):
    run_loops(way, monkeypatch)
    book, met = PathDictionary(np.dtype(np.uint8)), {}
    strangers = np.random.default_rng(1).random((60, 3, 12)).argsort(2)[:, :, :5]
    for ids in (strangers[:40], *some_batches(12, 3, 5), strangers[40:], strangers[30:50]):
        path_ids, _ = book.add(ids)
        rows = canonical(ids.astype(np.uint8)).tolist()
        assert path_ids.tolist() == [met.setdefault(tuple(row), len(met)) for row in rows]


@pytest.mark.parametrize("top_k", [1, 2, 3, 7, 8, 16])
def test_the_sorting_network_sorts(top_k: int):
    ids = np.random.default_rng(top_k).integers(0, 300, (50, 3, top_k))
    assert np.array_equal(sorted_slots(ids), canonical(ids))
    many = np.random.default_rng(top_k).integers(0, 9, (40_000, 2, top_k), dtype=np.uint8)
    assert np.array_equal(sorted_slots(many), canonical(many))


@pytest.mark.parametrize("way", ["numpy", "interpreted", "compiled"])
@pytest.mark.parametrize(("modules", "top_k", "kind"), [(64, 8, np.uint8), (64, 3, np.uint16), (200, 8, np.uint8)])
def test_slots_are_sorted_and_repeats_found_in_every_way(
    modules: int, top_k: int, kind: type, way: str, monkeypatch: pytest.MonkeyPatch
):
    run_loops(way, monkeypatch)
    ids = np.random.default_rng(0).random((70, 4, modules)).argsort(2)[:, :, :top_k].astype(kind)
    ordered, twice = sorted_and_repeats(ids)
    assert np.array_equal(ordered, canonical(ids))
    assert twice is None
    assert np.array_equal(sorted_slots(ids[:, ::2]), canonical(ids[:, ::2]))
    ids[50, 2, 1] = ids[50, 2, 2]
    ordered, twice = sorted_and_repeats(ids)
    assert np.array_equal(ordered, canonical(ids))
    assert twice is not None
    assert np.argwhere(twice).tolist() == [[50, 2]]


def test_without_numba_or_where_it_fails_numpy_does_the_work(monkeypatch: pytest.MonkeyPatch):
    kind = np.dtype(np.uint8)
    monkeypatch.setattr(loops, "_READY", {})
    assert loops.loops(kind, loops.LEAST_TOKENS - 1) is None
    assert loops.ready(kind) is None
    monkeypatch.setattr(loops, "find_spec", lambda name: None)
    assert loops.loops(kind, loops.LEAST_TOKENS) is None
    monkeypatch.setattr(loops, "_READY", {})
    monkeypatch.setattr(loops, "find_spec", lambda name: "there")
    monkeypatch.setitem(sys.modules, "numba", None)  # its import fails
    assert loops.loops(kind, loops.LEAST_TOKENS) is None
    assert loops.ready(kind) is None


def test_machine_code_is_made_where_no_folder_can_keep_it(monkeypatch: pytest.MonkeyPatch):
    numba = pytest.importorskip("numba", reason="the extra 'fast' is not installed")
    plain = numba.njit

    def njit(*arguments: object, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return plain(*arguments)

    monkeypatch.setattr(numba, "njit", njit)
    made = loops._compiled(np.dtype(np.uint8))
    assert made is not None
    visits = np.zeros((1, 1, 4), dtype=np.int64)
    made.count_visits(np.array([[[3, 1]]], dtype=np.uint8), np.zeros(1, dtype=np.int64), visits)
    assert visits.tolist() == [[[0, 1, 0, 1]]]


@pytest.mark.parametrize("top_k", [1, 2, 3, 8])
def test_steps_that_hold_an_id_twice_are_found(top_k: int):
    rng = np.random.default_rng(top_k)
    drawn = np.sort(rng.integers(0, 3 * top_k**2, (200, 4, top_k)), axis=2)
    apart = np.broadcast_to(np.arange(top_k), drawn.shape)  # every step ends where the next one begins, for K = 1
    naive = np.array([[len({*step}) < top_k for step in ribbon] for ribbon in drawn.tolist()])
    found = steps_with_repeats(drawn.reshape(200, -1), top_k)
    assert np.array_equal(found, naive) if top_k > 1 else found is None
    assert steps_with_repeats(apart.reshape(200, -1), top_k) is None


def test_rows_that_differ_in_one_byte_have_different_hashes():
    rows = np.zeros((1 + 20 * 255, 20), dtype=np.uint8)
    for column in range(20):
        rows[1 + column * 255 : 1 + (column + 1) * 255, column] = np.arange(1, 256)
    assert len(np.unique(word_hashes(rows))) == len(rows)


def test_the_index_finds_what_was_entered_and_nothing_else():
    rng = np.random.default_rng(0)
    index, known = HashIndex(), {}
    for size in (1, 500, 3, 3, 40, 1000, 2):
        hashes = np.setdiff1d(rng.integers(0, 5000, size).astype(np.uint64), np.array([*known], dtype=np.uint64))
        numbers = np.arange(len(known), len(known) + len(hashes), dtype=np.int32)
        index.add(hashes, numbers)
        known |= dict(zip(hashes.tolist(), numbers.tolist(), strict=True))
    asked = np.arange(5000, dtype=np.uint64)
    assert index.find(asked).tolist() == [known.get(i, -1) for i in range(5000)]


def test_rows_go_to_the_disk_where_they_are_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(path_dictionary, "MEMORY_BYTES", 10)
    rows = RowFile(np.dtype(np.uint8), tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        rows.append(np.ones((6, 2), dtype=np.uint8))


@pytest.mark.parametrize("levels", ["different", "even", "nothing"])
@pytest.mark.parametrize("layout", [Layout(6, 4, 20), Layout(3, 2, 300), Layout(1, 2, 5)])
def test_products_count_what_the_chunked_counter_counts(layout: Layout, levels: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.store.write.flows.packed_flows.BLOCK_ROWS", 64)
    rng = np.random.default_rng(1)
    shape = (200, layout.num_steps, layout.num_modules)
    ids = rng.random(shape).argsort(2)[:, :, : layout.top_k].astype(layout.id_dtype)
    some = {"different": rng.integers(0, 256, ids.shape), "even": np.full(ids.shape, 32), "nothing": 0 * ids}
    fast, naive = PackedFlows(layout), FlowCounter(layout, range(layout.num_steps - 1))
    for counter in (fast, naive):
        counter.add(ids, some[levels].astype(np.uint8))
    links = list(zip(*(column.tolist() for column in fast.flow_arrays().values()), strict=True))
    for one, other in ((links, naive.flow_rows()), (fast.usage_rows(), naive.usage_rows())):
        assert [row[:-1] for row in one] == [row[:-1] for row in other]
        assert np.allclose([row[-1] for row in one], [row[-1] for row in other], rtol=1e-9, atol=0)


def test_labels_counted_in_several_passes_are_those_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = make("one", "text", samples=9, steps=9, modules=12, top_k=8)
    assert fits(Layout(9, 8, 12))
    with Run.open(made.write(tmp_path)) as run:
        labels = [None, *(row["label"] for row in run.info()["labels"])]
        assert len(labels) == 4
        once = [(run.flow(label=label), run.usage(label=label)) for label in labels]
    monkeypatch.setattr("tokenpaths.engine.store.write.flows.packed_flows.labels_at_once", lambda layout: 2)
    with Run.open(made.write(tmp_path, overwrite=True)) as run:
        assert [(run.flow(label=label), run.usage(label=label)) for label in labels] == once


@pytest.mark.parametrize("parts", [[40], [1, 39], [7, 7, 26]])
def test_rows_of_first_tokens_are_those_of_a_loop(parts: list[int]) -> None:
    rng = np.random.default_rng(8)
    ids = np.sort(rng.choice(9, (40, 2, 2)), axis=2).astype(np.uint8)
    ids[:, :, 1] += 9
    ids[30:35] = ids[:5]
    book, seen = PathDictionary(np.dtype(np.uint8)), FirstSeen()
    path_ids: list[int] = []
    for start, size in zip(np.cumsum([0, *parts]).tolist(), parts, strict=False):
        numbers, _ = book.add(ids[start : start + size])
        seen.add(numbers)
        path_ids += numbers.tolist()
    assert seen.num_tokens == 40
    assert seen.num_first == book.num_paths < 40
    assert seen.rows().tolist() == [path_ids.index(path) for path in range(book.num_paths)]
    with duckdb.connect() as con:
        con.execute("CREATE TABLE token_coded AS SELECT unnest(?)::INTEGER AS path_id", [path_ids])
        layout = Layout(40, 2, 20)
        for told in (seen, FirstSeen()):
            rows = first_rows_of_paths(con, layout, book, told)
            assert rows is not None
            assert rows.tolist() == seen.rows().tolist()
        assert first_rows_of_paths(con, Layout(2, 2, 20), book, seen) is None
        # Numbered in another order, as where two ribbons have one hash.
        con.execute("UPDATE token_coded SET path_id = CASE path_id WHEN 0 THEN 1 WHEN 1 THEN 0 ELSE path_id END")
        assert first_rows_of_paths(con, layout, book, FirstSeen()) is None
