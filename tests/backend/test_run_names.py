"""Names that users give to runs: shown in lists, kept beside the file, gone with the run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backend.conftest import api_for
from tests.support.runs import make_run


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    make_run(tmp_path / "runs", "one", samples=2)
    make_run(tmp_path / "runs", "two", "text", samples=2)
    with api_for(tmp_path) as api:
        yield api


def names(api: Any) -> dict[str, str | None]:
    return {card["run"]: card["name"] for card in api.client.get("/api/v1/runs").json()["runs"]}


def put(api: Any, run: str, body: Any) -> Any:
    return api.client.put(f"/api/v1/runs/{run}/name", json=body)


def test_a_name_is_shown_and_the_file_stays_as_it_is(served: Any, tmp_path: Path) -> None:
    file = tmp_path / "runs" / "one.duckdb"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    first = served.client.get("/api/v1/runs")
    assert put(served, "one", {"name": "  Coffee \n & cats 🙂 "}).status_code == 204
    assert names(served) == {"one": "Coffee & cats 🙂", "two": None}
    again = served.client.get("/api/v1/runs", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 200
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    assert put(served, "one", {"name": ""}).status_code == 204
    assert names(served) == {"one": None, "two": None}


def test_a_deleted_runs_name_does_not_come_back_with_another_run(served: Any, tmp_path: Path) -> None:
    put(served, "one", {"name": "mine"})
    assert served.client.delete("/api/v1/runs/one").status_code == 204
    make_run(tmp_path / "runs", "one", samples=3)
    assert names(served)["one"] is None


@pytest.mark.parametrize("body", [{}, {"name": 3}, {"name": "a", "more": 1}, [], "mine", {"name": "x" * 121}])
def test_what_is_no_name_is_refused_and_the_old_one_stays(served: Any, body: Any) -> None:
    put(served, "one", {"name": "mine"})
    answer = put(served, "one", body)
    assert (answer.status_code, answer.json()["field"]) == (422, "name")
    assert names(served)["one"] == "mine"


def test_a_run_that_is_not_there_gets_no_name(served: Any, tmp_path: Path) -> None:
    assert put(served, "nobody", {"name": "mine"}).status_code == 404
    assert not (tmp_path / "run_names" / "nobody.json").exists()
    assert put(served, "one", {"name": "y" * 5000}).status_code in (413, 422)


def test_a_damaged_file_of_a_name_is_no_name(served: Any, tmp_path: Path) -> None:
    (tmp_path / "run_names").mkdir(exist_ok=True)
    (tmp_path / "run_names" / "one.json").write_bytes(b"\xff{")
    (tmp_path / "run_names" / "two.json").write_text("[1]")
    assert names(served) == {"one": None, "two": None}
