"""The compiled loops against their twins in NumPy, at ids, rows and sizes where they could part."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compiled_loops import run_comparisons, run_loops
from tokenpaths.engine.adapters.logs.layer_patterns import LayerSets
from tokenpaths.engine.analysis import path_statistics
from tokenpaths.engine.analysis.compiled import comparisons, loops
from tokenpaths.engine.analysis.compiled.lanes import LANES, ROWS_OF_EIGHT, add_bits, lowest_bit, sort_rows, teach
from tokenpaths.engine.base.records import SampleRecord
from tokenpaths.engine.store.ask.tables.near_paths import DistancesInPlanes, Planes
from tokenpaths.engine.store.file.packed_ids import pack, unpack
from tokenpaths.engine.store.file.pages.profile_pages import Page
from tokenpaths.engine.store.file.pages.ribbon_planes import PlaneRow
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write import arrow_tables

WAYS = ["interpreted", "compiled"]
RNG = np.random.default_rng(3)


def choices(num_tokens: int, steps: int, modules: int, top_k: int) -> np.ndarray:
    kind = np.uint8 if modules <= 256 else np.uint16
    ids = RNG.random((num_tokens, steps, modules)).argsort(axis=2)[:, :, :top_k].astype(kind)
    return np.ascontiguousarray(ids)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("modules", "top_k"), [(64, 8), (65, 8), (256, 8), (64, 7), (300, 8), (12, 2)])
def test_slots_are_sorted_and_repeats_are_found(
    modules: int, top_k: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = choices(41, 3, modules, top_k)  # 123 rows: eight at a time, and three
    twice, last = ids.copy(), ids.copy()
    twice[31, 1, 1] = twice[31, 1, 0]
    last[-1, -1, -1] = last[-1, -1, 0]
    for rows in (ids, twice, last):
        run_loops("numpy", monkeypatch)
        expected, expected_repeats = path_statistics.sorted_and_repeats(rows)
        run_loops(way, monkeypatch)
        found, repeats = path_statistics.sorted_and_repeats(rows)
        assert np.array_equal(found, expected)
        assert (repeats is None) == (expected_repeats is None) == (rows is ids)
        assert repeats is None or np.array_equal(repeats, expected_repeats)


def test_rows_that_begin_at_any_byte_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    run_loops("compiled", monkeypatch)
    ids, layout = choices(30, 9, 64, 8), Layout(9, 8, 64)
    for start in range(9):
        held = np.frombuffer(bytes(start) + ids.tobytes(), dtype=np.uint8)[start:].reshape(ids.shape)
        assert np.array_equal(path_statistics.sorted_slots(held), path_statistics.canonical(ids))
        assert np.array_equal(unpack(pack(held.reshape(30, -1), layout), layout), ids.reshape(30, -1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [8, 10, 128])
def test_hashes_of_rows_are_the_same(width: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RNG.integers(0, 256, (20, width), dtype=np.uint8)
    run_loops("numpy", monkeypatch)
    expected = path_statistics.word_hashes(rows)
    run_loops(way, monkeypatch)
    assert np.array_equal(path_statistics.word_hashes(rows), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("modules", [2, 10, 64, 128])
def test_ids_are_packed_to_the_same_words(modules: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(16, 8, modules)
    ids = RNG.integers(0, modules, (20, layout.visits), dtype=np.uint8)
    run_loops("numpy", monkeypatch)
    expected = pack(ids, layout)
    run_loops(way, monkeypatch)
    assert pack(ids, layout).equals(expected)
    assert np.array_equal(unpack(pack(ids, layout), layout), ids)


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_sets_go_on_where_numpy_ended(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = RNG.integers(0, 2**64, (2, 25, 5), dtype=np.uint64)
    parts[:, :, 4] = parts[:, :, 1]
    run_loops("numpy", monkeypatch)
    by_numpy = LayerSets(5)
    expected = [by_numpy.add(rows, None) for rows in parts]
    mixed = LayerSets(5)
    found = [mixed.add(parts[0], None)]
    run_loops(way, monkeypatch)
    found.append(mixed.add(parts[1], None))
    assert np.array_equal(found, expected)
    assert mixed.equal(8) == by_numpy.equal(8) == {frozenset({1, 4})}


def links_by_hand(ids: np.ndarray, modules: int) -> np.ndarray:
    links = np.zeros((ids.shape[1] - 1, modules, modules), dtype=np.int64)
    for step in range(len(links)):
        for source in range(ids.shape[2]):
            for target in range(ids.shape[2]):
                np.add.at(links[step], (ids[:, step, source], ids[:, step + 1, target]), 1)
    return links


@pytest.mark.parametrize(
    ("num_tokens", "modules", "top_k"), [(1, 64, 8), (loops.BLOCK_TOKENS + 1, 65, 3), (300, 200, 8), (300, 300, 5)]
)
def test_links_of_many_modules_are_counted(
    num_tokens: int, modules: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loops("compiled", monkeypatch)
    ids = choices(num_tokens, 3, modules, top_k)
    compiled = loops.ready(ids.dtype)
    assert compiled is not None
    links = np.ones((2, modules, modules), dtype=np.int64)
    compiled.count_links(ids, links)
    assert np.array_equal(links - 1, links_by_hand(ids, modules))


def test_a_link_of_every_token_is_counted_beyond_two_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    run_loops("compiled", monkeypatch)
    num_tokens = loops.MOST_BLOCKS * loops.BLOCK_TOKENS + 300
    ids = np.tile(np.array([[63, 0], [0, 63]], dtype=np.uint8), (num_tokens, 1, 1))
    compiled, links = loops.ready(ids.dtype), np.zeros((1, 64, 64), dtype=np.int64)
    assert compiled is not None
    compiled.count_links(ids, links)
    assert links.sum() == 4 * num_tokens
    assert set(links[links > 0].tolist()) == {num_tokens}


def test_what_has_an_instruction_of_its_own_is_what_python_computes() -> None:
    numba = pytest.importorskip("numba", reason="the extra 'fast' is not installed")
    loops._compiled(np.dtype(np.uint8))  # teaches numba
    added = numba.njit(lambda rows, row, bits: add_bits(rows, row, bits))
    lowest = numba.njit(lambda bits: lowest_bit(bits))
    own, other = np.zeros((2, 3, LANES), dtype=np.uint8)
    for bits in (0, 1, 2**63, 2**64 - 1, 0x8000000180000001):
        added(own, np.uint64(1), np.uint64(bits))
        add_bits(other, np.uint64(1), np.uint64(bits))
        assert lowest(np.uint64(bits)) == lowest_bit(np.uint64(bits)) == f"1{bits:064b}"[::-1].index("1")
    assert np.array_equal(own, other)
    assert own[1].tolist() == [3, *[1] * 30, 2, 2, *[1] * 30, 3]
    assert not own[[0, 2]].any()


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_eight_are_sorted_as_by_numpy(way: str) -> None:
    values = RNG.integers(0, 256, (300, ROWS_OF_EIGHT, 8), dtype=np.uint8)
    if way == "compiled":
        numba = pytest.importorskip("numba", reason="the extra 'fast' is not installed")
        teach()
        sort = numba.njit(lambda rows, ordered: sort_rows(rows, np.uint64(0), ordered))
    else:

        def sort(rows: np.ndarray, ordered: np.ndarray) -> bool:
            return sort_rows(rows, 0, ordered)

    for block in values:
        ordered = np.empty(ROWS_OF_EIGHT, dtype=np.uint64)
        twice = sort(block.reshape(-1).view(np.uint64), ordered)
        assert np.array_equal(ordered.view(np.uint8).reshape(-1, 8), np.sort(block, axis=1))
        assert twice == any(len(set(row)) < 8 for row in block.tolist())


def test_small_runs_use_what_is_compiled_already(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = np.dtype(np.uint8)
    run_loops("numpy", monkeypatch)
    assert loops.loops(kind, 10) is None
    assert loops.any_ready() is None
    run_loops("compiled", monkeypatch)
    monkeypatch.setattr(loops, "LEAST_TOKENS", 100)
    assert loops.loops(kind, 10) is loops.ready(kind) is loops.any_ready() is not None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_entropies_of_each_label_are_summed_to_the_last_bit(
    steps: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["b", None, "a", "b", None, "a", "a"]
    samples = [SampleRecord(20 + number, label=label) for number, label in enumerate(labels)]
    entropy = RNG.random((sum(sample.num_tokens for sample in samples), steps), dtype=np.float32)
    entropy[RNG.random(entropy.shape) < 0.2] = np.nan
    run_loops("numpy", monkeypatch)
    expected = arrow_tables._entropy_sums(entropy, samples)
    run_loops(way, monkeypatch)
    found = arrow_tables._entropy_sums(entropy, samples)
    assert list(found) == list(expected) == [None, "b", "a"]
    for label in expected:
        assert np.array_equal(found[label], expected[label])
        parts = np.split(entropy, np.cumsum([sample.num_tokens for sample in samples])[:-1])
        own = np.concatenate([part for part, of in zip(parts, labels, strict=True) if of == label])
        assert found[label][0].tolist() == (~np.isnan(own)).sum(axis=0).tolist()
        assert np.allclose(found[label][1], np.nansum(own, axis=0, dtype=np.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 16, 181])
def test_roots_are_summed_to_within_rounding(width: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    low = RNG.integers(0, 256, (70, width), dtype=np.uint8)
    rows, cells = np.array([3, 3, 69]), np.array([0, width - 1, 0])
    counts = np.array([256, 70_000, 300], dtype=np.int32)
    low[rows, cells] = 255
    page = Page(0, low, rows[width == 1 :], cells[width == 1 :], counts[width == 1 :], np.ones(70), np.ones(70))
    exact = low.astype(np.float64)
    exact[page.rows, page.cells] = page.counts
    own = RNG.random(width).astype(np.float32)
    run_comparisons(way, monkeypatch)
    shared = page.shared(own, np.empty((32, width)))
    bound = 2 * np.finfo(np.float32).eps * (np.sqrt(exact) @ own.astype(np.float64))
    assert (np.abs(shared - np.sqrt(exact) @ own.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("num_paths", "steps", "top_k", "bits"), [(1, 1, 1, 1), (64, 10, 1, 5), (700, 3, 4, 7), (64 * 520 + 5, 2, 1, 3)]
)
def test_shared_ids_of_many_paths_are_counted(
    num_paths: int, steps: int, top_k: int, bits: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As they are read: full words of eight bytes, of which the last may be a part; one word more than there are paths.
    words = RNG.integers(0, 2**64, (steps * top_k, bits, -(-num_paths // 64) + 1), dtype=np.uint64)
    own = choices(1, steps, 2**bits + 1, top_k)[0].astype(np.int64)  # one id may be beyond all bits
    run_comparisons("numpy", monkeypatch)
    expected = DistancesInPlanes(Planes(PlaneRow(1, num_paths, num_paths), words[:, :, :-1].copy()), own)
    run_comparisons(way, monkeypatch)
    found = DistancesInPlanes(Planes(PlaneRow(1, num_paths, num_paths), words[:, :, :-1].copy()), own)
    assert np.array_equal(found.counts(), expected.counts())
    assert found.counts().sum() == num_paths
    assert np.array_equal(found.shared_CW, expected.shared_CW)
    for distance in range(steps * top_k + 1):
        assert np.array_equal(found.ranks_at(distance), expected.ranks_at(distance))
    compiled = comparisons.ready(0)
    if compiled is not None:
        shared = np.empty((len(expected.shared_CW), words.shape[2]), dtype=np.uint64)
        counts = np.empty((steps * top_k + 1, words.shape[2]), dtype=np.uint8)
        compiled.count_shared(words, own, num_paths, shared, counts)
        assert np.array_equal(counts.sum(axis=1), expected.counts())


def test_loops_are_compiled_once_a_question_could_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = comparisons.Comparisons(comparisons.sum_roots, comparisons.count_shared)
    for outcome in (made, None):
        tried: list[object] = []
        monkeypatch.setattr(comparisons, "_made", [])
        monkeypatch.setattr(comparisons, "_wanted", False)
        monkeypatch.setattr(
            comparisons, "made_with", lambda make, tried=tried, made=outcome: tried.append(make) or made
        )
        assert comparisons.ready(comparisons.LEAST_BYTES - 1) is None
        assert not comparisons.compile_if_wanted()
        assert comparisons.ready(comparisons.LEAST_BYTES) is None
        assert comparisons.compile_if_wanted() is (outcome is not None)
        assert not comparisons.compile_if_wanted()
        assert comparisons.ready(0) is outcome
        assert len(tried) == 1  # where nothing can be compiled, it is not tried again
