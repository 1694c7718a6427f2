"""Registry of the run files of the data folder: lists them with their cards, opens and deletes them.

A list does not wait for the intake of a run from elsewhere, nor for cards that the index (``card_index``) does not
have: both come in the background.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.backend.problems import Problem
from tokenpaths.backend.runs.card_index import Card, CardIndex
from tokenpaths.backend.runs.open_runs import LOOK_AGAIN_SECONDS, OpenRuns, file_identity, no_name
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import RUN_SUFFIX, is_name, printable_name, series_file

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

LIST_SECONDS = 2.0
"""how long a list opens runs whose cards it does not know; the rest follows in the background"""
CARDS_AT_ONCE = 64
"""cards written to the index together"""
CLOCKS_APART_S = 0.05
"""how far a file's modification time may lag behind the clock, in seconds"""
log = logging.getLogger(__name__)


class RunRegistry(OpenRuns):
    """The runs of a data folder; safe to use from many threads. Arguments as of ``OpenRuns``."""

    def __init__(self, runs_dir: Path, **options: Any) -> None:
        super().__init__(runs_dir, **options)
        self.index = CardIndex(runs_dir.parent)
        self._waiting: dict[str, None] = {}
        self._reader: threading.Thread | None = None
        self._in_hand: str | None = None
        """run that ``_reader`` is taking in or opening"""
        self._late: set[str] = set()
        """runs that may be opened and that a list had to show without a card"""
        self._came: dict[str, float] = {}
        """run whose card a list had to do without → when it came, in seconds since 1970"""
        self._listing: tuple[str, list[Card]] | None = None
        self._closed = False

    def cards(self) -> list[Card]:
        """A card for every run file, newest first; unreadable ones last, with a sentence.

        Runs that are to be taken in, and those whose cards are not known within ``LIST_SECONDS``, are listed as
        ``being_read``; their cards come in the background.
        """
        files = self._files()
        identity = self._folder_identity(files)
        with self._lock:
            if self._listing is not None and self._listing[0] == identity:
                return list(self._listing[1])
        ends, cards = time.monotonic() + LIST_SECONDS, list[Card]()
        fresh: dict[str, tuple[str, Card]] = {}
        for name, info in files.items():
            card = self._known_card(name, info)
            if card is None and not self._must_wait(name, info) and time.monotonic() < ends:
                card = self.card(name, kept=fresh)
                if card is None:  # deleted meanwhile
                    continue
            cards.append(card if card is not None else self._card_to_come(name))
        self._keep(fresh)
        self.index.keep(files)
        self.gate.sweep({f"{name}{RUN_SUFFIX}" for name in files})
        cards.sort(key=card_key, reverse=True)
        awaited = [str(card["run"]) for card in cards if card["status"] == "being_read"]
        with self._lock:
            self._late = {name for name in awaited if not self._must_wait(name, files[name])}
        self._read_later(sorted(awaited, key=lambda name: files[name].st_mtime, reverse=True))  # newest first
        if not fresh and not awaited:
            with self._lock:
                self._listing = (identity, list(cards))
        return cards

    def _files(self) -> dict[str, os.stat_result]:
        """The regular files of the folder of runs, by name."""
        files = {}
        for name in self.names():
            with suppress(OSError):
                info = os.stat(f"{self.runs_dir}/{name}{RUN_SUFFIX}")
                if stat.S_ISREG(info.st_mode):
                    files[name] = info
        return files

    def _known_card(self, name: str, info: os.stat_result) -> Card | None:
        """The card of a run as far as it is known without opening a file."""
        if not is_name(name):
            return _problem_card(name, no_name(name))
        file = self.runs_dir / f"{name}{RUN_SUFFIX}"
        standing = self.gate.standing(file, info)
        if standing.state == "refused":
            return _problem_card(name, standing.sentence)
        return self.index.get(name, file_identity(file, info)) if standing.state == "open" else None

    def _must_wait(self, name: str, info: os.stat_result) -> bool:
        return self.gate.standing(self.runs_dir / f"{name}{RUN_SUFFIX}", info).state == "waiting"

    def _card_to_come(self, name: str) -> Card:
        with suppress(OSError):
            progress = self.gate.standing(self.path(name)).progress
            return _problem_card(name) | {"status": "being_read", "progress": progress}
        return _problem_card(name) | {"status": "being_read"}

    def card(self, run_id: str, *, kept: dict[str, tuple[str, Card]] | None = None) -> Card | None:
        """The card of one run, which is opened if need be; None if it was deleted meanwhile.

        ``kept`` takes a card that was not in the index, instead of the index.
        """
        try:
            if not is_name(run_id):
                return _problem_card(run_id, no_name(run_id))
            file = self.path(run_id)
            identity = self.identity(run_id)
            card = self._known_card(run_id, os.stat(file))
            if card is None:
                card = self.ask(run_id, _checked_card)
                if kept is not None:
                    kept[run_id] = (identity, card)
                else:
                    self._keep({run_id: (identity, card)})
            return card
        except Problem as problem:
            return _problem_card(run_id, problem.detail) if problem.status in (409, 503) else None
        except UserError as error:
            return _problem_card(run_id, str(error))
        except OSError:
            return None

    def _keep(self, cards: dict[str, tuple[str, Card]]) -> None:
        if cards:
            self.index.put(cards)

    def _read_later(self, names: list[str]) -> None:
        """Take in and open these runs in the background, in this order."""
        with self._lock:
            self._waiting = dict.fromkeys(name for name in names if name != self._in_hand)
            if names and self._reader is None and not self._closed:
                self._reader = threading.Thread(target=self._read_waiting, name="cards of runs", daemon=True)
                self._reader.start()

    def _read_waiting(self) -> None:
        kept: dict[str, tuple[str, Card]] = {}
        done: list[str] = []
        while True:
            with self._lock:
                name = next(iter(self._waiting), None) if not self._closed else None
                self._waiting.pop(str(name), None)
                self._in_hand = name
            slow = name is not None and self.must_be_taken_in(name)
            if name is None or slow or len(done) >= CARDS_AT_ONCE:
                self._keep(kept)
                with self._lock:
                    self._came |= dict.fromkeys(done, time.time())
                    self._late -= set(done)
                    if name is None and (self._closed or not self._waiting):
                        self._reader = None
                        return
                kept, done = {}, []
            if name is None:
                continue
            try:
                self.card(name, kept=kept)
                self.forget_idle(name)
            except Exception:
                log.exception("the card of %s failed", name)
            done.append(name)

    def folder_identity(self) -> str:
        """A string that changes when any run is added, removed, replaced or comes further in its intake."""
        return self._folder_identity(self._files())

    def _folder_identity(self, files: Mapping[str, os.stat_result]) -> str:
        parts = [f"{name} {info.st_ino} {info.st_size} {info.st_mtime_ns}" for name, info in files.items()]
        with suppress(OSError):  # runs put into series
            parts.append(str(os.stat(series_file(self.runs_dir / "any").parent).st_mtime_ns))
        for name, info in files.items():
            file = self.runs_dir / f"{name}{RUN_SUFFIX}"
            standing = self.gate.standing(file, info)
            if standing.state != "open":
                parts.append(f"{name} {standing.state} {standing.progress or 0:.2f}")
        with self._lock:
            broken = any(entry.problem for entry in self._entries.values())
            # Were it the same as before a passing problem, the answer that was made while it lasted would come back.
            parts += [*sorted(self._late), str(self.num_failed)]
        if broken or self.watchdog.stuck:  # a problem may be temporary: list again as often as such a file is retried
            parts.append(str(int(time.monotonic() / LOOK_AGAIN_SECONDS)))
        return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:24]

    def place(self, card: Card, at: float) -> tuple[str, str]:
        """The ``card_key`` of a run in a listing begun at ``at`` (seconds since 1970).

        Keeps paging stable: each run is listed once, even if its card came meanwhile and only then got the date by
        which it is sorted.
        """
        run_id = str(card["run"])
        came = self._came.get(run_id, 0.0)
        file = self.runs_dir / f"{run_id}{RUN_SUFFIX}"
        if self.gate.is_copied(file):
            came = max(came, self.gate.taken_in_at(file))
        return ("", run_id) if came > at - CLOCKS_APART_S else card_key(card)

    def delete(self, run_id: str) -> None:
        """Delete a run; of two concurrent calls one gets Problem 404."""
        path = self.path(run_id)
        self.forget(run_id)
        try:
            self.gate.delete(path)
        except (FileNotFoundError, IsADirectoryError):
            raise self._missing(run_id) from None
        self._came.pop(run_id, None)
        with suppress(OSError):
            series_file(path).unlink()

    def count_unread(self) -> int:
        """Number of runs that are being taken in or opened for their first card, or wait for it."""
        with self._lock:
            reading = {self._in_hand} if self._in_hand is not None else set()
            return len({*self._waiting, *self.gate.working(), *reading})

    def close(self) -> None:
        """Close all unused files and stop what works in the background."""
        self._closed = True
        super().close()


def _problem_card(run_id: str, problem: str | None = None) -> Card:
    """The card of a run that is not read; imports the store only then: a list of known cards needs none of it."""
    from tokenpaths.engine.store.ask.topics.overview import run_card

    return run_card(printable_name(run_id), None, problem)


def _checked_card(run: Run) -> Card:
    """The validated card for the list: an invalid one must not break the whole list."""
    from tokenpaths.engine.store.ask.schemas.run_schema import Card as CardSchema

    card = run.card()
    CardSchema.model_validate(card)
    return card


def card_key(card: Card) -> tuple[str, str]:
    """Sort key of runs: age, then name."""
    return str(card.get("created_at") or ""), str(card["run"])
