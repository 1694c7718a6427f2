"""The one way to a run file of the data folder: a run that was sealed here, or the copy of one from elsewhere.

A run from elsewhere is copied once into ``<data_dir>/.taken_in`` by a process of its own (``process``), which leaves a
record of the outcome beside the copy. Copying takes a second or more; asking how things stand takes none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenpaths.engine.base.errors import NotOpenedNow, RunFileError, UserError
from tokenpaths.engine.base.files import HolderLock
from tokenpaths.engine.base.run_parts import remove_parts
from tokenpaths.engine.base.seal_marks import FRESH_SECONDS, forget_mark, identity_of, is_sealed_here
from tokenpaths.engine.confined.limits import child_environment
from tokenpaths.engine.store.intake.process import BUSY, RECORDS_VERSION, Outcome, Request, record_of

log = logging.getLogger(__name__)
FOLDER = ".taken_in"
BYTES_PER_SECOND = 20e6
"""minimum reading speed, in addition to the time limit for small files"""
MOST_COMPARED_BYTES = 8 << 20
"""size of a sealed file that is compared with its sum at once, where it was touched; larger ones in the background"""
PATIENCE = 5
"""time limit of the whole intake, as a multiple of that of reading"""
ANSWERS_SECONDS = 900
"""time for the answers of large runs, in addition"""
MOST_LINE_BYTES = 65_536
AGAIN_SECONDS, LATEST_AGAIN_SECONDS = 60.0, 3600.0
"""retry delays in seconds after an intake failed for want of memory, time or space: the first, quadrupled each time up
to the last
"""
BUSY_SECONDS = 0.3


@dataclass(frozen=True)
class IntakeLimits:
    """What taking in one run may use."""

    seconds: int | float = 60.0
    """of reading; a second more for each ``BYTES_PER_SECOND``"""
    megabytes: int = 4096
    """of the process that reads the original"""
    least_free: int | float = 64e6
    """bytes of the disk that stay free"""


@dataclass(frozen=True)
class Standing:
    """How a run file stands, known without reading it."""

    state: Literal["open", "waiting", "refused"]
    file: Path
    """``open``: what may be opened, the run itself or its copy"""
    sentence: str | None = None
    """reason of the last refusal"""
    progress: float | None = None
    """finished share of an intake in progress"""
    passing: bool = False
    """``refused`` for want of memory, time or space, which says nothing about the file"""
    again_at: float = 0.0
    """monotonic seconds at which it is tried again, where ``passing``"""


@dataclass(frozen=True)
class _Refusal:
    """A refusal of this process."""

    identity: str
    outcome: Outcome
    tries: int
    again_at: float
    """monotonic seconds; infinity: only when the file changes"""


class RunGate:
    """Tells which file to open for each run of a folder, and takes in those from elsewhere; thread-safe.

    Args:
        runs_dir: the folder of run files.
        limits: of one intake; None: every file is opened as it is (``check_runs`` is off).
    """

    def __init__(self, runs_dir: Path, limits: IntakeLimits | None = None) -> None:
        self.runs_dir, self.limits = runs_dir, limits
        self.folder = runs_dir.parent / FOLDER
        self._known: dict[Path, tuple[str, Standing]] = {}
        self._refusals: dict[Path, _Refusal] = {}
        self._taking_in: dict[tuple[Path, str], Future[Outcome]] = {}
        self._progress: dict[Path, float] = {}
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def standing(self, file: Path, info: os.stat_result | None = None) -> Standing:
        """How the run ``file`` stands; OSError if there is none. ``info`` is its state, where it is known already."""
        info = os.stat(file) if info is None else info
        if not stat.S_ISREG(info.st_mode):
            raise FileNotFoundError(file)
        if self.limits is None:
            return Standing("open", file)
        identity = identity_of(info)
        state = f"{identity}-{info.st_ctime_ns:x}"
        known = self._known.get(file)
        if known is None or known[0] != state:
            standing = self._recorded(file, identity, info)
            if standing is None:
                return self._unknown(file, identity)
            known = self._known[file] = (state, standing)
        return known[1]

    def _recorded(self, file: Path, identity: str, info: os.stat_result) -> Standing | None:
        """What marks and records say of a file; None if nothing."""
        if is_sealed_here(file, info, most_bytes=MOST_COMPARED_BYTES):
            return Standing("open", file)
        record = record_of(self.copy_of(file))
        if record.get("identity") != identity or record.get("version") != RECORDS_VERSION:
            return None
        if record.get("problem") is not None:
            return Standing("refused", file, str(record["problem"]))
        return Standing("open", self.copy_of(file)) if self.copy_of(file).is_file() else None

    def _unknown(self, file: Path, identity: str) -> Standing:
        refusal = self._refusals.get(file)
        if refusal is None or refusal.identity != identity:
            return Standing("waiting", file, progress=self._progress.get(file))
        if time.monotonic() >= refusal.again_at:
            return Standing("waiting", file, refusal.outcome.problem, self._progress.get(file))
        outcome = refusal.outcome
        return Standing("refused", file, outcome.problem, passing=outcome.passing, again_at=refusal.again_at)

    def is_copied(self, file: Path) -> bool:
        """Whether ``file`` stood open by its copy when it was last looked at; does not look."""
        known = self._known.get(file)
        return known is not None and known[1].state == "open" and known[1].file != file

    def copy_of(self, file: Path) -> Path:
        """Where the copy of a run from elsewhere is."""
        return self.folder / file.name

    def passage(self, file: Path) -> Path:
        """The file to open for the run ``file``; takes it in if necessary, which takes seconds or minutes.

        Raises:
            RunFileError: why it is not opened; NotOpenedNow where that says nothing about the file.
            OSError: there is no such file.
        """
        while True:
            info = os.stat(file)
            standing = self.standing(file, info)
            if standing.state == "open" and (standing.file == file or standing.file.is_file()):
                return standing.file
            if standing.state == "refused":
                raise _refused(str(standing.sentence), standing.passing, standing.again_at)
            self._known.pop(file, None)
            outcome = self._shared(file, info)
            if outcome.problem == BUSY:
                time.sleep(BUSY_SECONDS)
            elif outcome.problem is not None:
                raise _refused(outcome.problem, outcome.passing)
            elif (
                identity_of(os.stat(file)) == identity_of(info)
                and self._recorded(file, identity_of(info), info) is None
            ):
                raise NotOpenedNow(f"{file.name} was taken in, but its copy is gone; try again")
            if self._closed:
                raise NotOpenedNow(f"{file.name} was not taken in: the program is ending")

    def _shared(self, file: Path, info: os.stat_result) -> Outcome:
        """The outcome of one intake for all threads that want this file."""
        key = (file, identity_of(info))
        with self._lock:
            future = self._taking_in.get(key)
            mine = future is None
            if future is None:
                future = self._taking_in[key] = Future()
        if mine:
            try:
                future.set_result(self._take_in(file, info))
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    self._taking_in.pop(key, None)
                    self._progress.pop(file, None)
        return future.result()

    def _take_in(self, file: Path, info: os.stat_result) -> Outcome:
        assert self.limits is not None, "where nothing is checked nothing waits"
        if is_sealed_here(file, info):
            return Outcome(None)
        identity, limits = identity_of(info), self.limits
        seconds = limits.seconds + info.st_size / BYTES_PER_SECOND
        request = Request(str(file), identity, str(self.copy_of(file)), seconds, limits.megabytes, limits.least_free)
        more = ANSWERS_SECONDS if info.st_size > BYTES_PER_SECOND / 2 else 0
        outcome = self._run(file, request, PATIENCE * seconds + more)
        if outcome.problem is not None and outcome.problem != BUSY:
            before = self._refusals.get(file)
            tries = before.tries + 1 if before is not None and before.identity == identity else 1
            wait = min(AGAIN_SECONDS * 4 ** (tries - 1), LATEST_AGAIN_SECONDS) if outcome.passing else float("inf")
            if not self._closed:
                self._refusals[file] = _Refusal(identity, outcome, tries, time.monotonic() + wait)
                log.warning("run from elsewhere refused: %s", outcome.problem)
        return outcome

    def _run(self, file: Path, request: Request, seconds: float) -> Outcome:
        """The outcome of the process that takes in ``file``, which is ended after so many seconds."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # a data folder that cannot be written
            return Outcome(
                f"{file.name} came from elsewhere and cannot be copied: there is no folder {FOLDER} in the data folder "
                f"and none can be made ({error.strerror or error}); it is tried again later",
                True,
            )
        try:
            process = subprocess.Popen(
                intake_command(request),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(threads=True),
                start_new_session=True,
            )
        except OSError as error:  # no memory, or too many processes
            return Outcome(
                f"{file.name} came from elsewhere, and the process that is to take it in could not be started "
                f"({error.strerror or error}): the machine is short of memory or processes; it is tried again later",
                True,
            )
        self._processes.add(process)
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        message: dict[str, Any] = {}
        try:
            assert process.stdout is not None
            while "problem" not in message and (line := process.stdout.readline(MOST_LINE_BYTES)):
                message = _parsed(line)
                if isinstance(share := message.get("progress"), float):
                    self._progress[file] = min(1.0, max(0.0, share))
            if "problem" not in message:
                process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
            self._processes.discard(process)
        if "problem" in message:
            problem = message["problem"]
            return Outcome(None if problem is None else str(problem)[:1000], message.get("passing") is True)
        return _died(file, process.returncode, seconds if late.is_set() else None)

    def taken_in_at(self, file: Path) -> float:
        """When the copy of ``file`` was finished, by any process, in seconds since 1970; 0 if there is none."""
        try:
            return self.copy_of(file).with_suffix(".json").stat().st_mtime
        except OSError:
            return 0.0

    def working(self) -> set[str]:
        """Names of the runs that are being taken in by this process."""
        with self._lock:
            return {file.stem for file, _ in self._taking_in}

    def delete(self, file: Path) -> None:
        """Delete the run ``file``, its parts, its mark and its copy; OSError if there is none."""
        info = os.stat(file, follow_symlinks=False)
        file.unlink()
        with contextlib.suppress(UserError, OSError):  # somebody seals it anew, who deletes what he does not need
            lock = HolderLock(file.with_name(f".{file.stem}.lock"))
            lock.acquire()
            try:
                remove_parts(file)
            finally:
                lock.release()
        forget_mark(file, info)
        self._known.pop(file, None)
        self._refusals.pop(file, None)
        self._discard(file)

    def _discard(self, file: Path) -> None:
        copy = self.copy_of(file)
        for path in (copy, copy.with_suffix(".json")):
            with contextlib.suppress(OSError):
                path.unlink()

    def sweep(self, names: Collection[str]) -> None:
        """Delete copies of runs that are no longer there or were replaced, and what killed processes left.

        Args:
            names: file names in the folder of runs.
        """
        try:
            entries = [entry.name for entry in os.scandir(self.folder)]
        except OSError:
            return
        for name in {name.removesuffix(".json") + ".duckdb" if name.endswith(".json") else name for name in entries}:
            file = self.runs_dir / name
            if name.startswith(".") or self.taken_in_at(file) > time.time() - FRESH_SECONDS:
                continue
            with contextlib.suppress(OSError):
                if name not in names or record_of(self.copy_of(file)).get("identity") != identity_of(os.stat(file)):
                    self._discard(file)
        if any(name.endswith(".partial") for name in entries):
            from tokenpaths.engine.store.write.writer import remove_abandoned

            remove_abandoned(self.folder)

    def close(self) -> None:
        """End the processes of this gate."""
        self._closed = True
        for process in list(self._processes):
            with contextlib.suppress(OSError):
                process.kill()


def intake_command(request: Request) -> list[str]:
    """Command line of the process that takes in one run."""
    return [sys.executable, "-P", "-m", "tokenpaths.engine.store.intake.process", request.to_json()]


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _refused(sentence: str, passing: bool, again_at: float = 0.0) -> RunFileError:
    if not passing:
        return RunFileError(sentence)
    error = NotOpenedNow(sentence)
    error.retry_after_s = max(1, math.ceil(again_at - time.monotonic()))
    return error


def _died(file: Path, code: int, seconds: float | None) -> Outcome:
    """The outcome where the process gave none; ``seconds``: it was ended after so many."""
    if seconds is not None:
        return Outcome(
            f"{file.name} came from elsewhere and could not be taken in within {seconds:.0f} s: it was made to do "
            "harm, or takes longer here; it is tried again later. If it is yours, raise `check_seconds`",
            True,
        )
    if code == -getattr(signal, "SIGKILL", 9):
        return Outcome(
            f"{file.name} came from elsewhere, and the process that took it in was ended from outside: most likely the "
            "machine had no memory left; it is tried again later",
            True,
        )
    how = signal.Signals(-code).name if -code in signal.valid_signals() else f"code {code}"
    return Outcome(
        f"{file.name} came from elsewhere and ended the process that took it in ({how}): it is damaged or was made to "
        "do harm, and is not opened; trace the run again"
    )
