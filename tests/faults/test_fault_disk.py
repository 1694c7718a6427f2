"""A disk that is full, or nearly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.conftest import SECRET, api_for, problem, serving
from tests.backend.test_api_traces import send
from tests.faults.conftest import Keep, fill
from tests.support.flushing import flush_every
from tests.support.runs import make, make_run
from tokenpaths.backend.settings import load_settings
from tokenpaths.backend.worker.worker import create_worker
from tokenpaths.engine.base.errors import WriterFailed
from tokenpaths.engine.base.files import keep_free
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.write.writer import RunWriter

MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def own_reserve() -> Iterator[None]:
    """What the writers of these tests keep free is no matter of other tests."""
    keep_free(0)
    yield
    keep_free(64 * MEGABYTE)


def test_a_trace_at_a_full_disk_is_507_and_reading_goes_on(small_disk: Path, models_dir: Path, figure: Keep) -> None:
    """A tmpfs of 24 MB: traces before, at a disk without a byte, below the reserve, and when there is space again"""
    options = {"data_dir": small_disk / "data", "models_dirs": (models_dir,), "worker_secret": SECRET}
    options |= {"warm_models": False, "worker_jobs": False, "trace_seconds": 250}
    make_run(small_disk / "data" / "runs", "before", samples=3)
    ballast = small_disk / "ballast"
    said = []
    for least in (0, 8):
        settings = options | {"least_free_megabytes": least}
        with serving(create_worker(load_settings(**settings))) as url, api_for(worker_url=url, **settings) as served:
            assert send(served, "tiny-text", text="the cat").status_code == 201
            there = sorted(file.name for file in served.runs_dir.iterdir())
            fill(ballast, leave=4 * MEGABYTE if least else 0)
            detail = problem(send(served, "tiny-text", text="the cat"), 507)["detail"]
            assert "full" in detail
            said.append(detail)
            assert sorted(file.name for file in served.runs_dir.iterdir()) == there, "nothing half is left"
            for tail in ("", "/flow", "/samples/0"):
                assert served.get(f"/runs/before{tail}").status_code == 200
            assert len(served.get("/runs").json()["runs"]) == len(there)
            assert served.client.get("/healthz").status_code == 200
            ballast.unlink()
            assert send(served, "tiny-text", text="the cat").status_code == 201
    figure(4, "507 at no byte and below the reserve of 8 MB; all sealed runs served; traces again once there is space")


def test_a_run_that_meets_the_reserve_on_its_way_stops_and_leaves_nothing(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, figure: Keep
) -> None:
    """The disk gets nearly full between two batches of a run"""
    flush_every(100, monkeypatch)
    runs, made = small_disk / "runs", make("long", samples=60)
    sealed = make_run(runs, "sealed", samples=3)
    keep_free(8 * MEGABYTE)
    writer = RunWriter(runs, made.info, made.modules)
    writer.write(made.batches[0])
    while not writer.partial_file.exists():
        pass
    fill(small_disk / "ballast", leave=6 * MEGABYTE)
    with pytest.raises(WriterFailed, match="writing stops below 8 MB"), writer:  # noqa: PT012
        for batch in made.batches[1:]:
            writer.write(batch)
    assert [file.name for file in runs.iterdir()] == ["sealed.duckdb"]
    with pytest.raises(WriterFailed, match="nearly full") as caught:
        make("another", samples=1).write(runs)
    assert caught.value.field == "data_dir"
    with Run.open(sealed) as run:
        assert run.card()["num_samples"] == 3
    figure(4, "a run stops before the disk is full (8 MB kept) and leaves nothing; the next is refused in words")
