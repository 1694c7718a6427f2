"""One progress bar for everything that takes longer than two seconds; lines instead of it on a pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tokenpaths.cli.support.terminal import cell, raw_stream

FIRST_LINE_SECONDS = 2.0
LINE_SECONDS = 10.0


class _Rate(ProgressColumn):
    """Things a second, over the last stretch."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.3g} {self.unit}/s" if speed else f"… {self.unit}/s", style="cyan")


class Bar:
    """``update(done, note)`` as often as you like.

    ``first``: what was done before, of something that is resumed; it does not count for the rate.
    """

    def __init__(self, label: str, total: int | None, unit: str, first: int = 0) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self.note = 0, ""
        self._first = first
        self._started = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        self.done, self.note = done, note

    def line(self) -> str:
        """Where it stands, for a pipe: what is done, of how much, rate and time left, as far as known."""
        seconds = time.monotonic() - self._started
        parts = []
        if self.done:
            of = f"/{self.total:,}" if self.total else ""
            rate = (self.done - self._first) / max(seconds, 1e-9)
            parts = [f"{self.done:,}{of} {self.unit}"]
            if rate > 0:
                parts.append(f"{rate:,.3g} {self.unit}/s")
            if rate > 0 and self.total and self.done < self.total:
                parts.append(f"{(self.total - self.done) / rate / 60:.1f} min left")
        parts.append(f"{seconds:,.0f} s so far")
        return f"{self.label}: {', '.join(parts)} {self.note}".rstrip()


class _Drawn(Bar):
    """A bar on a terminal."""

    def __init__(self, label: str, total: int | None, unit: str, progress: Progress, task: TaskID) -> None:
        super().__init__(label, total, unit)  # rich measures the rate itself
        self._progress, self._task = progress, task

    def update(self, done: int, note: str = "") -> None:
        super().update(done, note)
        self._progress.update(self._task, completed=done, total=self.total, note=cell(note))


@contextmanager
def bar(label: str, total: int | None, unit: str, first: int = 0) -> Iterator[Bar]:
    """A bar on stderr with rate and time left; on a pipe a line after two seconds, then every ten."""
    console = Console(file=raw_stream(sys.stderr))
    if not console.is_terminal:
        with _lines(Bar(label, total, unit, first)) as lines:
            yield lines
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield _Drawn(label, total, unit, progress, progress.add_task(label, total=total, completed=first, note=""))


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Say what is going on while nothing can be counted; leaves no trace on a terminal."""
    console = Console(file=raw_stream(sys.stderr))
    if not console.is_terminal:
        with _lines(Bar(label, None, "")):
            yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(label, total=None)
        yield


@contextmanager
def _lines(shown: Bar) -> Iterator[Bar]:
    """Print where ``shown`` stands now and then, from a thread: long steps report nothing themselves."""
    over = threading.Event()

    def speak() -> None:
        pause = FIRST_LINE_SECONDS
        while not over.wait(pause):
            pause = LINE_SECONDS
            print(shown.line(), file=sys.stderr, flush=True)

    speaker = threading.Thread(target=speak, name="progress lines", daemon=True)
    speaker.start()
    try:
        yield shown
    finally:
        over.set()
        speaker.join()
