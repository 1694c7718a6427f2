"""Alarms: at their time, not after their block, from one thread."""

from __future__ import annotations

import threading
import time

import pytest

from tokenpaths.engine.store.file.alarms import Alarms


def test_an_alarm_comes_in_the_block_and_not_after_it() -> None:
    alarms, rang = Alarms(), threading.Event()
    with alarms.after(0.05, rang.set):
        assert rang.wait(10)
    rang.clear()
    with alarms.after(0.1, rang.set):
        pass
    assert not rang.wait(0.3)


def test_many_alarms_come_in_the_order_of_their_times_from_one_thread() -> None:
    alarms, rang, done = Alarms(), [], threading.Event()
    before = threading.active_count()

    def block(seconds: float) -> None:
        with alarms.after(seconds, lambda: rang.append(seconds)):
            done.wait(20)

    times = [0.5, 0.1, 0.4, 0.2, 0.3]
    threads = [threading.Thread(target=block, args=(seconds,)) for seconds in times]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 20
    while len(rang) < len(times) and time.monotonic() < ends:
        time.sleep(0.01)
    assert threading.active_count() == before + len(times) + 1
    done.set()
    assert rang == sorted(times)


def test_an_alarm_that_fails_does_not_end_the_others() -> None:
    alarms, rang = Alarms(), threading.Event()
    with alarms.after(0.01, lambda: 1 // 0), alarms.after(0.05, rang.set):
        assert rang.wait(10)


def test_an_alarm_that_hangs_does_not_hold_up_those_that_are_set_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenpaths.engine.store.file.alarms.HANGS_SECONDS", 0.1)
    alarms, hung, free, rang = Alarms(), threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        hung.set()
        free.wait(60)

    with alarms.after(0.01, hang):
        assert hung.wait(10)
        time.sleep(0.2)
        with alarms.after(0.01, rang.set):
            assert rang.wait(10)
    free.set()
    rang.clear()
    with alarms.after(0.01, rang.set):
        assert rang.wait(10)


def test_an_alarm_comes_after_the_clock_was_another_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits for an earlier alarm, by a clock that is a thousand seconds behind, when the next one is set"""
    alarms, rang, clock = Alarms(), threading.Event(), time.monotonic
    with monkeypatch.context() as another:
        first = clock() + 0.2
        another.setattr(time, "monotonic", lambda: first - 0.2)
        with alarms.after(0.2, lambda: None):
            another.setattr(time, "monotonic", lambda: first - 1000)
            with alarms.after(0, lambda: None):  # wakes the thread, which looks at the clock
                time.sleep(0.1)
        another.setattr(time, "monotonic", clock)
        with alarms.after(0.4, rang.set):
            assert rang.wait(5)
