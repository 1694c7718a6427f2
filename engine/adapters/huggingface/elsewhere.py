"""Where Hugging Face checkpoints lie that are not in the folder of checkpoints: ``elsewhere.json`` in that folder.

A trace of ``hf:<folder>`` notes its folder here, so that the page changes routes of the run without a setting. The
place is not in the run: run files are sent to others, and a file from others must not choose what is loaded here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenpaths.engine.base.files import make_folder, write_atomically

FILE = "elsewhere.json"
MOST_BYTES = 1_000_000
MOST_PLACES = 1000


@dataclass(frozen=True)
class Elsewhere:
    """The folder of a checkpoint, and the SHA-256 of its weights when it was traced (empty: not known)."""

    folder: str
    sha256: str = ""


def read_elsewhere(parent: Path | None) -> dict[str, Elsewhere]:
    """Checkpoints by folder name; empty if there is no list, or it cannot be read."""
    if parent is None:
        return {}
    file = parent / FILE
    try:
        if file.stat().st_size > MOST_BYTES:
            return {}
        listed = json.loads(file.read_bytes())
        return {str(name): Elsewhere(str(row["folder"]), str(row["sha256"])) for name, row in listed.items()}
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return {}


def note_elsewhere(parent: Path, name: str, folder: Path, sha256: str = "") -> None:
    """Note that the checkpoint ``name`` lies in ``folder``; the newest 1,000 are kept.

    Nothing is noted of a checkpoint that lies in ``parent`` under its name.

    Raises:
        OSError: ``parent`` cannot be written.
    """
    folder = folder.expanduser().resolve()
    if folder == (parent / name).resolve():
        return
    places = read_elsewhere(parent)
    place = Elsewhere(str(folder), sha256)
    if places.get(name) == place:
        return
    places.pop(name, None)
    kept = [*places.items(), (name, place)][-MOST_PLACES:]
    make_folder(parent)
    text = json.dumps({name: asdict(place) for name, place in kept}, indent=1)
    write_atomically(parent / FILE, text.encode())
