"""Shards in the commands: one shard of a trace, all shards on workers, and sealing them into one run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokenpaths.cli.support.refusals import refuse_taken_name
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.base.records import ModuleInfo, RunInfo
    from tokenpaths.engine.data.datasets import Dataset
    from tokenpaths.engine.store.file.shard_format import Manifest
    from tokenpaths.engine.store.write.merge import ShardSet
    from tokenpaths.engine.store.write.parts.workers import Workers
    from tokenpaths.engine.store.write.shard_writer import ShardWriter


_NOT_FOR_WORKERS = ("shard", "shards", "workers", "ray", "data_dir", "shards_dir")


class AlreadyTraced(Exception):
    """The shard is finished, and of just this model and data."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest.name)
        self.manifest = manifest


@dataclass(frozen=True)
class OneShard:
    """One shard of a trace, as ``--shard i/N`` requests it."""

    shard: int
    of: int
    folder: Path
    """of all shards of the run"""
    overwrite: bool

    def __str__(self) -> str:
        return f", shard {self.shard} of {self.of}"

    def part_of(self, dataset: Dataset, batch_size: int) -> Dataset:
        """The rows of this shard."""
        from tokenpaths.engine.data.blocks import block_rows

        return dataset.shard(self.shard, self.of, block_rows(dataset.modality, batch_size))

    def writer_for(
        self, part: Dataset, options: Mapping[str, Any], made_with: Mapping[str, Any]
    ) -> Callable[[RunInfo, Sequence[ModuleInfo]], ShardWriter]:
        """What ``make_writer`` of a trace is; it raises ``AlreadyTraced`` where nothing is left to do."""
        from tokenpaths.engine.store.file.shard_format import Shard, finished_shard
        from tokenpaths.engine.store.write.shard_writer import ShardWriter

        shard = Shard(
            self.shard,
            self.of,
            part.first_place,
            part.stop_place,
            part.num_places,
            part.identity(),
            dict(options),
            dict(made_with),
        )

        def make(info: RunInfo, modules: Sequence[ModuleInfo]) -> ShardWriter:
            anew = self.overwrite
            if not anew:
                manifest, problem = finished_shard(self.folder, info, modules, shard)
                if manifest is not None:
                    raise AlreadyTraced(manifest)
                if problem:
                    typer.echo(f"traced anew: {problem}", err=True)
                    anew = True
            return ShardWriter(self.folder, info, modules, shard, overwrite=anew, walk=lambda: part.walk)

        return make

    def say(self, manifest: Manifest | None, run: str, part: Dataset, batch_size: int) -> None:
        """Where the shard is, and why it has no samples where ``part`` has none."""
        from tokenpaths.engine.data.blocks import block_rows
        from tokenpaths.engine.store.file.shard_format import Shard, read_manifest

        name = Shard(self.shard, self.of, 0, 0, 0, "").name
        done = manifest or read_manifest(self.folder / name)
        was = "was traced before and is" if manifest else "is"
        typer.echo(f"{done.name} of run {run} {was} in {self.folder / name} ({done.tokens:,} tokens)")
        if part.stop_place == part.first_place:
            rows = block_rows(part.modality, batch_size)
            finer = rows > 1 and batch_size > 1 and part.num_places >= self.of
            typer.echo(
                f"it has no samples: shards are cut by {rows:,} sample{'s' * (rows != 1)}, and {part.name} has "
                f"{part.num_places:,} for {self.of:,} shards; "
                + (f"a smaller --batch-size than {batch_size} cuts by fewer" if finer else "take fewer shards"),
                err=True,
            )


def requested_shard(
    settings: Settings,
    shard: str | None,
    run: str | None,
    shards_dir: Path | None,
    overwrite: bool,
    beside: bool,
    all_shards: bool,
) -> OneShard | None:
    """The shard that ``--shard`` requests, if any; ``all_shards``: ``--shards`` was given.

    Raises:
        UserError: no such shard, no ``--run``, or an option that a part of a run cannot have.
    """
    if shard is None and not all_shards:
        if shards_dir is not None:
            raise UserError("--shards-dir is for --shard and --shards.", field="shards_dir")
        return None
    if shard is not None and all_shards:
        raise UserError("--shard traces one part, --shards all of them; give one of the two.", field="shard")
    from tokenpaths.engine.base.files import check_name
    from tokenpaths.engine.store.file.shard_format import parse_shard

    if run is None:
        raise UserError("shards need --run: the name of the run holds them together.", field="run")
    if beside:
        raise UserError("--beside compares two whole runs; leave it out with shards.", field="beside")
    folder = shards_folder(settings, check_name(run, field="run"), shards_dir)
    if shard is None:
        return None
    number, of = parse_shard(shard)
    return OneShard(number, of, folder, overwrite)


def shards_folder(settings: Settings, run: str, shards_dir: Path | None) -> Path:
    """Folder of the shards of one run."""
    return (shards_dir or settings.data_dir / "shards") / run


def made_with(device: Any) -> dict[str, Any]:
    """What rounding depends on besides the model and the batches."""
    import torch

    kind = getattr(device, "type", str(device))
    where = torch.cuda.get_device_name(device) if kind == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {"device": kind, "kind": where, "threads": torch.get_num_threads(), "torch": torch.__version__}


def trace_on_workers(context: typer.Context, settings: Settings, shards: int, workers: int, ray: str | None) -> None:
    """Trace all shards with the options of ``context``, start lost ones again, seal, delete the shards.

    Raises:
        UserError: a shard was refused, or lost too often; what is finished stays for the next try.
    """
    from tokenpaths.cli.support.progress_bar import bar
    from tokenpaths.cli.support.shard_workers import (
        IN_PARTS_TOKENS,
        Following,
        LocalCluster,
        RayCluster,
        run_shards,
        seal_workers,
    )
    from tokenpaths.engine.store.write.merge import find_shards

    run = context.params["run"]
    folder = shards_folder(settings, run, context.params["shards_dir"]).resolve()
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

        def show(following: Following) -> None:
            told = [f"{following.lost} lost and started again"] if following.lost else []
            told += [f"{following.held} times held by another process"] if following.held else []
            progress.update(following.done, ", ".join(told))

        run_shards(cluster, lambda shard: ["trace", *shared, "--shard", f"{shard}/{shards}"], shards, show)
    found = find_shards([folder])
    # Of a smaller run one file is soon made, and easier to send.
    sealing = seal_workers(workers, ray) if found.num_tokens >= IN_PARTS_TOKENS and (ray or workers > 1) else None
    path = seal_with_bar(settings, found, run, context.params["overwrite"], remove=True, workers=sealing)
    # Left behind by dead workers; leave anything else alone.
    for left in folder.glob(".*-of-*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    for left in folder.glob(".*-of-*.lock"):
        left.unlink(missing_ok=True)
    _remove_if_empty({folder})
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


def _absolute(text: str) -> str:
    """A path that exists here, or a pattern of shards, from the root on; names as they are."""
    from tokenpaths.engine.data.sources.shard_names import shard_names

    head, colon, rest = text.rpartition("hf:")
    path = Path(rest if colon and not head else text).expanduser()
    return f"{head}{colon}{path.resolve()}" if "/" in text and (path.exists() or shard_names(text)) else text


def _refuse_other_numbers(folder: Path, shards: int) -> None:
    """Shards of another N would be in the way only when all is traced; what dead workers left (``.…``) is not."""
    names = (place.name for place in folder.glob("[!.]*-of-*"))
    others = sorted(name for name in names if not name.endswith(f"-of-{shards:04d}"))
    if others:
        raise UserError(
            f"{folder} holds shards of another number ({others[0]}): go on with that one, or delete them",
            field="shards",
        )


def seal_with_bar(
    settings: Settings,
    shard_set: ShardSet,
    run: str | None,
    overwrite: bool,
    remove: bool,
    workers: Workers | None = None,
) -> Path:
    """Seal, with a bar for each part of the work; returns the run's file. With ``workers`` it is a run in parts."""
    from tokenpaths.cli.support.progress_bar import bar
    from tokenpaths.engine.store.write.merge import SealProgress, seal_shards
    from tokenpaths.engine.store.write.parts.seal_in_parts import seal_in_parts
    from tokenpaths.engine.store.write.writer import remove_abandoned

    name = run or shard_set.run_id
    refuse_taken_name(settings, name, overwrite)
    remove_abandoned(settings.runs_dir)
    for note in shard_set.notes():
        typer.echo(f"note: {note}", err=True)
    shards = "1 shard" if len(shard_set.folders) == 1 else f"{len(shard_set.folders):,} shards"
    sizes = {"bytes": shard_set.num_bytes, "tokens": shard_set.num_tokens}
    total = sum(sizes.values()) if workers is None else 3 * len(shard_set.folders)
    units = "bytes and tokens" if workers is None else "pieces"
    with bar(f"sealing {shards}, {shard_set.num_tokens:,} tokens", total, units) as shown:
        before: dict[str, int] = {}
        """how much was done when each stage began"""

        def show(progress: SealProgress) -> None:
            of = f" ({progress.done + 1} of {progress.total})" if progress.unit == "stages" else ""
            if progress.unit == "stages":
                done = total
            elif progress.unit == "pieces":
                done = before.setdefault(progress.stage, len(before) * len(shard_set.folders)) + progress.done
            else:
                done = progress.done + (sizes["bytes"] if progress.unit == "tokens" else 0)
            shown.update(done, f"{progress.stage}{of}")

        if workers is None:
            path = seal_shards(shard_set, settings.runs_dir, run_id=name, overwrite=overwrite, on_progress=show)
        else:
            path = seal_in_parts(
                shard_set, settings.runs_dir, workers, run_id=name, overwrite=overwrite, on_progress=show
            )
    if remove:
        for folder in shard_set.folders:
            shutil.rmtree(folder, ignore_errors=True)
        _remove_if_empty({folder.parent for folder in shard_set.folders})
    return path


def _remove_if_empty(folders: set[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
