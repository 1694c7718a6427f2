"""Run files that break, vanish, change or are deleted while the API serves them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.coroutines import run_alone
from tests.support.runs import make_run
from tokenpaths.backend import problems
from tokenpaths.backend.problems import Problem, nearest
from tokenpaths.backend.runs.registry import RunRegistry
from tokenpaths.engine.base.errors import NotEnoughMemory, NotOpenedNow, QueryTimeout


def cut_in_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def break_by(path: Path, how: str) -> None:
    """Spoil a run file in one of several ways."""
    if how == "cut in half":
        cut_in_half(path)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("this is no run\n" * 1000)
    elif how == "zeros in the middle":
        data = bytearray(path.read_bytes())
        data[4096 : len(data) - 4096] = bytes(len(data) - 8192)
        path.write_bytes(data)
    elif how == "another database":
        import duckdb

        other = path.with_name("other.tmp")
        with duckdb.connect(str(other)) as con:
            con.execute("CREATE TABLE something (x INTEGER)")
        other.replace(path)


WAYS = ["cut in half", "empty", "text", "zeros in the middle", "another database"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("opened_before", [False, True])
def test_a_broken_file_is_a_problem_and_others_work(serve: Serve, how: str, opened_before: bool) -> None:
    served = serve()
    make_run(served.runs_dir, "good", samples=2)
    path = make_run(served.runs_dir, "broken", samples=2)
    if opened_before:
        assert served.get("/runs/broken/flow").status_code == 200
    break_by(path, how)
    for tail in ("", "/flow", "/samples/0", "/samples/0/image", "/export/path.csv"):
        body = problem(served.get(f"/runs/broken{tail}"), 409, "run")
        assert body["type"] == "urn:tokenpaths:unreadable-run"
        assert served.get(f"/runs/good{tail}").status_code == 200
    cards = {card["run"]: card for card in served.get("/runs").json()["runs"]}
    assert cards["good"]["status"] == "sealed"
    assert cards["broken"]["status"] == "unreadable"
    assert len(cards["broken"]["problem"]) > 20
    assert served.client.delete(f"{API}/runs/broken").status_code == 204
    assert [card["run"] for card in served.get("/runs").json()["runs"]] == ["good"]


def test_a_mended_file_is_noticed(serve: Serve) -> None:
    served = serve()
    path = make_run(served.runs_dir, "one", samples=2)
    whole = path.read_bytes()
    cut_in_half(path)
    problem(served.get("/runs/one"), 409)
    path.write_bytes(whole)
    assert served.get("/runs/one").status_code == 200


def test_a_passing_problem_is_not_listed_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=2)

    def status() -> list[str]:
        return [card["status"] for card in served.get("/runs").json()["runs"]]

    def too_slow(*_: object, **__: object) -> None:
        raise QueryTimeout("too long")

    monkeypatch.setattr("tokenpaths.backend.runs.open_runs.LOOK_AGAIN_SECONDS", 0)
    with monkeypatch.context() as patch:
        patch.setattr("tokenpaths.engine.store.ask.run.Run.open", too_slow)
        assert status() == ["unreadable"]
    until_sealed = time.monotonic() + 30
    while status() != ["sealed"]:
        assert time.monotonic() < until_sealed
        time.sleep(0.2)
    assert [status() for _ in range(3)] == [["sealed"]] * 3


def test_a_passing_trouble_of_opening_is_no_broken_file(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=2)
    for trouble in (
        QueryTimeout("too long"),
        NotEnoughMemory("there is not enough memory now"),
        NotOpenedNow("others are taken in"),
    ):

        def fail(*_: object, error: Exception = trouble, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("tokenpaths.engine.store.ask.run.Run.open", fail)
            answer = served.get("/runs/one/flow")
        assert problem(answer, 503)["type"] == "urn:tokenpaths:busy"
        assert int(answer.headers["retry-after"]) >= 1
        assert served.get("/runs/one/flow").status_code == 200, "the next request opens it again"
        served.app.state.services.registry.forget("one")
        served.app.state.services.answers.cache._answers.clear()


def test_those_who_wait_for_an_opening_that_fails_share_its_outcome(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=2)
    registry, tries, all_wait = served.app.state.services.registry, [], threading.Event()

    def too_slow(*_: object, **__: object) -> None:
        tries.append(1)
        all_wait.wait(30)
        raise QueryTimeout("too long")

    monkeypatch.setattr("tokenpaths.engine.store.ask.run.Run.open", too_slow)
    statuses: list[int] = []

    def ask() -> None:
        with pytest.raises(Problem) as caught:
            registry.ask("one", lambda run: run.card())
        statuses.append(caught.value.status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 30
    while registry._entries.get("one") is None or registry._entries["one"].users < 4:
        assert time.monotonic() < ends
        time.sleep(0.01)
    all_wait.set()
    for thread in threads:
        thread.join(30)
    assert (statuses, len(tries)) == ([503] * 4, 1)


@pytest.mark.skipif(os.name == "nt", reason="file names are text there")
def test_a_name_that_is_no_utf_8_is_listed_with_how_to_rename_it(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=2)
    folder = os.fsencode(served.runs_dir)
    try:
        shutil.copy(served.runs_dir / "one.duckdb", folder + b"/caf\xe9's.duckdb")
    except OSError:
        pytest.skip("this file system has no such names")
    card = next(card for card in served.get("/runs").json()["runs"] if card["run"] != "one")
    assert (card["run"], card["status"]) == ("caf\\xe9's", "unreadable")
    assert "cafe" not in problem(served.get("/runs/cafe"), 404)["detail"].removeprefix("There is no run `cafe`")
    problem(served.client.delete(f"{API}/runs/caf%E9's"), 404)
    assert served.client.get("/metrics").status_code == 200
    command = card["problem"].rpartition("in its folder: `")[2].removesuffix("`.").replace("NAME", "two")
    subprocess.run(["bash", "-c", command], cwd=served.runs_dir, check=True)
    assert {card["run"]: card["status"] for card in served.get("/runs").json()["runs"]}["two"] != "unreadable"


@pytest.mark.parametrize("name", ["実験" * 40, "\x01" * 240])
def test_a_listing_goes_on_after_a_run_of_any_name(serve: Serve, name: str) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=2)
    for end in "abc":
        shutil.copy(served.runs_dir / "one.duckdb", served.runs_dir / f"{name}{end}.duckdb")
    listed, query = [], {"limit": 1}
    while True:
        answer = served.get("/runs", params=query)
        assert answer.status_code == 200, answer.text
        listed += [card["run"] for card in answer.json()["runs"]]
        if answer.json()["next"] is None:
            break
        query["next"] = answer.json()["next"]
    assert sorted(listed) == sorted(["one", *(f"{name}{end}" for end in "abc")])


def test_a_wrong_name_is_likened_to_a_few_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"trace-of-some-model-{number:04}-and-more-words-in-its-name" for number in range(1000)]
    likened: list[int] = []
    own = problems._likely
    monkeypatch.setattr(problems, "_likely", lambda *given: likened.append(len(found := own(*given))) or found)
    assert "did you mean `dna-vision`?" in nearest("dna-visoin", [*names, "dna-vision"])
    assert "`trace-of-some-model-0123-and-more-words-in-its-name`?" in nearest(
        names[123].replace("some", "smoe"), names
    )
    assert 0 < max(likened) <= problems.MOST_LIKENED, "it may be on the event loop"


def test_folder_that_is_no_file_and_names_that_are_none(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=2)
    (served.runs_dir / "folder.duckdb").mkdir()
    (served.runs_dir / ".one.partial").write_bytes(b"x")
    (served.runs_dir / "notes.txt").write_text("x")
    shutil.copy(served.runs_dir / "one.duckdb", served.runs_dir / "no name.duckdb")
    cards = {card["run"]: card["status"] for card in served.get("/runs").json()["runs"]}
    assert cards == {"one": "sealed", "no name": "unreadable"}
    problem(served.get("/runs/folder"), 404)
    problem(served.client.delete(f"{API}/runs/folder"), 404)


def test_deleting(serve: Serve) -> None:
    served = serve()
    path = make_run(served.runs_dir, "one", samples=2)
    etag = served.get("/runs/one").headers["etag"]
    answer = served.client.delete(f"{API}/runs/one")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not path.exists()
    problem(served.get("/runs/one", headers={"if-none-match": etag}), 404, "run")
    problem(served.client.delete(f"{API}/runs/one"), 404, "run")


def test_what_is_only_named_like_a_run_is_no_suggestion(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "given1", samples=2, twin=False)
    (served.runs_dir / "given2.duckdb").mkdir()
    (served.runs_dir / "given3.duckdb").symlink_to("nowhere")
    for name in ("given2", "given3", "given4"):
        said = problem(served.get(f"/runs/{name}"), 404, "run")["detail"]
        assert said == f"There is no run `{name}`; did you mean `given1`? Allowed: `given1`."


def test_two_who_delete_at_once(serve: Serve) -> None:
    """Exactly one of ten succeeds, the others learn that it is gone."""
    served = serve()
    make_run(served.runs_dir, "one", samples=2)

    async def race() -> list[int]:
        async with httpx.AsyncClient(base_url=served.client.base_url, trust_env=False) as client:
            answers = await asyncio.gather(*[client.delete(f"{API}/runs/one") for _ in range(10)])
            return [answer.status_code for answer in answers]

    assert sorted(run_alone(race())) == [204] + [404] * 9


def test_deleting_while_it_is_read(serve: Serve) -> None:
    """Readers get whole answers or a problem; the file is gone at the end."""
    served = serve()
    make_run(served.runs_dir, "one", samples=40, twin=False)
    seen: list[int] = []

    def read() -> None:
        with httpx.Client(base_url=served.client.base_url, trust_env=False, timeout=30) as client:
            for step in range(20):
                seen.append(client.get(f"{API}/runs/one/flow?through={step % 5}.1&limit={step + 1}").status_code)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    assert served.client.delete(f"{API}/runs/one").status_code == 204
    for reader in readers:
        reader.join()
    assert set(seen) <= {200, 404}
    assert len(seen) == 80
    problem(served.get("/runs/one"), 404)
    assert served.app.state.services.registry.count_open() == 0


def test_replaced_while_it_is_read(tmp_path: Path) -> None:
    """Who holds the old run reads it to the end; who asks next gets the new one."""
    make_run(tmp_path, "one", samples=2)
    registry = RunRegistry(tmp_path)
    with registry.lease("one") as old:
        make_run(tmp_path, "one", samples=3, overwrite=True)
        assert registry.ask("one", lambda run: run.card()["num_samples"]) == 3
        assert old.card()["num_samples"] == 2
        assert old.samples(limit=10)["total"] == 2
    assert registry.count_open() == 1
    registry.close()


def test_only_so_many_files_stay_open(tmp_path: Path) -> None:
    for i in range(6):
        make_run(tmp_path, f"run{i}", samples=1, twin=False)
    registry = RunRegistry(tmp_path, max_open=2)
    assert len(registry.cards()) == 6
    assert registry.count_open() <= 2
    for _ in range(2):
        for i in range(6):
            assert registry.ask(f"run{i}", lambda run: run.card()["run"]) == f"run{i}"
    assert registry.count_open() <= 2
    registry.close()
    assert registry.count_open() == 0


def test_cards_are_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.engine.store.ask.run import Run

    make_run(tmp_path, "one", samples=1, twin=False)
    registry = RunRegistry(tmp_path, max_open=1)
    assert registry.cards()[0]["num_samples"] == 1
    registry.close()
    monkeypatch.setattr(Run, "open", lambda *_, **__: pytest.fail("opened again"))
    assert registry.cards()[0]["num_samples"] == 1
    monkeypatch.undo()
    make_run(tmp_path, "one", samples=2, twin=False, overwrite=True)
    assert registry.cards()[0]["num_samples"] == 2
    registry.close()


def test_problem_of_a_missing_run_names_the_nearest(tmp_path: Path) -> None:
    make_run(tmp_path, "vision", samples=1, twin=False)
    with pytest.raises(Problem, match="did you mean `vision`"):
        RunRegistry(tmp_path).identity("visoin")
    with pytest.raises(Problem, match="no runs yet"):
        RunRegistry(tmp_path / "empty").identity("vision")


def test_problem_of_a_missing_run_counts_those_that_it_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / f"run{number:02}.duckdb").touch()
    with pytest.raises(Problem, match=r"`run18`, `run19` and 10 more\."):
        RunRegistry(tmp_path).identity("visoin")
    monkeypatch.setattr("tokenpaths.backend.runs.open_runs.MOST_COMPARED", 25)
    with pytest.raises(Problem, match=r"`run18`, `run19` and 10 more\."):
        RunRegistry(tmp_path).identity("visoin")


def test_export_of_a_client_that_left_frees_its_place(serve: Serve) -> None:
    served: Served = serve(export_slots=1, query_wait_seconds=5)
    make_run(served.runs_dir, "big", samples=1500, twin=False)
    with served.client.stream("GET", f"{API}/runs/big/export/token.csv") as answer:
        next(answer.iter_raw(1000))
    assert served.get("/runs/big/export/path.csv").status_code == 200
