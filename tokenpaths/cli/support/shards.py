"""What ``tokenpaths trace`` needs for a part of a run: which part, and who writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.base.records import ModuleInfo, RunInfo
    from tokenpaths.engine.data.datasets import Dataset
    from tokenpaths.engine.store.file.shard_format import Manifest
    from tokenpaths.engine.store.write.shard_writer import ShardWriter


class AlreadyTraced(Exception):
    """The shard is finished, and of just this model and data."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest.name)
        self.manifest = manifest


@dataclass(frozen=True)
class WishedShard:
    """``--shard`` as it was given."""

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
            return ShardWriter(
                self.folder,
                info,
                modules,
                shard,
                overwrite=anew,
                skipped=lambda: (part.num_skipped, list(part.problems)),
            )

        return make

    def say(self, manifest: Manifest | None, run: str) -> None:
        """Where the shard is."""
        from tokenpaths.engine.store.file.shard_format import Shard, read_manifest

        name = Shard(self.shard, self.of, 0, 0, 0, "").name
        done = manifest or read_manifest(self.folder / name)
        was = "was traced before and is" if manifest else "is"
        typer.echo(f"{done.name} of run {run} {was} in {self.folder / name} ({done.tokens:,} tokens)")


def wished_shard(
    settings: Settings,
    shard: str | None,
    run: str | None,
    shards_dir: Path | None,
    overwrite: bool,
    beside: bool,
    all_shards: bool,
) -> WishedShard | None:
    """What ``--shard`` asks for; ``all_shards``: ``--shards`` was given.

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
    return WishedShard(number, of, folder, overwrite)


def shards_folder(settings: Settings, run: str, shards_dir: Path | None) -> Path:
    """Folder of the shards of one run."""
    return (shards_dir or settings.data_dir / "shards") / run


def made_with(device: Any) -> dict[str, Any]:
    """What rounding depends on besides the model and the batches."""
    import torch

    kind = getattr(device, "type", str(device))
    where = torch.cuda.get_device_name(device) if kind == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {"device": kind, "kind": where, "threads": torch.get_num_threads(), "torch": torch.__version__}
