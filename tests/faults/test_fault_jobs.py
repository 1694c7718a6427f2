"""Jobs that are cancelled, and listeners that hang up."""

from __future__ import annotations

import random
import socket
import time
from typing import Any

from tests.backend.conftest import API, Served, problem
from tests.faults.conftest import Keep
from tests.support.jobs import counted
from tests.support.jobs_over_rest import cancel, events_of, submit, until

LISTENERS = 200


def test_of_a_hundred_jobs_fifty_are_cancelled_and_fifty_finish(working: Served, figure: Keep) -> None:
    """A job runs, 100 wait, 50 of them and the one that runs are cancelled"""
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
    began = time.monotonic()
    cancel(working, first)
    stopped_s = time.monotonic() - began
    assert stopped_s < 4 * 5
    ended = {job: until(working, job, "succeeded", "failed", "cancelled") for job in jobs}
    assert {job for job in jobs if ended[job]["state"] == "cancelled"} == dropped
    for number, job in enumerate(jobs):
        if job not in dropped:
            assert ended[job]["state"] == "succeeded"
            assert ended[job]["result"] == {"value": counted(20 + number)}
    began_at = [ended[job]["started_at"] for job in kept]
    assert began_at == sorted(began_at), "the queue keeps its order"
    figure(3, f"stopped after {stopped_s:.1f} s; 50 of 50 cancelled, 50 of 50 finished in order")


def test_a_cancelled_job_keeps_its_files_and_goes_on_when_tried_again(working: Served, figure: Keep) -> None:
    """A running job is cancelled after its first frame, the frame is fetched, the job tried again"""
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
    repeated = len((folder / "made.txt").read_text().split()) - 300
    assert repeated <= 64
    problem(working.client.post(f"{API}/jobs/{job}/retry"), 409)
    figure(3, f"frames kept; tried again it repeated {repeated} iterations")


def test_events_resume_after_the_last_that_was_seen(working: Served, figure: Keep) -> None:
    """A listener leaves in the middle and comes back with `Last-Event-ID`"""
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
    figure(11, f"{len(seen)} events before, {len(more)} after, each once, in order")


def test_two_hundred_listeners_that_hang_up_are_let_go(working: Served, figure: Keep) -> None:
    """200 connections listen to the events of a job and are closed at once"""
    job = submit(working, iterations=9000, seconds=0.01)
    until(working, job, "running")
    jobs, url = working.app.state.services.jobs, working.client.base_url
    request = f"GET {API}/jobs/{job}/events HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n\r\n".encode()
    sockets = [socket.create_connection((url.host, url.port)) for _ in range(LISTENERS)]
    for one in sockets:
        one.sendall(request)
    ends = time.monotonic() + 60
    while jobs.streams < LISTENERS:
        assert time.monotonic() < ends, jobs.streams
        time.sleep(0.02)
    for one in sockets:
        one.close()
    hung_up = time.monotonic()
    while jobs.streams:
        assert time.monotonic() < ends, jobs.streams
        time.sleep(0.02)
    let_go_s = time.monotonic() - hung_up
    assert not jobs.notifier.listeners
    metrics = working.client.get("/metrics").text
    assert "tokenpaths_job_listeners 0.0" in metrics
    assert 'tokenpaths_jobs{state="running"} 1.0' in metrics
    cancel(working, job)
    assert let_go_s < 4
    figure(11, f"all {LISTENERS} let go after {let_go_s:.2f} s")
