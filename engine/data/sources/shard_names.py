"""Names of shards written with braces, as in ``shard-{000000..000003}.tar`` and ``{train,val}.tar``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tokenpaths.engine.base.errors import UserError

MOST_SHARDS: Final = 100_000
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")


def shard_names(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for, in its order; empty without braces.

    Raises:
        UserError: they are more than ``MOST_SHARDS``, or a range counts down.

    >>> shard_names("shard-{008..010}.tar")
    ['shard-008.tar', 'shard-009.tar', 'shard-010.tar']
    >>> shard_names("{a,b}-{0..1}.tar")
    ['a-0.tar', 'a-1.tar', 'b-0.tar', 'b-1.tar']
    """
    names = [""]
    last = 0
    for braces in _BRACES.finditer(pattern):
        values = _values(braces, pattern)
        if len(names) * len(values) > MOST_SHARDS:
            raise UserError(f"'{pattern}' stands for more than {MOST_SHARDS:,} files.", field="data")
        names = [name + pattern[last : braces.start()] + value for name in names for value in values]
        last = braces.end()
    return [name + pattern[last:] for name in names] if last else []


def _values(braces: re.Match[str], pattern: str) -> list[str]:
    first, stop, listed = braces.groups()
    if listed is not None:
        return [value.strip() for value in listed.split(",")]
    if len(stop) > 18 or int(stop) < int(first) or int(stop) - int(first) >= MOST_SHARDS:
        raise UserError(
            f"'{pattern}': {braces.group()} should count up, to at most {MOST_SHARDS:,} files.", field="data"
        )
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(stop) + 1)]


def shard_files(path: Path) -> list[Path]:
    """The files of a pattern with braces; empty where ``path`` is a file itself, or no pattern.

    Raises:
        UserError: one is missing; it names the first.
    """
    files = [] if path.exists() else [Path(name) for name in shard_names(str(path))]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UserError(
            f"There is no file '{missing[0]}' ({len(missing):,} of the {len(files):,} of '{path}' are missing); "
            "copy it, or give a pattern of those there are.",
            field="data",
        )
    return files


def name_of_shards(path: Path) -> str:
    """The stem of a file; what is left of a pattern without its braces.

    >>> name_of_shards(Path("data/imagenet-{000..003}.tar"))
    'imagenet'
    """
    return _BRACES.sub("", path.stem).strip("-_. ") or path.absolute().parent.name
