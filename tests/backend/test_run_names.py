"""Names of runs in the list: what users wrote to the run itself, kept beside the file."""

from __future__ import annotations

import hashlib
import time
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
    return api.client.put(f"/api/v1/runs/{run}/names/run", json=body)


def test_a_name_is_shown_and_the_file_stays_as_it_is(served: Any, tmp_path: Path) -> None:
    file = tmp_path / "runs" / "one.duckdb"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    first = served.client.get("/api/v1/runs")
    assert put(served, "one", {"name": "Coffee & cats 🙂"}).status_code == 201
    assert names(served) == {"one": "Coffee & cats 🙂", "two": None}
    again = served.client.get("/api/v1/runs", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 200
    assert put(served, "one", {"name": "Tea"}).status_code == 200
    assert names(served)["one"] == "Tea"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    assert served.client.delete("/api/v1/runs/one/names/run").status_code == 204
    assert names(served) == {"one": None, "two": None}


def test_another_run_that_takes_the_id_does_not_take_the_name(served: Any, tmp_path: Path) -> None:
    put(served, "one", {"name": "mine"})
    assert served.client.delete("/api/v1/runs/one").status_code == 204
    time.sleep(1.1)  # a run says when it was made in whole seconds
    make_run(tmp_path / "runs", "one", samples=3)
    assert names(served)["one"] is None


def test_names_of_other_things_are_no_names_of_the_run(served: Any) -> None:
    thing = served.client.put("/api/v1/runs/one/names/path:1", json={"name": "the most frequent"})
    assert thing.status_code == 201
    assert put(served, "two", {"note": "a note alone"}).status_code == 201
    assert names(served) == {"one": None, "two": None}


def test_a_damaged_file_of_names_is_no_name(served: Any, tmp_path: Path) -> None:
    put(served, "one", {"name": "mine"})
    (file,) = (tmp_path / "names").glob("one.*.json")
    file.write_bytes(b"\xff{")
    assert names(served) == {"one": None, "two": None}
