"""Base class of the writers of runs and shards (open, then sealed or aborted exactly once), and how they take locks."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tokenpaths.engine.base.errors import Held, UserError, WriterFailed
from tokenpaths.engine.base.files import HolderLock, NearlyFull, check_free, make_folder

_Writer = TypeVar("_Writer", bound="SealedOnce")
CLEARING = "(clearing up)"
"""stands in a lock file behind the process that deletes what a dead writer left"""
CLEARING_SECONDS = 60.0
"""how long a writer waits for that: deleting many gigabytes takes its time"""
PATIENCE_SECONDS = 0.5
"""how long it waits for any other holder: one that clears up says so only after it has the lock"""


class SealedOnce(ABC):
    """A context manager that seals on success and leaves nothing behind on failure."""

    _state = "open"
    _title: str
    """what is written, as a sentence names it: ``run 'a'``"""

    @abstractmethod
    def seal(self, on_stage: Callable[[str, int, int], None] = lambda name, done, of: None) -> Path:
        """Finish; what was written has its own name from then on.

        ``on_stage(name, done, of)`` is told before each stage what comes; where sealing takes no time, there are none.
        """

    @abstractmethod
    def abort(self) -> None:
        """Delete everything written; does nothing after ``seal`` or a second time."""

    def __enter__(self: _Writer) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.seal()

    def _check_state(self) -> None:
        """UserError where it was sealed or aborted."""
        if self._state != "open":
            raise UserError(f"{self._title} is {self._state}: nothing more can be written to it")


def claim_to_clear(lock: HolderLock) -> None:
    """Take the lock of a writer that may be dead, to delete what it left; Held where it lives."""
    lock.acquire()
    with suppress(OSError):  # a full disk: whoever waits for the lock then takes this process for a writer
        lock.file.write_text(f"{os.getpid()} {CLEARING}", encoding="ascii")


def claim(folder: Path, lock: HolderLock, *, field: str, instead: str) -> None:
    """Make the folder and take the lock; waits for a process that only deletes what a dead one left there.

    Raises:
        Held: another process has the lock.
        WriterFailed: the folder takes nothing; ``field`` is the setting at fault, ``instead`` what to choose.
    """
    try:
        make_folder(folder)
        check_free(folder)
        _acquire_patiently(lock)
    except NearlyFull as error:
        raise WriterFailed(str(error), field=field) from error
    except OSError as error:
        raise WriterFailed(
            f"nothing can be written to the folder {folder} ({error.strerror or error}): free it, or choose {instead}",
            field=field,
        ) from error


def _acquire_patiently(lock: HolderLock) -> None:
    began = time.monotonic()
    while True:
        try:
            lock.acquire()
            return
        except Held as held:
            patience = CLEARING_SECONDS if CLEARING in str(held) else PATIENCE_SECONDS
            if time.monotonic() - began >= patience:
                raise
            time.sleep(0.05)
