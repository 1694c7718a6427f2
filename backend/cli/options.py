"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.errors import UserError


def named_folder(given: str) -> Path:
    """A folder as it was written; UserError for an empty word, which would silently be the current folder."""
    if not str(given).strip():
        raise UserError(
            "The name of a folder is empty, as of a shell variable that is not set; name one (`.` is the current "
            "folder), or leave the option out."
        )
    return Path(given)


DataDir = Annotated[
    Path | None, typer.Option(help="Data folder [default: the user's].", parser=named_folder, metavar="PATH")
]
