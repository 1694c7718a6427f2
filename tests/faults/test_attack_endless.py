"""Questions that never end and cannot be interrupted: their slots come back, other questions are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from benchmarks.crew import Crew
from tests.faults.conftest import Keep, memory
from tests.support.runs import make_run
from tokenpaths.backend.serve import STUCK_EXIT_CODE

QUERY_SECONDS = 1.0
LIMIT_S = 2 * QUERY_SECONDS
SLOTS = 2
Start = Callable[..., Crew]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start an API whose runs may be asked endless questions."""
    with ExitStack() as stack:

        def start(*names: str, **settings: object) -> Crew:
            runs = tmp_path / "data" / "runs"
            runs.mkdir(parents=True)
            for name in names:
                make_run(runs, name, samples=6)
            options = {"query_seconds": QUERY_SECONDS, "query_slots": SLOTS} | settings
            crew = Crew(tmp_path / "data", module="tests.faults.endless_questions", **options)
            stack.callback(crew.close)
            crew.start_api()
            for name in names:
                assert crew.client.get(f"/runs/{name}/flow").status_code == 200
            return crew

        yield start


def timed(crew: Crew, path: str, method: str = "GET") -> tuple[httpx.Response, float]:
    began = time.monotonic()
    return crew.client.request(method, path), time.monotonic() - began


def stuck(crew: Crew) -> int:
    return int(httpx.get(f"http://127.0.0.1:{crew.port}/healthz", trust_env=False).json()["stuck_threads"])


def test_an_endless_question_gives_its_slot_back(start: Start, figure: Keep) -> None:
    """One call of `levenshtein` that takes hours, in one of two slots; then other questions, and the run is deleted"""
    crew = start("one", "other")
    answer, seconds = timed(crew, "/runs/one/flow?label=endless")
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:tokenpaths:too-slow"
    assert "retry-after" in answer.headers
    assert LIMIT_S <= seconds < 4 * LIMIT_S
    assert stuck(crew) == 1
    for n in range(20):
        assert crew.client.get(f"/runs/other/flow?min_share=0.{n:02d}").status_code == 200
    answer, refused = timed(crew, "/runs/one/paths?limit=7")
    assert answer.status_code == 503, "its run is left alone while the thread is stuck"
    assert refused < LIMIT_S / 2
    assert crew.client.get("/runs").status_code == 200
    metrics = httpx.get(f"http://127.0.0.1:{crew.port}/metrics", trust_env=False).text
    assert "tokenpaths_threads_stuck 1.0" in metrics
    assert "tokenpaths_queries_working 0.0" in metrics
    assert crew.log.read_text().count("a thread is stuck: work about run one ") == 1
    assert crew.client.delete("/runs/one").status_code == 204
    assert crew.api is not None
    began = time.monotonic()
    assert crew.api.wait(60) == STUCK_EXIT_CODE, "its memory and processor are free once the process is"
    ended = time.monotonic() - began
    crew.start_api()
    assert crew.client.get("/runs/other/flow").status_code == 200
    figure(24, f"503 after {seconds:.1f} s, others answered; run deleted: the process ended after {ended:.1f} s")


def test_as_many_endless_questions_as_slots(start: Start, figure: Keep) -> None:
    """Both slots are taken by endless questions to two runs; the process ends with its code and is started anew"""
    crew = start("one", "other", "third")
    with ThreadPoolExecutor(2) as threads:
        paths = [f"/runs/{name}/flow?label=endless" for name in ("one", "other")]
        answers = list(threads.map(lambda path: timed(crew, path), paths))
    assert {answer.status_code for answer, _ in answers} == {503}
    assert crew.api is not None
    assert crew.api.wait(60) == STUCK_EXIT_CODE
    assert "has to be started anew: 2 threads are stuck" in crew.log.read_text()
    crew.start_api()
    assert crew.client.get("/runs/one/flow").status_code == 200
    worst = max(seconds for _, seconds in answers)
    figure(24, f"{SLOTS} of {SLOTS} slots: 503 after {worst:.1f} s, exit code {STUCK_EXIT_CODE}")


def test_to_delete_a_run_ends_the_wait_for_it(start: Start, figure: Keep) -> None:
    """An endless question with a time limit of ten minutes; its run is deleted after a second"""
    crew = start("one", "other", query_seconds=300, query_slots=1)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(timed, crew, "/runs/one/flow?label=endless")
        time.sleep(1)
        began = time.monotonic()
        assert crew.client.delete("/runs/one").status_code == 204
        answer, _ = asked.result()
        seconds = time.monotonic() - began
    assert answer.status_code == 404
    assert seconds < 4
    try:
        assert crew.client.get("/runs/other/flow?min_share=0.5").status_code == 200, "the one slot is free"
    except httpx.ConnectError:  # on a busy machine the process has already ended to get rid of the thread
        assert crew.api is not None
        assert crew.api.wait(60) == STUCK_EXIT_CODE
    figure(24, f"deleted: 404 and a free slot after {seconds:.1f} s")


@pytest.mark.parametrize("kind", ["export", "list", "interruptible"])
def test_endless_exports_and_cards(start: Start, kind: str, figure: Keep) -> None:
    """An export whose first part never comes, a list of runs one of whose cards never comes, a query that is long"""
    if kind == "export":
        crew = start("one", "other", export_slots=1)
        answer, seconds = timed(crew, "/runs/one/export/label.csv")
        assert answer.status_code == 503
        assert crew.client.get("/runs/other/export/flow.csv").status_code == 200
        assert stuck(crew) == 1
    elif kind == "list":
        crew = start("other")
        make_run(crew.data_dir / "runs", "endless", samples=6)
        answer, seconds = timed(crew, "/runs")
        assert answer.status_code == 503
        cards = {card["run"]: card for card in crew.client.get("/runs").json()["runs"]}
        assert cards["other"]["status"] == "sealed"
        assert "has not ended" in cards["endless"]["problem"]
        assert stuck(crew) == 1
    else:
        crew = start("one")
        answer, seconds = timed(crew, "/runs/one/flow?label=long")
        assert answer.status_code == 503
        assert stuck(crew) == 0
        assert crew.client.get("/runs/one/paths").status_code == 200
    assert seconds < 10 * LIMIT_S
    figure(24, f"{kind}: 503 after {seconds:.1f} s")


def test_a_question_that_wants_all_memory(start: Start, figure: Keep) -> None:
    """A question that would need tens of gigabytes, to an API whose open runs may have 200 MB each"""
    crew = start("one", query_megabytes=200, query_seconds=100)
    assert crew.api is not None
    before = memory(crew.api.pid, "VmRSS")
    answer, seconds = timed(crew, "/runs/one/flow?label=large")
    assert answer.status_code == 422
    assert "more memory" in answer.json()["detail"]
    grown = memory(crew.api.pid) - before
    assert grown < 500_000_000
    assert crew.client.get("/runs/one/paths").status_code == 200
    figure(24, f"memory: refused after {seconds:.1f} s at +{grown / 1e6:.0f} MB")
