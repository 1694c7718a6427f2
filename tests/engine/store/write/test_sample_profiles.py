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
from tokenpaths.engine.store.ask.topics import similar
from tokenpaths.engine.store.file.pages import profile_pages
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
        patch.setattr(profile_pages, "LARGEST", 3)
        patch.setattr(sample_profiles, "BLOCK_SAMPLES", 3)
        for module in (seal_pages, near_paths):
            patch.setattr(module, "PLANE_PATHS", 68)  # no multiple of a byte, nor of a word
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
    assert np.abs(sample_profiles.squared_distances(run, profiles[2]) - exact).max() <= sample_profiles.rounding(run)
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
    for name, value in (("PAGE_SAMPLES", 4), ("LARGEST", 3)):
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
