"""Index of the cards of runs: one small SQLite file in the data folder, so that a list opens no run file again.

A row is what one run file of one identity says of itself. The index is a cache: where it is lost, damaged or of another
version of the program it is begun anew, and where it cannot be read or written the cards are only in memory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenpaths.backend import __version__
from tokenpaths.engine.store.file import SCHEMA_VERSION

Card = dict[str, Any]
FILE = "cards.sqlite"
BUSY_SECONDS = 2.0
VERSION = f"{__version__} {SCHEMA_VERSION} 3"
"""rows of other versions are dropped"""
log = logging.getLogger(__name__)


class CardIndex:
    """Cards by name and identity of their file; thread-safe. Nothing raises: a row that cannot be had is not there."""

    def __init__(self, data_dir: Path) -> None:
        self.file = data_dir / FILE
        self._lock = threading.Lock()
        self._cards: dict[str, tuple[str, Card]] | None = None

    def get(self, name: str, identity: str) -> Card | None:
        """The card of the run ``name`` if its file is still this one."""
        with self._lock:
            if self._cards is None:
                self._cards = self._read()
            known = self._cards.get(name)
        return known[1] if known is not None and known[0] == identity else None

    def put(self, cards: Mapping[str, tuple[str, Card]]) -> None:
        """Add cards: name → (identity, card)."""
        with self._lock:
            if self._cards is None:
                self._cards = self._read()
            self._cards |= cards
            rows = [(name, identity, json.dumps(card)) for name, (identity, card) in cards.items()]
            self._write("INSERT OR REPLACE INTO card VALUES (?, ?, ?)", rows)

    def keep(self, names: Collection[str]) -> None:
        """Drop the cards of all runs but these."""
        with self._lock:
            gone = [name for name in self._cards or () if name not in names]
            for name in gone:
                del self._cards[name]  # type: ignore[union-attr]
            if gone:
                self._write("DELETE FROM card WHERE name = ?", [(name,) for name in gone])

    def _read(self) -> dict[str, tuple[str, Card]]:
        """All rows; a file that is none of ours is deleted."""
        if not self.file.exists():
            return {}
        try:
            with contextlib.closing(self._connect()) as con:
                rows = con.execute("SELECT name, identity, card FROM card").fetchall()
            cards = {name: (identity, json.loads(text)) for name, identity, text in rows}
            if all(isinstance(card, dict) and card.get("run") == name for name, (_, card) in cards.items()):
                return cards
        except (sqlite3.OperationalError, OSError) as error:
            log.info("the index of runs cannot be read now: %s", error)
            return {}
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            log.warning("the index of runs was damaged and is begun anew: %s", error)
        with contextlib.suppress(OSError):
            self.file.unlink()
        return {}

    def _write(self, sql: str, rows: Sequence[tuple[str, ...]]) -> None:
        if not self.file.parent.is_dir():
            return
        try:
            with contextlib.closing(self._connect()) as con, con:
                con.executemany(sql, rows)
        except sqlite3.OperationalError as error:
            log.info("the index of runs cannot be written now: %s", error)
        except (sqlite3.DatabaseError, OSError):
            with contextlib.suppress(OSError):
                self.file.unlink()

    def _connect(self) -> sqlite3.Connection:
        con = sqlite3.connect(self.file, timeout=BUSY_SECONDS)
        try:
            con.execute("PRAGMA synchronous = OFF")  # a cache: what power loss damages is begun anew
            con.execute("PRAGMA journal_mode = MEMORY")
            con.execute("CREATE TABLE IF NOT EXISTS about (version TEXT PRIMARY KEY)")
            con.execute("CREATE TABLE IF NOT EXISTS card (name TEXT PRIMARY KEY, identity TEXT, card TEXT)")
            if con.execute("SELECT version FROM about").fetchall() != [(VERSION,)]:
                with con:
                    con.execute("DELETE FROM card")
                    con.execute("DELETE FROM about")
                    con.execute("INSERT INTO about VALUES (?)", (VERSION,))
        except BaseException:
            con.close()
            raise
        return con
