"""Display names of runs, given by users: one small JSON file each in ``<data_dir>/run_names``, beside the sealed files.

A run's id never changes; its name is only shown. A name whose run is gone is forgotten with the run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tokenpaths.backend.http.strict_json import json_body
from tokenpaths.backend.problems import Problem
from tokenpaths.engine.base.files import check_name, write_atomically

MOST_CHARACTERS = 120
MOST_BYTES = 4_000


class RunNames:
    """The names in a data folder. Safe for concurrent use: files are replaced whole."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "run_names"

    def all(self) -> dict[str, str]:
        """Run id → name; invalid files are skipped."""
        names = {}
        for file in self.folder.glob("*.json"):
            try:
                if file.stat().st_size <= MOST_BYTES:
                    names[file.stem] = str(json.loads(file.read_text("utf-8"))["name"])[:MOST_CHARACTERS]
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return names

    def identity(self) -> str:
        """A string that changes when any name changes."""
        return hashlib.sha256(json.dumps(sorted(self.all().items())).encode()).hexdigest()[:12]

    def put(self, run_id: str, name: str) -> None:
        """Name a run; an empty name takes its name away."""
        if not name:
            self.forget(run_id)
            return
        write_atomically(self._file(run_id), json.dumps({"name": name}, ensure_ascii=False).encode())

    def forget(self, run_id: str) -> None:
        self._file(run_id).unlink(missing_ok=True)

    def _file(self, run_id: str) -> Path:
        return self.folder / f"{check_name(run_id, field='run')}.json"


def check_display_name(data: bytes) -> str:
    """Parse a body ``{"name": "…"}``; Problem 422 with the name of the field."""
    values = json_body(data)
    if not isinstance(values, dict) or set(values) != {"name"} or not isinstance(values["name"], str):
        raise Problem(422, "json", 'The body should be {"name": "…"}; an empty name takes it away.', field="name")
    name = " ".join(values["name"].split())
    if len(name) > MOST_CHARACTERS:
        raise Problem(
            422,
            "name",
            f"The name has {len(name):,} characters, it should have at most {MOST_CHARACTERS}.",
            field="name",
        )
    return name
