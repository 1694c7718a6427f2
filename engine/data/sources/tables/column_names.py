"""Guesses which columns of a table hold the image, the text and the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenpaths.engine.base.errors import UserError

IMAGE_COLUMNS: Final = ("image", "img", "picture", "bytes", "jpg", "png", "jpeg")
TEXT_COLUMNS: Final = ("text", "content", "passage", "document", "sentence", "body")
LABEL_COLUMNS: Final = ("label", "domain", "language", "class", "category", "lang", "subset", "topic")
NAME_COLUMNS: Final = ("name", "file_name", "filename", "source", "title", "id")


def choose_column(
    columns: Sequence[str],
    asked: str | None,
    usual: Sequence[str],
    field: str,
    where: str,
    *,
    fallback: Sequence[str] = (),
    optional: bool = False,
) -> str | None:
    """The column asked for, else the first of the usual names (any case, blanks around it), else the only fallback.

    ``fallback``: columns whose type would fit. Raises ``UserError`` that lists the columns there are,
    where the one asked for is missing, or where none fits and ``optional`` is false.
    """
    listed = ", ".join(columns) or "none"
    if asked is not None:
        if asked in columns:
            return asked
        raise UserError(f"{where}: no column '{asked}'; the columns are: {listed}.", field=field)
    by_lower = {column.strip().lower(): column for column in reversed(columns)}
    for name in usual:
        if name in by_lower:
            return by_lower[name]
    if len(fallback) == 1:
        return fallback[0]
    if optional:
        return None
    raise UserError(
        f"{where}: none of the columns ({listed}) is called {' or '.join(usual[:3])}; "
        f"say which one it is with {field}.",
        field=field,
    )
