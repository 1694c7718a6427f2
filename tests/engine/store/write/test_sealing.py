"""The answers of a large run cost it nothing: stopped, out of room or out of memory, the run is whole without them."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.runs import make
from tokenpaths.engine.adapters.recorder import process_parts
from tokenpaths.engine.base.errors import UserError, WriterFailed
from tokenpaths.engine.base.files import HolderLock, NearlyFull
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.open_file import Connection
from tokenpaths.engine.store.file.verification import verify_run
from tokenpaths.engine.store.write import run_filler
from tokenpaths.engine.store.write.large import seal_answers as sealed
from tokenpaths.engine.store.write.seal import rank_by_count
from tokenpaths.engine.store.write.writer import RunWriter


class Cancelled(Exception):
    """What a job raises when it is told of progress after somebody cancelled it."""


@pytest.fixture(autouse=True)
def _every_run_is_large(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.LEAST_TOKENS", 1)


def begun(folder: Path) -> RunWriter:
    made = make("r", modality="text")
    writer = RunWriter(folder, made.info, made.modules)
    for batch in made.batches:
        writer.write(batch)
    return writer


def assert_whole(folder: Path, *, answers: bool) -> None:
    assert [file.name for file in folder.iterdir() if not file.name.endswith(".lock")] == ["r.duckdb"]
    assert verify_run(folder / "r.duckdb")["token"] > 0
    with Run.open(folder / "r.duckdb") as run:
        assert bool(run.rows(Query("SELECT count(*) FROM answer"))[0][0]) == answers
        # What is not in the file is worked out.
        assert run.distribution("loss", per="token")["num"] > 0


def raising(error: type[BaseException], at: str) -> Callable[..., None]:
    def on_stage(name: str, done: int, of: int) -> None:
        if at in name:
            raise error

    return on_stage


@pytest.mark.parametrize("error", [KeyboardInterrupt, Cancelled])
def test_who_stops_the_answers_has_a_whole_run_without(error: type[BaseException], tmp_path: Path):
    with pytest.raises(error), begun(tmp_path) as writer:
        writer.seal(raising(error, "long: 3 of"))
    assert_whole(tmp_path, answers=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt, Cancelled])
def test_who_stops_earlier_has_nothing(error: type[BaseException], tmp_path: Path):
    with pytest.raises(error), begun(tmp_path) as writer:
        writer.seal(raising(error, "nulls"))
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")] == []


def test_ctrl_c_inside_a_question_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> list:
        raise RuntimeError("Query interrupted")  # DuckDB's way to say it

    monkeypatch.setattr("tokenpaths.engine.store.ask.topics.knowledge._properties", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begun(tmp_path).seal()
    assert_whole(tmp_path, answers=False)


def test_a_full_disk_costs_the_answers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(folder: Path) -> None:
        raise NearlyFull("the disk is nearly full")

    monkeypatch.setattr(sealed, "check_free", full)
    begun(tmp_path).seal()
    assert_whole(tmp_path, answers=False)


@pytest.mark.parametrize("room", ["none", "beside the file"])
def test_answers_that_cannot_be_written_are_all_there_or_none(room: str, tmp_path: Path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    told: list[str] = []

    def on_stage(name: str, done: int, of: int) -> None:
        told.append(name)
        if "long: 1 of" in name:
            size = (tmp_path / ".r.partial").stat().st_size if room == "beside the file" else 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        elif "without" in name:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    try:
        begun(tmp_path).seal(on_stage)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told[-1].startswith("without the answers that take long (")
    assert_whole(tmp_path, answers=False)


def test_a_stop_that_comes_as_the_answers_fail_keeps_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(folder: Path) -> None:
        raise NearlyFull("the disk is nearly full")

    def on_stage(name: str, done: int, of: int) -> None:
        if name.startswith("without"):
            raise KeyboardInterrupt

    monkeypatch.setattr(sealed, "check_free", full)
    with pytest.raises(KeyboardInterrupt):
        begun(tmp_path).seal(on_stage)
    assert_whole(tmp_path, answers=False)


def test_the_questions_have_a_bound_of_memory_and_a_place_for_the_rest(tmp_path: Path):
    file = make("r").write(tmp_path)
    spill = tmp_path / "spill"
    connection = Connection(file, 60, memory_megabytes=60, spill_folder=spill)
    try:
        ((limit,),) = connection.rows("SELECT current_setting('memory_limit')")
        assert 50 < float(limit.split()[0]) < 61
        # Eight million numbers of eight bytes do not fit; sorted they are nevertheless.
        sql = "SELECT count(*) FILTER (x < before) FROM (SELECT x, lag(x) OVER () AS before FROM "
        sql += "(SELECT hash(range) AS x FROM range(8000000) ORDER BY x))"
        assert connection.rows(sql) == [(0,)]
    finally:
        connection.close()


def test_a_process_that_gives_signs_of_life_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_parts, "WAIT_S", 0.4)
    monkeypatch.setattr(process_parts, "BEAT_S", 0.02)
    first, other = (process_parts.Meeting(tmp_path, rank, 2, HolderLock(tmp_path / "lock")) for rank in range(2))
    over = threading.Event()

    def seal() -> None:
        with first.busy():
            over.wait(1.5)
            first.announce(tmp_path / "r.duckdb")

    thread = threading.Thread(target=seal)
    thread.start()
    assert other.outcome() == tmp_path / "r.duckdb"
    thread.join()
    (tmp_path / "done.json").unlink()
    with pytest.raises(UserError, match="process 0, which merges the parts, was not heard of for 0.4 seconds"):
        other.outcome()


@pytest.mark.parametrize("most", [1, 2, 40])
@pytest.mark.parametrize("num_paths", [1, 2, 1_000])
def test_paths_are_ranked_by_count_and_then_by_number(num_paths: int, most: int):
    counts = np.random.default_rng(num_paths).integers(1, most + 1, num_paths)
    assert rank_by_count(counts).tolist() == sorted(range(num_paths), key=lambda path: (-counts[path], path))


@pytest.mark.parametrize("top_k", [1, 14])
def test_a_larger_run_of_long_ribbons_is_sealed_with_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top_k: int
):
    """A hundred million labelled paths do not fit what is enough to write them"""
    made = make("r", "text", steps=5, modules=300, top_k=top_k, samples=12)
    monkeypatch.setattr(run_filler, "TOKENS_OF_A_MEGABYTE", 1)
    monkeypatch.setattr(run_filler, "PACKED_MEGABYTES", 70)
    seen = []
    build = run_filler.build_summaries

    def told(con: duckdb.DuckDBPyConnection, *given: object) -> None:
        seen.append(con.execute("SELECT current_setting('memory_limit')").fetchall()[0][0])
        build(con, *given)

    monkeypatch.setattr(run_filler, "build_summaries", told)
    with Run.open(made.write(tmp_path)) as run:
        num_tokens = run.row["num_tokens"]
    assert 70 < num_tokens < 2000
    megabytes = num_tokens if top_k > 1 else run_filler.DUCKDB_MEGABYTES
    (said,) = seen
    number, unit = said.split()
    size = float(number) * {"MiB": 2**20, "GiB": 2**30}[unit]
    assert size == pytest.approx(megabytes * 10**6, rel=0.05)


def test_a_sealing_that_needs_more_memory_than_it_may_take_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def too_much(con: duckdb.DuckDBPyConnection, *_: object) -> None:
        con.execute("SET memory_limit = '2MB'")
        con.execute("CREATE TEMP TABLE t AS SELECT hash(range) AS h, range AS i FROM range(3000000)")
        con.execute("SELECT h, list(i) FROM t GROUP BY h ORDER BY h").fetchall()

    monkeypatch.setattr(run_filler, "build_summaries", too_much)
    with pytest.raises(WriterFailed, match="more paths than are sorted in the memory .* make several smaller runs"):
        make("r", "text", samples=3).write(tmp_path)
    assert not list(tmp_path.iterdir())
