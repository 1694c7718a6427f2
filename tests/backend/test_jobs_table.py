"""The queue by itself, with a clock that the test moves: leases, their loss, and what two workers cannot both have."""

from __future__ import annotations

import random
import sqlite3
import threading
from pathlib import Path

import pytest

from tokenpaths.backend.jobs.table import MOST_DEATHS, JobTable, Lease
from tokenpaths.backend.problems import Problem
from tokenpaths.engine.jobs.registry import Progress


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(tmp_path: Path, clock: Clock) -> JobTable:
    return JobTable(tmp_path / "jobs.sqlite", lease_s=10, clock=clock)


def leased(table: JobTable, worker: str, **options: bool) -> Lease:
    found = table.lease(worker, **options)
    assert found is not None
    return found


def at(done: int) -> Progress:
    return Progress(done, 100, "iterations")


def test_a_job_belongs_to_one_worker_until_its_lease_runs_out(table: JobTable, clock: Clock) -> None:
    job = table.submit("count", {}).job
    one = leased(table, "one")
    assert table.lease("two") is None
    clock.now += 9
    assert table.report(one, at(30), 3.0) == "go"
    clock.now += 9
    assert table.lease("two") is None, "reporting renewed it"
    assert not table.is_abandoned(table.get(job))
    clock.now += 2
    assert table.is_abandoned(table.get(job))
    two = leased(table, "two")
    assert (two.row.job, two.row.attempts, two.row.done) == (job, 2, 30)
    assert table.renew(one) == table.report(one, at(90), None) == "lost"
    assert not table.end(one, "succeeded", result={"wrong": True})
    assert not table.pause(one, "", 1)
    assert not table.give_back(one)
    assert table.get(job).done == 30, "nothing that the first says counts any more"
    assert table.end(two, "succeeded", result={"right": True})
    assert table.get(job).result == {"right": True}


def test_a_clock_that_was_set_back_holds_nothing_up(table: JobTable, clock: Clock) -> None:
    table.submit("count", {})
    leased(table, "one")
    clock.now -= 86_400
    assert leased(table, "two").row.attempts == 2


def test_a_paused_job_is_taken_up_though_the_clock_was_set_back(table: JobTable, clock: Clock) -> None:
    job = table.submit("count", {}).job
    table.pause(leased(table, "one"), "full", 60)
    assert table.lease("two") is None, "a long pause is no clock set back"
    clock.now -= 86_400
    assert table.lease("two", resume_paused=False) is None
    assert leased(table, "two").row.job == job


def test_workers_that_die_at_a_job_end_it_unless_it_comes_further(table: JobTable, clock: Clock) -> None:
    job, other = table.submit("count", {}).job, table.submit("count", {}).job
    for death in range(2 * MOST_DEATHS):
        lease = leased(table, f"w{death}")
        assert lease.row.job == job
        if death <= MOST_DEATHS:
            table.report(lease, at(death + 1), None)
        clock.now += 11
        if table.get(job).deaths == MOST_DEATHS - 1:
            break
    assert leased(table, "last").row.job == other
    row = table.get(job)
    assert row.state == "failed"
    assert row.attempts > MOST_DEATHS, "deaths after progress do not count"
    assert row.problem is not None
    assert "without coming any further" in row.problem["detail"]
    assert table.retry(job).deaths == 0


def test_cancelling_reaches_the_worker_or_is_done_where_there_is_none(table: JobTable, clock: Clock) -> None:
    job = table.submit("count", {}).job
    one = leased(table, "one")
    assert table.cancel(job).cancelling
    assert table.cancel(job).state == "running"
    assert table.renew(one) == "cancel"
    assert table.give_back(one), "a worker that ends meanwhile does not put it back into the queue"
    assert table.get(job).state == "cancelled"
    dead = table.submit("count", {}).job
    leased(table, "two")
    clock.now += 11
    assert table.cancel(dead).state == "cancelled"
    told = table.submit("count", {}).job
    leased(table, "told and killed")
    assert table.cancel(told).cancelling
    clock.now += 11
    assert table.cancel(told).state == "cancelled", "nobody is left whom the first cancel could reach"
    assert table.retry(told).state == "waiting"
    leased(table, "three")
    table.cancel(told)
    clock.now += 11
    assert table.lease("four") is None
    assert table.get(told).state == "cancelled"


def test_a_paused_job_waits_for_its_time_and_for_space(table: JobTable, clock: Clock) -> None:
    job = table.submit("count", {}).job
    table.pause(leased(table, "one"), "full", 5)
    assert (table.get(job).state, table.get(job).message) == ("paused", "full")
    assert table.lease("one") is None
    clock.now += 6
    assert table.lease("one", resume_paused=False) is None
    assert leased(table, "one").row.deaths == 0
    again = table.submit("count", {}).job
    table.pause(leased(table, "two"), "full", 5)
    assert table.cancel(again).state == "cancelled"


def test_one_damaged_row_hides_no_other_and_can_be_removed(table: JobTable, tmp_path: Path, clock: Clock) -> None:
    over, waiting, hurt = (table.submit("count", {"n": n}).job for n in range(3))
    table.end(leased(table, "w"), "succeeded", result={"x": 1})
    table.close()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as con:
        con.execute("UPDATE job SET message = 'changed' WHERE job = ?", (over,))
        con.execute("UPDATE job SET request = '{\"n\": 7}' WHERE job = ?", (hurt,))
    con.close()
    table = JobTable(tmp_path / "jobs.sqlite", lease_s=10, clock=clock)
    assert [(row.job, row.state, row.damaged) for row in table.page()] == [
        (hurt, "failed", True),
        (waiting, "waiting", False),
        (over, "failed", True),
    ]
    assert "submit it again" in table.get(over).problem["detail"]
    with pytest.raises(Problem, match="submit it again"):
        table.retry(over)
    table.remove(over)
    assert leased(table, "w").row.job == waiting
    assert table.lease("v") is None, "the damaged one is not worked on"
    assert (table.get(hurt).state, table.get(hurt).request) == ("failed", {})
    table.remove(hurt)
    assert [row.job for row in table.page()] == [waiting]


def test_what_is_counted_anew_comes_further_though_the_number_is_smaller(table: JobTable, clock: Clock) -> None:
    job = table.submit("count", {}).job
    table.report(leased(table, "one"), Progress(500, 500, "stretches", "", False), None)
    for death in range(MOST_DEATHS):
        clock.now += 11
        table.report(leased(table, f"w{death}"), Progress(death // 2, 16, "rounds", "", False), None)
    assert table.get(job).deaths == 0, "it counts another unit, and later more of it"
    clock.now += 11
    table.report(leased(table, "no further"), Progress(1, 16, "rounds", "", False), None)
    assert table.get(job).deaths == 1


def test_a_lease_that_is_put_off_counts_as_no_attempt_and_no_death(table: JobTable, clock: Clock) -> None:
    table.submit("count", {})
    assert table.postpone(leased(table, "one"), 2)
    assert table.lease("two") is None
    clock.now += 3
    row = leased(table, "two").row
    assert (row.attempts, row.deaths) == (1, 0)


def test_retrying_goes_to_the_end_of_the_queue(table: JobTable) -> None:
    jobs = [table.submit("count", {}).job for _ in range(3)]
    table.cancel(jobs[0])
    table.retry(jobs[0])
    assert table.places() == {jobs[1]: 1, jobs[2]: 2, jobs[0]: 3}
    for state in ("waiting", "running"):
        with pytest.raises(Problem, match=state):
            table.retry(jobs[1])
        leased(table, "one")


def test_a_job_that_is_tried_again_begins_to_wait_anew_and_within_the_limit(tmp_path: Path, clock: Clock) -> None:
    table = JobTable(tmp_path / "jobs.sqlite", lease_s=10, most_waiting=2, clock=clock)
    old = table.submit("count", {}).job
    lease = leased(table, "one")
    table.report(lease, at(70), None)
    table.end(lease, "failed", problem={"detail": "no"})
    clock.now += 86_400
    others = [table.submit("count", {}).job for _ in range(2)]
    with pytest.raises(Problem, match="2 jobs are waiting"):
        table.retry(old)
    table.cancel(others[0])
    row = table.retry(old)
    assert (row.started_at, row.done, row.most_done) == (None, 0, 70)
    table.cancel(others[1])
    clock.now += 5
    assert table.queue_age() == 5
    assert leased(table, "one").row.started_at == clock.now
    assert table.queue_age() == 0


def test_what_follows_a_job_is_queued_as_it_ends_or_not_at_all(tmp_path: Path, clock: Clock) -> None:
    table = JobTable(tmp_path / "jobs.sqlite", lease_s=10, most_waiting=1, clock=clock)
    table.submit("count", {})
    lost = leased(table, "one")
    clock.now += 11
    held = leased(table, "two")
    table.submit("count", {})  # as many as may wait
    assert not table.end(lost, "succeeded", following=[("twin", {"run": "r"})])
    assert table.page(kinds=["twin"]) == []
    assert table.end(held, "succeeded", following=[("twin", {"run": "r"})])
    assert [(row.state, row.request) for row in table.page(kinds=["twin"])] == [("waiting", {"run": "r"})]


def test_of_progress_and_of_each_artifact_only_the_newest_is_kept(table: JobTable) -> None:
    job = table.submit("count", {}).job
    lease = leased(table, "one")
    for done in range(200):
        table.report(lease, at(done), None, ["curve.json", f"frame-{done % 3}.png"])
    events = table.events(job)
    assert len(events) == 2 + 1 + 4
    assert events[-1].id > 400
    newest, changed = table.changed(events[-2].id)
    assert (newest, changed) == (events[-1].id, {job})


def test_many_workers_share_the_queue_and_none_gets_what_another_has(tmp_path: Path) -> None:
    file = tmp_path / "jobs.sqlite"
    first = JobTable(file)
    jobs = {first.submit("count", {"n": n}).job for n in range(60)}
    done: list[str] = []

    def work(number: int) -> None:
        table, chance = JobTable(file), random.Random(number)
        while (lease := table.lease(f"w{number}")) is not None:
            done.append(lease.row.job)
            if chance.random() < 0.3:
                assert table.give_back(lease)
                done.remove(lease.row.job)
            else:
                assert table.end(lease, "succeeded", result={})
        table.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted(jobs), "each once"
    assert first.counts() == {"succeeded": 60}


def test_twins_wait_until_no_other_job_does(table: JobTable, clock: Clock) -> None:
    first, twin, second = (table.submit(kind, {}).job for kind in ("trace", "twin", "count"))
    assert table.places() == {first: 1, second: 2, twin: 3}
    assert leased(table, "one").row.job == first
    assert leased(table, "two").row.job == second
    assert leased(table, "three").row.job == twin
    later = table.submit("trace", {}).job
    clock.now += 11  # all three were lost
    assert [leased(table, str(number)).row.job for number in range(4)] == [first, second, later, twin]


def test_what_a_person_asks_for_goes_before_what_nobody_waits_for(table: JobTable) -> None:
    demo = [table.submit("trace", {}, later=True).job for _ in range(2)]
    twin = table.submit("twin", {}).job
    asked = [table.submit(kind, {}).job for kind in ("import", "dream")]
    assert list(table.places()) == [*asked, *demo, twin]
    for job in (demo[0], demo[1], asked[0]):
        table.cancel(job)
    table.retry(demo[0])
    table.retry(asked[0], later=True)
    assert list(table.places()) == [asked[1], demo[0], asked[0], twin]


def test_a_job_whose_files_another_worker_holds_is_not_said_to_run_again_and_again(
    table: JobTable, clock: Clock
) -> None:
    job = table.submit("count", {}).job
    leased(table, "one")
    for _ in range(20):
        clock.now += 20
        table.postpone(leased(table, "two"), 3)
    states = [event.data["state"] for event in table.events(job) if event.kind == "state"]
    assert states == ["waiting", "running"]
