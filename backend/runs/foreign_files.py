"""Reads run files of unknown origin in a confined child process before they are opened here.

See ``tokenpaths.engine.base.trusted_files`` for what counts as known. The child has no secrets in its environment,
writes nothing, opens no connection and has limits on memory and time; a file that it reads without a problem is marked
as known.

Reading takes a second or more per file. Opening one run waits for it (``problem``); listing all runs queues them to be
read in the background, one after the other (``status``, ``read_in_background``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tokenpaths.backend.worker.decoder import KEPT_ENVIRONMENT
from tokenpaths.engine.base.trusted_files import READ, is_known, mark_known, read_at

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings

log = logging.getLogger(__name__)
MEMORY_MEGABYTES = 4096
BYTES_PER_SECOND = 20e6
"""minimum reading speed, in addition to the time limit for small files"""
MOST_OUTPUT_BYTES = 65_536
"""maximum output of the child that is read: a compromised child could otherwise fill this process's memory"""
AGAIN_SECONDS, LATEST_AGAIN_SECONDS = 60.0, 3600.0
"""retry delays in seconds after a reading failed for lack of memory or time: the first, quadrupled each time up to the
last
"""
Identity = tuple[int, int, int]


@dataclass(frozen=True)
class Refusal:
    """Why a run is not opened."""

    sentence: str
    passing: bool = False
    """temporary, for lack of memory or time; otherwise the file itself is the reason"""


@dataclass(frozen=True)
class FileStatus:
    """State of a run file that is known without reading it."""

    state: Literal["known", "refused", "unread"]
    sentence: str | None = None
    """reason of a refusal"""


@dataclass(frozen=True)
class _Outcome:
    """Result of a reading, with the identity of the file at that time."""

    identity: Identity
    refusal: Refusal | None
    tries: int
    again_at: float
    """monotonic seconds; infinity: only when the file changes"""


class ForeignFiles:
    """Reads each unknown run file once, in a child process; thread-safe."""

    def __init__(self, limit_s: float, memory_megabytes: int = MEMORY_MEGABYTES) -> None:
        self.limit_s, self.memory_megabytes = limit_s, memory_megabytes
        self._read_at: dict[Path, float] = {}
        """file → seconds since 1970 when this process finished reading it, since trust marks cannot always be written
        """
        self._outcomes: dict[Path, _Outcome] = {}
        self._reading: dict[tuple[Path, Identity], Future[str | None]] = {}
        self._children: set[subprocess.Popen[bytes]] = set()
        self._waiting: dict[Path, None] = {}
        self._reader: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def problem(self, file: Path) -> str | None:
        """The problem with the run ``file`` as a sentence; None if it may be opened. Reads the file if necessary.

        Raises:
            OSError: There is no such file.
        """
        info = os.stat(file)
        with self._lock:
            status = self._status(file, info)
            if status.state != "unread":
                return status.sentence
            self._waiting.pop(file, None)
            key = (file, _identity(info))
            future = self._reading.get(key)
            mine = future is None
            if future is None:
                future = self._reading[key] = Future()
        if mine:
            try:
                future.set_result(self._read(file, info))
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    self._reading.pop(key, None)
        return future.result()

    def status(self, file: Path) -> FileStatus:
        """The known state of the run ``file``, without reading it; raises OSError if there is no such file."""
        info = os.stat(file)
        with self._lock:
            return self._status(file, info)

    def may_pass(self, file: Path) -> bool:
        """Whether a run is refused only for lack of memory or time, which says nothing about the file."""
        outcome = self._outcomes.get(file)
        return outcome is not None and outcome.refusal is not None and outcome.refusal.passing

    def read_at(self, file: Path) -> float:
        """When the run ``file`` was first read, by any process, in seconds since 1970; 0 if never."""
        return max(self._read_at.get(file, 0.0), read_at(file))

    def count_unread(self) -> int:
        """Number of runs being read or waiting to be read."""
        with self._lock:
            return len(self._waiting.keys() | {file for file, _ in self._reading})

    def _status(self, file: Path, info: os.stat_result) -> FileStatus:
        outcome = self._outcomes.get(file)
        if outcome is None or outcome.identity != _identity(info):
            if not is_known(file):
                return FileStatus("unread")
            outcome = self._outcomes[file] = _Outcome(_identity(info), None, 0, float("inf"))
        if outcome.refusal is None:
            return FileStatus("known")
        return FileStatus("refused" if time.monotonic() < outcome.again_at else "unread", outcome.refusal.sentence)

    def read_in_background(self, files: Iterable[Path]) -> None:
        """Queue ``files`` to be read in the background, in this order; ``problem`` does not wait for the queue."""
        with self._lock:
            self._waiting = dict.fromkeys(files)
            if self._waiting and self._reader is None and not self._closed:
                self._reader = threading.Thread(target=self._read_waiting, name="runs from elsewhere", daemon=True)
                self._reader.start()

    def _read_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._closed:
                    self._reader = None
                    return
                file = next(iter(self._waiting))
                del self._waiting[file]
            try:
                self.problem(file)
            except OSError:  # deleted meanwhile
                continue
            except Exception:
                log.exception("the first reading of %s failed", file.name)

    def _read(self, file: Path, info: os.stat_result) -> str | None:
        before = self._outcomes.get(file)
        refusal = self._read_apart(file, self.limit_s + info.st_size / BYTES_PER_SECOND)
        with self._lock:
            try:
                same = _identity(os.stat(file)) == _identity(info)
            except OSError:
                same = False
            if self._closed or not same:  # the path now holds another run, if any
                return refusal.sentence if refusal is not None else None
            tries = before.tries + 1 if before is not None and before.identity == _identity(info) else 1
            again_at = float("inf")
            if refusal is None:
                mark_known(file, info, READ)
            elif refusal.passing:
                again_at = time.monotonic() + min(AGAIN_SECONDS * 4 ** (tries - 1), LATEST_AGAIN_SECONDS)
            self._outcomes[file] = _Outcome(_identity(info), refusal, tries, again_at)
            self._read_at[file] = time.time()
        if refusal is not None:
            log.warning("run from elsewhere refused: %s", refusal.sentence)
        return refusal.sentence if refusal is not None else None

    def _read_apart(self, file: Path, limit_s: float) -> Refusal | None:
        return read_apart(file, limit_s, self.memory_megabytes, self._children)

    def forget(self, file: Path) -> None:
        """Drop all state of a deleted run."""
        with self._lock:
            self._outcomes.pop(file, None)
            self._read_at.pop(file, None)
            self._waiting.pop(file, None)

    def close(self) -> None:
        """Stop reading and terminate the current child process."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            children = list(self._children)
        for child in children:
            with contextlib.suppress(OSError):
                child.kill()


def _identity(info: os.stat_result) -> Identity:
    return info.st_ino, info.st_size, info.st_mtime_ns


def foreign_files_of(settings: Settings) -> ForeignFiles | None:
    """The reader of foreign runs configured by ``settings``; None if it is switched off."""
    return ForeignFiles(settings.check_seconds, settings.check_megabytes) if settings.check_runs else None


def child_command(file: Path, memory_megabytes: int) -> list[str]:
    """Command line of the child process for one file."""
    return [sys.executable, "-P", "-m", "tokenpaths.backend.runs.foreign_child", str(file), str(memory_megabytes)]


def read_apart(
    file: Path,
    limit_s: float,
    memory_megabytes: int = MEMORY_MEGABYTES,
    children: set[subprocess.Popen[bytes]] | None = None,
) -> Refusal | None:
    """Read the run ``file`` in a child process.

    Args:
        children: Holds the process while it lives, so that the caller can terminate it.

    Returns:
        The problem that the child reports, or that it died; None if the run may be opened.
    """
    try:
        child = subprocess.Popen(
            child_command(file, memory_megabytes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
    except OSError as error:  # no memory, or too many processes
        return Refusal(
            f"{file.name} came from elsewhere, and the process that is to read it first could not be started "
            f"({error.strerror or error}): the machine is short of memory or processes; it is tried again later",
            True,
        )
    holding = children if children is not None else set()
    holding.add(child)
    late = threading.Event()

    def give_up() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        assert child.stdout is not None
        output = child.stdout.read(MOST_OUTPUT_BYTES)
        if too_much := len(output) == MOST_OUTPUT_BYTES:
            child.kill()
        child.wait()
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        holding.discard(child)
    if late.is_set():
        return Refusal(
            f"{file.name} came from elsewhere and could not be read to its end within {limit_s:.0f} s: it was made to "
            "do harm, or takes longer here; it is tried again later. If it is yours, raise `check_seconds`",
            True,
        )
    return _refusal(file, output, 0 if too_much else child.returncode, memory_megabytes)


def _refusal(file: Path, output: bytes, code: int, memory_megabytes: int) -> Refusal | None:
    try:
        answer = json.loads(output.splitlines()[-1])
        problem, memory = answer["problem"], answer.get("memory", False)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        if code == -getattr(signal, "SIGKILL", 9):
            return Refusal(
                f"{file.name} came from elsewhere, and the process that read it first was ended from outside: most "
                "likely the machine had no memory left; it is tried again later",
                True,
            )
        how = signal.Signals(-code).name if -code in signal.valid_signals() else f"code {code}"
        return Refusal(
            f"{file.name} came from elsewhere and ended the process that read it first ({how}): it is damaged or was "
            "made to do harm, and is not opened; trace the run again"
        )
    if memory:
        return Refusal(
            f"{file.name} came from elsewhere, and its first reading needs more memory than it may use "
            f"({memory_megabytes:,} MB): it need not be damaged, and is tried again later. If it is yours, raise "
            "`check_megabytes`",
            True,
        )
    return None if problem is None else Refusal(str(problem)[:1000])
