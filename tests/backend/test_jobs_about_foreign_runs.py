"""A job that fails over the numbers of a run from elsewhere says so; over a run of ours it is a fault of ours."""

from __future__ import annotations

import os

import duckdb
import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.jobs_over_rest import until
from tests.support.runs import make_run
from tokenpaths.backend.runs.foreign_files import ForeignFiles
from tokenpaths.engine.base.trusted_files import READ, SEALED, mark_known


def spoilt(served: Served, how: str, sql: str) -> str:
    """A run whose tables do not fit together, and that is known here as ``how``."""
    file = make_run(served.settings.runs_dir, f"run-{how}", samples=20, seed=1)
    with duckdb.connect(str(file)) as con:
        con.execute(sql)
    mark_known(file, os.stat(file), how)
    return file.stem


@pytest.mark.parametrize("how", [READ, SEALED])
def test_a_job_says_whose_fault_it_is(working: Served, how: str) -> None:
    run = spoilt(working, how, "UPDATE path SET ribbon = [1] WHERE rank = 2")
    answer = working.client.post(f"{API}/jobs", json={"kind": "map", "request": {"run": run, "perplexity": 2}})
    assert answer.status_code == 202, answer.text
    told = until(working, answer.json()["job"], "failed")["problem"]
    if how == READ:
        assert (told["status"], told["field"]) == (409, "run")
        assert f"Run {run} cannot be answered: it came from elsewhere" in told["detail"]
    else:
        assert told["status"] == 500
        assert "unforeseen" in told["detail"]


@pytest.mark.parametrize("how", [READ, SEALED])
def test_so_does_its_check_before_it_is_queued(serve: Serve, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    run = spoilt(served, how, "UPDATE run SET num_samples = 20")
    looked = []

    def check(request: object, opened: object) -> None:
        looked.append(opened)
        raise ZeroDivisionError

    monkeypatch.setattr("tokenpaths.engine.jobs.map_samples._check_size", check)
    answer = served.client.post(f"{API}/jobs", json={"kind": "map", "request": {"run": run}})
    if how == READ:
        assert "do not fit together (ZeroDivisionError)" in problem(answer, 409)["detail"]
    else:
        problem(answer, 500)
    assert looked
    assert served.get("/jobs").json()["jobs"] == []


def test_a_run_that_nobody_has_read_is_still_read_before_a_job_opens_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, asked = serve(), []
    file = make_run(served.runs_dir, "given", samples=20)
    monkeypatch.setattr(ForeignFiles, "problem", lambda self, file: asked.append(file) or "it is odd, not opened")
    answer = served.client.post(f"{API}/jobs", json={"kind": "map", "request": {"run": "given"}})
    assert "it is odd, not opened" in problem(answer, 422, "request.run")["detail"]
    assert asked == [file]
