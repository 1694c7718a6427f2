"""Mixed load for a long time, workers killed on the way: ``python -m tests.faults.soak --minutes 120``.

Small models, real processes: people look at runs, trace what they drop, start traces, dreams and counts, cancel some of
them, listen to events and hang up; the worker is killed every so often. Written to ``build/soak.json``: memory of each
process over time, the 95th percentile of answers over time, and whether anything that was promised is missing.
``python -m tests.faults.soak_picture`` draws it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.crew import Crew
from tests.backend.conftest import make_models, png
from tests.faults.figures import ROOT, machine
from tests.jobs import counted
from tests.runs import make_run

KEPT_RUNS = 24
"""traces that stay; older ones are deleted, so that the folder does not grow"""
QUESTIONS = (
    "", "/flow", "/flow?label={label}", "/flow?through={step}.{module}&min_share={share}", "/usage", "/paths?limit=60",
    "/paths?label={label}&limit=20", "/paths/fit", "/paths/1/examples?seed={n}&limit=12", "/samples?order=compute",
    "/samples?q=c", "/samples/{n}", "/samples/{n}/image", "/distributions/compute?bins={bins}", "/paths/knowledge",
    "/tokens/search?ranks=1:{n1}", "/map",
)  # fmt: skip


@dataclass
class Soak:
    """What happened; each list grows while it runs."""

    crew: Crew
    chance: random.Random
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    answers: list[tuple[float, str, int, float]] = field(default_factory=list)
    """(seconds since the start, what, status, seconds)"""
    memory: list[dict[str, float]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """what was promised and is missing, in sentences"""
    kills: list[float] = field(default_factory=list)
    jobs: dict[str, tuple[str, Any, bool]] = field(default_factory=dict)
    """job → kind, request, whether it was cancelled"""

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def ask(self, what: str, method: str, path: str, client: httpx.Client, **options: Any) -> httpx.Response | None:
        """One request, noted; None where the connection broke, which an API that lives never does."""
        began = time.perf_counter()
        try:
            answer = client.request(method, path, **options)
        except httpx.TransportError as error:
            self.lost.append(f"{what}: {type(error).__name__} at {self.now():.0f} s")
            return None
        self.answers.append((self.now(), what, answer.status_code, time.perf_counter() - began))
        if answer.status_code >= 500 and answer.status_code != 503:
            self.lost.append(f"{what} {path}: {answer.status_code} {answer.text[:200]}")
        if answer.status_code == 503 and "retry-after" not in answer.headers:
            self.lost.append(f"{what} {path}: 503 without Retry-After: {answer.text[:200]}")
        return answer

    def client(self) -> httpx.Client:
        """A client of its own for each thread."""
        return httpx.Client(base_url=self.crew.client.base_url, timeout=120, trust_env=False)


def look(soak: Soak, seed: int) -> None:
    """Somebody who clicks through the views of the runs that stay."""
    chance, tags = random.Random(seed), {}
    with soak.client() as client:
        while not soak.over.wait(chance.uniform(0.05, 0.4)):
            n = chance.randrange(20)
            path = f"/runs/{chance.choice(('vision', 'text'))}" + chance.choice(QUESTIONS).format(
                label=chance.choice(("circle", "english", "nobody")), step=n % 5, module=n % 6, share=n / 100, n=n,
                n1=n + 1, bins=10 + n,
            )  # fmt: skip
            headers = {"if-none-match": tags[path]} if path in tags and chance.random() < 0.5 else {}
            answer = soak.ask("look", "GET", path, client, headers=headers)
            if answer is not None and answer.status_code == 200:
                tags[path] = answer.headers["etag"]
            elif answer is not None and answer.status_code not in (200, 304, 404, 422, 503):
                soak.lost.append(f"look {path}: {answer.status_code}")
            if chance.random() < 0.1:
                soak.ask("list", "GET", "/runs?limit=200", client)


def drop(soak: Soak, seed: int) -> None:
    """Somebody who drops pictures and texts; what was acknowledged must be there until it is deleted."""
    chance, there = random.Random(seed), []
    with soak.client() as client:
        while not soak.over.wait(chance.uniform(0.3, 1.5)):
            form: dict[str, Any] = {"model": (None, "tiny-text"), "text": (None, "the cat sat on the moon")}
            if chance.random() < 0.6:
                form = {"model": (None, "tiny-vision"), "image": ("a.png", png(40 + chance.randrange(9)), "image/png")}
            answer = soak.ask("trace", "POST", "/traces", client, files=form)
            if answer is not None and answer.status_code == 201:
                there.append(answer.json()["run"])
            for run in there:
                seen = soak.ask("own run", "GET", f"/runs/{run}", client) if chance.random() < 0.1 else None
                if seen is not None and seen.status_code not in (200, 304, 503):
                    soak.lost.append(f"run {run} was acknowledged and is {seen.status_code}")
            while len(there) > KEPT_RUNS:
                gone = soak.ask("delete", "DELETE", f"/runs/{there.pop(0)}", client)
                if gone is not None and gone.status_code != 204:
                    soak.lost.append(f"deleting a run that is there: {gone.status_code}")
        for run in there:
            if soak.ask("own run", "GET", f"/runs/{run}", client) is None:
                soak.lost.append(f"run {run} is not there at the end")


def work(soak: Soak, seed: int) -> None:
    """Somebody who starts jobs, keeps a few waiting, and cancels one of five."""
    chance, number = random.Random(seed), 0
    with soak.client() as client:
        while not soak.over.wait(chance.uniform(0.5, 2)):
            waiting = soak.ask("jobs", "GET", "/jobs?state=waiting&limit=50", client)
            assert waiting is None or waiting.status_code in (200, 503), waiting.text
            if waiting is not None and waiting.status_code == 200 and len(waiting.json()["jobs"]) < 3:
                number += 1
                kind, request = chance.choice((
                    ("count", {"iterations": chance.randrange(100, 1500), "seconds": 0.002}),
                    ("count", {"iterations": chance.randrange(100, 1500), "seconds": 0.002}),
                    ("trace", {"model": "tiny-vision", "data": "bundled:scenes", "limit": 8, "run": f"job-{number}"}),
                    ("dream", {
                        "model": "tiny-vision", "data": "bundled:photos", "row": number % 10, "seed": number,
                        "frame_every": 64, "target": {"of": "choices", "until": [2]}, "image": {"iterations": 128},
                    }),
                ))  # fmt: skip
                answer = soak.ask("submit", "POST", "/jobs", client, json={"kind": kind, "request": request})
                if answer is None or answer.status_code != 202:
                    soak.lost.append(f"a {kind} was not taken: {answer.text[:300] if answer is not None else ''}")
                    continue
                soak.jobs[answer.json()["job"]] = (kind, request, False)
            live = [job for job, (_, _, cancelled) in soak.jobs.items() if not cancelled]
            if live and chance.random() < 0.06:
                job = live[-1]
                answer = soak.ask("cancel", "DELETE", f"/jobs/{job}", client)
                if answer is not None and answer.status_code in (200, 409):
                    soak.jobs[job] = (*soak.jobs[job][:2], answer.status_code == 200)


def listen(soak: Soak, seed: int) -> None:
    """Somebody who follows the newest job for a while and hangs up."""
    chance = random.Random(seed)
    with soak.client() as client:
        while not soak.over.wait(chance.uniform(0.5, 2)):
            if not soak.jobs:
                continue
            try:
                with client.stream("GET", f"/jobs/{list(soak.jobs)[-1]}/events") as events:
                    ends = time.monotonic() + chance.uniform(0.2, 3)
                    for _ in events.iter_lines():
                        if time.monotonic() > ends or soak.over.is_set():
                            break
            except httpx.TransportError as error:
                soak.lost.append(f"events: {type(error).__name__} at {soak.now():.0f} s")


def kill(soak: Soak, every_s: float) -> None:
    """``kill -9`` of the worker; another one takes its place."""
    while not soak.over.wait(every_s):
        (worker,) = soak.crew.workers
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        soak.kills.append(soak.now())
        soak.crew.staff(1)


def weigh(soak: Soak, every_s: float) -> None:
    """Memory, threads and open files of the processes, over and over."""
    while not soak.over.wait(every_s):
        row = {"t": round(soak.now(), 1)}
        workers = soak.crew.workers[:1] or [None]  # none: one was killed just now
        for name, process in (("api", soak.crew.api), ("worker", workers[0])):
            if process is None or process.poll() is not None:
                continue
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                found = dict(line.split(":", 1) for line in status.splitlines())
                row[f"{name}_megabytes"] = int(found["VmRSS"].split()[0]) * 1024 / 1e6
                row[f"{name}_threads"] = int(found["Threads"])
                row[f"{name}_files"] = len(os.listdir(f"/proc/{process.pid}/fd"))
            except (OSError, KeyError):  # it was killed just now
                continue
        soak.memory.append(row)


def watched(soak: Soak, target: Callable[..., None], argument: float) -> threading.Thread:
    """A thread whose failure is noted: a figure that stops being taken is lost too."""

    def guarded() -> None:
        try:
            target(soak, argument)
        except Exception as error:
            soak.lost.append(f"{target.__name__} failed at {soak.now():.0f} s: {error!r}")

    return threading.Thread(target=guarded, daemon=True, name=target.__name__)


def settle(soak: Soak) -> dict[str, int]:
    """Wait for all jobs; what was not cancelled must have succeeded, counts with the right end."""
    states: Counter[str] = Counter()
    for job, (kind, request, cancelled) in soak.jobs.items():
        found = soak.crew.over(job)
        states[f"{kind} {found['state']}"] += 1
        if cancelled:
            continue  # it may have ended before the cancel came
        if found["state"] != "succeeded":
            soak.lost.append(f"job {job} ({kind}) is {found['state']}: {found.get('problem')}")
        elif kind == "count" and found["result"]["value"] != counted(request["iterations"]):
            soak.lost.append(f"job {job} counted wrong")
        elif kind == "trace" and soak.crew.client.get(f"/runs/{request['run']}").status_code != 200:
            soak.lost.append(f"job {job} succeeded, and its run {request['run']} is not there")
    return dict(states)


def p95(seconds: list[float]) -> float | None:
    """The 95th percentile; None for fewer than 20."""
    return statistics.quantiles(seconds, n=20)[-1] if len(seconds) >= 20 else None


def summary(soak: Soak, minutes: float, states: dict[str, int]) -> dict[str, Any]:
    """What stands in the file."""
    looked = [(t, s) for t, what, status, s in soak.answers if what == "look" and status in (200, 304)]
    end = max((t for t, _ in looked), default=0.0)
    fifth = end / 5
    bins = [[s for t, s in looked if n * end / 20 <= t < (n + 1) * end / 20] for n in range(20)]
    return {
        "minutes": minutes, "machine": machine(), "load": os.getloadavg()[0],
        "requests": len(soak.answers), "statuses": dict(Counter(str(status) for _, _, status, _ in soak.answers)),
        "kills": [round(t, 1) for t in soak.kills], "jobs": states, "lost": soak.lost[:50], "num_lost": len(soak.lost),
        "p95_first_fifth_ms": _ms(p95([s for t, s in looked if t < fifth])),
        "p95_last_fifth_ms": _ms(p95([s for t, s in looked if t >= end - fifth])),
        "p95_ms": [[round((n + 0.5) * end / 20, 1), _ms(p95(one))] for n, one in enumerate(bins)],
        "memory": soak.memory,
        "api_megabytes": [_middle(soak.memory, "api_megabytes", part) for part in (1, 4)],
    }  # fmt: skip


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def _middle(rows: list[dict[str, float]], name: str, fifth: int) -> float:
    """The median in one fifth of the time; the first (0) is left to warming up."""
    size = len(rows) / 5
    part = [row[name] for row in rows[int(fifth * size) : int((fifth + 1) * size)] if name in row]
    return round(statistics.median(part), 1) if part else float("nan")


def run(minutes: float, folder: Path, *, seed: int = 0, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Soak for so long; the summary."""
    data_dir = folder / "data"
    for name, modality, samples in (("vision", "vision", 120), ("text", "text", 80)):
        make_run(data_dir / "runs", name, modality, samples=samples, seed=seed)  # type: ignore[arg-type]
    models = make_models(folder / "models")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        worker_port = probe.getsockname()[1]
    crew = Crew(
        data_dir, module="tests.jobs", worker_port=worker_port, models_dirs=models, job_lease_seconds=5,
        trace_seconds=110, query_seconds=60, query_wait_seconds=60,
    )  # fmt: skip
    try:
        crew.start_api()
        crew.staff(1)
        crew.until(lambda: crew.client.get("/models").status_code == 200)
        soak = Soak(crew, random.Random(seed))
        every_kill = max(45.0, min(600.0, 60 * minutes / 6))
        threads = [
            watched(soak, target, argument)
            for target, argument in (
                (look, 1), (look, 2), (look, 3), (drop, 4), (work, 5), (listen, 6), (listen, 7), (kill, every_kill),
                (weigh, max(0.5, minutes / 5)),
            )
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        while soak.now() < 60 * minutes:
            time.sleep(min(60.0, 60 * minutes / 4))
            tell(f"{soak.now():.0f} s, {len(soak.answers)} answers, {len(soak.jobs)} jobs, {len(soak.lost)} lost")
            assert crew.api is not None
            assert crew.api.poll() is None, "the API ended"
        soak.over.set()
        for thread in threads:
            thread.join(150)
            if thread.is_alive():
                soak.lost.append(f"{thread.name} did not come to an end")
        crew.staff(1)
        return summary(soak, minutes, settle(soak))
    finally:
        crew.close()


def main(arguments: list[str]) -> int:
    """Write the file; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak.json")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = run(chosen.minutes, Path(folder), tell=lambda line: print(line, flush=True))
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in found.items() if key not in ("memory", "p95_ms")}))
    return int(found["num_lost"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
