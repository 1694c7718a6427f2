"""Who does what during a soak: they look at runs, drop pictures, start and cancel jobs, listen, and one kills workers.

Each is a function of the soak and a number, which runs in a thread of its own until the soak is over. Whatever was
promised and is missing becomes a sentence in ``Soak.lost``.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.backend.conftest import png
from tests.support.jobs import counted

if TYPE_CHECKING:
    from tests.faults.soak import Soak

KEPT_RUNS = 24
"""traces that stay, of each who makes some; older ones are deleted, so that the folder does not grow"""
QUESTIONS = (
    "",
    "/flow",
    "/flow?label={label}",
    "/flow?through={step}.{module}&min_share={share}",
    "/usage",
    "/paths?limit=60",
    "/paths?label={label}&limit=20",
    "/paths/fit",
    "/paths/1/examples?seed={n}&limit=12",
    "/samples?order=compute",
    "/samples?q=c",
    "/samples/{n}",
    "/samples/{n}/image",
    "/distributions/compute?bins={bins}",
    "/paths/knowledge",
    "/tokens/search?ranks=1:{n1}",
    "/map",
)


def crowd(soak: Soak) -> None:
    """Sixty people at once, before anything is measured: the API has all its threads (40) then, each with a connection
    and memory of its own, instead of whenever chance brings so many together."""

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        with soak.client() as client:
            for _ in range(4):
                client.get(f"/runs/{chance.choice(('vision', 'text'))}/paths/1/examples?seed={chance.random()}")
                client.get(f"/jobs?limit={chance.randrange(1, 50)}")

    people = [threading.Thread(target=ask, args=(seed,), daemon=True) for seed in range(60)]
    for one in people:
        one.start()
    for one in people:
        one.join()


def look(soak: Soak, seed: int) -> None:
    """Somebody who clicks through the views of the runs that stay."""
    chance, tags = random.Random(seed), {}
    with soak.client() as client:
        while not soak.over.wait(chance.uniform(0.05, 0.4)):
            n = chance.randrange(20)
            path = f"/runs/{chance.choice(('vision', 'text'))}" + chance.choice(QUESTIONS).format(
                label=chance.choice(("circle", "english", "nobody")),
                step=n % 5,
                module=n % 6,
                share=n / 100,
                n=n,
                n1=n + 1,
                bins=10 + n,
            )
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
            seen = soak.ask("own run", "GET", f"/runs/{run}", client)
            if seen is None or seen.status_code != 200:
                soak.lost.append(f"run {run} was acknowledged and is not there at the end")


def work(soak: Soak, seed: int) -> None:
    """Somebody who starts jobs, keeps a few waiting, and cancels one of five a little later."""
    chance, number = random.Random(seed), 0
    regretted: dict[str, float] = {}
    with soak.client() as client:
        while not soak.over.wait(chance.uniform(0.5, 2)):
            waiting = soak.ask("jobs", "GET", "/jobs?state=waiting&limit=50", client)
            assert waiting is None or waiting.status_code in (200, 503), waiting.text
            if waiting is not None and waiting.status_code == 200 and len(waiting.json()["jobs"]) < 3:
                number += 1
                kind, request = chance.choice(
                    (
                        ("count", {"iterations": chance.randrange(100, 1500), "seconds": 0.002}),
                        ("count", {"iterations": chance.randrange(100, 1500), "seconds": 0.002}),
                        (
                            "trace",
                            {"model": "tiny-vision", "data": "bundled:scenes", "limit": 8, "run": f"job-{number}"},
                        ),
                        (
                            "dream",
                            {
                                "model": "tiny-vision",
                                "data": "bundled:photos",
                                "row": number % 10,
                                "seed": number,
                                "frame_every": 64,
                                "target": {"of": "choices", "until": [2]},
                                "image": {"iterations": 128},
                            },
                        ),
                    )
                )
                answer = soak.ask("submit", "POST", "/jobs", client, json={"kind": kind, "request": request})
                if answer is None or answer.status_code != 202:
                    soak.lost.append(f"a {kind} was not taken: {answer.text[:300] if answer is not None else ''}")
                    continue
                job = answer.json()["job"]
                soak.jobs[job] = (kind, request, False)
                if chance.random() < 0.2:
                    regretted[job] = soak.now() + chance.uniform(0, 15)
                _clear(soak, client)
            for job in [job for job, when in regretted.items() if when < soak.now()]:
                answer = soak.ask("cancel", "DELETE", f"/jobs/{job}", client)
                if answer is not None and answer.status_code in (200, 409):  # 409: it is over
                    soak.jobs[job] = (*soak.jobs[job][:2], answer.status_code == 200)
                    del regretted[job]


def _clear(soak: Soak, client: httpx.Client) -> None:
    """Delete the oldest run that a job made once there are more than ``KEPT_RUNS``; it must be there."""
    made = [
        (job, request["run"])
        for job, (kind, request, cancelled) in soak.jobs.items()
        if kind == "trace" and not cancelled and request["run"] not in soak.deleted
    ]
    if len(made) <= KEPT_RUNS:
        return
    job, run = made[0]
    found = soak.ask("job", "GET", f"/jobs/{job}", client)
    if found is None or found.status_code != 200 or found.json()["state"] != "succeeded":
        return  # `settle` asks again
    gone = soak.ask("delete", "DELETE", f"/runs/{run}", client)
    if gone is not None and gone.status_code not in (204, 503):
        soak.lost.append(f"job {job} succeeded; deleting its run {run}: {gone.status_code}")
    if gone is not None and gone.status_code == 204:
        soak.deleted.add(run)


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
        for name, process in (("api", soak.crew.api), ("worker", workers[0]), ("page", soak.page.process)):
            if process is None or process.poll() is not None:
                continue
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                found = dict(line.split(":", 1) for line in status.splitlines())
                row[f"{name}_megabytes"] = round(int(found["VmRSS"].split()[0]) * 1024 / 1e6, 1)
                row[f"{name}_threads"] = int(found["Threads"])
                row[f"{name}_files"] = len(os.listdir(f"/proc/{process.pid}/fd"))
            except (OSError, KeyError):  # it was killed just now
                continue
        soak.memory.append(row)


def known(client: httpx.Client) -> dict[str, str]:
    """Answers about the two runs that stay, by question, as sums: the same at the end as at the start."""
    questions = ("", "/flow", "/usage", "/paths?limit=60", "/samples/3", "/samples?order=compute", "/paths/fit")
    sums = {}
    for run in ("vision", "text"):
        for question in questions:
            answer = client.get(f"/runs/{run}{question}")
            sums[f"{run}{question}"] = f"{answer.status_code} {hashlib.sha256(answer.content).hexdigest()}"
    return sums


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
        elif kind == "trace" and request["run"] not in soak.deleted and _status(soak, request["run"]) != 200:
            soak.lost.append(f"job {job} succeeded, and its run {request['run']} is not there")
    return dict(states)


def _status(soak: Soak, run: str) -> int:
    return soak.crew.client.get(f"/runs/{run}").status_code
