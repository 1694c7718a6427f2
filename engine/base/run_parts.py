"""Files of a run in parts: a small run file, and beside it files with the tokens and samples of consecutive shards.

    runs/big.duckdb   runs/big.3fa97c21.0001.part   runs/big.3fa97c21.0002.part …

Sealing on many machines writes the parts at the same time. Each is a DuckDB file with the tables of
``store.file.schema.PART_TABLES``; the run file has views of these names that put the parts one behind the other, so
every question is asked as of a run in one file. The eight hexadecimal digits are the sealing's: parts of an earlier one
are never taken for those of a later.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tokenpaths.engine.base.seal_marks import forget_mark

SUFFIX = ".part"
ALIAS = re.compile(r"part_(?P<seal>[0-9a-f]{8})_(?P<number>[0-9]{4})")
_NAME = re.compile(
    r"(?P<run>[A-Za-z0-9][A-Za-z0-9_-]{0,63})\.(?P<seal>[0-9a-f]{8})\.(?P<number>[0-9]{4})\.part(\.wal|\.tmp)?"
)
"""a part, or what DuckDB keeps beside it while it is written: a file and a folder"""


def part_file(folder: Path, run_id: str, seal: str, number: int) -> Path:
    """The file of part ``number``, from 1, of a run in this folder."""
    return folder / f"{run_id}.{seal}.{number:04d}{SUFFIX}"


def alias_of(part: Path) -> str:
    """The name under which a part is attached, and views know it."""
    _, seal, number, _ = part.name.split(".")
    return f"part_{seal}_{number}"


def run_of(file: Path) -> str:
    """The run of a run file, of a part, or of ``.<run>.partial``."""
    return file.name.lstrip(".").partition(".")[0]


def parts_of(file: Path) -> list[Path]:
    """The files named as parts of the run ``file`` (or of ``.<run>.partial``), of whatever sealing, in order."""
    return [place for place in _of_parts(file) if place.name.endswith(SUFFIX)]


def _of_parts(file: Path) -> list[Path]:
    """The parts of the run ``file`` and what lies beside them, in order."""
    run = run_of(file)
    with suppress(OSError), os.scandir(file.parent) as entries:
        names = sorted(entry.name for entry in entries if SUFFIX in entry.name)
        return [file.parent / name for name in names if (m := _NAME.fullmatch(name)) and m["run"] == run]
    return []


def remove_parts(file: Path, which: Callable[[str], bool] = lambda seal: True) -> None:
    """Delete the parts of the run ``file``, and what DuckDB left beside them; only of sealings that ``which`` names."""
    for place in _of_parts(file):
        if which(place.name.split(".")[1]):
            with suppress(OSError):
                info = os.stat(place, follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    shutil.rmtree(place)
                else:
                    place.unlink()
                    forget_mark(place, info)
