"""Runs from elsewhere: listed at once, taken in behind the list, refused for a reason, forgotten with their copies."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import httpx
import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.foreign_runs import Let, intakes_that_wait, make_foreign, sealed, unmarked
from tests.support.runs import make_run
from tokenpaths.backend.runs.answers import INTAKES
from tokenpaths.backend.runs.registry import RunRegistry
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.base.seal_marks import FOLDER, identity_of, is_sealed_here
from tokenpaths.engine.store.intake import gate as gate_module
from tokenpaths.engine.store.intake.gate import IntakeLimits, RunGate


@pytest.fixture
def let(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Let:
    """Intakes end only when they are let, with what they are let say; nothing is read."""
    return intakes_that_wait(tmp_path, monkeypatch)


def unread(served: Served) -> float:
    """What the metrics say."""
    found = re.search(r"^tokenpaths_unread_runs (\S+)$", served.client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def states(served: Served) -> dict[str, str]:
    return {card["run"]: card["status"] for card in served.get("/runs").json()["runs"]}


def until(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.02)
    pytest.fail("it never came")


def test_the_list_waits_for_no_first_reading(serve: Serve, let: Let) -> None:
    served = serve()
    make_run(served.runs_dir, "own", samples=2, twin=False)
    names = [f"given{number}" for number in range(6)]
    make_foreign(served.runs_dir, *names)
    first = served.get("/runs")
    assert {card["run"]: card["status"] for card in first.json()["runs"]} == {
        "own": "sealed",
        **dict.fromkeys(names, "being_read"),
    }
    assert all(card["problem"] is None for card in first.json()["runs"])
    etag = {"if-none-match": first.headers["etag"]}
    assert served.get("/runs", headers=etag).status_code == 304, "nothing has been read yet"
    let("given3")  # the last but two in the queue, or being read: who asks for it need not wait for the others
    assert served.get("/runs/given3").json()["num_samples"] == 2
    assert served.get("/runs", headers=etag).status_code == 200
    assert states(served) == dict.fromkeys(names, "being_read") | {"own": "sealed", "given3": "sealed"}
    assert unread(served) == 5
    let(*names)
    until(lambda: set(states(served).values()) == {"sealed"})
    until(lambda: unread(served) == 0)  # the last one is off the queue a moment after its state is told
    assert not is_sealed_here(served.runs_dir / "given3.duckdb")
    assert {file.name for file in (served.runs_dir.parent / ".taken_in").glob("*.duckdb")} == {
        f"{name}.duckdb" for name in names
    }


def test_who_asks_for_unread_runs_takes_no_place_from_others(serve: Serve, let: Let) -> None:
    served = serve(query_slots=2, query_wait_seconds=0.5)
    make_run(served.runs_dir, "own", samples=2, twin=False)
    make_foreign(served.runs_dir, "given")
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(served.get, f"/runs/given{path}") for path in ("", "/flow", "/usage", "/paths")]
        until(lambda: served.get("/runs/own/flow").status_code == 200)
        assert served.get("/runs").status_code == 200
        assert not any(one.done() for one in asked)
        let("given")
        assert [one.result().status_code for one in asked] == [200] * 4


def test_who_asks_for_many_unread_runs_does_not_stop_the_others(serve: Serve, let: Let) -> None:
    """More runs than there are threads: two are read, who asks for the rest is told to come back."""
    served = serve(query_wait_seconds=0.5)
    own = make_run(served.runs_dir, "own", samples=2, twin=False)
    names = [f"given{number}" for number in range(48)]
    for name in names:
        shutil.copy(own, served.runs_dir / f"{name}.duckdb")

    def ask(name: str) -> httpx.Response:
        way = int(name.removeprefix("given")) % 3
        if way == 2:
            return served.client.post(f"{API}/jobs", json={"kind": "map", "request": {"run": name}})
        return served.get(f"/runs/{name}/{'flow' if way else 'export/sample.csv'}")

    with ThreadPoolExecutor(len(names)) as pool:
        asked = [pool.submit(ask, name) for name in names]
        until(lambda: sum(one.done() for one in asked) == len(names) - INTAKES)
        assert served.get("/runs/own/flow").status_code == 200
        for one in asked:
            if one.done():
                assert "taking in other runs from elsewhere (2 at a time)" in problem(one.result(), 503)["detail"]
                assert one.result().headers["retry-after"]
        let(*names)
        assert sum(one.result().status_code < 500 for one in asked) == INTAKES


def test_a_reading_says_nothing_of_what_took_its_file_s_place(serve: Serve, let: Let) -> None:
    served = serve()
    make_foreign(served.runs_dir, "given", "gone")
    assert set(states(served).values()) == {"being_read"}
    for name in ("given", "gone"):
        (served.runs_dir / f"{name}.duckdb").unlink()
    make_run(served.runs_dir, "given", samples=3, twin=False)
    let("given", "gone")
    until(lambda: states(served) == {"given": "sealed"})
    assert is_sealed_here(served.runs_dir / "given.duckdb")


@pytest.mark.parametrize("reader", ["this process", "another process"])
def test_who_pages_through_finds_each_run_once(serve: Serve, let: Let, reader: str) -> None:
    """A run that was read between two pages has got a date, and would stand on the page before."""
    served = serve()
    for name in ("own1", "own2"):
        make_run(served.runs_dir, name, samples=2, twin=False)
    names = [f"given{number}" for number in range(5)]
    make_foreign(served.runs_dir, *names)
    found, page = [], served.get("/runs?limit=3").json()
    while True:
        found += [card["run"] for card in page["runs"]]
        if page["next"] is None:
            break
        if reader == "this process":
            let(*names)
        else:  # such as `tokenpaths ls`, or the worker
            other = RunGate(served.runs_dir, IntakeLimits())
            let(*names)
            for name in names:
                other.passage(served.runs_dir / f"{name}.duckdb")
        until(lambda: set(states(served).values()) == {"sealed"})
        page = served.get("/runs", params={"limit": 3, "next": page["next"]}).json()
    assert sorted(found) == sorted([*names, "own1", "own2"])
    assert set(found[:2]) == {"own1", "own2"}


def test_an_api_that_ends_ends_what_it_takes_in(let: Let, tmp_path: Path) -> None:
    (file,) = make_foreign(tmp_path / "runs", "given")
    registry = RunRegistry(file.parent, gate=RunGate(file.parent, IntakeLimits()))
    assert registry.cards()[0]["status"] == "being_read"
    until(lambda: bool(registry.gate._processes))
    (process,) = registry.gate._processes
    registry.close()
    until(lambda: process.returncode is not None)
    assert RunGate(file.parent, IntakeLimits()).standing(file).state == "waiting", "what was cut short says nothing"


def test_what_passes_is_tried_again_and_what_does_not_is_not(
    tmp_path: Path, let: Let, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = make_foreign(tmp_path / "runs", "given")
    gate, now = RunGate(file.parent, IntakeLimits()), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def refusal() -> str:
        with pytest.raises(RunFileError) as error:
            gate.passage(file)
        return str(error.value)

    let("given", problem="it need not be damaged", passing=True)
    assert "need not be damaged" in refusal()
    let("given")
    assert "need not be damaged" in refusal(), "not at once: it costs a minute of memory"
    assert gate.standing(file).state == "refused"
    assert gate.standing(file).passing
    now += gate_module.AGAIN_SECONDS + 1
    assert gate.standing(file).state == "waiting"
    assert gate.passage(file) == gate.copy_of(file)
    let("given", problem="its sums are wrong")
    os.utime(file, ns=(1, 1))
    assert refusal() == "its sums are wrong"
    let("given")
    now += 1e9
    assert refusal() == "its sums are wrong", "the file is the same"
    assert RunGate(file.parent, IntakeLimits()).standing(file).state == "refused", "and other processes know"
    os.utime(file, ns=(2, 2))
    assert gate.passage(file) == gate.copy_of(file)
    gate.copy_of(file).unlink()
    assert gate.passage(file) == gate.copy_of(file), "a copy that somebody deleted is made anew"


def test_a_copy_goes_with_its_original(tmp_path: Path, let: Let, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_foreign(tmp_path / "runs", "deleted", "by_hand", "replaced", "left")
    gate = RunGate(tmp_path / "runs", IntakeLimits())
    let("deleted", "by_hand", "replaced", "left")
    for file in files:
        gate.passage(file)
    gate.delete(files[0])
    files[1].unlink()
    make_run(tmp_path / "runs", "replaced", samples=3, twin=False, overwrite=True)
    monkeypatch.setattr(gate_module, "FRESH_SECONDS", -1.0)
    (gate.folder / ".killed.partial").touch()
    gate.sweep({"replaced.duckdb", "left.duckdb"})
    assert {file.name for file in gate.folder.iterdir()} == {"left.duckdb", "left.json"}
    assert gate.passage(files[2]) == files[2], "it is one of ours now"


def test_a_mark_goes_with_its_run(serve: Serve) -> None:
    served = serve()
    file = make_run(served.runs_dir, "one", samples=2, twin=False)
    mark = served.runs_dir.parent / FOLDER / identity_of(file.stat())
    assert mark.is_file()
    assert served.client.delete(f"{API}/runs/one").status_code == 204
    assert not mark.exists()


def test_a_mark_is_of_a_file_and_not_of_a_name(tmp_path: Path) -> None:
    file = make_run(tmp_path / "runs", "one", samples=2, twin=False)
    other = file.rename(file.with_name("two.duckdb"))
    assert is_sealed_here(other)
    os.link(other, file)
    assert is_sealed_here(file)
    copy = Path(shutil.copy2(file, file.with_name("three.duckdb")))
    assert not is_sealed_here(copy)
    info = unmarked(other).stat()  # as a version before marked it
    (tmp_path / FOLDER / identity_of(info)).unlink(missing_ok=True)
    assert not is_sealed_here(other)
    (tmp_path / FOLDER / other.name).write_text(f"{info.st_ino} {info.st_size} {info.st_mtime_ns} sealed")
    assert is_sealed_here(other)
    (tmp_path / FOLDER / other.name).write_text(f"{info.st_ino} {info.st_size} {info.st_mtime_ns} read")
    assert not is_sealed_here(other), "it was only read: it is taken in now"


SPOILT = {
    "/samples/3/similar": "UPDATE path_coded SET ribbon = [1] WHERE rank = 2",
    "/usage/kinds": "DELETE FROM module",
    "": "UPDATE run SET weight_semantics = '[1'",
    "/export/token.csv": "UPDATE run SET num_steps = 2",
}


@pytest.mark.parametrize("question", SPOILT)
def test_numbers_that_do_not_fit_are_a_problem_of_a_run_from_elsewhere(serve: Serve, question: str) -> None:
    served = serve()
    for name in ("theirs", "ours"):
        file = make_run(served.runs_dir, name, samples=6, seed=1)
        with duckdb.connect(str(file)) as con:
            con.execute(SPOILT[question])
    sealed(file)
    detail = problem(served.get(f"/runs/theirs{question}"), 409)["detail"]
    assert "theirs.duckdb came from elsewhere and is not opened" in detail
    problem(served.get(f"/runs/ours{question}"), 500)  # our own fault is not put on the run
    if question == "/export/token.csv":
        command = ["export", "theirs", "token", "--data-dir", str(served.settings.data_dir)]
        assert main(command) == 2, "a sentence, and no report of a crash"


def test_a_card_that_is_none_does_not_spoil_the_list(serve: Serve) -> None:
    served = serve()
    for name in ("theirs", "other"):
        make_run(served.runs_dir, name, samples=2, twin=False)
    file = served.runs_dir / "theirs.duckdb"
    with duckdb.connect(str(file)) as con:
        con.execute("ALTER TABLE run ALTER num_tokens TYPE VARCHAR USING 'many'")
    until(lambda: states(served) == {"other": "sealed", "theirs": "unreadable"})
    cards = {card["run"]: card for card in served.get("/runs").json()["runs"]}
    assert "not as this program makes it" in cards["theirs"]["problem"]
