"""Merge of the shards of many workers into one run: check all of them, then pass their batches to one writer.

Batches go through ``RunWriter`` in the order of the data set, cut as a single process would have cut them, so the run
is row for row that of a single process; only ``run.created_at`` differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenpaths.engine.base.errors import WriterFailed
from tokenpaths.engine.base.files import is_disk_full
from tokenpaths.engine.base.records import DATA_SHA256, ModuleInfo, RunInfo
from tokenpaths.engine.data.labels import Remarks
from tokenpaths.engine.data.walk import Walk
from tokenpaths.engine.store.file import SCHEMA_VERSION
from tokenpaths.engine.store.file.schema import layout_for
from tokenpaths.engine.store.file.shard_format import (
    ABOUT,
    MANIFEST,
    Manifest,
    ShardError,
    check_sums,
    read_about,
    read_manifest,
)
from tokenpaths.engine.store.write.parts.plan import remove_lost
from tokenpaths.engine.store.write.shard_reader import read_batches, read_twin
from tokenpaths.engine.store.write.writer import RunWriter

_SAME = (
    ("run", "are of run"),
    ("model", "were traced with model"),
    ("checkpoint_sha256", "were traced with checkpoint"),
    ("dataset", "are of data set"),
    ("split", "are of split"),
    ("dataset_sha256", "are of a data set of SHA-256"),
    ("places", "know of rows:"),
    ("options", "were traced with"),
    ("engine_version", "were traced by engine"),
    ("schema_version", "have schema version"),
)


@dataclass(frozen=True)
class SealProgress:
    """Progress of the sealing: ``done`` of ``total`` ``unit`` in the named stage."""

    stage: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True)
class ShardSet:
    """All shards of one run in order, with their manifests read and checked against each other."""

    folders: list[Path]
    manifests: list[Manifest]

    @property
    def run_id(self) -> str:
        return self.manifests[0].run

    @property
    def num_samples(self) -> int:
        return sum(manifest.samples for manifest in self.manifests)

    @property
    def num_tokens(self) -> int:
        return sum(manifest.tokens for manifest in self.manifests)

    @property
    def num_bytes(self) -> int:
        return sum(entry.bytes for manifest in self.manifests for entry in manifest.files.values())

    def notes(self) -> list[str]:
        """Warnings: samples changed or left out, shards made with different devices or libraries."""
        whole = Walk()
        for manifest in self.manifests:
            rows = [(remark.kind, remark.count, remark.first) for remark in manifest.remarks]
            whole.add(Walk(manifest.left_out, manifest.problems, Remarks.of_rows(rows)))
        notes = whole.notes()
        made = {repr(sorted(manifest.made_with.items())): manifest.made_with for manifest in self.manifests}
        if len(made) > 1:
            ways = "; ".join(", ".join(f"{k} {v}" for k, v in sorted(one.items())) for one in made.values())
            notes.append(
                f"the shards were not all traced alike ({ways}): numbers may differ in their last digit "
                "from those of one process"
            )
        return notes


def find_shards(places: Iterable[Path]) -> ShardSet:
    """The shards in these folders (one shard each, or all of them); reads manifests, no data files.

    Raises:
        ShardError: there is none; one is missing or duplicated; one does not belong to the others.
    """
    folders = [folder for place in places for folder in _folders_in(place)]
    if not folders:
        raise ShardError("no shard was given: give the folder that holds them", field="shards")
    seen: dict[Path, Path] = {}
    for folder in folders:
        if folder.resolve() in seen:
            raise ShardError(f"{folder} is given twice: name each shard once", field="shards")
        seen[folder.resolve()] = folder
    manifests = [read_manifest(folder) for folder in folders]
    _check_alike(folders, manifests)
    _check_complete(folders, manifests)
    order = sorted(range(len(folders)), key=lambda i: manifests[i].shard)
    shards = ShardSet([folders[i] for i in order], [manifests[i] for i in order])
    _check_rows(shards)
    return shards


def seal_shards(
    found: ShardSet,
    runs_dir: Path,
    *,
    run_id: str | None = None,
    overwrite: bool = False,
    on_progress: Callable[[SealProgress], None] = lambda progress: None,
) -> Path:
    """Verify every byte, then build the run file; returns its path. The shards are kept.

    Memory: as for a run traced by one process, about 60 bytes per distinct path plus the queued batches; of a shard,
    one row group of each of its files.

    Raises:
        ShardError: a wrong check sum, differing descriptions, an unreadable file.
        UserError: the run exists (without ``overwrite``), or no shard holds a sample.
        WriterFailed: the disk refused a write. No run is left in any of these cases.
    """
    _check_bytes(found, on_progress)
    info, modules = describe(found, run_id)
    layout = layout_for(info, modules, shard=True)
    done = 0
    try:
        with RunWriter(runs_dir, info, modules, overwrite=overwrite) as writer:
            remove_lost(found.folders, runs_dir, info.run_id)
            for folder, manifest in zip(found.folders, found.manifests, strict=True):
                before = done
                try:
                    for batch in read_batches(folder, manifest, layout):
                        writer.write_compact(batch)
                        done += batch.num_tokens
                        on_progress(SealProgress(f"reading {manifest.name}", done, found.num_tokens, "tokens"))
                    for ribbons in read_twin(folder, manifest, layout):
                        writer.write_twin(ribbons)
                except (pa.ArrowException, OSError, KeyError) as error:
                    raise ShardError(
                        f"{folder} cannot be read ({str(error).splitlines()[0][:200]}): copy {manifest.name} again, or "
                        "trace it again",
                        field="shards",
                    ) from error
                if done - before != manifest.tokens:
                    raise ShardError(
                        f"{folder} holds {done - before:,} tokens, its manifest says {manifest.tokens:,}: trace "
                        f"{manifest.name} again",
                        field="shards",
                    )
            return writer.seal(lambda name, at, of: on_progress(SealProgress(name, at, of, "stages")))
    except WriterFailed as error:
        raise nothing_left(error) from error


def nothing_left(error: WriterFailed) -> WriterFailed:
    """What a sealing that the disk refused ends with."""
    full = "the disk is full; " if is_disk_full(error) else ""
    return WriterFailed(
        f"{error}; {full}nothing is left of the run, and the shards are as they were: make room and seal again",
        field="data_dir",
    )


def describe(found: ShardSet, run_id: str | None) -> tuple[RunInfo, list[ModuleInfo]]:
    """The run and its modules, as the shards say."""
    info, modules = read_about(found.folders[0])
    info = replace(info, run_id=run_id or info.run_id)
    info.findings[DATA_SHA256] = found.manifests[0].dataset_sha256
    if notes := found.notes():
        info.findings["notes"] = [*info.findings.get("notes", []), *notes]
    return info, modules


def _folders_in(place: Path) -> list[Path]:
    """Folders of shards: ``place`` itself, the folder of the manifest ``place``, or the shards inside it."""
    if place.name == MANIFEST and place.is_file():
        return [place.parent]
    if (place / MANIFEST).is_file():
        return [place]
    if not place.is_dir():
        raise ShardError(f"there is no folder {place}: give the folder that holds the shards", field="shards")
    # One that has lost its manifest keeps its name, and is to be told; what else lies there is none of ours.
    inside = sorted(
        folder
        for folder in place.iterdir()
        if folder.is_dir()
        and not folder.name.startswith(".")
        and ((folder / MANIFEST).is_file() or re.fullmatch(r"\d+-of-\d+", folder.name))
    )
    if not inside:
        waiting = len(list(place.glob(".*.partial")))
        begun = f" ({waiting} begun and not finished)" if waiting else ""
        raise ShardError(f"{place} holds no finished shard{begun}: trace them with --shard i/N first", field="shards")
    return inside


def _check_alike(folders: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    first = manifests[0]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.of != first.of:
            raise ShardError(
                f"{folder} is {manifest.name}, {folders[0]} is {first.name}: all shards of a run are of one number",
                field="shards",
            )
        if not 1 <= manifest.shard <= manifest.of:
            raise ShardError(f"{folder} is {manifest.name}, which there cannot be: trace it again", field="shards")
        for name, words in _SAME:
            here, there = getattr(manifest, name), getattr(first, name)
            if here != there:
                raise ShardError(
                    f"{manifest.name} and {first.name} do not belong together: they {words} "
                    f"{_short(here, there)} and {_short(there, here)}; trace one of them again",
                    field="shards",
                )
        if manifest.files[ABOUT].sha256 != first.files[ABOUT].sha256:
            raise ShardError(
                f"{manifest.name} and {first.name} do not belong together: {ABOUT}, their description of the run, "
                "differs; trace one of them again",
                field="shards",
            )
    if first.schema_version != SCHEMA_VERSION:
        raise ShardError(
            f"the shards have schema version {first.schema_version}, this program seals {SCHEMA_VERSION}: "
            "trace and seal with one version",
            field="shards",
        )


def _short(value: Any, other: Any) -> str:
    """``value`` for a message: for two dictionaries only the differences."""
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{k} {v}" for k, v in sorted(value.items()) if other.get(k) != v) or "nothing else"
    return repr(value[:60]) if isinstance(value, str) else repr(value)


def _check_complete(folders: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    of = manifests[0].of
    where: dict[int, Path] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.shard in where:
            raise ShardError(
                f"{manifest.name} is there twice ({where[manifest.shard]} and {folder}): leave one of them out",
                field="shards",
            )
        where[manifest.shard] = folder
    missing = [shard for shard in range(1, of + 1) if shard not in where]
    if missing:
        if len(missing) == 1:
            raise ShardError(
                f"shard {missing[0]} of {of} is missing: trace it with --shard {missing[0]}/{of}, or give the folder "
                "it is in",
                field="shards",
            )
        listed = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        raise ShardError(
            f"{len(missing)} of {of} shards are missing ({listed}): trace them with --shard i/{of}, or give the "
            "folders they are in",
            field="shards",
        )


def _check_rows(found: ShardSet) -> None:
    """Check that the rows of the shards are contiguous."""
    at = 0
    for manifest in found.manifests:
        if manifest.first != at or manifest.stop < at:
            raise ShardError(
                f"{manifest.name} begins at row {manifest.first:,}, the one before ends at {at:,}: trace them again "
                "with one --batch-size",
                field="shards",
            )
        at = manifest.stop
    if at != found.manifests[0].places:
        raise ShardError(
            f"the shards end at row {at:,} of {found.manifests[0].places:,}: trace them again", field="shards"
        )


def _check_bytes(found: ShardSet, on_progress: Callable[[SealProgress], None]) -> None:
    done = 0

    def more(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        on_progress(SealProgress("checking sums", done, found.num_bytes, "bytes"))

    check_files(found)
    for folder, manifest in zip(found.folders, found.manifests, strict=True):
        check_sums(folder, manifest, more)


def check_files(found: ShardSet) -> None:
    """ShardError if a shard lacks a file that every shard has."""
    for folder, manifest in zip(found.folders, found.manifests, strict=True):
        if missing := {ABOUT, "token.parquet", "sample.parquet", "batch.parquet"} - set(manifest.files):
            raise ShardError(f"{folder} has no {min(missing)}: trace {manifest.name} again", field="shards")
