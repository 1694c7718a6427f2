"""The user's own names and notes over a real server: kept beside the run, exported, imported, refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.runs import make_run
from tokenpaths.backend.runs import names as own_names
from tokenpaths.engine.base.seal_marks import mark_sealed
from tokenpaths.frontend.api.client import Client

NAMES = API + "/runs/text/names"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_run(folder, "text", "text")
    return folder


@pytest.fixture
def served(serve: Serve, made: Path, tmp_path: Path) -> Served:
    """An API over a folder of its own with one run, ``text``, sealed there: one from elsewhere is looked into first."""
    file = Path(shutil.copytree(made, tmp_path / "data" / "runs")) / "text.duckdb"
    assert mark_sealed(file, file.stat()) is not None
    return serve()


def test_a_thing_is_named_shown_renamed_and_forgotten(served: Served) -> None:
    before = (served.settings.runs_dir / "text.duckdb").read_bytes()
    first = served.get("/runs/text/names")
    assert first.json()["names"] == {}
    assert first.headers["cache-control"] == "no-store"
    assert "etag" not in first.headers
    for thing in ("run", "module:0.1", "path:1", "sample:0", "token:0.0"):
        answer = served.client.put(f"{NAMES}/{thing}", json={"name": "naïve 東京", "note": "two\nlines"})
        assert answer.status_code == 201, answer.text
    answer = served.client.put(f"{NAMES}/path:1", json={"note": "only a note"})
    assert (answer.status_code, answer.json()["name"]) == (200, "")
    listed = served.get("/runs/text/names").json()["names"]
    assert set(listed) == {"run", "module:0.1", "path:1", "sample:0", "token:0.0"}
    assert listed["path:1"]["note"] == "only a note"
    assert served.client.delete(f"{NAMES}/path:1").status_code == 204
    problem(served.client.delete(f"{NAMES}/path:1"), 404, "thing")
    assert "path:1" not in served.get("/runs/text/names").json()["names"]
    problem(served.get("/runs/nowhere/names"), 404, "run")
    assert (served.settings.runs_dir / "text.duckdb").read_bytes() == before, "nothing goes into the sealed file"


def test_line_ends_of_every_system_are_those_of_a_note(served: Served) -> None:
    answer = served.client.put(f"{NAMES}/path:1", json={"note": "one\r\ntwo\rthree\n\r\n"})
    assert (answer.status_code, answer.json()["note"]) == (201, "one\ntwo\nthree")


def test_an_import_is_checked_beside_the_event_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    real = own_names.check_import

    def checked(data: bytes) -> Any:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return real(data)

    monkeypatch.setattr(own_names, "check_import", checked)
    answer = served.client.put(NAMES, json={"names": {"path:1": {"name": "a"}}})
    assert answer.status_code == 200, answer.text


def test_bodies_are_received_a_few_at_a_time(served: Served) -> None:
    limit = served.app.state.services.body_limit
    limit.semaphore, limit.wait_s = asyncio.Semaphore(0), 0.05
    for answer in (
        served.client.put(NAMES, json={"names": {}}),
        served.client.put(f"{NAMES}/path:1", json={"name": "a"}),
        served.client.post(f"{API}/jobs", json={"kind": "map", "request": {}}),
    ):
        assert problem(answer, 503)["type"] == "urn:tokenpaths:busy"
        assert answer.headers["retry-after"]


def test_an_export_is_an_import_through_the_page_client(served: Served) -> None:
    client = Client(str(served.client.base_url))
    client.save_name("text", "module:0.1", "full stops", "seen in every text")
    exported = client.export_names("text")
    client.save_name("text", "path:1", "another")
    assert set(client.names("text")) == {"module:0.1", "path:1"}
    assert client.import_names("text", exported)["names"] == exported["names"]
    assert client.names("text") == exported["names"]
    client.delete_name("text", "module:0.1")
    assert client.names("text") == {}


def test_names_survive_a_restart_and_a_restore_but_are_not_inherited(served: Served, serve: Serve) -> None:
    served.client.put(f"{NAMES}/path:1", json={"name": "kept"})
    file = served.settings.runs_dir / "text.duckdb"
    whole = file.read_bytes()
    assert served.client.delete(API + "/runs/text").status_code == 204
    problem(served.get("/runs/text/names"), 404, "run")
    make_run(served.settings.runs_dir, "text", "text", samples=5)
    import duckdb

    with duckdb.connect(str(file)) as con:
        con.execute("UPDATE run SET created_at = '2001-01-01T00:00:00+00:00'")
    assert served.get("/runs/text/names").json()["names"] == {}, "another run of the same name"
    served.client.put(f"{NAMES}/path:1", json={"name": "of the other"})
    file.write_bytes(whole)
    again = serve(served.settings.data_dir)
    assert again.get("/runs/text/names").json()["names"]["path:1"]["name"] == "kept"


def test_of_many_writers_at_once_none_is_lost(served: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda rank: served.client.put(f"{NAMES}/path:{rank}", json={"name": "x"}), range(1, 25))
        )
    assert {answer.status_code for answer in answers} == {201}
    assert len(served.get("/runs/text/names").json()["names"]) == 24


REFUSED: list[tuple[str, Any, int, str | None]] = [
    ("module:99.0", {"name": "a"}, 404, "thing"),
    ("module:0.99", {"name": "a"}, 404, "thing"),
    ("path:0", {"name": "a"}, 404, "thing"),
    ("path:99999999", {"name": "a"}, 404, "thing"),
    ("sample:999", {"name": "a"}, 404, "thing"),
    ("token:0.9999", {"name": "a"}, 404, "thing"),
    ("token:999.0", {"name": "a"}, 404, "thing"),
    ("path:01", {"name": "a"}, 422, "thing"),
    ("path:1.2", {"name": "a"}, 422, "thing"),
    ("run:1", {"name": "a"}, 422, "thing"),
    ("run:", {"name": "a"}, 422, "thing"),
    ("cat", {"name": "a"}, 422, "thing"),
    ("path:٣", {"name": "a"}, 422, "thing"),
    ("path:1", {}, 422, "name"),
    ("path:1", {"name": "  "}, 422, "name"),
    ("path:1", {"name": "x" * 81}, 422, "name"),
    ("path:1", {"note": "x" * 4001}, 422, "note"),
    ("path:1", {"name": "two\nlines"}, 422, "name"),
    ("path:1", {"name": "a\u202eb"}, 422, "name"),
    ("path:1", {"name": "a\u2028b"}, 422, "name"),
    ("path:1", {"name": "a\u2029b"}, 422, "name"),
    ("path:1", {"note": "bell\u0007"}, 422, "note"),
    ("path:1", {"name": 3}, 422, "name"),
    ("path:1", {"name": "a", "colour": "red"}, 422, "name"),
    ("path:1", ["a"], 422, "name"),
    ("path:1", {"note": "x" * 2_000_000}, 413, None),
]


def test_what_cannot_be_a_name_is_refused(served: Served) -> None:
    for thing, body, status, field in REFUSED:
        said = problem(served.client.put(f"{NAMES}/{thing}", json=body), status, field)["detail"]
        assert "control characters" not in said or "text without them" in said, (thing, said)
    assert served.get("/runs/text/names").json()["names"] == {}


def test_a_wrong_import_changes_nothing(served: Served) -> None:
    served.client.put(f"{NAMES}/path:1", json={"name": "kept"})
    good = {"name": "a", "note": ""}
    wrong: list[tuple[Any, int, str]] = [
        ([], 422, "names"),
        ({"names": []}, 422, "names"),
        ({"names": {}, "colour": 1}, 422, "colour"),
        ({"names": {"path:1": good, "cat": good}}, 422, "thing"),
        ({"names": {"path:1": good, "path:9999999": good}}, 404, "thing"),
        ({"names": {"path:1": {"name": "a\nb"}}}, 422, "name"),
        ({"names": {f"sample:{i}": good for i in range(own_names.MOST_NAMES + 1)}}, 422, "names"),
    ]
    for body, status, field in wrong:
        problem(served.client.put(NAMES, json=body), status, field)
    problem(served.client.put(NAMES, content=b"{}"), 415, "Content-Type")
    problem(served.client.put(NAMES, json={"names": {}}, headers={"origin": "http://evil.example"}), 403)
    assert set(served.get("/runs/text/names").json()["names"]) == {"path:1"}


def test_too_many_names_and_a_damaged_file_are_said_and_nothing_is_lost(served: Served, monkeypatch: Any) -> None:
    monkeypatch.setattr(own_names, "MOST_NAMES", 1)
    served.client.put(f"{NAMES}/path:1", json={"name": "kept"})
    problem(served.client.put(f"{NAMES}/path:2", json={"name": "one too many"}), 409, "thing")
    (file,) = (served.settings.data_dir / "names").glob("text.*.json")
    assert json.loads(file.read_bytes())["names"]["path:1"]["name"] == "kept"
    file.write_bytes(b'{"names": {"path:1": ')
    problem(served.get("/runs/text/names"), 409)
    problem(served.client.put(f"{NAMES}/path:1", json={"name": "new"}), 409)
    assert file.read_bytes() == b'{"names": {"path:1": '
