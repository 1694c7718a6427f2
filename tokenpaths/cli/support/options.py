"""Options of the commands: those that several share, and commands whose options are the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tokenpaths.engine.base.errors import UserError


def named_folder(text: str) -> Path:
    """A folder as it was written; UserError for an empty word, which would silently be the current folder."""
    if not str(text).strip():
        raise UserError(
            "The name of a folder is empty, as of a shell variable that is not set; name one (`.` is the current "
            "folder), or leave the option out."
        )
    return Path(text)


def folder_option(help: str) -> Any:
    """An option for a folder that is named, if it is given."""
    return typer.Option(help=help, parser=named_folder, metavar="PATH")


def named_file(text: str) -> Path:
    """A file or folder as it was written; UserError for an empty word, which would be the current folder."""
    if not str(text).strip():
        raise UserError("The name is empty, as of a shell variable that is not set; name a file or a folder.")
    return Path(text)


DataDir = Annotated[Path | None, folder_option("Data folder [default: the user's].")]


def takes(options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a command that takes its options as one object of the dataclass ``options``.

    Typer sees a function with a parameter for each field, in their order; a field's help stands in its ``Annotated``
    type. A parameter called ``context`` of the command itself comes first.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        kinds = get_type_hints(options, include_extras=True)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=kinds[field.name],
            )
            for field in fields(options)
        ]
        own = {"context": typer.Context} if "context" in inspect.signature(command).parameters else {}
        first = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in own.items()]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(**{name: values.pop(name) for name in own}, options=options(**values))

        run.__signature__ = inspect.Signature([*first, *parameters])  # type: ignore[attr-defined]
        run.__annotations__ = own | kinds
        return run

    return decorate
