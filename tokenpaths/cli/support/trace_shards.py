"""``tokenpaths trace --shards N``: every shard on some worker, then one run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings

_NOT_FOR_WORKERS = ("shard", "shards", "workers", "ray", "data_dir", "shards_dir")


def trace_on_workers(context: typer.Context, settings: Settings, shards: int, workers: int, ray: str | None) -> None:
    """Trace all shards with the options of ``context``, start lost ones again, seal, delete the shards.

    Raises:
        UserError: a shard was refused, or lost too often; what is finished stays for the next try.
    """
    from tokenpaths.cli.seal import seal_and_say
    from tokenpaths.cli.support.progress_bar import bar
    from tokenpaths.cli.support.shard_workers import Following, LocalCluster, RayCluster, run_shards
    from tokenpaths.cli.support.shards import shards_folder
    from tokenpaths.engine.store.write.merge import find_shards

    run, given = context.params["run"], context.params["shards_dir"]
    folder = shards_folder(settings, run, given).resolve()
    _refuse_other_numbers(folder, shards)
    cluster = LocalCluster(min(workers, shards)) if ray is None else RayCluster(ray)
    shared = [
        *worker_arguments(context),
        "--data-dir",
        str(settings.data_dir.resolve()),
        "--shards-dir",
        str(folder.parent),
    ]
    with bar(f"tracing {run} in {shards} shards", shards, "shards") as progress:

        def told(following: Following) -> None:
            progress.update(following.done, f"{following.lost} lost and started again" if following.lost else "")

        run_shards(cluster, lambda shard: ["trace", *shared, "--shard", f"{shard}/{shards}"], shards, told)
    path = seal_and_say(settings, find_shards([folder]), run, context.params["overwrite"], remove=True)
    # What workers that died left behind; anything else there is not ours.
    for left in folder.glob(".*-of-*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    for left in folder.glob(".*-of-*.lock"):
        left.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    typer.echo(f"run {path.stem} is in {path}")


def worker_arguments(context: typer.Context) -> list[str]:
    """The options that were given, as a worker takes them: paths without the folder that they were given in."""
    arguments = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in _NOT_FOR_WORKERS or value is None or value == parameter.get_default(context):
            continue
        if isinstance(value, bool):
            arguments.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        arguments += [parameter.opts[0], _absolute(str(value)) if parameter.name in ("data", "model") else str(value)]
    return arguments


def _absolute(given: str) -> str:
    """A path that exists here, from the root on; names as they are."""
    head, colon, rest = given.rpartition("hf:")
    path = Path(rest if colon and not head else given).expanduser()
    return f"{head}{colon}{path.resolve()}" if "/" in given and path.exists() else given


def _refuse_other_numbers(folder: Path, shards: int) -> None:
    """Shards of another N would be in the way only when all is traced."""
    others = sorted(place.name for place in folder.glob("*-of-*") if not place.name.endswith(f"-of-{shards:04d}"))
    if others:
        raise UserError(
            f"{folder} holds shards of another number ({others[0]}): go on with that one, or delete them",
            field="shards",
        )
