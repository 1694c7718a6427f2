"""Runs from elsewhere: listed at once and read in the background, refused for a reason, forgotten with their marks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import httpx
import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.runs import make_run
from tokenpaths.backend.runs import foreign_files
from tokenpaths.backend.runs.answers import FIRST_READINGS
from tokenpaths.backend.runs.foreign_files import ForeignFiles
from tokenpaths.backend.runs.registry import RunRegistry
from tokenpaths.cli.main import main
from tokenpaths.engine.base.trusted_files import FOLDER, READ, is_known, is_sealed_here, mark_known

GATED = (
    "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.005)\nprint(open(sys.argv[1]).read())"
)
WHOLE, NO_MEMORY = '{"problem": null, "memory": false}', '{"problem": "no", "memory": true}'
Let = Callable[..., None]


@pytest.fixture
def let(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Let:
    """First readings end only when they are let, with what they are let say; nothing is read."""
    gates = tmp_path / "gates"
    gates.mkdir()

    def command(file: Path, _: int) -> list[str]:
        return [sys.executable, "-c", GATED, str(gates / file.stem)]

    def let(*names: str, say: str = WHOLE) -> None:
        for name in names:
            (gates / "new").write_text(say)
            (gates / "new").rename(gates / name)

    monkeypatch.setattr(foreign_files, "child_command", command)
    return let


def from_elsewhere(served: Served, *names: str) -> None:
    """Runs without a mark, as in a data folder that was copied."""
    for name in names:
        (served.runs_dir.parent / FOLDER / make_run(served.runs_dir, name, samples=2, twin=False).name).unlink()


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
    from_elsewhere(served, *names)
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
    assert unread(served) == 0
    assert all(is_known(served.runs_dir / f"{name}.duckdb") for name in names)
    assert not is_sealed_here(served.runs_dir / "given3.duckdb")


def test_who_asks_for_unread_runs_takes_no_place_from_others(serve: Serve, let: Let) -> None:
    served = serve(query_slots=2, query_wait_seconds=0.5)
    make_run(served.runs_dir, "own", samples=2, twin=False)
    from_elsewhere(served, "given")
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
        until(lambda: sum(one.done() for one in asked) == len(names) - FIRST_READINGS)
        assert served.get("/runs/own/flow").status_code == 200
        for one in asked:
            if one.done():
                assert "first time (2 at a time)" in problem(one.result(), 503)["detail"]
                assert one.result().headers["retry-after"]
        let(*names)
        assert sum(one.result().status_code < 500 for one in asked) == FIRST_READINGS


def test_a_reading_says_nothing_of_what_took_its_file_s_place(serve: Serve, let: Let) -> None:
    served = serve()
    from_elsewhere(served, "given", "gone")
    assert set(states(served).values()) == {"being_read"}
    for name in ("given", "gone"):
        (served.runs_dir / f"{name}.duckdb").unlink()
    make_run(served.runs_dir, "given", samples=3, twin=False)
    let("given", "gone")
    until(lambda: states(served) == {"given": "sealed"})
    assert is_sealed_here(served.runs_dir / "given.duckdb")
    assert not (served.runs_dir.parent / FOLDER / "gone.duckdb").exists()


@pytest.mark.parametrize("reader", ["this process", "another process"])
def test_who_pages_through_finds_each_run_once(serve: Serve, let: Let, reader: str) -> None:
    """A run that was read between two pages has got a date, and would stand on the page before."""
    served = serve()
    for name in ("own1", "own2"):
        make_run(served.runs_dir, name, samples=2, twin=False)
    names = [f"given{number}" for number in range(5)]
    from_elsewhere(served, *names)
    found, page = [], served.get("/runs?limit=3").json()
    while True:
        found += [card["run"] for card in page["runs"]]
        if page["next"] is None:
            break
        if reader == "this process":
            let(*names)
        else:  # such as `tokenpaths ls`, or the worker
            for file in (served.runs_dir / f"{name}.duckdb" for name in names):
                mark_known(file, file.stat(), READ)
        until(lambda: set(states(served).values()) == {"sealed"})
        page = served.get("/runs", params={"limit": 3, "next": page["next"]}).json()
    assert sorted(found) == sorted([*names, "own1", "own2"])
    assert set(found[:2]) == {"own1", "own2"}


def test_an_api_that_ends_ends_what_it_reads(serve: Serve, let: Let, tmp_path: Path) -> None:
    file = make_run(tmp_path / "runs", "given", samples=2, twin=False)
    (tmp_path / FOLDER / file.name).unlink()
    registry = RunRegistry(file.parent, foreign_files=ForeignFiles(60))
    assert registry.cards(wait=False)[0]["status"] == "being_read"
    assert registry.foreign_files is not None
    until(lambda: bool(registry.foreign_files._children))
    (child,) = registry.foreign_files._children
    registry.close()
    until(lambda: child.returncode is not None)
    assert not is_known(file), "what was cut short says nothing"


def test_what_passes_is_tried_again_and_what_does_not_is_not(
    tmp_path: Path, let: Let, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_run(tmp_path / "runs", "given", samples=2, twin=False)
    (tmp_path / FOLDER / file.name).unlink()
    reader, now = ForeignFiles(60), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    let("given", say=NO_MEMORY)
    assert "need not be damaged" in str(reader.problem(file))
    let("given")
    assert "need not be damaged" in str(reader.problem(file)), "not at once: it costs a minute of memory"
    assert reader.status(file).state == "refused"
    now += foreign_files.AGAIN_SECONDS + 1
    assert reader.status(file).state == "unread"
    assert reader.problem(file) is None
    let("given", say='{"problem": "its sums are wrong"}')
    os.utime(file, ns=(1, 1))
    assert reader.problem(file) == "its sums are wrong"
    let("given")
    now += 1e9
    assert reader.problem(file) == "its sums are wrong", "the file is the same"
    os.utime(file, ns=(2, 2))
    assert reader.problem(file) is None


def test_want_of_memory_is_no_damage(tmp_path: Path) -> None:
    """DuckDB is given next to nothing, by the process that reads first."""
    file = make_run(tmp_path / "runs", "given", samples=1500, twin=False)
    code = (
        "import sys; from pathlib import Path; from tokenpaths.engine.store.file.open_file import limit_memory\n"
        "from tokenpaths.backend.runs.foreign_child import answer_about\n"
        "limit_memory(1); print(answer_about(Path(sys.argv[1]))['memory'])"
    )
    said = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=120)
    assert said.stdout.split() == ["True"], said.stderr


def test_a_mark_goes_with_its_run(serve: Serve) -> None:
    served = serve()
    file = make_run(served.runs_dir, "one", samples=2, twin=False)
    mark = served.runs_dir.parent / FOLDER / file.name
    assert mark.is_file()
    assert served.client.delete(f"{API}/runs/one").status_code == 204
    assert not mark.exists()


SPOILT = {
    "/samples/3/similar": "UPDATE path SET ribbon = [1] WHERE rank = 2",
    "/usage": "DELETE FROM module",
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
        mark_known(file, os.stat(file), READ if name == "theirs" else "sealed")
    said = problem(served.get(f"/runs/theirs{question}"), 409)["detail"]
    assert "Run theirs cannot be answered" in said
    assert "do not fit together" in said
    problem(served.get(f"/runs/ours{question}"), 500)  # our own fault is not put on the run
    if question == "/export/token.csv":
        command = ["export", "theirs", "token", "--data-dir", str(served.settings.data_dir)]
        assert main(command) == 2, "a sentence, and no report of a crash"


def test_a_pipe_that_closes_is_no_fault_of_a_run(tmp_path: Path) -> None:
    file = make_run(tmp_path / "runs", "theirs", samples=2, twin=False)
    mark_known(file, os.stat(file), READ)
    with pytest.raises(BrokenPipeError), RunRegistry(file.parent).foreign_run_errors("theirs"):
        raise BrokenPipeError


def test_a_card_that_is_none_does_not_spoil_the_list(serve: Serve) -> None:
    served = serve()
    for name in ("theirs", "other"):
        make_run(served.runs_dir, name, samples=2, twin=False)
    file = served.runs_dir / "theirs.duckdb"
    with duckdb.connect(str(file)) as con:
        con.execute("ALTER TABLE run ALTER num_tokens TYPE VARCHAR USING 'many'")
    mark_known(file, os.stat(file), READ)
    cards = {card["run"]: card for card in served.get("/runs").json()["runs"]}
    assert cards["other"]["status"] == "sealed"
    assert cards["theirs"]["status"] == "unreadable"
    assert "do not fit together" in cards["theirs"]["problem"]
