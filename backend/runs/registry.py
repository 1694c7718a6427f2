"""Registry of the run files of the data folder: opens each once and notices replaced, deleted and broken files.

A run is sealed by rename and never changes afterwards, so (inode, size, time) of its file identifies it. A file that
cannot be read is remembered with its problem. A foreign run that was not read yet is listed as such and read in the
background (``tokenpaths.backend.runs.foreign_files``).
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.backend.problems import Problem, nearest
from tokenpaths.backend.runs.foreign_files import FileStatus, ForeignFiles, foreign_files_of
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import RUN_SUFFIX, is_disk_full, is_name
from tokenpaths.engine.base.trusted_files import forget as forget_mark
from tokenpaths.engine.base.trusted_files import is_sealed_here

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.store.ask.run import Run

Card = dict[str, Any]
LOOK_AGAIN_SECONDS = 5.0
CLOCKS_APART_S = 0.05
"""how far a file's modification time may lag behind the clock, in seconds"""
log = logging.getLogger(__name__)


@dataclass
class Entry:
    """An opened run file with the identity it had then."""

    identity: str
    run: Run | None = None
    problem: str | None = None
    looked_at: float = -math.inf
    """when the problem was found, so that a temporary one (too many open files) is retried"""
    users: int = 0
    retired: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


def file_identity(path: Path) -> str:
    """A string that stays equal while the file is the same sealed run; raises OSError."""
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise FileNotFoundError(path)
    text = f"{path.name}:{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


class RunRegistry:
    """Open ``Run`` objects by name; safe to use from many threads."""

    def __init__(
        self,
        runs_dir: Path,
        *,
        time_limit_s: float = 10.0,
        max_open: int = 64,
        foreign_files: ForeignFiles | None = None,
    ) -> None:
        self.foreign_files = foreign_files
        self.runs_dir, self.time_limit_s, self.max_open = runs_dir, time_limit_s, max_open
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._cards: dict[str, tuple[str, Card]] = {}
        self._lock = threading.RLock()

    @classmethod
    def of(cls, settings: Settings, *, time_limit_s: float, max_open: int = 64) -> RunRegistry:
        """Registry of the data folder of ``settings``; reads foreign runs in a child process if configured."""
        return cls(
            settings.runs_dir, time_limit_s=time_limit_s, max_open=max_open, foreign_files=foreign_files_of(settings)
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
        files = (name for name in self.names() if (self.runs_dir / f"{name}{RUN_SUFFIX}").is_file())
        names = list(islice((name for name in files if name != run_id), 20))
        hint = nearest(run_id, names) if names else "there are no runs yet; `tokenpaths trace` makes one."
        return Problem(404, "no-such-run", f"There is no run `{run_id}`; {hint}", field="run")

    @contextmanager
    def lease(self, run_id: str) -> Iterator[Run]:
        """The open run, kept open for the duration of the block.

        Raises:
            Problem: 404 if there is no such file, 409 if it cannot be read.
        """
        entry = self._entry(run_id)
        try:
            if entry.run is None:
                self.identity(run_id)  # deleted while it was being opened: not damaged, but gone
                raise Problem(409, "unreadable-run", str(entry.problem), field="run")
            yield entry.run
        finally:
            with self._lock:
                entry.users -= 1
                self._close_if_unused(entry)

    @contextmanager
    def foreign_run_errors(self, *run_ids: str) -> Iterator[None]:
        """Turn an unexpected error of the block into Problem 409 if one of the runs is foreign.

        A foreign run may hold inconsistent numbers. With runs sealed here an unexpected error is a bug and is not
        caught.
        """
        try:
            yield
        except (Problem, UserError, OSError, MemoryError):  # already reported, or a fault of the machine
            raise
        except Exception as error:
            foreign = [run_id for run_id in run_ids if is_name(run_id) and not self._sealed_here(run_id)]
            if not foreign or is_disk_full(error):
                raise
            log.warning("run %s from elsewhere does not fit together", foreign[0], exc_info=error)
            raise Problem(
                409,
                "unreadable-run",
                f"Run {foreign[0]} cannot be answered: it came from elsewhere, and its tables "
                f"do not fit together ({type(error).__name__}); copy it again or trace the run again.",
                field="run",
            ) from error

    def must_be_read(self, run_id: str) -> bool:
        """Whether opening the run would wait for its first reading."""
        try:
            return (
                self.foreign_files is not None and is_name(run_id) and self._status(self.path(run_id)).state == "unread"
            )
        except OSError:
            return False

    def read_first(self, run_id: str) -> None:
        """Wait for the first reading of a foreign run; opening the run reports the result."""
        if self.foreign_files is not None:
            with suppress(OSError):
                self.foreign_files.problem(self.path(run_id))

    def _sealed_here(self, run_id: str) -> bool:
        try:
            return is_sealed_here(self.path(run_id))
        except OSError:  # deleted meanwhile
            return True

    def ask(self, run_id: str, question: Callable[[Run], Any]) -> Any:
        """The result of ``question`` for the open run."""
        with self.lease(run_id) as run:
            return question(run)

    def _entry(self, run_id: str) -> Entry:
        """The entry of a run, opened or with its problem, with one more user."""
        path = self.path(run_id)
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
            if entry.run is None and time.monotonic() - entry.looked_at > LOOK_AGAIN_SECONDS:
                self._open(entry, path)
        return entry

    def _open(self, entry: Entry, path: Path) -> None:
        from tokenpaths.engine.base.errors import QueryTimeout
        from tokenpaths.engine.store.ask.run import Run

        try:
            entry.problem = self.foreign_files.problem(path) if self.foreign_files is not None else None
            if entry.problem is None:
                entry.run = Run.open(path, time_limit_s=self.time_limit_s)
                return
        except QueryTimeout:
            entry.problem = f"Run {path.stem} took too long to open, the machine is busy; try again in a moment."
        except UserError as error:
            entry.problem = str(error)
        except Exception as error:  # a broken file can raise anything in the reader
            entry.problem = (
                f"The file of run {path.stem} cannot be read ({type(error).__name__}); "
                "copy it anew, trace again or delete it."
            )
        entry.looked_at = time.monotonic()

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

    def _close_if_unused(self, entry: Entry) -> None:
        if entry.retired and entry.users == 0 and entry.run is not None:
            run, entry.run = entry.run, None
            run.close()

    def cards(self, *, wait: bool = True) -> list[Card]:
        """A card for every run file, newest first; unreadable ones last, with a sentence.

        Without ``wait``, foreign runs that were not read yet are listed as ``being_read`` and read in the background.
        """
        cards = [card for card in (self.card(name, wait=wait) for name in self.names()) if card is not None]
        if not wait:
            self._read_later([card["run"] for card in cards if card["status"] == "being_read"])
        return sorted(cards, key=card_key, reverse=True)

    def _read_later(self, run_ids: list[str]) -> None:
        if self.foreign_files is None:
            return

        def changed(file: Path) -> float:
            try:
                return os.stat(file).st_mtime
            except OSError:
                return 0.0

        files = [self.path(run_id) for run_id in run_ids]
        self.foreign_files.read_in_background(sorted(files, key=changed, reverse=True))  # newest first

    def card(self, run_id: str, *, wait: bool = True) -> Card | None:
        """The card of one run, cached until its file changes; None if it was deleted meanwhile."""
        from tokenpaths.engine.store.ask.topics.overview import run_card

        if not is_name(run_id):
            return run_card(run_id, None, f"The file name {run_id!r} {NO_NAME}")
        try:
            identity = self.identity(run_id)
            known = self._cards.get(run_id)
            if known is None or known[0] != identity:
                status = self._status(self.path(run_id))
                if not wait and status.state == "unread":
                    return run_card(run_id, None) | {"status": "being_read"}
                if not wait and status.state == "refused":
                    return run_card(run_id, None, status.sentence)
                with self.foreign_run_errors(run_id):
                    known = self._cards[run_id] = (identity, self.ask(run_id, _checked_card))
            return known[1]
        except Problem as problem:
            return run_card(run_id, None, problem.detail) if problem.status == 409 else None
        except UserError as error:
            return run_card(run_id, None, str(error))
        except OSError:
            return None

    def _status(self, file: Path) -> FileStatus:
        return self.foreign_files.status(file) if self.foreign_files is not None else FileStatus("known")

    def folder_identity(self) -> str:
        """A string that changes when any run is added, removed, replaced or read for the first time."""
        parts = []
        for name in self.names():
            file = self.runs_dir / f"{name}{RUN_SUFFIX}"
            try:
                parts.append(f"{file_identity(file)} {self._status(file).state}")
            except OSError:
                continue
        with self._lock:
            broken = any(entry.problem for entry in self._entries.values())
        if broken:  # a problem may be temporary: list again as often as such a file is retried
            parts.append(str(int(time.monotonic() / LOOK_AGAIN_SECONDS)))
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:24]

    def place(self, card: Card, at: float) -> tuple[str, str]:
        """The ``card_key`` of a run in a listing begun at ``at`` (seconds since 1970).

        Keeps paging stable: each run is listed once, even if it was read for the first time meanwhile and only then got
        the date by which it is sorted.
        """
        run_id = str(card["run"])
        if self.foreign_files is None or not is_name(run_id):
            return card_key(card)
        read_at = self.foreign_files.read_at(self.path(run_id))
        return ("", run_id) if read_at > at - CLOCKS_APART_S else card_key(card)

    def delete(self, run_id: str) -> None:
        """Unlink the file of a run; of two concurrent calls one gets Problem 404."""
        path = self.path(run_id)
        self.forget(run_id)
        try:
            path.unlink()
        except (FileNotFoundError, IsADirectoryError):
            raise self._missing(run_id) from None
        self._cards.pop(run_id, None)
        forget_mark(path)
        if self.foreign_files is not None:
            self.foreign_files.forget(path)

    def count_unread(self) -> int:
        """Number of foreign runs being read for the first time or waiting for it."""
        return self.foreign_files.count_unread() if self.foreign_files is not None else 0

    def count_open(self) -> int:
        """Number of open files."""
        with self._lock:
            return sum(entry.run is not None for entry in self._entries.values())

    def close(self) -> None:
        """Close all unused files and stop background reading."""
        if self.foreign_files is not None:
            self.foreign_files.close()
        for name in list(self._entries):
            self.forget(name)


def _checked_card(run: Run) -> Card:
    """The validated card for the list: an invalid one must not break the whole list."""
    from tokenpaths.engine.store.ask.schemas.run_schema import Card as CardSchema

    card = run.card()
    CardSchema.model_validate(card)
    return card


NO_NAME = (
    "cannot be the name of a run: letters, digits, `-` and `_`, at most 64, the first a letter or digit, "
    "and not a device name of Windows."
)


def card_key(card: Card) -> tuple[str, str]:
    """Sort key of runs: age, then name."""
    return str(card.get("created_at") or ""), str(card["run"])
