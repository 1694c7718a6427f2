"""The job file while a server uses it: deleted, replaced, moved with its folder, locked, made read-only."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import SupportsIndex

import pytest

from tests.backend.conftest import API, Serve, problem
from tests.support.disks import mounted_disk
from tests.support.jobs import register_count
from tests.support.runs import make_run
from tokenpaths.backend.jobs.connection import BUSY_SECONDS
from tokenpaths.backend.jobs.table import JobTable
from tokenpaths.backend.problems import Problem

register_count()
BODY = {"kind": "count", "request": {"iterations": 1}}


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another connection holds the write lock of ``file``."""
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as con:
        con.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            con.execute("ROLLBACK")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[JobTable, JobTable]]:
    """Two processes' views of one job file, as far as SQLite tells them apart; both have used it."""
    tables = JobTable(tmp_path / "data" / "jobs.sqlite"), JobTable(tmp_path / "data" / "jobs.sqlite")
    for table in tables:
        table.submit("count", {"n": 0})
    yield tables
    for table in tables:
        table.close()


def away(file: Path, ends: tuple[str, ...]) -> None:
    for end in ends:
        file.with_name(file.name + end).unlink()


def replaced(file: Path) -> None:
    other = JobTable(file.parent / "other.sqlite")
    other.submit("count", {"of": "another"})
    other.close()
    (file.parent / "other.sqlite").replace(file)


CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted with its log": lambda file: away(file, ("", "-wal", "-shm")),
    "deleted alone": lambda file: away(file, ("",)),
    "moved away": lambda file: file.rename(file.with_name("old.sqlite")),
    "replaced": replaced,
    "replaced by another folder's": lambda file: (away(file, ("-wal", "-shm")), replaced(file)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_both_sides_see_the_same_list_after_its_file_was_changed(
    two: tuple[JobTable, JobTable], tmp_path: Path, change: str
) -> None:
    one, other = two
    CHANGES[change](tmp_path / "data" / "jobs.sqlite")
    job = one.submit("count", {"n": 1}).job
    assert other.get(job).request == {"n": 1}, "no 202 that no worker sees"
    kept = {row.job for row in one.page()}
    assert kept == {row.job for row in other.page()}
    assert len(kept) == (2 if "replaced" in change else 1)
    while (lease := other.lease("w")) is not None:
        assert other.end(lease, "succeeded", result={})
    assert one.get(job).state == "succeeded"


def written_over(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))


@pytest.mark.parametrize("change", [lambda file: os.truncate(file, 0), written_over], ids=["cut", "written over"])
def test_no_job_is_accepted_into_a_file_that_was_changed_in_place(
    two: tuple[JobTable, JobTable], tmp_path: Path, change: Callable[[Path], object]
) -> None:
    one, other = two
    change(tmp_path / "data" / "jobs.sqlite")
    with pytest.raises(Problem, match="list of jobs"):
        one.submit("count", {"n": 1})
    accepted = []
    for _ in range(3):
        with suppress(Problem):
            accepted.append(one.submit("count", {"n": 2}).job)
    assert [other.get(job).job for job in accepted] == accepted


@pytest.mark.parametrize("ends", [("-wal",), ("-shm",), ("-wal", "-shm")], ids="+".join)
def test_a_log_that_was_deleted_loses_no_job(
    two: tuple[JobTable, JobTable], tmp_path: Path, ends: tuple[str, ...]
) -> None:
    one, other = two
    jobs = {one.submit("count", {"n": n}).job for n in range(5)} | {row.job for row in one.page()}
    away(tmp_path / "data" / "jobs.sqlite", ends)
    assert {row.job for row in other.page()} == jobs
    jobs |= {other.submit("count", {"n": 9}).job, one.submit("count", {"n": 10}).job}
    assert {row.job for row in one.page()} == {row.job for row in other.page()} == jobs
    for table in two:
        table.close()
    fresh = JobTable(tmp_path / "data" / "jobs.sqlite")
    assert {row.job for row in fresh.page()} == jobs
    fresh.close()


def test_the_folder_is_not_made_again_and_comes_back(two: tuple[JobTable, JobTable], tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = len(two[0].page())
    data.rename(tmp_path / "elsewhere")
    for table in two:
        for use in (table.page, lambda table=table: table.submit("count", {})):
            with pytest.raises(Problem, match="data folder is gone") as raised:
                use()
            assert raised.value.status == 503
    assert not data.exists(), "a second world"
    data.mkdir()
    with pytest.raises(Problem, match="empty one"):
        two[0].page()
    data.rmdir()
    (tmp_path / "elsewhere").rename(data)
    assert len(two[0].page()) == len(two[1].page()) == before
    shutil.copytree(data, tmp_path / "copy")
    shutil.rmtree(data)
    (tmp_path / "copy").rename(data)
    two[0].submit("count", {})
    assert len(two[1].page()) == before + 1, "a copy that was put in its place is taken for it"


def test_readers_go_on_while_another_process_holds_the_lock(two: tuple[JobTable, JobTable], tmp_path: Path) -> None:
    one, _ = two
    with locked(tmp_path / "data" / "jobs.sqlite"):
        refused: list[float] = []

        def write() -> None:
            began = time.monotonic()
            with pytest.raises(Problem, match="busy") as raised:
                one.submit("count", {})
            assert (raised.value.status, raised.value.headers) == (503, {"retry-after": "2"})
            refused.append(time.monotonic() - began)

        writers = [threading.Thread(target=write) for _ in range(45)]
        for writer in writers:
            writer.start()
        began = time.monotonic()
        for _ in range(20):
            assert len(one.page()) == 2
        read_s = time.monotonic() - began
        for writer in writers:
            writer.join()
    assert read_s < 1
    assert len(refused) == 45
    assert max(refused) < BUSY_SECONDS + 2, "who waits behind one that gave up gives up too"
    assert one.submit("count", {})


def test_a_table_is_opened_for_reading_while_it_is_locked(two: tuple[JobTable, JobTable], tmp_path: Path) -> None:
    with locked(tmp_path / "data" / "jobs.sqlite"):
        fresh = JobTable(tmp_path / "data" / "jobs.sqlite")
        began = time.monotonic()
        assert len(fresh.page()) == 2
        assert time.monotonic() - began < 1.5
        fresh.close()


def test_the_api_says_that_its_folder_is_gone(serve: Serve, tmp_path: Path) -> None:
    make_run(tmp_path / "data" / "runs", "vision", samples=3)
    served = serve()
    assert served.get("/runs/vision").status_code == 200
    served.settings.data_dir.rename(tmp_path / "elsewhere")
    for path in ("/runs", "/runs/vision", "/runs/vision/flow", "/jobs", "/searches"):
        assert "data folder is gone" in problem(served.get(path), 503)["detail"]
    assert "data folder is gone" in problem(served.client.post(f"{API}/jobs", json=BODY), 503)["detail"]
    assert served.client.get("/healthz").status_code == 200
    assert served.client.get("/metrics").status_code == 200
    assert not served.settings.data_dir.exists()
    (tmp_path / "elsewhere").rename(served.settings.data_dir)
    assert served.get("/runs/vision/flow").status_code == 200
    assert served.client.post(f"{API}/jobs", json=BODY).status_code == 202


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The data folder as a disk of its own."""
    with mounted_disk(tmp_path / "data") as data:
        yield data


SMALL_DISK = {"least_free_megabytes": 1, "job_free_megabytes": 1}


def test_a_folder_that_is_unmounted_and_mounted_again(disk: Path, serve: Serve) -> None:
    served = serve(**SMALL_DISK)
    assert served.client.post(f"{API}/jobs", json=BODY).status_code == 202
    subprocess.run(["umount", "-l", str(disk)], check=True)
    assert "empty one" in problem(served.client.post(f"{API}/jobs", json=BODY), 503)["detail"]
    assert "empty one" in problem(served.get("/jobs"), 503)["detail"]
    assert list(disk.iterdir()) == []


def test_a_disk_that_becomes_read_only_is_said(disk: Path, serve: Serve) -> None:
    served = serve(**SMALL_DISK)
    table = JobTable(served.settings.jobs_file)
    table.submit("count", {"iterations": 1})
    table.close()
    assert served.get("/runs").status_code == 200
    if subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True).returncode:
        pytest.skip("the disk cannot be made read-only")
    for answer in (served.client.post(f"{API}/jobs", json=BODY), served.get("/jobs")):
        assert "cannot be opened for writing" in problem(answer, 500)["detail"]
    assert served.get("/runs").status_code == 200
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert served.client.post(f"{API}/jobs", json=BODY).status_code == 202


def test_two_apis_share_one_folder(serve: Serve) -> None:
    one, other = serve(), serve()
    job = one.client.post(f"{API}/jobs", json=BODY).json()["job"]
    assert other.get(f"/jobs/{job}").json()["state"] == "waiting"
    assert other.client.delete(f"{API}/jobs/{job}").json()["state"] == "cancelled"
    assert one.get(f"/jobs/{job}").json()["state"] == "cancelled"
    away(one.settings.jobs_file, ("",))
    job = other.client.post(f"{API}/jobs", json=BODY).json()["job"]
    assert one.get(f"/jobs/{job}").json()["state"] == "waiting"


def test_a_reader_of_a_file_that_is_closed_meanwhile_is_not_used_again(two: tuple[JobTable, JobTable]) -> None:
    connection = two[0].connection

    class Closing(list[sqlite3.Connection]):
        """Idle readers whose file is closed right after one was taken."""

        def pop(self, index: SupportsIndex = -1) -> sqlite3.Connection:
            taken = super().pop(index)
            connection.close()
            return taken

    with connection.reading():
        pass
    connection._readers = Closing(connection._readers)
    with connection.reading() as old:
        pass
    assert old not in connection._readers
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        old.execute("SELECT 1")
