"""Splits of a data set: what a folder or its files say which is train, validation and test, and which one is taken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tokenpaths.engine.base.errors import UserError

USUAL_SPLITS: Final = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""word → what a run calls it"""


def split_of_name(name: str) -> str:
    """train, val or test where the name says so, else all."""
    for word in reversed(re.split(r"[^a-z]+", name.lower())):
        if word in USUAL_SPLITS:
            return USUAL_SPLITS[word]
    return "all"


def choose_split(splits: Sequence[str], asked: str | None, where: str) -> str:
    """The split asked for, or the only one.

    Raises:
        UserError: there is none of that name, or several and none was asked for; it lists them.
    """
    listed = ", ".join(splits)
    if asked is None and len(splits) == 1:
        return splits[0]
    if asked is None:
        raise UserError(
            f"{where}: holds the splits {listed}; say which one with split (--split {splits[0]}).", field="split"
        )
    if asked not in splits:
        raise UserError(f"{where}: no split '{asked}'; there are: {listed}.", field="split")
    return asked


def refuse_split(split: str | None, where: str) -> None:
    """UserError if a split is asked for where data have none."""
    if split is not None:
        raise UserError(
            f"'{where}' has no splits, so split '{split}' means nothing there; leave it out, or give the folder or "
            "file of that split.",
            field="split",
        )


def files_by_split(files: Iterable[Path], names: Iterable[str] = USUAL_SPLITS) -> dict[str, list[Path]]:
    """Files by the split in their name, as in ``train-00000-of-00002.parquet`` or ``imdb-test.arrow``.

    Args:
        names: of splits. A file whose name has none of them is in no list.
    """
    found: dict[str, list[Path]] = {}
    patterns = {name: re.compile(rf"(?:^|[-_.]){re.escape(name)}(?=[-_.]|$)", re.IGNORECASE) for name in names}
    for file in files:
        places = {name: match.start() for name, pattern in patterns.items() for match in pattern.finditer(file.stem)}
        if places:
            found.setdefault(max(places, key=lambda name: (places[name], len(name))), []).append(file)
    return found
