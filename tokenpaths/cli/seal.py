"""``tokenpaths seal``: the shards of many workers become one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenpaths.cli.support.options import DataDir
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.store.write.merge import ShardSet


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
    from tokenpaths.engine.base.files import keep_free
    from tokenpaths.engine.store.write.merge import find_shards

    settings = load_settings(data_dir=data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    path = seal_and_say(settings, find_shards([_place(settings, one) for one in shards]), run, overwrite, remove_shards)
    typer.echo(f"run {path.stem} is in {path}")


def seal_and_say(settings: Settings, found: ShardSet, run: str | None, overwrite: bool, remove: bool) -> Path:
    """Seal, with a bar for each part of the work; returns the run's file."""
    import shutil

    from tokenpaths.cli.support.progress_bar import bar
    from tokenpaths.engine.base.files import run_file
    from tokenpaths.engine.store.write.merge import SealProgress, seal_shards
    from tokenpaths.engine.store.write.writer import remove_abandoned

    name = run or found.run_id
    if run_file(settings.runs_dir, name).exists() and not overwrite:
        raise UserError(f"There is a run {name!r} already; give another name with --run, or --overwrite.", field="run")
    remove_abandoned(settings.runs_dir)
    for note in found.notes():
        typer.echo(f"note: {note}", err=True)
    shards = "1 shard" if len(found.folders) == 1 else f"{len(found.folders):,} shards"
    total = found.num_bytes + found.num_tokens
    with bar(f"sealing {shards}, {found.num_tokens:,} tokens", total, "bytes and tokens") as shown:

        def told(progress: SealProgress) -> None:
            before = {"bytes": 0, "tokens": found.num_bytes, "stages": total}[progress.unit]
            done = before + (0 if progress.unit == "stages" else progress.done)
            of = f" ({progress.done + 1} of {progress.total})" if progress.unit == "stages" else ""
            shown.update(done, f"{progress.stage}{of}")

        path = seal_shards(found, settings.runs_dir, run_id=name, overwrite=overwrite, on_progress=told)
    if remove:
        for folder in found.folders:
            shutil.rmtree(folder, ignore_errors=True)
        _remove_if_empty({folder.parent for folder in found.folders})
    return path


def _remove_if_empty(folders: set[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _place(settings: Settings, given: str) -> Path:
    """The shards of a run of that name; else a folder (``./name`` where both are there)."""
    from tokenpaths.engine.base.files import is_name

    path = Path(given).expanduser()
    named = settings.data_dir / "shards" / given
    if is_name(given) and named.is_dir():
        return named
    if is_name(given) and not path.exists():
        raise UserError(
            f"there are no shards of a run {given!r} in {named.parent}, and no folder of that name; "
            "give the folder that holds the shards",
            field="shards",
        )
    return path
