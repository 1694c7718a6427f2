"""Names of whole runs for lists: what users wrote to the thing ``run`` of each, read from ``<data_dir>/names``.

A run's id never changes; its name is only shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenpaths.backend.problems import Problem
from tokenpaths.backend.runs.names import FOLDER, names_file, read_names


class RunNames:
    """Names of the runs of a data folder; a file is read again only when it has changed."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._read: dict[Path, tuple[tuple[int, int], str | None]] = {}

    def identity(self) -> str:
        """A string that changes when any name may have changed."""
        return hashlib.sha256(repr(sorted(self._files().items())).encode()).hexdigest()[:12]

    def of(self, cards: list[dict[str, Any]]) -> dict[str, str | None]:
        """Run id → its name, or None; a damaged file is none."""
        files = self._files()
        return {str(card["run"]): self._name(card, files) for card in cards}

    def _name(self, card: Mapping[str, Any], files: Mapping[Path, tuple[int, int]]) -> str | None:
        if not card.get("created_at"):  # it cannot be read, or was not read yet
            return None
        file = names_file(self.data_dir, str(card["run"]), str(card["created_at"]))
        looks = files.get(file)
        if looks is None:
            return None
        known = self._read.get(file)
        if known is None or known[0] != looks:
            try:
                name = read_names(file).get("run", {}).get("name") or None
            except Problem:
                name = None
            known = self._read[file] = (looks, name)
        return known[1]

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Sizes and times of all files of names."""
        found = {}
        for file in (self.data_dir / FOLDER).glob("*.json"):
            try:
                looks = file.stat()
            except OSError:  # replaced just now
                continue
            found[file] = (looks.st_size, looks.st_mtime_ns)
        return found
