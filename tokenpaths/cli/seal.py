"""``tokenpaths seal``: the shards of many workers become one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenpaths.cli.support.options import DataDir, named_file
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
    workers: Annotated[
        int | None,
        typer.Option(help="Seal by so many processes of this machine: a small run file beside its parts.", min=1),
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="The same by a Ray cluster: 'auto' for the running one, 'local', or its address.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Join the shards of `tokenpaths trace --shard i/N` to one run.

    Every file is compared with its SHA-256 first. Shards that are missing, doubled, damaged or of something else are
    refused, and an interrupted sealing leaves the shards as they were: seal again.

    With --workers or --ray the run is a small file beside parts, one a shard; `tokenpaths pack` makes one file of it.

    Example: tokenpaths seal big
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.support.shard_workers import seal_workers
    from tokenpaths.cli.support.shards import seal_with_bar
    from tokenpaths.engine.base.files import keep_free
    from tokenpaths.engine.store.write.merge import find_shards

    settings = load_settings(data_dir=data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    found = find_shards([_place(settings, text) for text in shards])
    path = seal_with_bar(settings, found, run, overwrite, remove_shards, seal_workers(workers, ray))
    typer.echo(f"run {path.stem} is in {path}")


def pack(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Also read parts that were written elsewhere, as of a copied data folder.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Make one file of a run in parts, to send or to keep; its parts are deleted then.

    Example: tokenpaths pack big
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.support.progress_bar import bar
    from tokenpaths.engine.base.files import keep_free, run_file
    from tokenpaths.engine.base.run_parts import parts_of
    from tokenpaths.engine.store.write.parts.pack import pack_run

    settings = load_settings(data_dir=data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    file = run_file(settings.runs_dir, run)
    with bar(f"packing {run}", len(parts_of(file)), "parts") as shown:
        pack_run(file, lambda done, of: shown.update(done, ""), trust=trust)
    typer.echo(f"run {run} is in {file}")


def seal_piece(
    name: Annotated[str, typer.Argument(help="The pass.")],
    number: Annotated[int, typer.Argument(help="The number of the piece, from 0.", min=0)],
    folder: Annotated[Path, typer.Argument(help="Folder of the sealing, which all workers see.")],
) -> None:
    """One piece of a sealing on many, as `tokenpaths seal --workers` starts it."""
    from tokenpaths.engine.store.write.parts.plan import PLAN
    from tokenpaths.engine.store.write.parts.workers import PASSES, work

    if name not in PASSES or not (folder / PLAN).is_file():
        raise UserError(f"there is no sealing in {folder}: start one with `tokenpaths seal --workers N`")
    work(name, number, folder)


def _place(settings: Settings, text: str) -> Path:
    """The shards of a run of that name; else a folder (``./name`` where both are there)."""
    from tokenpaths.engine.base.files import is_name

    path = named_file(text).expanduser()
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
