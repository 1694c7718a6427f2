"""``tokenpaths seal``: the shards of many workers become one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenpaths.cli.support.options import DataDir
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings


def seal(
    shards: Annotated[
        list[str],
        typer.Argument(
            help="Name of the run whose shards lie in the data folder, or the folder that holds them, or the folder "
            "of each."
        ),
    ],
    run: Annotated[str | None, typer.Option(help="Name of the run [default: as the shards say].")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a run of the same name.")] = False,
    remove_shards: Annotated[
        bool, typer.Option("--remove-shards", help="Delete the shards once the run is there.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Join the shards of `tokenpaths trace --shard i/N` to one run.

    Every file is compared with its SHA-256 first. Shards that are missing, doubled, damaged or of something else are
    refused, and an interrupted sealing leaves the shards as they were: seal again.

    Example: tokenpaths seal big
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.support.shards import seal_with_bar
    from tokenpaths.engine.base.files import keep_free
    from tokenpaths.engine.store.write.merge import find_shards

    settings = load_settings(data_dir=data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    path = seal_with_bar(
        settings, find_shards([_place(settings, text) for text in shards]), run, overwrite, remove_shards
    )
    typer.echo(f"run {path.stem} is in {path}")


def _place(settings: Settings, text: str) -> Path:
    """The shards of a run of that name; else a folder (``./name`` where both are there)."""
    from tokenpaths.engine.base.files import is_name

    path = Path(text).expanduser()
    named = settings.data_dir / "shards" / text
    if is_name(text) and named.is_dir():
        return named
    if is_name(text) and not path.exists():
        raise UserError(
            f"there are no shards of a run {text!r} in {named.parent}, and no folder of that name; "
            "give the folder that holds the shards",
            field="shards",
        )
    return path
