"""Words that readers of routing logs share: lists of names, numbers with nouns, what is wrong with names of columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenpaths.engine.base.errors import UserError


def unread_note(what: str, names: Sequence[str]) -> str:
    """A note that names what of a log is not read; empty if it is read whole."""
    return few_names(f"{what} that are not read", names)


def few_names(what: str, names: Sequence[str]) -> str:
    """A note that names the first of these; empty if there are none."""
    return f"{what}: {first_of([name[:60].replace(';', ',') for name in names], 8)}" if names else ""


def first_of(names: Sequence[object], most: int) -> str:
    """The first of these, and a mark where there are more."""
    return ", ".join(map(str, names[:most])) + (" …" if len(names) > most else "")


def number_of(count: int, noun: str) -> str:
    """A number with its noun: 1 layer, 3 layers."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(value: object) -> str:
    """A name of any length, for messages."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


def check_once(file: Path, columns: Sequence[str], names: Sequence[str], field: str = "file") -> None:
    """Refuse columns that have the name of another one: which of them is meant, nobody knows.

    Args:
        columns: those that are read.
        names: of all columns.

    Raises:
        UserError: one of them is there more than once.
    """
    for column in columns:
        if (count := names.count(column)) > 1:
            raise UserError(f"{file}: has {count} columns {shortened(column)!r}; rename all but one", field=field)
