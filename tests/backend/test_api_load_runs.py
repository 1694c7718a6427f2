"""Runs of counts over REST: their card, their load, one problem for all that needs tokens, and from elsewhere."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import duckdb
import pytest

from tests.backend.conftest import Serve, problem
from tests.support.foreign_runs import unmarked
from tests.support.runs import make_run
from tests.support.runs.counted import EXPERTS, STEPS, TIMES, make_counts, make_load_run
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.intake.gate import IntakeLimits, RunGate


def test_a_run_of_loads_is_listed_and_asked_as_others(serve: Serve) -> None:
    served, counts = serve(), make_counts()
    make_load_run(served.runs_dir, "counted")
    make_load_run(served.runs_dir, "again", seed=1)
    cards = {card["run"]: card for card in served.get("/runs").json()["runs"]}
    assert (cards["counted"]["kind"], cards["counted"]["status"]) == ("load", "sealed")
    assert cards["counted"]["num_paths"] is None
    assert served.get("/runs/counted").json()["summary"] is None
    usage = served.get("/runs/counted/usage").json()
    assert [cell["count"] for cell in usage["usage"]] == counts.counts.ravel().tolist()
    load = served.get("/runs/counted/load", params={"step": 1, "bins": 3}).json()
    assert [row["counts"] for row in load["bins"]] == counts.parts.reshape(3, 4, STEPS, EXPERTS)[:, :, 1].sum(
        1
    ).tolist()
    balance = served.get("/runs/counted/load/balance").json()["balance"]
    assert [row["choices"] for row in balance] == counts.parts.sum(axis=2).ravel().tolist()
    assert served.get("/runs/counted/load/labels").json()["reason"] == "this run has no labels"
    both = served.get("/compare/load", params={"a": "counted", "b": "again"}).json()
    assert [step["a"]["choices"] for step in both["steps"]] == counts.counts.sum(axis=1).tolist()
    problem(served.get("/compare/load", params={"a": "counted", "b": "counted"}), 409, "b")
    numbers = served.get("/compare", params={"runs": "counted,again"}).json()
    assert {row["group"] for row in numbers["rows"]} == {"size", "balance"}
    rows = list(csv.DictReader(io.StringIO(served.get("/runs/counted/export/load.csv").text)))
    assert sum(int(row["count"]) for row in rows) == counts.parts.sum()
    assert len({row["time"] for row in rows}) == TIMES


@pytest.mark.parametrize(
    "path",
    [
        "/runs/counted/flow",
        "/runs/counted/paths",
        "/runs/counted/paths/fit",
        "/runs/counted/samples",
        "/runs/counted/samples/0",
        "/runs/counted/samples/0/image",
        "/runs/counted/specialisation",
        "/runs/counted/modules/0.1",
        "/runs/counted/effect?of=counted",
        "/runs/counted/export/token.csv",
        "/runs/counted/dataset.zip",
        "/runs/counted/report",
        "/compare?a=counted&b=other",
        "/compare/grouping?a=other&b=counted",
        "/compare/agreement?a=other&b=counted",
        "/compare/agreement/sample?a=other&b=counted&sample=0",
    ],
)
def test_what_needs_tokens_is_one_problem(serve: Serve, path: str) -> None:
    served = serve()
    make_load_run(served.runs_dir, "counted")
    make_run(served.runs_dir, "other", samples=2, twin=False)
    answer = served.get(path)
    assert problem(answer, 409)["type"] == "urn:tokenpaths:needs-tokens"
    assert "holds counts of tokens by expert, not what each token chose" in answer.json()["detail"]


def gate(runs_dir: Path) -> RunGate:
    return RunGate(runs_dir, IntakeLimits())


@pytest.mark.parametrize("kind", ["timed", "domains"])
def test_one_from_elsewhere_is_taken_in(tmp_path: Path, kind: str) -> None:
    file = unmarked(make_load_run(tmp_path / "runs", "given", domains=kind == "domains", top_k=None))
    passed = gate(tmp_path / "runs").passage(file)
    assert passed != file
    with Run.open(file) as given, Run.open(passed) as taken:
        for name in ("info", "usage", "tables", "balance_over_time", "load_by_label"):
            arguments = {"step": 0} if name == "load_by_label" else {}
            assert getattr(taken, name)(**arguments) == getattr(given, name)(**arguments)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        ("UPDATE usage SET count = count + 1 WHERE step = 0 AND module = 0", "sums of load"),
        ("UPDATE load SET module = 900 WHERE module = 1", "rows of load"),
        ("UPDATE load SET count = -1 WHERE module = 1", "rows of load"),
        ("INSERT INTO load SELECT * FROM load", "twice"),
        ("UPDATE run SET num_paths = 3", "impossible"),
        ("UPDATE run SET num_modules = 65000", "impossible|modules"),
        ('UPDATE run SET config = \'{"load_only": {"axis": 3}}\'', "impossible things of its counts"),
        ("DELETE FROM usage", "sums of load|counts of nothing"),
        ("DROP TABLE load", "has no table load"),
        ("CREATE OR REPLACE TABLE load (step INTEGER)", "differ from what this program makes"),
    ],
)
def test_one_that_does_not_fit_together_is_refused(tmp_path: Path, harm: str, sentence: str) -> None:
    file = make_load_run(tmp_path / "runs", "given")
    plain = tmp_path / "plain.duckdb"
    shutil.copy(file, plain)
    with duckdb.connect(str(plain)) as con:
        con.execute(harm)
        con.execute("CHECKPOINT")
    unmarked(file)
    shutil.copy(plain, file)
    with pytest.raises(RunFileError, match=sentence):
        gate(tmp_path / "runs").passage(file)
