"""Jobs that raise what no loop expects, and jobs that end or hang the process that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.crew import Crew
from tests.backend.conftest import Served
from tests.faults.conftest import Keep
from tests.support.jobs import RAISED, counted, register_count
from tests.support.jobs_over_rest import submit, until
from tokenpaths.backend.jobs.table import MOST_DEATHS

register_count()


def test_whatever_a_job_raises_the_next_one_runs(working: Served, figure: Keep) -> None:
    """Jobs raise panics, SystemExit, StopIteration and others, at their first step and later, or end in no JSON"""
    failing = [submit(working, iterations=9, fail_at=at, fail_with=kind) for kind in RAISED for at in (0, 5)]
    failing.append(submit(working, iterations=9, fail_with="result"))
    good = submit(working, iterations=30)
    for job in failing:
        problem = until(working, job, "failed")["problem"]
        assert problem["status"] == 500
        assert len(problem["detail"]) > 20
        assert "secret" not in problem["detail"]
    assert until(working, good, "succeeded")["result"] == {"value": counted(30)}
    figure(25, f"{len(failing)} of {len(failing)} failed with a sentence, the worker went on")


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path / "data", module="tests.support.jobs", job_lease_seconds=1)
    made.start_api()
    yield made
    made.close()


@pytest.mark.slow_fault
def test_a_job_that_kills_its_workers_is_set_aside(crew: Crew, figure: Keep) -> None:
    """A job ends the process of its worker whenever it is taken up; another one waits behind it"""
    bad, good = crew.submit("count", iterations=9, fail_at=3, fail_with="kill"), crew.submit("count", iterations=9)
    ends = 0

    def over() -> bool:
        nonlocal ends
        ends += len([worker for worker in crew.workers if worker.poll() is not None])
        crew.staff(1)
        # The next job need not wait for the lease of the lost one to run out.
        return (crew.job(good)["state"], crew.job(bad)["state"]) == ("succeeded", "failed")

    crew.until(over)
    found = crew.job(bad)
    assert (found["state"], found["attempts"]) == ("failed", MOST_DEATHS)
    assert "set aside" in found["problem"]["detail"]
    assert ends == MOST_DEATHS
    figure(25, f"a job that ends its worker was set aside after {ends} lives; the next one succeeded")
