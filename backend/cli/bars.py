"""One progress bar for everything that takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    """Things a second, over the last stretch."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.3g} {self.unit}/s" if speed else f"… {self.unit}/s", style="cyan")


class Bar:
    """``update(done, note)`` as often as you like; on a pipe it prints a line every 30 seconds."""

    def __init__(self, label: str, total: int | None, unit: str, progress: Progress | None) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._progress = progress
        self._task = progress.add_task(label, total=total, note="") if progress else None
        self._started = self._printed = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=done, note=note)
            return
        now = time.monotonic()
        if now - self._printed < 30:
            return
        self._printed = now
        rate = done / (now - self._started)
        left = f", {(self.total - done) / rate / 60:.1f} min left" if self.total and rate else ""
        of = f"/{self.total:,}" if self.total else ""
        print(f"{self.label}: {done:,}{of} {self.unit}, {rate:,.3g}/s{left} {note}", file=sys.stderr)


@contextmanager
def bar(label: str, total: int | None, unit: str) -> Iterator[Bar]:
    """A bar on stderr with rate and time left; gone quiet on a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Bar(label, total, unit, None)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(unit),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield Bar(label, total, unit, progress)
