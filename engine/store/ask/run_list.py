"""The runs in a folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import RUN_SUFFIX, is_name
from tokenpaths.engine.store.ask import answers
from tokenpaths.engine.store.ask.run import Run


def list_runs(runs_dir: Path) -> list[dict[str, Any]]:
    """The cards of all run files, newest first; a file that cannot be read says why in ``problem``.

    A missing folder has no runs. Cards are remembered until their file changes.
    """
    folder = Path(runs_dir)
    files = sorted(folder.glob(f"*{RUN_SUFFIX}")) if folder.is_dir() else []
    cards = []
    for file in files:
        if file.name.startswith("."):
            continue
        try:
            stat = file.stat()
        except OSError:
            continue  # Deleted between the listing and now.
        cards.append(dict(_card(str(file), stat.st_mtime_ns, stat.st_size, stat.st_ino)))
    return sorted(cards, key=lambda c: (c["created_at"] or "", c["run"]), reverse=True)


@lru_cache(maxsize=4096)
def _card(file_name: str, mtime_ns: int, size: int, inode: int) -> dict[str, Any]:
    """The card of one file; the other arguments tell its versions apart."""
    file = Path(file_name)
    if not is_name(file.stem):
        return answers.card(
            file.stem, None, f"{file.name} has a name that no address can hold: use letters, digits, - and _"
        )
    try:
        with Run.open(file) as run:
            return run.card()
    except UserError as error:
        return answers.card(file.stem, None, str(error))
