"""Long jobs over REST: what is refused, what is shown, who may cancel, what remains."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.settings import load_settings
from backend.worker import create_worker
from tests.backend.conftest import API, SECRET, Serve, Served, api_for, problem, serving
from tests.jobs import counted, know_the_kinds

know_the_kinds()


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Served]:
    """An API and a worker, both of which know the kind ``count``."""
    options = {"data_dir": tmp_path_factory.mktemp("jobs"), "worker_secret": SECRET, "warm_models": False}
    options |= {"models_dirs": (models_dir,), "trace_seconds": 250}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        yield served


def submit(served: Served, **request: Any) -> str:
    answer = served.client.post(f"{API}/jobs", json={"kind": "count", "request": request})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"{API}/jobs/{answer.json()['job']}"
    return str(answer.json()["job"])


def until(served: Served, job: str, *states: str) -> dict[str, Any]:
    """The job once it is in one of ``states``."""
    ends = time.monotonic() + 120
    while (found := served.get(f"/jobs/{job}").json())["state"] not in states:
        assert time.monotonic() < ends, found
        time.sleep(0.03)
    return found


def cancel(served: Served, job: str) -> None:
    served.client.delete(f"{API}/jobs/{job}")
    until(served, job, "cancelled", "succeeded", "failed")


def events_of(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """(id, event, data) of a whole stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


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
        (b"", 422, "body"), (b"{", 422, "body"), (b"[]", 422, "body"), (b"\xff\xfe", 422, "body"),
        (b'{"kind": "count", "request": {"iterations": NaN}}', 422, "body"),
        (b'{"kind": "count", "request": {"iterations": 1, "seconds": 1e999}}', 422, "body"),
        (b'{"kind": "count", "request": {"iterations": 1, "fail_with": "\\ud800"}}', 422, "body"),
        (b"[" * 100_000, 422, "body"), (b'{"kind": ' + b"1" * 5000 + b"}", 422, "body"),
        (b" " * 1_200_000, 413, None),
        (b'{"request": {}}', 422, "kind"), (b'{"kind": 7, "request": {}}', 422, "kind"),
        (b'{"kind": "cuont", "request": {}}', 422, "kind"), (b'{"kind": "../count", "request": {}}', 422, "kind"),
        (b'{"kind": "count", "requst": {}}', 422, "requst"), (b'{"kind": "count"}', 422, "request.iterations"),
        (b'{"kind": "count", "request": []}', 422, "request"), (b'{"kind": "count", "request": null}', 422, "request"),
        (b'{"kind": "count", "request": {"iterations": 1000000000}}', 422, "request.iterations"),
        (b'{"kind": "count", "request": {"iterations": 13}}', 422, "request.iterations"),
        (b'{"kind": "count", "request": {"iterations": 1, "evry": 2}}', 422, "request.evry"),
        (b'{"kind": "trace", "request": {"model": "no", "data": "bundled:scenes"}}', 422, "request.model"),
        (b'{"kind": "trace", "request": {"model": "tiny-vision", "data": "../up"}}', 422, "request.data"),
        (b'{"kind": "import", "request": {"file": "/etc/passwd"}}', 422, "request.file"),
    ],
)  # fmt: skip
def test_what_is_no_job_is_refused_by_field(working: Served, body: bytes, status: int, field: str | None) -> None:
    answer = working.client.post(f"{API}/jobs", content=body, headers={"content-type": "application/json"})
    problem(answer, status, field)


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


def test_of_a_hundred_jobs_fifty_are_cancelled_and_fifty_finish(working: Served) -> None:
    first = submit(working, iterations=9000, seconds=0.01)
    until(working, first, "running")
    jobs = [submit(working, iterations=20 + number) for number in range(100)]
    places = {row["job"]: row["place"] for row in working.get("/jobs?state=waiting&limit=1000").json()["jobs"]}
    assert [places[job] for job in jobs] == list(range(1, 101))
    dropped = set(random.Random(0).sample(jobs, 50))
    for job in dropped:
        assert working.client.delete(f"{API}/jobs/{job}").json()["state"] == "cancelled", "at once: nobody works on it"
    kept = [job for job in jobs if job not in dropped]
    assert [working.get(f"/jobs/{job}").json()["place"] for job in kept] == list(range(1, 51))
    cancel(working, first)
    ended = {job: until(working, job, "succeeded", "failed", "cancelled") for job in jobs}
    assert {job for job in jobs if ended[job]["state"] == "cancelled"} == dropped
    for number, job in enumerate(jobs):
        if job not in dropped:
            assert ended[job]["state"] == "succeeded"
            assert ended[job]["result"] == {"value": counted(20 + number)}
    began = [ended[job]["started_at"] for job in kept]
    assert began == sorted(began), "the queue keeps its order"


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


def test_a_cancelled_job_keeps_its_files_and_goes_on_when_tried_again(working: Served) -> None:
    job = submit(working, iterations=300, seconds=0.01)
    while "frame-000064.png" not in working.get(f"/jobs/{job}").json()["artifacts"]:
        time.sleep(0.02)
    frame = working.get(f"/jobs/{job}/artifacts/frame-000064.png")  # while it runs
    assert frame.headers["content-type"] == "image/png"
    cancel(working, job)
    again = working.get(f"/jobs/{job}/artifacts/frame-000064.png")
    assert again.content == frame.content
    assert again.headers["etag"] == frame.headers["etag"]
    fresh = working.get(f"/jobs/{job}/artifacts/frame-000064.png", headers={"if-none-match": again.headers["etag"]})
    assert (fresh.status_code, fresh.content) == (304, b"")
    assert working.client.head(f"{API}/jobs/{job}/artifacts/curve.json").status_code == 200
    folder = working.settings.data_dir / "jobs" / job
    assert not list(folder.rglob("*.tmp"))
    answer = working.client.post(f"{API}/jobs/{job}/retry")
    assert (answer.status_code, answer.json()["state"]) == (202, "waiting")
    assert until(working, job, "succeeded")["result"] == {"value": counted(300)}
    made = (folder / "made.txt").read_text().split()
    assert len(made) <= 300 + 64
    problem(working.client.post(f"{API}/jobs/{job}/retry"), 409)


@pytest.mark.parametrize("name", ["state.json", "made.txt", "..%2fstate.json", "%2e%2e%2fstate.json", ".lock",
                                  "nothing.png", "a%00.png", "curve.json%0a", "x" * 300 + ".png"])  # fmt: skip
def test_nothing_but_artifacts_is_given_out(working: Served, name: str) -> None:
    job = submit(working, iterations=1)
    until(working, job, "succeeded")
    assert working.get(f"/jobs/{job}/artifacts/{name}").status_code == 404
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


def test_events_resume_after_the_last_that_was_seen(working: Served) -> None:
    job = submit(working, iterations=200, seconds=0.005)
    seen: list[tuple[int, str, dict[str, Any]]] = []
    with working.client.stream("GET", f"{API}/jobs/{job}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        text = ""
        for chunk in stream.iter_text():
            text += chunk
            if "frame-000064" in text:
                break
    seen = events_of(text[: text.rindex("\n\n") + 2])
    rest = working.get(f"/jobs/{job}/events", headers={"last-event-id": str(seen[-1][0])})
    more = events_of(rest.text)
    ids = [number for number, _, _ in seen + more]
    assert ids == sorted(set(ids)), "each once, in order"
    assert [data["state"] for _, kind, data in seen + more if kind == "state"] == ["waiting", "running", "succeeded"]
    names = {data["name"] for _, kind, data in seen + more if kind == "artifact"}
    assert names == set(until(working, job, "succeeded")["artifacts"])
    assert more[-1][2]["result"] == {"value": counted(200)}
    last = {"last-event-id": str(more[-1][0])}
    assert working.get(f"/jobs/{job}/events", headers=last).status_code == 204, "nothing more will come"
    problem(working.get(f"/jobs/{job}/events", headers={"last-event-id": "-1"}), 422)


def test_two_hundred_listeners_that_hang_up_are_let_go(working: Served) -> None:
    job = submit(working, iterations=9000, seconds=0.01)
    until(working, job, "running")
    jobs, url = working.app.state.services.jobs, working.client.base_url
    request = f"GET {API}/jobs/{job}/events HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n\r\n".encode()
    sockets = [socket.create_connection((url.host, url.port)) for _ in range(200)]
    for one in sockets:
        one.sendall(request)
    ends = time.monotonic() + 60
    while jobs.streams < 200:
        assert time.monotonic() < ends, jobs.streams
        time.sleep(0.02)
    for one in sockets:
        one.close()
    while jobs.streams:
        assert time.monotonic() < ends, jobs.streams
        time.sleep(0.02)
    assert not jobs.watch.ears
    metrics = working.client.get("/metrics").text
    assert "tokenpaths_job_listeners 0.0" in metrics
    assert 'tokenpaths_jobs{state="running"} 1.0' in metrics
    cancel(working, job)


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
