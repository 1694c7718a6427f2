"""What is compared from sealed pages and from memory is what is compared one by one: the same numbers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.compiled_loops import run_comparisons
from tests.support.runs import make
from tokenpaths.engine.analysis.path_distance import ribbon_distance
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import cache, lookups, near_paths, queries, sample_profiles
from tokenpaths.engine.store.ask.topics import paths, similar
from tokenpaths.engine.store.file.pages import profile_pages, ribbon_planes
from tokenpaths.engine.store.write import seal_pages

WAYS = ["numpy", "interpreted", "compiled"]
KINDS = {
    "top1": {"modality": "vision", "samples": 11},
    "long": {"modality": "text", "samples": 30, "steps": 3, "modules": 4},
    "top2": {"modality": "vision", "top_k": 2, "samples": 9},
    "packed": {"modality": "text", "samples": 8, "steps": 9, "modules": 12, "top_k": 8},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """Runs whose profiles are sealed: several pages of few samples, with counts that no byte of 3 holds."""
    folder, opened = tmp_path_factory.mktemp("profiled"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal_pages, "LEAST_TOKENS", 1)
        patch.setattr(profile_pages, "PAGE_SAMPLES", 4)
        patch.setattr(profile_pages, "LARGEST", {1: 3, 2: 6})
        patch.setattr(profile_pages, "LARGE_SHARE", 0.4)
        patch.setattr(sample_profiles, "BLOCK_SAMPLES", 3)
        patch.setattr(ribbon_planes, "PLANE_PATHS", 68)  # no multiple of a byte, nor of a word
        for kind, arguments in KINDS.items():
            opened[kind] = Run.open(make(kind, **arguments).write(folder))
        yield opened
        for run in opened.values():
            run.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("most", "way"),
    [(1 << 30, "numpy"), (0, "numpy"), (1 << 30, "compiled")],
    ids=["held", "read each time", "compiled"],
)
def test_similar_samples_from_sealed_counts_are_those_of_a_count(
    runs: dict[str, Run], kind: str, most: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, num = runs[kind], int(runs[kind].row["num_samples"])
    run_comparisons(way, monkeypatch)
    monkeypatch.setattr(sample_profiles, "MOST_HELD_BYTES", most)
    assert sample_profiles.has_profiles(run)
    assert run.rows(queries.Query("SELECT count(*) FROM profile_page")) == [(-(-num // 4),)]
    num_planes = 0 if run.layout.packed else -(-run.row["num_paths"] // 68)
    assert run.rows(queries.Query("SELECT count(*) FROM path_planes")) == [(num_planes,)]
    assert run.rows(queries.Query("SELECT max(octet_length(places)) > 0 FROM profile_page")) == [(True,)]
    sealed = [run.similar_samples(sample, limit=limit) for sample in range(num) for limit in (1, 3, 200)]
    monkeypatch.setattr(sample_profiles, "has_profiles", lambda run: False)
    assert sealed == [run.similar_samples(sample, limit=limit) for sample in range(num) for limit in (1, 3, 200)]


def test_counts_take_a_byte_or_two(runs: dict[str, Run]) -> None:
    found = set()
    for run in runs.values():
        width = run.layout.num_steps * run.layout.num_modules
        sizes = run.rows(queries.Query(f"SELECT octet_length(counts) / (num_samples * {width}) FROM profile_page"))
        found |= {size for (size,) in sizes}
    assert found == {1, 2}


def test_the_map_takes_some_profiles_from_the_pages(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    found = similar.mapped_profiles(runs["long"], 13)
    monkeypatch.setattr(sample_profiles, "has_profiles", lambda run: False)
    counted = similar.mapped_profiles(runs["long"], 13)
    assert all(np.array_equal(one, other) for one, other in zip(found, counted, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_distances_are_no_further_off_than_is_said(
    runs: dict[str, Run], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["long"]
    run_comparisons(way, monkeypatch)
    numbers, profiles = similar.mapped_profiles(run, 5000)
    exact = ((profiles.astype(np.float64) - profiles[2]) ** 2).sum(axis=1)
    assert np.abs(sample_profiles.squared_distances(run, profiles[2]) - exact).max() <= sample_profiles.ROUNDING
    assert len(numbers) == run.row["num_samples"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("most", "way"),
    [(1 << 30, "numpy"), (0, "numpy"), (1 << 30, "interpreted"), (1 << 30, "compiled")],
    ids=["held", "read each time", "interpreted", "compiled"],
)
def test_nearest_paths_are_those_of_a_loop_over_all(
    runs: dict[str, Run], kind: str, most: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs[kind]
    run_comparisons(way, monkeypatch)
    monkeypatch.setattr(near_paths, "MOST_HELD_BYTES", most)
    rows = run.rows(queries.Query("SELECT rank, count, ribbon FROM path ORDER BY rank"))
    ribbons = np.array([row[2] for row in rows]).reshape(len(rows), run.layout.num_steps, run.layout.top_k)
    for own, limit in ((0, 4), (len(rows) - 1, 1), (len(rows) // 2, len(rows) + 5)):
        distance = ribbon_distance(ribbons[own], ribbons).tolist()
        naive = sorted(zip(distance, [row[0] for row in rows], strict=True))[:limit]
        near, num_paths, num_tokens = near_paths.nearest_and_counts(run, ribbons[own], limit)
        assert list(zip(near.distances.tolist(), near.ranks.tolist(), strict=True)) == naive
        assert near.ribbons_nV.tolist() == [ribbons[rank - 1].reshape(-1).tolist() for rank in near.ranks]
        assert num_paths.tolist() == [distance.count(d) for d in range(run.layout.visits + 1)]
        tokens = [
            sum(row[1] for row, d in zip(rows, distance, strict=True) if d == at) for at in range(run.layout.visits + 1)
        ]
        assert num_tokens.tolist() == tokens
        alone = near_paths.nearest_paths(run, ribbons[own], limit)
        for name in ("ranks", "distances", "ribbons_nV"):
            assert np.array_equal(getattr(alone, name), getattr(near, name))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("chunk", "num_repeated", "num_rows"), [(1, None, 3), (1, 0, 2), (2, None, 3)], ids=["unique", "none", "dictionary"]
)
def test_of_many_packed_paths_some_are_compared_and_stand_for_all(
    way: str, chunk: int, num_repeated: int | None, num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_comparisons(way, monkeypatch)
    for name, value in (("MOST_READ_PATHS", 50), ("DRAWN_SHARE", 3), ("PLANE_PATHS", 1000)):
        monkeypatch.setattr(ribbon_planes, name, value)
    if num_repeated is not None:
        rows_of = ribbon_planes.plane_rows
        for module in (seal_pages, near_paths):
            monkeypatch.setattr(module, "plane_rows", lambda layout, paths, _: rows_of(layout, paths, num_repeated))
    file = make("drawn", modality="text", samples=40, steps=9, modules=12, top_k=8, chunk=chunk).write(tmp_path)
    with Run.open(file) as run:
        rows = run.rows(queries.Query("SELECT rank, count, ribbon FROM path ORDER BY rank"))
        ribbons = np.array([row[2] for row in rows]).reshape(len(rows), 9, 8)
        planes = near_paths._rows(run)
        assert len(rows) > 50
        assert len(planes) == num_rows
        assert run.layout.unique == (chunk == 1)
        assert run.rows(queries.Query("SELECT first_rank, num_paths FROM path_planes ORDER BY ALL")) == [
            (row.first_rank, row.num_paths) for row in planes
        ]
        drawn = [(rank, row) for row in planes for rank in row.ranks(np.arange(row.num_paths)).tolist()]
        assert 1 < drawn[-1][1].weight_beside() < 7
        last = drawn[-1][0]
        for own_rank in (1, last, len(rows) - (last == len(rows))):
            own_SK = ribbons[own_rank - 1]
            distance = ribbon_distance(own_SK, ribbons)
            near, num_paths, num_tokens = near_paths.nearest_and_counts(run, own_SK, 6, own_rank)
            weights = {rank: row.weight_beside(own_rank) for rank, row in drawn} | {own_rank: 1.0}
            assert sum(weights.values()) == pytest.approx(len(rows))
            naive = sorted((int(distance[rank - 1]), rank) for rank in weights)[:6]
            assert list(zip(near.distances.tolist(), near.ranks.tolist(), strict=True)) == naive
            assert near.ribbons_nV.tolist() == [ribbons[rank - 1].reshape(-1).tolist() for _, rank in naive]
            assert near.num_compared == len(weights)
            expected, tokens = np.zeros((2, run.layout.visits + 1))
            for rank, weight in weights.items():
                expected[distance[rank - 1]] += weight
                tokens[distance[rank - 1]] += weight * rows[rank - 1][1]
            assert (num_paths[0], num_tokens[0]) == (1, rows[own_rank - 1][1])
            for found, exact in ((num_paths, expected), (num_tokens, tokens)):
                assert np.abs(found - exact).max() <= 0.5 + 1e-9  # halves are rounded either way
            every, of_all, _ = near_paths.nearest_and_counts(run, own_SK, 6, own_rank, every=True)
            assert np.array_equal(of_all, np.bincount(distance, minlength=run.layout.visits + 1))
            assert every.num_compared == len(rows)
            assert (
                list(zip(every.distances.tolist(), every.ranks.tolist(), strict=True))
                == sorted((int(d), rank) for rank, d in enumerate(distance.tolist(), 1))[:6]
            )


@pytest.mark.parametrize(("num_paths", "of_paths"), [(1, 1), (1, 9), (7, 7), (7, 8), (100, 12_345), (64, 2**31 - 70)])
def test_drawn_ranks_are_one_of_each_equal_part(num_paths: int, of_paths: int) -> None:
    row, places = ribbon_planes.PlaneRow(68, num_paths, of_paths), np.arange(num_paths)
    ranks = row.ranks(places)
    edges = 68 + np.arange(num_paths + 1) * of_paths // num_paths
    assert ((edges[:-1] <= ranks) & (ranks < edges[1:])).all()
    assert np.array_equal(row.places(ranks), places)
    assert np.array_equal(row.places(edges[:-1]), places)
    assert np.array_equal(row.places(edges[1:] - 1), places)
    assert all(row.holds(rank) for rank in ranks[:9].tolist())
    assert not row.holds(67)
    assert not row.holds(68 + of_paths)
    others = set(range(68, 68 + min(of_paths, 30))) - set(ranks.tolist())
    assert not any(row.holds(rank) for rank in others)


def test_what_is_held_stays_within_its_bound(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run, loaded = runs["top1"], []
    monkeypatch.setattr(cache, "MOST_BYTES", 10)
    monkeypatch.setattr(cache, "_ENTRIES", cache.OrderedDict())

    def ask(name: str, size: int) -> None:
        cache.cached(run, name, lambda: loaded.append(name) or name, lambda value: size)

    for name, size in (("a", 6), ("a", 6), ("b", 4), ("a", 6), ("c", 5), ("b", 4), ("huge", 11), ("huge", 11)):
        ask(name, size)
    assert loaded == ["a", "b", "c", "b", "huge", "huge"]  # c needed the room of both a and b
    assert sum(row[2] for row in cache._ENTRIES.values()) <= 10


@pytest.mark.parametrize("numbers", [[3], [0, 1, 2], [8, 0, 4], list(range(11))])
def test_samples_are_found_however_they_are_asked_for(
    runs: dict[str, Run], numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [(number,) for number in sorted(numbers)]
    for near, most in ((1, 64), (3, 64), (64, 64), (1, 1)):
        monkeypatch.setattr(lookups, "NEAR", near)
        monkeypatch.setattr(lookups, "MOST_STRETCHES", most)
        assert runs["top1"].rows(lookups.some_samples(numbers, "sample")) == wanted


def test_a_file_without_pages_is_counted_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_pages, "LEAST_TOKENS", 10**6)
    with Run.open(make("plain", modality="text").write(tmp_path)) as run:
        assert not sample_profiles.has_profiles(run)
        assert len(run.similar_samples(0, limit=3)["similar"]) == 3


@pytest.mark.parametrize(
    "change",
    [
        "num_samples = 100000000",
        "first_sample = first_sample + 1",
        "counts = '\\x00'::BLOB",
        "places = '\\xFF\\xFF\\xFF\\x7F'::BLOB, large = places",
        "large = ''::BLOB",
    ],
)
def test_a_page_that_is_none_is_refused_before_it_is_unpacked(
    runs: dict[str, Run], change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PAGE_SAMPLES", 4), ("LARGEST", {1: 3, 2: 5})):
        monkeypatch.setattr(profile_pages, name, value)
    file = tmp_path / "r.duckdb"
    file.write_bytes(runs["long"].file.read_bytes())
    with duckdb.connect(str(file)) as con:
        con.execute(f"UPDATE profile_page SET {change}")
    with Run.open(file) as run, pytest.raises(RunFileError, match="r.duckdb is damaged .table profile_page."):
        run.similar_samples(0)


@pytest.mark.parametrize(
    "change", ["num_paths = 100000000", "first_rank = first_rank + 1", "planes = '\\x00'::BLOB", "planes = NULL"]
)
def test_planes_that_are_none_are_refused_before_they_are_unpacked(
    runs: dict[str, Run], change: str, tmp_path: Path
) -> None:
    file = make("r", modality="text").write(tmp_path)
    with duckdb.connect(file) as con:
        con.execute(f"UPDATE path_planes SET {change}")
    with Run.open(file) as run, pytest.raises(RunFileError, match="r.duckdb is damaged .table path_planes."):
        run.path(1)


@pytest.mark.parametrize("path_id", ["path_id + 1", "path_id // 2", "0"])
def test_paths_that_are_not_numbered_by_their_first_tokens_are_refused(path_id: str, tmp_path: Path) -> None:
    file = make("r", modality="text", steps=9, modules=12, top_k=8).write(tmp_path)
    with duckdb.connect(file) as con:
        con.execute(f"UPDATE token_coded SET path_id = {path_id} WHERE rowid > 3")
    with Run.open(file) as run:
        assert run.layout.unique
        with pytest.raises(RunFileError, match="r.duckdb is damaged .table token_coded."):
            run.similar_tokens(0, 0)


@pytest.mark.parametrize("first_token", ["NULL", "-1", "1000000"])
def test_paths_without_a_first_token_are_refused(
    first_token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "TOP_ROWS", 0)
    file = make("r", modality="text", steps=9, modules=12, top_k=8).write(tmp_path)
    with duckdb.connect(file) as con:
        con.execute(f"UPDATE path_coded SET first_token = {first_token} WHERE rank = 2")
    with Run.open(file) as run:
        assert run.layout.unique
        with pytest.raises(RunFileError, match="r.duckdb is damaged .table path_coded."):
            run.paths(limit=5)


@pytest.mark.parametrize("num_paths", [-1, 2**31, 2**60])
def test_no_list_is_made_of_more_paths_than_there_can_be(num_paths: int, tmp_path: Path) -> None:
    file = make("r", modality="text").write(tmp_path)
    with duckdb.connect(file) as con:
        con.execute(f"UPDATE run SET num_paths = {num_paths}")
    with Run.open(file) as run, pytest.raises(RunFileError, match="r.duckdb is damaged"):
        run.similar_tokens(0, 0)


@pytest.mark.parametrize(
    "change",
    ["SET ribbons = ribbons[1:5]", "SET ribbons = NULL", "SET ranks = ranks[1:6]", "SET ranks = NULL", "SET page = 7"],
)
def test_a_page_of_paths_that_is_none_is_refused(change: str, tmp_path: Path) -> None:
    file = make("r", modality="text").write(tmp_path)
    with duckdb.connect(file) as con:
        con.execute(f"UPDATE path_page {change}")
    with Run.open(file) as run, pytest.raises(RunFileError, match="r.duckdb is damaged .table path_page."):
        run.sample(0)


@pytest.mark.parametrize("change", ["SET ribbons = NULL", "SET ranks = ranks[1:8]", "SET ranks = NULL, ribbons = NULL"])
def test_a_page_of_fewer_paths_gives_none_of_the_next(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in ("ask.run_file", "write.seal_pages"):
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.PAGE_PATHS", 8)
    file = make("r", modality="text").write(tmp_path)
    with duckdb.connect(file) as con:
        con.execute(f"UPDATE path_page {change} WHERE page = 1")
    with Run.open(file) as run:
        assert len(run.look_up(np.array([1, 17]))[0]) == 2
        with pytest.raises(RunFileError, match="r.duckdb is damaged .table path_page."):
            run.look_up(np.array([1, 11, 12, 17]))
