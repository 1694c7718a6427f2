"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tokenpaths.engine.base.errors import UserError


def named_folder(given: str) -> Path:
    """A folder as it was written; UserError for an empty word, which would silently be the current folder."""
    if not str(given).strip():
        raise UserError(
            "The name of a folder is empty, as of a shell variable that is not set; name one (`.` is the current "
            "folder), or leave the option out."
        )
    return Path(given)


def folder_option(help: str) -> Any:
    """An option for a folder that is named, if it is given."""
    return typer.Option(help=help, parser=named_folder, metavar="PATH")


DataDir = Annotated[Path | None, folder_option("Data folder [default: the user's].")]
