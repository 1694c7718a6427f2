"""Mixed load for a long time, workers killed on the way: ``python -m tests.faults.soak --minutes 120``.

Small models, real processes: people look at runs, trace what they drop, start traces, dreams and counts, cancel some of
them, listen to events and hang up, and click through the page in a browser and without one; the worker is killed every
so often. ``build/soak.json`` is written every minute, so that a soak that is ended keeps what was measured: memory of
each process over time, the 95th percentile of answers over time, and whether anything that was promised is missing.
``python -m tests.faults.soak_picture`` draws it. The exit status is 1 where something is not as promised.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.crew import Crew
from tests.backend.conftest import make_models
from tests.faults import soak_users as users
from tests.faults.figures import ROOT
from tests.faults.soak_page import click, come_and_go, page_of, url_of
from tests.faults.soak_summary import complaints, in_words, summary, write
from tests.support.runs import make_run
from tokenpaths.cli.support.processes import Child, wait_until_healthy

OUT = ROOT / "build" / "soak.json"
PATIENCE_S = 180.0
OPEN_RUNS = 16
"""an open run takes 4 to 5 MB: with few, what is open has its full size after minutes, and runs are closed and opened
again all the time"""
ANSWER_CACHE_MEGABYTES = 8
"""for the same reason: the 64 MB of the default fill for two hours"""


@dataclass
class Soak:
    """What happened; each list grows while it runs."""

    crew: Crew
    page: Child
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
    deleted: set[str] = field(default_factory=set)
    """runs that jobs made and that were deleted since"""
    browser: str = "not started"

    @property
    def page_url(self) -> str:
        """Where the page is."""
        return url_of(self.page)

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


def watched(soak: Soak, target: Callable[..., None], argument: float) -> threading.Thread:
    """A thread whose failure is noted: a figure that stops being taken is lost too."""

    def guarded() -> None:
        try:
            target(soak, argument)
        except Exception as error:
            soak.lost.append(f"{target.__name__} failed at {soak.now():.0f} s: {error!r}")

    return threading.Thread(target=guarded, daemon=True, name=target.__name__)


def run(
    minutes: float,
    folder: Path,
    *,
    kill_every_s: float | None = None,
    out: Path | None = None,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Soak for so long; the summary, which is written to ``out`` every minute too."""
    data_dir = folder / "data"
    for seed, (name, modality, samples) in enumerate((("vision", "vision", 120), ("text", "text", 80))):
        make_run(data_dir / "runs", name, modality, samples=samples, seed=seed)  # type: ignore[arg-type]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        worker_port = probe.getsockname()[1]
    crew = Crew(
        data_dir,
        module="tests.support.jobs",
        worker_port=worker_port,
        models_dirs=make_models(folder / "models"),
        job_lease_seconds=5,
        trace_seconds=110,
        query_seconds=60,
        query_wait_seconds=60,
        open_runs=OPEN_RUNS,
        answer_cache_megabytes=ANSWER_CACHE_MEGABYTES,
    )
    page = page_of(crew, folder)
    try:
        page.start()
        crew.start_api()
        crew.staff(1)
        crew.until(lambda: "models" in (crew.get("/models") or {}))
        wait_until_healthy([page], PATIENCE_S)
        before = users.known(crew.client)
        users.crowd(Soak(crew, page))
        soak = Soak(crew, page)
        every_kill = kill_every_s or max(45.0, min(600.0, 60 * minutes / 6))
        threads = [
            watched(soak, target, argument)
            for target, argument in (
                (users.look, 1),
                (users.look, 2),
                (users.look, 3),
                (users.drop, 4),
                (users.work, 5),
                (users.listen, 6),
                (users.listen, 7),
                (come_and_go, 8),
                (click, 9),
                (users.kill, every_kill),
                (users.weigh, max(0.5, min(10.0, minutes / 5))),
            )
        ]
        for thread in threads:
            thread.start()
        while soak.now() < 60 * minutes:
            time.sleep(max(0.1, min(60.0, 60 * minutes / 4, 60 * minutes - soak.now())))
            memory = soak.memory[-1] if soak.memory else {}
            weights = ", ".join(f"{name[:-10]} {mb:.0f} MB" for name, mb in memory.items() if "megabytes" in name)
            tell(
                f"{soak.now():.0f} s: {len(soak.answers)} answers, {len(soak.jobs)} jobs, {len(soak.kills)} kills, "
                f"{weights}, {len(soak.lost)} lost {soak.lost[-1:]}"
            )
            for name, process in (("API", crew.api), ("page", page.process)):
                if process is None or process.poll() is not None:
                    soak.lost.append(f"the {name} ended at {soak.now():.0f} s")
                    return summary(soak, minutes, {}, over=False)
            if out is not None:
                write(summary(soak, minutes, {}, over=False), out)
        soak.over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                soak.lost.append(f"{thread.name} did not come to an end")
        crew.staff(1)
        states = users.settle(soak)
        changed = [question for question, found in users.known(crew.client).items() if found != before[question]]
        if changed:
            soak.lost.append(f"other answers at the end than at the start: {changed}")
        return summary(soak, minutes, states, over=True)
    finally:
        page.stop()
        crew.close()


def main(arguments: list[str]) -> int:
    """Write the file; 1 where something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--kill-every", type=float, metavar="SECONDS", help="a worker [default: six times, or 600]")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--no-times", action="store_true", help="say how long answers took, but judge nothing by it")
    chosen = parser.parse_args(arguments)
    with suppress(FileNotFoundError):
        chosen.out.unlink()  # what an earlier one measured is not this one's
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = run(
            chosen.minutes,
            Path(folder),
            kill_every_s=chosen.kill_every,
            out=chosen.out,
            tell=lambda line: print(line, flush=True),
        )
    write(found, chosen.out)
    wrong = complaints(found, times=not chosen.no_times)
    for line in (*in_words(found), *(f"NOT AS PROMISED: {sentence}" for sentence in wrong)):
        print(line, flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
