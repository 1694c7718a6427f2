"""A job about a run from elsewhere opens its copy or is refused in words; over a run of ours it is a fault of ours."""

from __future__ import annotations

import duckdb
import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.foreign_runs import intakes_that_wait, make_foreign, sealed
from tests.support.jobs_over_rest import until
from tests.support.runs import make_run


def test_a_job_whose_run_does_not_fit_together_is_our_fault_if_the_run_is_ours(working: Served) -> None:
    file = make_run(working.settings.runs_dir, "ours", samples=20, seed=1)
    with duckdb.connect(str(file)) as con:
        con.execute("UPDATE path_coded SET ribbon = [1] WHERE rank = 2")
    sealed(file)
    job = {"kind": "map", "request": {"run": "ours", "perplexity": 2}}
    answer = working.client.post(f"{API}/jobs", json=job)
    assert answer.status_code == 202, answer.text
    trouble = until(working, answer.json()["job"], "failed")["problem"]
    assert trouble["status"] == 500
    assert "unforeseen" in trouble["detail"]


def test_a_job_about_a_run_from_elsewhere_that_does_not_fit_together_is_refused(serve: Serve) -> None:
    served = serve()
    (file,) = make_foreign(served.runs_dir, "theirs", samples=20)
    with duckdb.connect(str(file)) as con:
        con.execute("UPDATE path_coded SET ribbon = [1] WHERE rank = 2")
    answer = served.client.post(f"{API}/jobs", json={"kind": "map", "request": {"run": "theirs"}})
    assert "theirs.duckdb came from elsewhere and is not opened" in problem(answer, 422, "request.run")["detail"]
    assert served.get("/jobs").json()["jobs"] == []


def test_a_job_opens_the_copy_of_a_run_from_elsewhere(
    working: Served, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = intakes_that_wait(tmp_path_factory.mktemp("gate"), monkeypatch)
    let("given")
    (file,) = make_foreign(working.settings.runs_dir, "given", samples=20)
    answer = working.client.post(f"{API}/jobs", json={"kind": "map", "request": {"run": "given", "perplexity": 2}})
    file.chmod(0)  # whoever opens the original from now on is refused
    assert answer.status_code == 202, answer.text
    until(working, answer.json()["job"], "succeeded")
