"""Long jobs over REST: what is refused, what is shown, who may cancel, what remains."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.coroutines import run_alone
from tests.support.jobs import counted, register_count
from tests.support.jobs_over_rest import cancel, events_of, submit, until

register_count()


def test_a_job_from_its_submission_to_its_result(working: Served) -> None:
    job = submit(working, iterations=200, seconds=0.002)
    found = until(working, job, "succeeded")
    assert found["result"] == {"value": counted(200)}
    assert found["progress"]["done"] == found["progress"]["total"] == 200
    assert found["progress"]["unit"] == "iterations"
    assert found["artifacts"] == ["curve.json", *(f"frame-{n:06d}.png" for n in (64, 128, 192, 200))]
    assert found["request"]["every"] == 64, "defaults are kept as they were when it was submitted"
    assert found["attempts"] == 1
    assert found["created_at"] <= found["started_at"] <= found["finished_at"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 422, "body"),
        (b"{", 422, "body"),
        (b"[]", 422, "body"),
        (b"\xff\xfe", 422, "body"),
        (b'{"kind": "count", "request": {"iterations": NaN}}', 422, "body"),
        (b'{"kind": "count", "request": {"iterations": 1, "seconds": 1e999}}', 422, "body"),
        (b'{"kind": "count", "request": {"iterations": 1, "fail_with": "\\ud800"}}', 422, "body"),
        (b"[" * 100_000, 422, "body"),
        (b'{"kind": ' + b"1" * 5000 + b"}", 422, "body"),
        (b'{"kind": "count", "kind": "trace", "request": {}}', 422, "body"),
        (b'{"kind": "count", "request": {"iterations": 1, "iterations": 2}}', 422, "body"),
        (b" " * 1_200_000, 413, None),
        (b'{"request": {}}', 422, "kind"),
        (b'{"kind": 7, "request": {}}', 422, "kind"),
        (b'{"kind": "cuont", "request": {}}', 422, "kind"),
        (b'{"kind": "../count", "request": {}}', 422, "kind"),
        (b'{"kind": "count", "requst": {}}', 422, "requst"),
        (b'{"kind": "count"}', 422, "request.iterations"),
        (b'{"kind": "count", "request": []}', 422, "request"),
        (b'{"kind": "count", "request": null}', 422, "request"),
        (b'{"kind": "count", "request": {"iterations": 1000000000}}', 422, "request.iterations"),
        (b'{"kind": "count", "request": {"iterations": 13}}', 422, "request.iterations"),
        (b'{"kind": "count", "request": {"iterations": 1, "evry": 2}}', 422, "request.evry"),
        (b'{"kind": "trace", "request": {"model": "no", "data": "bundled:scenes"}}', 422, "request.model"),
        (b'{"kind": "trace", "request": {"model": "tiny-vision", "data": "../up"}}', 422, "request.data"),
        (b'{"kind": "import", "request": {"file": "/etc/passwd"}}', 422, "request.file"),
    ],
)
def test_what_is_no_job_is_refused_by_field(working: Served, body: bytes, status: int, field: str | None) -> None:
    answer = working.client.post(f"{API}/jobs", content=body, headers={"content-type": "application/json"})
    problem(answer, status, field)


def test_a_header_that_is_none_is_named(working: Served) -> None:
    answer = working.client.get(f"{API}/jobs/none/events", headers={"last-event-id": "abc"})
    problem(answer, 422, "last-event-id")


def test_other_media_types_and_keys_are_refused(working: Served) -> None:
    body = b'{"kind": "count", "request": {"iterations": 1}}'
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        problem(working.client.post(f"{API}/jobs", content=body, headers={"content-type": kind}), 415, "Content-Type")
    problem(working.get("/jobs?stat=waiting"), 422, "stat")
    problem(working.get("/jobs?state=dead"), 422, "state")
    problem(working.get("/jobs?next=abc"), 422, "next")
    for odd in ("nobody", "..", "%2e%2e", "a%2fb", "x" * 200, "con"):
        assert working.get(f"/jobs/{odd}").status_code == 404
        assert working.client.delete(f"{API}/jobs/{odd}").status_code in (404, 405)


def test_the_list_has_pages_states_and_kinds(working: Served) -> None:
    jobs = [submit(working, iterations=1) for _ in range(3)]
    for job in jobs:
        until(working, job, "succeeded")
    page = working.get("/jobs?kind=count&state=succeeded&limit=2").json()
    assert [row["job"] for row in page["jobs"]] == jobs[:0:-1]
    query = {"kind": "count", "state": "succeeded", "limit": 2, "next": page["next"]}
    rest = working.client.get(f"{API}/jobs", params=query)
    assert rest.json()["jobs"][0]["job"] == jobs[0]
    assert page["workers"] == 1
    assert working.get("/jobs?kind=dream").json()["jobs"] == []
    problem(working.client.get(f"{API}/jobs", params={"state": "failed", "next": page["next"]}), 422, "next")


@pytest.mark.parametrize("running", [True, False])
def test_eight_clients_cancel_at_once(working: Served, running: bool) -> None:
    job = submit(working, iterations=9000, seconds=0.01)
    until(working, job, "running")
    meant = job if running else submit(working, iterations=5)
    barrier, answers = threading.Barrier(8), []

    def one() -> None:
        barrier.wait()
        answers.append(working.client.delete(f"{API}/jobs/{meant}"))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {200}
    assert until(working, meant, "cancelled")["result"] is None
    told = events_of(working.get(f"/jobs/{meant}/events").text)
    states = [data["state"] for _, kind, data in told if kind == "state"]
    assert states.count("cancelled") == 1
    assert working.client.delete(f"{API}/jobs/{meant}").json()["state"] == "cancelled", "and again, later"
    cancel(working, job)


@pytest.mark.parametrize(
    "name",
    [
        "state.json",
        "made.txt",
        "..%2fstate.json",
        "%2e%2e%2fstate.json",
        ".lock",
        "nothing.png",
        "a%00.png",
        "curve.json%0a",
        "x" * 300 + ".png",
    ],
)
def test_nothing_but_artifacts_is_given_out(working: Served, name: str) -> None:
    job = submit(working, iterations=1)
    until(working, job, "succeeded")
    said = working.get(f"/jobs/{job}/artifacts/{name}")
    assert said.status_code == 404
    assert "; it has curve.json" in said.json()["detail"] or "nothing at this address" in said.json()["detail"]
    outside = working.settings.data_dir / "jobs" / job / "artifacts" / "link.json"
    outside.symlink_to("../state.json")
    assert working.get(f"/jobs/{job}/artifacts/link.json").status_code == 404


def test_a_failed_job_says_why_and_leaks_nothing(working: Served) -> None:
    refused = until(working, submit(working, iterations=9, fail_at=3), "failed")
    assert refused["problem"]["detail"] == "It was asked to fail here."
    assert (refused["problem"]["status"], refused["problem"]["field"]) == (422, "fail_at")
    job = submit(working, iterations=9, fail_at=3, fail_with="bug")
    broken = until(working, job, "failed")
    assert broken["problem"]["status"] == 500
    assert "ZeroDivisionError" in broken["problem"]["detail"]
    assert "secret" not in working.get(f"/jobs/{job}").text


def test_a_job_of_a_kind_that_is_gone_fails_instead_of_waiting_for_ever(working: Served) -> None:
    jobs = working.app.state.services.jobs
    vanished, changed = jobs.table.submit("vanished", {}), jobs.table.submit("count", {"iterations": 3, "old_name": 3})
    assert "no kind of job" in until(working, vanished.job, "failed")["problem"]["detail"]
    assert until(working, changed.job, "failed")["problem"]["field"] == "old_name"


def test_only_a_job_that_is_over_can_be_removed(working: Served) -> None:
    job = submit(working, iterations=9000, seconds=0.01)
    until(working, job, "running")
    problem(working.client.delete(f"{API}/jobs/{job}?remove=true"), 409)
    cancel(working, job)
    assert working.client.delete(f"{API}/jobs/{job}?remove=true").status_code == 204
    assert not (working.settings.data_dir / "jobs" / job).exists()
    problem(working.client.delete(f"{API}/jobs/{job}?remove=true"), 404)
    problem(working.get(f"/jobs/{job}/events"), 404)
    problem(working.get(f"/jobs/{job}/artifacts/curve.json"), 404)


def test_too_many_listeners_and_too_many_jobs_are_told_to_come_back(serve: Serve) -> None:
    served = serve(job_streams=1, job_queue_length=2)
    job = submit(served, iterations=1)
    with served.client.stream("GET", f"{API}/jobs/{job}/events") as stream:
        parts = stream.iter_text()  # kept: letting go of it would hang up
        next(parts)
        assert "retry-after" in served.get(f"/jobs/{job}/events").headers
    submit(served, iterations=1)
    answer = served.client.post(f"{API}/jobs", json={"kind": "count", "request": {"iterations": 1}})
    problem(answer, 503)
    assert served.get("/jobs").json()["workers"] == 0


def test_of_many_who_come_at_one_moment_no_more_listen_than_may(serve: Serve) -> None:
    served, answered = serve(job_streams=3), []
    job = submit(served, iterations=1)

    async def listen(client: httpx.AsyncClient, everyone: asyncio.Event) -> None:
        async with client.stream("GET", f"{API}/jobs/{job}/events") as answer:
            answered.append(answer.status_code)
            if len(answered) == 40:
                everyone.set()
            await everyone.wait()  # nobody hangs up before the last has come

    async def at_once() -> None:
        everyone, limits = asyncio.Event(), httpx.Limits(max_connections=40)
        options = {"base_url": served.client.base_url, "trust_env": False, "limits": limits}
        async with httpx.AsyncClient(**options) as client, asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(listen(client, everyone))

    run_alone(at_once())
    assert Counter(answered) == {200: 3, 503: 37}
    while served.app.state.services.jobs.streams:
        time.sleep(0.02)
    with served.client.stream("GET", f"{API}/jobs/{job}/events") as answer:
        assert answer.status_code == 200, "the places of those who hung up are free again"


def test_a_trace_comes_through_while_a_job_runs(working: Served) -> None:
    job = submit(working, iterations=9000, seconds=0.01)
    until(working, job, "running")
    answer = working.client.post(f"{API}/traces", files={"model": (None, "tiny-text"), "text": (None, "the cat sat")})
    assert answer.status_code == 201, answer.text
    before = working.get(f"/jobs/{job}").json()
    assert before["state"] == "running", "the trace did not wait for its end"
    while working.get(f"/jobs/{job}").json()["progress"]["done"] <= before["progress"]["done"]:
        time.sleep(0.02)
    cancel(working, job)


def test_a_damaged_job_file_is_said_and_runs_are_served(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    served.settings.jobs_file.write_bytes(b"not a database, but long enough to be read as one" * 100)
    body = {"kind": "count", "request": {"iterations": 1}}
    for answer in (served.get("/jobs"), served.client.post(f"{API}/jobs", json=body)):
        assert "damaged" in problem(answer, 500)["detail"]
    assert served.get("/runs").status_code == 200
