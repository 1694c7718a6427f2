"""A trace over REST leaves its twin to a job; what answers say of it meanwhile, and when it is there."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.backend.conftest import API, Serve, Served
from tests.support.jobs_over_rest import until
from tests.support.runs import make_run
from tokenpaths.engine.jobs.registry import find_kind
from tokenpaths.engine.jobs.traces import trace_twin


def submitted(served: Served, kind: str, **request: Any) -> str:
    answer = served.client.post(f"{API}/jobs", json={"kind": kind, "request": request})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job"])


def twin_of(served: Served, run: str) -> dict[str, Any]:
    answer = served.get(f"/runs/{run}/twin")
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


def test_a_twin_is_announced_until_it_is_in_the_answers(working: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, parts = threading.Event(), trace_twin._parts

    def held(*arguments: Any) -> Any:
        assert go_on.wait(60)
        yield from parts(*arguments)

    monkeypatch.setattr(trace_twin, "_parts", held)
    inbox = working.settings.data_dir / "inbox"
    inbox.mkdir(exist_ok=True)
    (inbox / "words.txt").write_text("the cat sat on the mat and looked at the moon")
    trace = submitted(working, "trace", model="tiny-text", data="words.txt", run="awaited")
    assert until(working, trace, "succeeded", "failed")["state"] == "succeeded"
    (job,) = [job for job in working.get("/jobs?kind=twin").json()["jobs"] if job["request"]["run"] == "awaited"]
    state = twin_of(working, "awaited")
    assert state["job"] == job["job"]
    assert state["state"] in ("waiting", "running")
    assert state["reason"].startswith("the untrained twin is being traced")
    before = working.get("/runs/awaited/paths/fit")
    assert before.json()["untrained"] is None
    go_on.set()
    until(working, job["job"], "succeeded")
    assert twin_of(working, "awaited") == {"run": "awaited", "state": "there", "job": None, "reason": None}
    after = working.get("/runs/awaited/paths/fit", headers={"if-none-match": before.headers["etag"]})
    assert after.status_code == 200
    assert after.json()["untrained"]["num_tokens"] == after.json()["observed"]["num_tokens"]
    assert working.get("/runs/awaited").json()["created_at"]


def test_why_there_is_none(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "bare", samples=2, twin=False)
    make_run(served.runs_dir, "whole", samples=2)
    table = served.app.state.services.jobs.table
    assert twin_of(served, "whole")["state"] == "there"
    assert twin_of(served, "bare") == {
        "run": "bare",
        "state": "none",
        "job": None,
        "reason": "no untrained twin was traced with this run",
    }
    request = {"run": "bare", "model": "tiny", "data": "bundled:scenes"}
    job = table.submit("twin", request).job
    assert twin_of(served, "bare")["reason"].endswith("in the background, after all other jobs")
    lease = table.lease("worker")
    table.end(lease, "failed", problem={"detail": "The data are gone."})
    assert twin_of(served, "bare")["reason"] == "the untrained twin was not traced: The data are gone"
    table.retry(job)
    table.cancel(job)
    assert twin_of(served, "bare")["reason"] == "the untrained twin was not traced: its job was cancelled"
    assert served.get("/runs/none/twin").status_code == 404


def test_a_job_for_an_earlier_run_of_the_name_says_nothing_of_this_one(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "again", samples=2, twin=False)
    table = served.app.state.services.jobs.table
    now, table.clock = table.clock, lambda: 1_000_000.0
    job = table.submit("twin", {"run": "again", "model": "tiny", "data": "bundled:scenes"}).job
    table.end(table.lease("worker"), "failed", problem={"detail": "The data are gone."})
    table.clock = now
    assert twin_of(served, "again") == {
        "run": "again",
        "state": "none",
        "job": None,
        "reason": "no untrained twin was traced with this run",
    }
    table.retry(job)
    assert twin_of(served, "again")["job"] == job, "it is about to trace the twin of the run of this name"


def test_a_trace_whose_twin_cannot_be_queued_has_succeeded(working: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = working.settings.data_dir / "inbox"
    inbox.mkdir(exist_ok=True)
    (inbox / "more.txt").write_text("the moon looked back")

    def refused(kind: str) -> Any:
        if kind == "twin":
            raise KeyError("no such kind")
        return find_kind(kind)

    monkeypatch.setattr("tokenpaths.backend.jobs.runner.find_kind", refused)
    job = submitted(working, "trace", model="tiny-text", data="more.txt", run="alone")
    assert until(working, job, "succeeded", "failed")["state"] == "succeeded"
    assert twin_of(working, "alone")["state"] == "none"
    assert working.get("/jobs?kind=twin&state=waiting,running").json()["jobs"] == []
