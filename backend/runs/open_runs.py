"""The run files of the data folder that are open: each is opened once; replaced, deleted and broken files are noticed.

A run is sealed by rename and never changes afterwards, so (inode, size, times) of its file identifies it. A file that
cannot be read is remembered with its problem. Of a run from elsewhere its copy is opened (``store.intake.gate``).
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tokenpaths.backend.http.watchdog import Watchdog
from tokenpaths.backend.problems import Problem, busy, nearest
from tokenpaths.engine.base.errors import NotEnoughMemory, NotOpenedNow, QueryTimeout, UserError
from tokenpaths.engine.base.files import RUN_SUFFIX, is_name, printable_name, series_file
from tokenpaths.engine.store.intake.gate import IntakeLimits, RunGate

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.store.ask.run import Run

LOOK_AGAIN_SECONDS = 5.0
MOST_COMPARED = 1000
"""names of runs that are compared with one that there is not"""


@dataclass
class Entry:
    """An opened run file with the identity it had then."""

    identity: str
    run: Run | None = None
    problem: str | None = None
    passing: bool = False
    """the problem says nothing about the file: it is opened again for the next request"""
    retry_after_s: int = 1
    looked_at: float = -math.inf
    """when the problem was found, so that one that may be temporary (too many open files) is retried"""
    users: int = 0
    retired: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


def gate_of(settings: Settings) -> RunGate:
    """The gate of the data folder of ``settings``."""
    limits = IntakeLimits(settings.check_seconds, settings.check_megabytes, settings.least_free_megabytes * 1e6)
    return RunGate(settings.runs_dir, limits if settings.check_runs else None)


def file_identity(path: Path, info: os.stat_result | None = None) -> str:
    """A string that stays equal while the file is the same sealed run in the same series; raises OSError."""
    info = os.stat(path) if info is None else info
    if not stat.S_ISREG(info.st_mode):
        raise FileNotFoundError(path)
    text = f"{path.name}:{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}"
    with suppress(OSError):  # of the few runs that a user put into a series
        text += f":{os.stat(series_file(path)).st_mtime_ns}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


class OpenRuns:
    """Open ``Run`` objects by name; safe to use from many threads."""

    def __init__(
        self,
        runs_dir: Path,
        *,
        time_limit_s: float = 10.0,
        max_open: int = 64,
        gate: RunGate | None = None,
        watchdog: Watchdog | None = None,
        memory_megabytes: int | None = None,
    ) -> None:
        self.memory_megabytes = memory_megabytes
        self.watchdog = watchdog or Watchdog()
        self.gate = gate if gate is not None else RunGate(runs_dir)
        self.runs_dir, self.time_limit_s, self.max_open = runs_dir, time_limit_s, max_open
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self.num_failed = 0
        """how often a file could not be opened"""
        self._lock = threading.RLock()

    @classmethod
    def of(
        cls, settings: Settings, *, time_limit_s: float, max_open: int = 64, watchdog: Watchdog | None = None
    ) -> Self:
        """The runs of the data folder of ``settings``."""
        return cls(
            settings.runs_dir,
            time_limit_s=time_limit_s,
            max_open=max_open,
            gate=gate_of(settings),
            watchdog=watchdog,
            memory_megabytes=settings.query_megabytes,
        )

    def path(self, run_id: str) -> Path:
        """Path of the file of ``run_id``; Problem 404 for invalid names, so that no path leaves the folder."""
        if not is_name(run_id):
            raise Problem(404, "no-such-run", f"{run_id[:80]!r} {NO_NAME}", field="run")
        return self.runs_dir / f"{run_id}{RUN_SUFFIX}"

    def names(self) -> list[str]:
        """Names of all run files, sorted; some may be impossible to address in a URL."""
        try:
            files = [entry.name for entry in os.scandir(self.runs_dir)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(
                f"The folder {self.runs_dir} cannot be read ({error.strerror or error}); "
                "choose another data folder with --data-dir or TOKENPATHS_DATA_DIR.",
                field="data_dir",
            ) from error
        return sorted(
            name.removesuffix(RUN_SUFFIX) for name in files if name.endswith(RUN_SUFFIX) and not name.startswith(".")
        )

    def identity(self, run_id: str) -> str:
        """The identity of the current file; Problem 404 if there is none."""
        try:
            return file_identity(self.path(run_id))
        except OSError:
            self.forget(run_id)
            raise self._missing(run_id) from None

    def _missing(self, run_id: str) -> Problem:
        # Do not suggest names of what only looks like a run (a folder, a broken link).
        there = [name for name in self.names() if name != run_id and is_name(name)]
        compared = there[:MOST_COMPARED]
        names = [name for name in compared if os.path.isfile(f"{self.runs_dir}/{name}{RUN_SUFFIX}")]
        hint = (
            nearest(run_id, names, len(there) - len(compared))
            if names
            else "there are no runs yet; `tokenpaths trace` makes one."
        )
        return Problem(404, "no-such-run", f"There is no run `{run_id}`; {hint}", field="run")

    @contextmanager
    def lease(self, run_id: str) -> Iterator[Run]:
        """The open run, kept open for the duration of the block.

        Raises:
            Problem: 404 if there is no such file, 409 if it cannot be read, 503 if it cannot be opened now, or a
                question to it is stuck.
        """
        with self.watchdog.about(run_id):
            entry = self._entry(run_id)
            try:
                if entry.run is None:
                    self.identity(run_id)  # deleted while it was being opened: not damaged, but gone
                    if entry.passing:
                        raise busy(str(entry.problem), retry_after_s=entry.retry_after_s)
                    raise Problem(409, "unreadable-run", str(entry.problem), field="run")
                yield entry.run
            finally:
                with self._lock:
                    entry.users -= 1
                    self._close_if_unused(entry)

    def must_be_taken_in(self, run_id: str) -> bool:
        """Whether opening the run would wait for its intake."""
        try:
            return is_name(run_id) and self.gate.standing(self.path(run_id)).state == "waiting"
        except OSError:
            return False

    def take_in(self, run_id: str) -> None:
        """Wait for the intake of a run from elsewhere; opening the run reports the result."""
        with suppress(OSError, UserError):
            self.gate.passage(self.path(run_id))

    def ask(self, run_id: str, question: Callable[[Run], Any]) -> Any:
        """The result of ``question`` for the open run."""
        with self.lease(run_id) as run:
            return question(run)

    def _entry(self, run_id: str) -> Entry:
        """The entry of a run, opened or with its problem, with one more user."""
        path, came = self.path(run_id), time.monotonic()
        with self._lock:
            identity = self.identity(run_id)
            entry = self._entries.get(run_id)
            if entry is None or entry.identity != identity:
                self.forget(run_id)
                entry = self._entries[run_id] = Entry(identity)
            self._entries.move_to_end(run_id)
            entry.users += 1
            self._shrink()
        with entry.lock:  # only requests for this file wait until it is open
            # Those that waited for an opening that failed share its outcome: each would take as long once more.
            again_at = entry.looked_at + (0.0 if entry.passing else LOOK_AGAIN_SECONDS)
            if entry.run is None and came > again_at:
                self._open(entry, path)
        return entry

    def _open(self, entry: Entry, path: Path) -> None:
        from tokenpaths.engine.store.ask.run import Run

        try:
            file = self.gate.passage(path)
            entry.run = Run.open(file, time_limit_s=self.time_limit_s, memory_megabytes=self.memory_megabytes)
            entry.problem, entry.passing = None, False
            return
        except QueryTimeout:
            entry.passing, entry.retry_after_s = True, 1
            entry.problem = f"Run {path.stem} took too long to open, the machine is busy; try again in a moment."
        except UserError as error:
            entry.passing = isinstance(error, NotOpenedNow | NotEnoughMemory)
            entry.retry_after_s = getattr(error, "retry_after_s", 1)
            entry.problem = str(error)
        except Exception as error:  # a broken file can raise anything in the reader
            entry.passing = False
            entry.problem = (
                f"The file of run {path.stem} cannot be read ({type(error).__name__}); "
                "copy it anew, trace again or delete it."
            )
        entry.looked_at = time.monotonic()
        with self._lock:
            self.num_failed += 1

    def _shrink(self) -> None:
        """Close the least recently used files when too many are open; call with the lock held."""
        idle = [name for name, entry in self._entries.items() if entry.users == 0]
        for name in idle[: max(0, len(self._entries) - self.max_open)]:
            self.forget(name)

    def forget(self, run_id: str) -> None:
        """Close the run as soon as nobody uses it; the next lease opens the file anew."""
        with self._lock:
            entry = self._entries.pop(run_id, None)
            if entry is not None:
                entry.retired = True
                self._close_if_unused(entry)

    def forget_idle(self, run_id: str) -> None:
        """Close the run unless somebody uses it, so that a long list does not displace runs that are asked."""
        with self._lock:
            entry = self._entries.get(run_id)
            if entry is not None and entry.users == 0 and entry.problem is None:
                self.forget(run_id)

    def _close_if_unused(self, entry: Entry) -> None:
        if entry.retired and entry.users == 0 and entry.run is not None:
            run, entry.run = entry.run, None
            run.close()

    def count_open(self) -> int:
        """Number of open files."""
        with self._lock:
            return sum(entry.run is not None for entry in self._entries.values())

    def close(self) -> None:
        """Close all unused files and end intakes."""
        self.gate.close()
        for name in list(self._entries):
            self.forget(name)


def no_name(name: str) -> str:
    """Why a run file cannot have this name, and the command that gives it another."""
    file = f"{name}{RUN_SUFFIX}"
    quoted = shlex.quote(file)
    if printable_name(file) != file:  # bytes that are no UTF-8, which bash takes as escapes
        quoted = "$'" + printable_name(file.replace("\\", "\\\\").replace("'", "\\'")) + "'"
    return (
        f"The file name `{printable_name(name)}` {NO_NAME} Rename it, in its folder: `mv -- {quoted} NAME{RUN_SUFFIX}`."
    )


NO_NAME = (
    "cannot be the name of a run: letters, digits, `-` and `_`, at most 64, the first a letter or digit, "
    "and not a device name of Windows."
)
