"""Besides the table: tags on everything of a sealed run, an end in order, and the table itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.crew import Crew
from tests.backend.conftest import Served
from tests.faults.figures import Figure, keep, newest
from tests.faults.routes import routes
from tests.faults.rows import ROWS
from tests.faults.table import PAGE, existing_tests, rows_on_page, table


def test_everything_of_a_sealed_run_has_a_tag_and_is_sent_once(api: Served) -> None:
    """Every GET below /runs/{run}, and the comparison of two: ETag, then 304 without a body."""
    asked = 0
    for route in routes(api.client):
        if route.method != "GET" or "{run}" not in route.template and not route.template.endswith("/compare"):
            continue
        needed = {"a": "vision", "b": "vision"} if {"a", "b"} <= route.queries.keys() else {}
        answer = api.client.get(route.address(), params=needed)
        if answer.status_code in (404, 409, 422):  # a run of another family has it, or it wants more than this
            continue
        assert answer.status_code == 200, (route.template, answer.text)
        if answer.headers["cache-control"] == "no-store":  # the user's names, beside the run, and how a job stands
            assert route.template.endswith(("/names", "/twin")), route.template
            continue
        assert answer.headers.get("etag"), route.template
        fresh = api.client.get(route.address(), params=needed, headers={"if-none-match": answer.headers["etag"]})
        assert (fresh.status_code, fresh.content) == (304, b""), route.template
        asked += 1
    assert asked >= 10


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_an_api_that_is_told_to_end_finishes_what_it_answers(tmp_path: Path) -> None:
    """SIGTERM while an export streams and a listener listens: the export comes whole, the process ends in order."""
    from tests.support.runs import make_run

    make_run(tmp_path / "data" / "runs", "big", samples=900, twin=False)
    crew = Crew(tmp_path / "data")
    try:
        crew.start_api()
        assert crew.api is not None
        job = crew.submit("trace", model="dna-text-top1", data="bundled:texts")
        got: list[int] = []

        def download() -> None:
            with httpx.Client(base_url=crew.client.base_url, trust_env=False, timeout=60) as client:
                got.append(len(client.get("/runs/big/export/token.csv").content.splitlines()))

        def listen() -> None:
            with httpx.Client(base_url=crew.client.base_url, trust_env=False, timeout=60) as client:
                try:
                    client.get(f"/jobs/{job}/events")
                except httpx.TransportError:
                    got.append(-1)

        threads = [threading.Thread(target=work) for work in (download, listen)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        crew.api.send_signal(signal.SIGTERM)
        crew.api.wait(60)
        for thread in threads:
            thread.join(60)
        assert 900 * 64 + 1 in got
        assert crew.api.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in crew.log.read_text()
    finally:
        crew.close()


def test_the_table_names_all_rows_and_their_tests_exist() -> None:
    """Refresh with: make test; make test-faults; python -m tests.faults.table"""
    rows = rows_on_page(PAGE.read_text(encoding="utf-8"))
    assert sorted(rows) == sorted(ROWS) == list(range(1, 41))
    there = existing_tests()
    for number, tests in rows.items():
        assert tests, f"row {number} has no test"
        assert set(tests) <= there, f"row {number} names a test that is gone: {set(tests) - there}"


def test_a_table_wants_every_row_and_keeps_the_newest_figure(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    for measured in ("old", "a | new\nline"):
        keep(3, "tests/faults/test_fault_jobs.py::test_x", measured, "how it is done", file)
    assert [figure.measured for figure in newest(file)] == ["a | new\nline"]
    with pytest.raises(ValueError, match=r"no figure for rows \[1, 2, 4, "):
        table(newest(file))
    others = [Figure(row, "tests/faults/test_a.py::test_b", "m", "h", "here", "2026-01-01") for row in ROWS if row != 3]
    made = table([*newest(file), *others])
    assert "| a \\| new line | how it is done ([`test_x`](../tests/faults/test_fault_jobs.py))" in made
    assert sorted(rows_on_page(f"<!-- table: begin -->\n{made}<!-- table: end -->")) == sorted(ROWS)
    done = subprocess.run(
        [sys.executable, "-c", "import tests.faults.table as t; print(len(t.existing_tests()))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 20
