"""How long jobs take to answer: to begin, to stop, to be taken over, and what they leave to others.

    python -m benchmarks.jobs [--cancels 10]

Real processes: an API and a worker over a folder of their own, dreams as the long jobs. In seconds: ``begin`` from
submitting to running; ``cancel_running`` and ``cancel_waiting`` from DELETE to ``cancelled``; ``queue``: 100 jobs of
which 50 are cancelled, until the last is over; ``trace_alone`` and ``trace_beside_a_dream`` one POST /traces of a text;
``take_over`` from ``kill -9`` of the worker until the second one has its job (the lease is ``lease_seconds``);
``listeners``: /healthz while 200 clients listen to a job, and how long after they hung up all were let go.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.crew import API, Crew
from benchmarks.measure import report

DREAM = {
    "model": "dna-vision-top1",
    "data": "bundled:photos",
    "row": 0,
    "target": {"of": "choices", "until": [2]},
    "image": {"iterations": 65_536},
}
TRACE = {"model": "dna-vision-top1", "data": "bundled:scenes", "limit": 1, "twin": False}
LISTENERS = 200


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cancels", type=int, default=10)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        crew = Crew(Path(folder) / "data", worker_port=port)
        crew.patience_s = 1200
        try:
            crew.staff(1)
            crew.start_api()
            results = _measure(crew, options.cancels)
        finally:
            crew.close()
    report("jobs", f"python -m benchmarks.jobs --cancels {options.cancels}", results)


def _measure(crew: Crew, cancels: int) -> dict[str, Any]:
    begin, running, waiting = [], [], []
    crew.over(crew.submit("trace", **TRACE))  # the model is loaded
    for _ in range(cancels):
        began = time.perf_counter()
        job = crew.submit("dream", **DREAM)
        begin.append(_until(crew, job, "running", began))
        crew.until(lambda job=job: crew.job(job)["progress"]["done"] > 0)
        behind = crew.submit("trace", **TRACE)
        for one, seconds in ((behind, waiting), (job, running)):
            began = time.perf_counter()
            crew.client.delete(f"/jobs/{one}")
            seconds.append(_until(crew, one, "cancelled", began))
    return {
        "begin": _spread(begin),
        "cancel_running": _spread(running),
        "cancel_waiting": _spread(waiting),
        "queue": _queue(crew),
        **_beside(crew),
        "listeners": _listeners(crew),
        **_take_over(crew),
    }


def _until(crew: Crew, job: str, state: str, began: float) -> float:
    while crew.job(job)["state"] != state:
        time.sleep(0.005)
    return time.perf_counter() - began


def _queue(crew: Crew) -> dict[str, Any]:
    began = time.perf_counter()
    jobs = [crew.submit("trace", **TRACE) for _ in range(100)]
    submitted = time.perf_counter() - began
    for job in random.Random(0).sample(jobs, 50):
        crew.client.delete(f"/jobs/{job}")
    states = [crew.over(job)["state"] for job in jobs]
    return {
        "submit_100": round(submitted, 2),
        "until_all_are_over": round(time.perf_counter() - began, 1),
        "states": {state: states.count(state) for state in sorted(set(states))},
    }


def _beside(crew: Crew) -> dict[str, Any]:
    """One trace of a text, with nothing else and beside a dream."""
    form = {"model": (None, "dna-text-top1"), "text": (None, "The cat sat on the mat.")}

    def trace() -> float:
        began = time.perf_counter()
        answer = crew.client.post("/traces", files=form)
        assert answer.status_code == 201, answer.text
        return time.perf_counter() - began

    trace()
    alone = [trace() for _ in range(10)]
    job = crew.submit("dream", **DREAM)
    crew.until(lambda: crew.job(job)["progress"]["done"] > 0)
    beside = [trace() for _ in range(10)]
    still = crew.job(job)["state"]
    crew.client.delete(f"/jobs/{job}")
    crew.over(job)
    return {"trace_alone": _spread(alone), "trace_beside_a_dream": _spread(beside), "the_dream_meanwhile": still}


def _listeners(crew: Crew) -> dict[str, Any]:
    job = crew.submit("dream", **DREAM)
    crew.until(lambda: crew.job(job)["progress"]["done"] > 0)
    request = f"GET {API}/jobs/{job}/events HTTP/1.1\r\nHost: 127.0.0.1:{crew.port}\r\n\r\n".encode()
    sockets = [socket.create_connection(("127.0.0.1", crew.port)) for _ in range(LISTENERS)]
    for one in sockets:
        one.sendall(request)
    for one in sockets:
        one.recv(1)
    url = f"http://127.0.0.1:{crew.port}/healthz"
    health = [_timed(lambda: crew.client.get(url)) for _ in range(50)]
    for one in sockets:
        one.close()
    began = time.perf_counter()
    while _gauge(crew, "tokenpaths_job_listeners"):
        time.sleep(0.01)
    gone = time.perf_counter() - began
    crew.client.delete(f"/jobs/{job}")
    crew.over(job)
    return {"healthz": _spread(health), "all_let_go": round(gone, 3), "clients": LISTENERS}


def _gauge(crew: Crew, name: str) -> float:
    text = crew.client.get(f"http://127.0.0.1:{crew.port}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


def _take_over(crew: Crew) -> dict[str, Any]:
    crew.environment["TOKENPATHS_WORKER_PORT"] = "0"
    crew.staff(2)
    crew.until(lambda: (crew.get("/jobs") or {}).get("workers") == 2)
    seconds = []
    for _ in range(3):
        job = crew.submit("dream", **DREAM)
        crew.until(lambda job=job: crew.job(job)["progress"]["done"] > 0)
        crew.kill_holder(job)
        began = time.perf_counter()
        crew.until(lambda job=job: crew.job(job)["attempts"] == 2)
        seconds.append(time.perf_counter() - began)
        crew.client.delete(f"/jobs/{job}")
        crew.over(job)
        crew.staff(2)
        time.sleep(5)
    return {"take_over": _spread(seconds), "lease_seconds": 15}


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 4), "most": round(max(seconds), 4), "times": len(seconds)}


if __name__ == "__main__":
    main()
